# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A directory of the host as the place where a model comes from: a mounted mirror, a disk that was brought along."""

from __future__ import annotations

import hashlib
import os
from typing import Dict, List

from .._core.errors import GpuFleetError
from .manifest import RECORD, File, Manifest, Record, read_record, safe
from .request import Asked

_CHUNK = 1 << 22


class Source:
    """The same two questions as a hub answers. Nothing in the directory is changed."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._directory = str(asked.source)

    def info(self, revision: str) -> Manifest:
        """The files that are wanted; with hashes where the directory has a record. Raises GpuFleetError."""
        if not os.path.isdir(self._directory):
            raise GpuFleetError(
                "source %s is no directory on this host. Correct it, or mount what should be there." % self._directory, kind="no_source"
            )
        record = read_record(self._directory)
        if record is None:
            check_proven(self._asked)
            return Manifest(None, tuple(each for each in self._listed() if self._asked.wants(each.path)))
        check_same(self._asked, record, revision)
        return Manifest(record.commit, tuple(each for each in record.files if self._asked.wants(each.path)))

    def fetch(self, files: List[File], directory: str, parts: str) -> Dict[str, str]:
        """Copy files; returns the SHA-256 of what was read of each, by path. Raises GpuFleetError."""
        os.makedirs(parts, exist_ok=True)
        read: Dict[str, str] = {}
        for number, each in enumerate(files):
            source, target = os.path.join(self._directory, each.path), os.path.join(directory, each.path)
            part = os.path.join(parts, "copy-%d" % number)
            try:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                read[each.path] = _copy(source, part)
                os.replace(part, target)
            except OSError as exc:
                raise GpuFleetError(
                    "Cannot copy %s to %s: %s. Run again when that is mended." % (source, target, exc.strerror), kind="copy_failed"
                ) from exc
        return read

    def _listed(self) -> List[File]:
        found = []
        for base, directories, names in os.walk(self._directory, followlinks=True):
            directories[:] = sorted(each for each in directories if not each.startswith("."))
            for name in sorted(names):
                path = os.path.join(base, name)
                relative = os.path.relpath(path, self._directory)
                if name != RECORD and not name.startswith(".") and os.path.isfile(path):
                    try:
                        found.append(File(safe(relative), os.path.getsize(path)))
                    except ValueError as exc:
                        raise GpuFleetError("In source %s %s. Rename it there." % (self._directory, exc)) from exc
        if not found:
            raise GpuFleetError(
                "source %s has no files in it. Correct it, or mount what should be there." % self._directory, kind="no_source"
            )
        return found


def check_proven(asked: Asked) -> None:
    """Refuse to call what a source without a record holds by the name of a repository: nothing there says so."""
    if asked.repo is not None:
        raise GpuFleetError(
            "source %s has no record (%s) of what it holds, so nothing proves that it is %s. Leave repo and revision out to take it as it "
            "is, or give a source that this collection has made." % (asked.source, RECORD, asked.repo),
            kind="unproven",
        )


def check_same(asked: Asked, record: Record, revision: str) -> None:
    """Refuse a source whose record says that it is another model, or another revision, than the one that is asked for."""
    if asked.repo is not None and (record.repo != asked.repo or revision not in (record.revision, record.commit)):
        raise GpuFleetError(
            "source %s has %s at %s, not %s at %s. Correct source, or repo and revision."
            % (asked.source, record.repo, record.commit or record.revision, asked.repo, revision),
            kind="other_model",
        )


def _copy(source: str, target: str) -> str:
    running = hashlib.sha256()
    with open(source, "rb") as reading, open(target, "wb") as writing:
        for chunk in iter(lambda: reading.read(_CHUNK), b""):
            running.update(chunk)
            writing.write(chunk)
        writing.flush()
        os.fsync(writing.fileno())
    return running.hexdigest()
