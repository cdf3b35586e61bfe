# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One vLLM environment as asked: look, plan, and in a real run carry the plan out."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from .._core.clock import Clock, Deadline
from .._core.errors import GpuFleetError
from .._core.files import WantedFile, apply_change, compare
from .._core.runner import Runner
from .build import SCRATCH, build, point
from .installers import choose
from .interpreter import find_interpreter
from .look import RECORD, Found, look, python_of, read_record
from .plan import Plan, make_plan
from .request import Asked, request
from .users import User, users_of


def _free_mib(path: str) -> int:
    """Room on the file system that holds, or will hold, a path."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize // (1 << 20)


@dataclass
class Ports:
    """The world, as far as an installation touches it."""

    runner: Runner = field(default_factory=Runner)
    clock: Clock = field(default_factory=Clock)
    users_of: Callable[[Sequence[str]], List[User]] = users_of
    free_mib: Callable[[str], int] = _free_mib


def ensure(params: Mapping[str, Any], ports: Ports, check_mode: bool) -> Dict[str, Any]:
    """Bring the environment to the state of the parameters; returns the module's result. Raises GpuFleetError."""
    asked = request(params)
    found = look(asked)
    plan = make_plan(asked, found, ports.users_of)
    if plan.tree is None:
        return _result(asked, plan, found, found, [])
    warnings: List[str] = []
    if check_mode:
        if plan.build:
            warnings = _prepare(asked, plan, ports)[2]
        return _result(asked, plan, found, None, warnings)
    with _Lock(asked, ports.runner):
        # What another run did while this one waited for its turn, or looked, counts.
        found = look(asked)
        plan = make_plan(asked, found, ports.users_of)
        if plan.tree is not None:
            warnings = _carry_out(asked, plan, ports)
        return _result(asked, plan, found, look(asked), warnings)


def _prepare(asked: Asked, plan: Plan, ports: Ports) -> Any:
    """What a build needs, before anything is made: an interpreter, an installer, room."""
    interpreter = find_interpreter(asked.python, ports.runner)
    installer = choose(asked, interpreter)
    free = ports.free_mib(asked.trees)
    if free < asked.space_mib:
        raise GpuFleetError(
            "%s has %d MiB free, and an environment takes up to %d MiB (space_mib). Make room, or set path to another file system. "
            "Nothing was changed." % (os.path.dirname(asked.path), free, asked.space_mib),
            kind="no_space",
        )
    warnings = []
    if interpreter.unreachable is not None:
        warnings.append(
            "%s can't be run by others than the owner of %s: a service that runs as another user won't start with it. Set python to an "
            "interpreter that everybody can run." % (interpreter.path, interpreter.unreachable)
        )
    return interpreter, installer, warnings


def _carry_out(asked: Asked, plan: Plan, ports: Ports) -> List[str]:
    warnings: List[str] = []
    tree = str(plan.tree)
    if plan.build:
        interpreter, installer, warnings = _prepare(asked, plan, ports)
    for path in plan.discard + tuple(_left_over(asked)):
        _remove(path)
    if plan.build:
        record = build(asked, tree, interpreter, installer, ports.runner, Deadline(ports.clock, asked.timeout))
        text = json.dumps(record, indent=2, sort_keys=True) + "\n"
        change = compare(WantedFile(os.path.join(tree, RECORD), text.encode("utf-8"), uid=os.geteuid(), gid=os.getegid()))
        if change is not None:
            apply_change(change)
    point(asked.path, tree)
    for path in plan.prune:
        _remove(path)
    return warnings


def _left_over(asked: Asked) -> List[str]:
    """The scratch directories of runs that were killed."""
    return [os.path.join(asked.trees, name) for name in sorted(os.listdir(asked.trees)) if name.startswith(SCRATCH)]


def _remove(path: str) -> None:
    try:
        shutil.rmtree(path)
    except OSError as exc:
        raise GpuFleetError("Cannot remove %s: %s. Remove it by hand and run again." % (path, exc.strerror)) from exc


def _result(asked: Asked, plan: Plan, before: Found, after: Optional[Found], warnings: List[str]) -> Dict[str, Any]:
    """``after`` None: check mode, what would be."""
    changed = plan.tree is not None
    current = after.current if after is not None else None
    record = read_record(current.path) if current is not None else None
    now = _state(before, asked)
    then = {"path": asked.path, "version": asked.version, "tree": str(plan.tree)} if after is None else _state(after, asked)
    if not changed:
        then = now
    return {
        "changed": changed,
        "path": asked.path,
        "executable": os.path.join(asked.path, "bin", "vllm"),
        "version": current.version if current is not None else asked.version,
        "python": python_of(current),
        "tree": str(plan.tree) if changed else (os.path.realpath(asked.path) if current is not None else None),
        "installer": record.get("installer") if record else None,
        "managed": before.kind != "foreign",
        "actions": plan.actions(asked),
        "warnings": warnings,
        "diff": {"before": _text(now), "after": _text(then)},
    }


def _state(found: Found, asked: Asked) -> Dict[str, Any]:
    if found.current is None:
        return {}
    return {"path": asked.path, "version": found.current.version, "tree": os.path.realpath(found.current.path)}


def _text(state: Dict[str, Any]) -> str:
    return "".join("%s: %s\n" % (key, value) for key, value in sorted(state.items()))


class _Lock:
    """One installation at a time for a path. The kernel lets go of it when its holder dies, and the installer that it has started."""

    def __init__(self, asked: Asked, runner: Runner) -> None:
        self._asked = asked
        self._runner = runner
        self._fd = -1

    def __enter__(self) -> None:
        try:
            os.makedirs(self._asked.trees, mode=0o755, exist_ok=True)
            os.chmod(self._asked.trees, 0o755)
            self._fd = os.open(os.path.join(self._asked.trees, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise GpuFleetError(
                "Another run is installing into %s right now. Wait until it has ended, then run again." % self._asked.path, kind="busy"
            ) from None
        except OSError as exc:
            raise GpuFleetError("Cannot prepare %s: %s." % (self._asked.trees, exc.strerror)) from exc
        self._runner.pass_fds = (self._fd,)

    def __exit__(self, *exc: Any) -> None:
        self._runner.pass_fds = ()
        os.close(self._fd)
