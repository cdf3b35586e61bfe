# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One model's directory as asked: look, plan, and in a real run carry the plan out."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Union

from .._core.clock import Clock, Deadline
from .._core.errors import GpuFleetError
from .._core.runner import Runner
from .hub import Hub
from .land import bytes_needed, land, put_back, write_record
from .manifest import File, Manifest
from .plan import Found, Plan, look, make_plan, origin
from .remote import Remote
from .request import Asked, request
from .source import Source

_MIB = 1 << 20


def _free_bytes(path: str) -> int:
    while not os.path.exists(path):
        path = os.path.dirname(path)
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


@dataclass
class Ports:
    """The world, as far as fetching touches it."""

    runner: Runner = field(default_factory=Runner)
    clock: Clock = field(default_factory=Clock)
    free_bytes: Callable[[str], int] = _free_bytes


def ensure(params: Mapping[str, Any], ports: Ports, check_mode: bool) -> Dict[str, Any]:
    """Bring the directory to the state of the parameters; returns the module's result. Raises GpuFleetError."""
    asked = request(params)
    origin_of = _Origin(asked, ports)
    found = look(asked)
    if check_mode and asked.repo and not asked.source and found.kind != "ours" and not os.access(asked.python, os.X_OK):
        return _unknown(asked)
    plan = make_plan(asked, found, origin_of.info)
    _check_room(asked, plan, ports)
    if not check_mode:
        if found.put_back:
            put_back(asked)
        if found.left_over:
            shutil.rmtree(asked.old)
        found = replace(found, directory=asked.path)
        if plan.adopt or plan.note:
            write_record(asked, asked.path, plan.manifest or Manifest(None, ()))
        elif plan.manifest is not None:
            land(asked, found, plan, origin_of.fetch, ports.runner)
    return _result(asked, found, plan)


class _Origin:
    """Where the model comes from: a directory of this host or another one where one is given, else the hub."""

    def __init__(self, asked: Asked, ports: Ports) -> None:
        deadline = Deadline(ports.clock, asked.timeout)
        self._source: Union[Source, Remote, None] = None
        if asked.source is not None:
            own = asked.source.startswith("/")
            self._source = Source(asked) if own else Remote(asked, ports.runner, ports.clock, deadline)
        self._hub = Hub(asked, ports.runner, deadline)

    def info(self, revision: str) -> Manifest:
        return self._source.info(revision) if self._source is not None else self._hub.info(revision)

    def fetch(self, manifest: Manifest, files: List[File], directory: str, parts: str) -> Dict[str, str]:
        if self._source is not None:
            return self._source.fetch(files, directory, parts)
        self._hub.fetch(manifest, files, directory, parts)
        return {}


def _check_room(asked: Asked, plan: Plan, ports: Ports) -> None:
    if not plan.fetch:
        return
    needed, free = bytes_needed(asked, plan), ports.free_bytes(os.path.dirname(asked.path))
    if needed + asked.min_free_mib * _MIB > free:
        raise GpuFleetError(
            "%s needs %d MiB at %s, and %d MiB are free there, of which %d are to stay so (min_free_mib). Make room, or set path to "
            "another file system. Nothing was fetched."
            % (origin(asked, None), -(-needed // _MIB), os.path.dirname(asked.path), free // _MIB, asked.min_free_mib),
            kind="no_space",
        )


def _unknown(asked: Asked) -> Dict[str, Any]:
    """A check on a host where vLLM is yet to be installed: what asks the hub is not there yet."""
    said = "fetch %s into %s (how much that is can be told once %s is there)" % (origin(asked, None), asked.path, asked.python)
    return _assemble(asked, True, None, None, None, [said], True, "", "path: %s\nmodel: %s\n" % (asked.path, origin(asked, None)))


def _result(asked: Asked, found: Found, plan: Plan) -> Dict[str, Any]:
    record = found.record
    before = "" if record is None else _state(asked, record.commit, len(record.files))
    actions = ["give %s its name back: a run was cut short" % asked.path] if found.put_back else []
    actions += ["remove %s, which a run that was cut short has left" % asked.old] if found.left_over else []
    actions += plan.actions(asked)
    changed = bool(actions)
    manifest = plan.manifest
    if manifest is None:
        commit, files = (record.commit, list(record.files)) if record is not None else (None, None)
        after = before
    else:
        commit, files = manifest.commit, list(manifest.files)
        after = _state(asked, manifest.commit, len(manifest.files))
    return _assemble(asked, changed, commit, files, plan.fetch, actions, record is not None or changed, before, after)


def _assemble(
    asked: Asked, changed: bool, commit: Optional[str], files: Optional[List[File]], fetched: Optional[List[File]], actions: List[str],
    managed: bool, before: str, after: str,
) -> Dict[str, Any]:  # fmt: skip
    return {
        "changed": changed,
        "path": asked.path,
        "repo": asked.repo,
        "revision": asked.revision if asked.repo else None,
        "commit": commit,
        "source": asked.source,
        "files": None if files is None else len(files),
        "size_mib": None if files is None else _mib(files),
        "fetched_files": None if fetched is None else len(fetched),
        "fetched_mib": None if fetched is None else _mib(fetched),
        "managed": managed,
        "actions": actions,
        "diff": {"before": before, "after": after},
    }


def _mib(files: List[File]) -> int:
    return -(-sum(each.size for each in files) // _MIB)


def _state(asked: Asked, commit: Optional[str], files: int) -> str:
    lines = ["path: %s" % asked.path, "model: %s" % (asked.repo or asked.source)]
    return "\n".join(lines + ["commit: %s" % commit, "files: %d" % files]) + "\n"
