# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make or refresh a virtual environment that the Makefile runs things in.

    python3 tests/gates/make_venv.py .venv                   the gates, with the oldest supported ansible-core
    python3 tests/gates/make_venv.py --newest .venv-newest   the tests' tools, with the newest one

Run by whatever `python3` is; picks a supported interpreter by itself (`PYTHON=/path/to/python` overrides, for the second
`PYTHON_NEWEST`). A second run with unchanged requirements returns at once. Two at a time wait for each other.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import subprocess
import sys
from typing import List, NamedTuple, Tuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from pythons import Interpreter, ask, find_pythons

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STAMP = ".gpufleet-complete"


class Kind(NamedTuple):
    """What an environment is for. ``preferred``: the Pythons that will do, the best first; ``files``: all that it is made from."""

    requirements: str
    files: Tuple[str, ...]
    preferred: Tuple[Tuple[int, int], ...]
    variable: str
    need: str


# What works with the oldest core on the oldest Python mostly works on the newer ones; the tests see to the rest.
OLDEST = Kind(
    "requirements-dev.txt",
    ("requirements.txt", "requirements-test.txt", "requirements-dev.txt"),
    ((3, 11), (3, 12), (3, 13), (3, 14)),
    "PYTHON",
    "The tests and the lab need Python 3.11 to 3.14; found here: %s. On Debian 12 or Ubuntu 24.04 and newer:\n"
    "    apt-get install -y python3 python3-venv\nor name one: make venv PYTHON=/path/to/python3.11",
)
NEWEST = Kind(
    "requirements-newest.txt",
    ("requirements.txt", "requirements-test.txt", "requirements-newest.txt"),
    ((3, 13), (3, 12), (3, 14)),
    "PYTHON_NEWEST",
    "The newest supported ansible-core is tested too, and needs Python 3.12 to 3.14; found here: %s. On Debian 13 or"
    " Ubuntu 24.04 and newer:\n    apt-get install -y python3 python3-venv\nelsewhere:\n"
    "    make venv && .venv/bin/uv python install 3.13\nThen, where it is not on PATH:\n"
    "    make test PYTHON_NEWEST=/path/to/python3.13",
)


def choose(kind: Kind = OLDEST) -> Interpreter:
    """The interpreter for the environment. Exits with what is missing when there is none."""
    wanted = os.environ.get(kind.variable)
    found = find_pythons()
    if wanted:
        asked = ask(wanted)
        found = [] if asked is None else [asked]
    usable = [python for python in found if python.minor in kind.preferred]
    ready = [python for python in usable if python.has_venv]
    if ready:
        return min(ready, key=lambda python: kind.preferred.index(python.minor))
    if usable:
        raise SystemExit(
            "Python %d.%d at %s lacks its venv module. On Debian and Ubuntu:\n    apt-get install -y python3-venv"
            % (usable[0].minor + (usable[0].path,))
        )
    raise SystemExit(
        kind.need % (", ".join("%d.%d at %s" % (python.minor + (python.path,)) for python in found) or wanted or "none")
    )


def fingerprint(python: Interpreter, kind: Kind) -> str:
    """What the environment depends on, as one line."""
    digest = hashlib.sha256()
    for name in kind.files:
        with open(os.path.join(ROOT, name), "rb") as handle:
            digest.update(handle.read())
    return "%s %s" % (python.path, digest.hexdigest())


def _run(argv: List[str]) -> None:
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        sys.stdout.write(done.stdout.decode("utf-8", "replace"))
        raise SystemExit("Failed (exit %d): %s" % (done.returncode, " ".join(argv)))


def make(venv: str, kind: Kind) -> str:
    """Bring ``venv`` to the state of its kind's requirements; returns what was done in one line."""
    python = choose(kind)
    wanted = fingerprint(python, kind)
    stamp = os.path.join(venv, STAMP)
    before = ""
    if os.path.exists(stamp):
        with open(stamp, encoding="utf-8") as handle:
            before = handle.read().strip()
    if before == wanted:
        return "%s is up to date (Python %d.%d)." % ((venv,) + python.minor)
    # Updated in place where the interpreter stays: somebody may be running tests in it at this moment.
    if before.split(" ")[0] != python.path:
        _run([python.path, "-m", "venv", "--clear", venv])
    pip = [os.path.join(venv, "bin", "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _run(pip + ["-r", os.path.join(ROOT, kind.requirements)])
    with open(stamp, "w", encoding="utf-8") as handle:
        handle.write(wanted + "\n")
    return "%s is ready (Python %d.%d, %s)." % ((venv,) + python.minor + (python.path,))


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("venv", help="directory of the virtual environment")
    parser.add_argument("--newest", action="store_true", help="with the newest supported ansible-core")
    options = parser.parse_args()
    venv = os.path.abspath(options.venv)
    os.makedirs(os.path.join(ROOT, "build"), exist_ok=True)
    with open(os.path.join(ROOT, "build", "venv.lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        print(make(venv, NEWEST if options.newest else OLDEST))
    return 0


if __name__ == "__main__":
    sys.exit(main())
