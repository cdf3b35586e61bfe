# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the headers of a checkpoint said, kept for the next look at the very same files.

A large model has 30 MB of headers. Out of a file server that has forgotten them they take seconds, each time, and every look at a host
asks for them: the plan, the swap, the next swap back. It is kept in memory, until the host goes down.

The files are the same when each has the same place, size and times on disk; on a host's own disks nobody can set the time of a file's
last change (ctime). Each is opened to be asked: a file server's client believes what it has heard of a file for a minute, and asks
again when the file is opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import asdict
from typing import Any, Dict, List, Mapping, Optional

from .._core.errors import GpuFleetError
from .._core.files import WantedFile, apply_change, compare
from .._core.zipapp import source_of
from .._model.checkpoint import Checkpoint
from .._model.types import ModelFacts
from .quick import DOWNLOADS, Glance, quick_checkpoint
from .regular import open_regular

_FILE = "checkpoints.json"
_MOST = 64  # models
# What has been written so shortly before may be written again without another time: clocks of file systems are coarse.
_SETTLED_S = 2.0
# Another reading of headers may find something else in the same files.
_READ_BY = ("_preflight.quick", "_model.roles", "_model.checkpoint")


def glance_at(path: str, facts: ModelFacts, run: str, remember: bool, settled_s: float = _SETTLED_S) -> Optional[Glance]:
    """As ``quick_checkpoint``, or what it said when nothing about the files was different.

    ``remember`` lets it be kept in the directory ``run``, unless a file is younger than ``settled_s`` seconds.
    """
    key = _key(path, facts, settled_s)
    if key is None:
        return quick_checkpoint(path, facts)
    entries = _entries(run)
    found = _glance_of(entries.get(path), key)
    if found is None:
        found = quick_checkpoint(path, facts)
        # What was put in place while they were read is not what the key is of.
        if found is not None and remember and _key(path, facts, settled_s) == key:
            entries.pop(path, None)
            kept = {"key": key, "checkpoint": asdict(found.checkpoint), "float32_bytes": found.float32_bytes}
            entries[path] = dict(kept, digest=_digest(kept))
            _keep(run, entries)
    return found


def _key(path: str, facts: ModelFacts, settled_s: float) -> Optional[str]:
    """What a reading is good for: these files, as they are now, read by this very code. None while they may still be written."""
    latest = (time.time() - settled_s) * 1e9
    lines: List[str] = []
    try:
        for name in sorted(os.listdir(path)):
            status = _status(os.path.join(path, name))
            if max(status.st_mtime_ns, status.st_ctime_ns) > latest:
                return None
            mark = (name, status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            lines.append(repr(mark))
        lines += [repr(os.path.lexists(os.path.join(path, DOWNLOADS))), repr(facts), *map(source_of, _READ_BY)]
    except (OSError, GpuFleetError):
        return None
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _status(path: str) -> os.stat_result:
    """Of a file as whoever reads it now would find it. OSError for one that can't be read."""
    if os.path.isdir(path):
        return os.stat(path)
    with open_regular(path) as handle:
        return os.fstat(handle.fileno())


def _digest(kept: Mapping[str, Any]) -> str:
    """Of what is kept of one model, so that nothing is believed that was not written here."""
    plain = {name: value for name, value in kept.items() if name != "digest"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode("utf-8")).hexdigest()


def _entries(run: str) -> Dict[str, Any]:
    """By a model's path, the last one that was kept at the end."""
    try:
        with open_regular(os.path.join(run, _FILE)) as handle:
            found = json.load(handle)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _glance_of(entry: Any, key: str) -> Optional[Glance]:
    if not isinstance(entry, Mapping) or entry.get("key") != key or entry.get("digest") != _digest(entry):
        return None
    kept = entry["checkpoint"]
    plain: Dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
    return Glance(Checkpoint(**plain), entry["float32_bytes"])


def _keep(run: str, entries: Mapping[str, Any]) -> None:
    """A host that has no place for it yet gets none."""
    if not os.path.isdir(run) or not os.access(run, os.W_OK):
        return
    last = list(entries)[-_MOST:]
    text = json.dumps({path: entries[path] for path in last}) + "\n"
    try:
        change = compare(WantedFile(os.path.join(run, _FILE), text.encode("utf-8"), mode=0o600))
        if change is not None:
            apply_change(change)
    except GpuFleetError:
        return  # it is read again next time, which costs time and nothing else
