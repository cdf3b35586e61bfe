# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a plan to a directory: it grows beside its place, is held against its hashes, and then takes its name in one step."""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import replace
from typing import Any, Callable, Dict, List, Sequence

from .._core.errors import GpuFleetError
from .._core.files import WantedFile, apply_change, compare, sync_directory
from .._core.runner import Runner
from .manifest import RECORD, File, Manifest, Record, missing, wrong
from .plan import WORK, Found, Plan
from .request import Asked

# Fetches files into a directory, unfinished ones into another; returns hashes of what had none, by path.
Fetch = Callable[[Manifest, List[File], str, str], Dict[str, str]]


class Growing:
    """``<path>.partial``, held by one run at a time, and by what it started. The kernel lets go of it when the last of them dies."""

    def __init__(self, asked: Asked, runner: Runner) -> None:
        self.directory = asked.partial
        self.work = os.path.join(asked.partial, WORK)
        self.parts = os.path.join(self.work, "parts")
        self._asked = asked
        self._runner = runner
        self._fd = -1

    def __enter__(self) -> "Growing":
        try:
            os.makedirs(self.work, mode=0o755, exist_ok=True)
            self._fd = os.open(os.path.join(self.work, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise GpuFleetError(
                "Another run is fetching into %s right now. Wait until it has ended, then run again." % self._asked.path, kind="busy"
            ) from None
        except OSError as exc:
            raise GpuFleetError(
                "Cannot make %s: %s. Correct the rights, or set path to another directory." % (self.directory, exc.strerror),
                kind="not_writable",
            ) from exc
        self._runner.pass_fds = (self._fd,)
        return self

    def __exit__(self, *exc: Any) -> None:
        self._runner.pass_fds = ()
        os.close(self._fd)
        if os.path.isdir(self.work) and not _has_bytes(self.directory, self.work):
            shutil.rmtree(self.directory)  # nothing to go on from: nothing is left behind


def bytes_needed(asked: Asked, plan: Plan) -> int:
    """Bytes that are yet to be written, less what an earlier run has left to go on from."""
    parts = os.path.join(asked.partial, WORK, "parts")
    had = sum(_sizes(parts))
    return max(0, sum(each.size for each in missing(asked.partial, plan.fetch)) - had)


def land(asked: Asked, found: Found, plan: Plan, fetch: Fetch, runner: Runner) -> None:
    """Carry out a plan that fetches something. Raises GpuFleetError; what was fetched is kept for the next run."""
    manifest = plan.manifest
    if manifest is None:
        return
    before = os.umask(0o022)
    try:
        with Growing(asked, runner) as growing:
            _tidy(growing.directory, manifest.files)
            for each in plan.reuse:
                _take_over(os.path.join(found.directory, each.path), os.path.join(growing.directory, each.path))
            files = _fill(asked, manifest, growing, fetch)
            write_record(asked, growing.directory, replace(manifest, files=tuple(files)))
            shutil.rmtree(growing.work)
            _take_its_place(asked, plan.exchange)
    finally:
        os.umask(before)


def write_record(asked: Asked, directory: str, manifest: Manifest) -> None:
    """Say in a directory what it is."""
    revision = asked.revision if asked.repo else None
    record = Record(asked.repo, revision, manifest.commit, asked.source, manifest.files, asked.include, asked.exclude)
    path = os.path.join(directory, RECORD)
    change = compare(WantedFile(path, record.text().encode("utf-8"), uid=os.geteuid(), gid=os.getegid()))
    if change is not None:
        apply_change(change)


def put_back(asked: Asked) -> None:
    """End an exchange that was cut short: the model gets its name again."""
    _rename(asked.old, asked.path)
    sync_directory(os.path.dirname(asked.path))


def _fill(asked: Asked, manifest: Manifest, growing: Growing, fetch: Fetch) -> List[File]:
    """Fetch what is missing, until everything is as it should be; a file that came wrong is fetched once more."""
    files = list(manifest.files)
    for last in (False, True):
        waiting = [each for each in files if not (each.sha256 or each.git)] or missing(growing.directory, files)
        if waiting:
            read = fetch(manifest, waiting, growing.directory, growing.parts)
            files = [replace(each, sha256=read[each.path]) if each.path in read and not each.git else each for each in files]
        bad = wrong(growing.directory, files)
        if not bad:
            return files
        for each in bad:
            if os.path.lexists(os.path.join(growing.directory, each.path)):
                os.unlink(os.path.join(growing.directory, each.path))
        if last:
            raise GpuFleetError(
                "%s sent another content than its own list says, twice, for %s. Nothing of that was kept. If a mirror or proxy is between, "
                "look there; else correct revision."
                % (asked.source or asked.hub, ", ".join(each.path for each in bad[:3]) + (" and more" if len(bad) > 3 else "")),
                kind="hash_mismatch",
            )
    return files


def _tidy(directory: str, files: Sequence[File]) -> None:
    """Remove what an earlier run, for another revision, has left."""
    wanted = {os.path.join(directory, each.path) for each in files}
    for base, directories, names in os.walk(directory):
        directories[:] = [each for each in directories if each != WORK]
        for name in names:
            if os.path.join(base, name) not in wanted:
                os.unlink(os.path.join(base, name))


def _take_over(source: str, target: str) -> None:
    """The same file under two names, until one of them goes: no byte is copied, and who reads the old one keeps it."""
    if os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)  # a file system without links


def _take_its_place(asked: Asked, exchange: bool) -> None:
    parent = os.path.dirname(asked.path)
    if exchange:
        if os.path.lexists(asked.old):
            shutil.rmtree(asked.old)
        _rename(asked.path, asked.old)
    _rename(asked.partial, asked.path)
    sync_directory(parent)
    if exchange:
        shutil.rmtree(asked.old)


def _rename(source: str, target: str) -> None:
    try:
        os.rename(source, target)
    except OSError as exc:
        raise GpuFleetError("Cannot rename %s to %s: %s. Run again when that is mended." % (source, target, exc.strerror)) from exc


def _has_bytes(directory: str, work: str) -> bool:
    parts = os.path.join(work, "parts")
    for base, directories, names in os.walk(directory):
        if base == directory:
            directories[:] = [each for each in directories if each != WORK]
        for name in names:
            status = os.lstat(os.path.join(base, name))
            if status.st_size and status.st_nlink == 1:  # one with two names was taken over
                return True
    return sum(_sizes(parts)) > 0


def _sizes(parts: str) -> List[int]:
    return [os.path.getsize(os.path.join(base, name)) for base, directories, names in os.walk(parts) for name in names]
