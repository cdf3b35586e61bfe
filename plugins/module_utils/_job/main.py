# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program ``change.pyz`` on a host.

    change.pyz run                                  the job: carries out or finishes the change that was begun (root)
    change.pyz follow ID [--after SEQ] [--for S]    one line of JSON: how far it is, as soon as that is news (anybody)
    change.pyz result ID [--for S]                  one line of JSON: what came of it, once it has ended (root)
    change.pyz attend ID [--phase P] [--for S]      one line of JSON: the next phase, or the end with what came of it (root)
    change.pyz resume ID                            one line of JSON: whether it is still to be ended; a job that is gone is started (root)
    change.pyz received ID                          one line of JSON: what came of it has been heard, and is not told again (root)
    change.pyz unpack                               have its next start be quick, and the guard's (root)
    change.pyz module DIGEST                        one line of JSON: what the module vllm_service returns (root)
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, List, Mapping, Tuple

if TYPE_CHECKING:
    import argparse


def main(argv: List[str]) -> int:
    """Run one of them; returns the exit status."""
    if argv == ["run"]:
        return _run()  # what a change waits for reads no arguments, and loads nothing that could
    options = _options(argv)
    # What is not needed is not loaded: following is done once a second.
    if options.command == "follow":
        from .progress import follow as wait_for_news

        _tell(wait_for_news(options.id, options.after, options.seconds))
        return 0
    if options.command == "result":
        from .store import wait_for_result

        _tell(wait_for_result(options.id, options.seconds))
        return 0
    if options.command == "attend":
        from .attend import attend as wait_for_another

        _tell(wait_for_another(options.id, options.phase, options.seconds, options.steady))
        return 0
    if options.command == "resume":
        from .._service.ports import Ports
        from .store import Store
        from .underway import resume as start_again

        _tell({"id": options.id, "unfinished": start_again(options.id, Store(), Ports())})
        return 0
    if options.command == "received":
        from .store import Store

        _tell({"id": options.id, "received": Store().received(options.id)})
        return 0
    if options.command == "module":
        seen = os.stat(sys.argv[0])  # before the rest of it is loaded: it may be replaced at any time
        from .resident import serve

        _tell(serve(options.digest, sys.argv[0], seen))
        return 0
    if options.command == "unpack":
        return _unpack()
    return _run()


def _options(argv: List[str]) -> argparse.Namespace:
    import argparse

    parser = argparse.ArgumentParser(prog="change.pyz", description="A change of this host's vLLM services.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="carry out or finish the change that was begun (root)")
    follow = commands.add_parser("follow", help="print how far a change is, as soon as that is news")
    follow.add_argument("id", metavar="ID", help="the change's id, or `-` for the one that is under way or was last")
    follow.add_argument("--after", metavar="SEQ", type=int, default=0, help="the number of the last news that is known (0)")
    follow.add_argument("--for", metavar="SECONDS", type=float, default=10.0, dest="seconds", help="how long to wait for news (10)")
    result = commands.add_parser("result", help="print what came of a change, once it has ended (root)")
    result.add_argument("id", metavar="ID", help="the change's id")
    result.add_argument("--for", metavar="SECONDS", type=float, default=0.0, dest="seconds", help="how long to wait for its end (0)")
    attend = commands.add_parser("attend", help="print how far a change is, as soon as it is in another phase, or what came of it")
    attend.add_argument("id", metavar="ID", help="the change's id")
    attend.add_argument("--phase", metavar="PHASE", default="", help="the phase that is known already")
    attend.add_argument("--for", metavar="SECONDS", type=float, default=10.0, dest="seconds", help="how long to wait for another (10)")
    attend.add_argument("--steady", metavar="SECONDS", type=float, default=0.0, help="tell no phase before it has lasted for this long (0)")
    resume = commands.add_parser("resume", help="start the job of a change again that has not been brought to an end (root)")
    resume.add_argument("id", metavar="ID", help="the change's id")
    received = commands.add_parser("received", help="note that whoever asked for a change has heard what came of it (root)")
    received.add_argument("id", metavar="ID", help="the change's id")
    module = commands.add_parser("module", help="do what the module vllm_service does; its parameters come on standard input (root)")
    module.add_argument("digest", metavar="DIGEST", help="the SHA-256 of the program that is meant; any other one does nothing")
    commands.add_parser("unpack", help="have what is compiled of it, and of the guard, lie in memory, for a quick next start (root)")
    return parser.parse_args(argv)


def _run() -> int:
    from .job import run

    _unpack_beside()
    try:
        return run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the record stays, and the job's unit goes on with it\n")
        return 130


def _unpack() -> int:
    """This program, and the guard as it is now, where either does not lie there yet."""
    from .._core.unpack import unpack
    from .._core.unpacked import unpacked

    failed = 0
    for program, directory in _programs():
        try:
            if unpacked(program, directory) is None:
                unpack(program, directory)
        except OSError as exc:
            sys.stderr.write("%s cannot be unpacked to %s: %s\n" % (program, directory, exc))
            failed = 1
    return failed


def _programs() -> List[Tuple[str, str]]:
    """What is started anew for each change, and where it is unpacked. Of a host's first change there is no guard yet."""
    from .._guard import zipapp as guard
    from .._service import program as change
    from .._service.ports import Paths

    path = Paths().guard
    return [(sys.argv[0], change.UNPACKED)] + ([(path, guard.UNPACKED)] if os.path.exists(path) else [])


def _unpack_beside() -> None:
    """For whoever starts these programs next: it takes a second of CPU, while the job waits for its server to load.

    Only for speed: a host that can't start one more process, or holds something else in the place, has its change carried out all the same.
    """
    from .._core.unpacked import unpacked

    if any(unpacked(program, directory) is None for program, directory in _programs()):
        from .._core.runner import Runner

        try:
            Runner.leave(["nice", "-n", "19", sys.executable, sys.argv[0], "unpack"])
        except OSError as exc:
            sys.stderr.write("This program is not unpacked for its next start: %s\n" % exc)


def _tell(state: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(state) + "\n")
