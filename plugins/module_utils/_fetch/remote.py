# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Another host as the place where a model comes from, over SSH: what every host has serves, and a file is gone on from where it ends."""

from __future__ import annotations

import os
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, List, Optional

from .._core.clock import Clock, Deadline
from .._core.errors import GpuFleetError
from .._core.runner import Completed, Runner
from .manifest import RECORD, File, Manifest, parse_record, safe
from .request import Asked
from .source import check_proven, check_same

REMOTE = re.compile(r"(?P<host>[\w.@%-]+):(?P<directory>/.+)\Z")
_SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
# What ssh itself ends with when there is no connection, or none any more.
_NO_CONNECTION = 255
# Appends what a command writes to a file, which root opens and not the account that speaks SSH.
_APPEND = 'out=$1; shift; exec "$@" >>"$out"'


class Remote:
    """The same two questions as a hub answers, asked of ``host:/directory``. Nothing there is changed."""

    def __init__(self, asked: Asked, runner: Runner, clock: Clock, deadline: Deadline) -> None:
        match = REMOTE.match(str(asked.source))
        if match is None:
            raise ValueError("not a directory of another host: %r" % asked.source)
        self._asked = asked
        self._host = match.group("host")
        self._directory = match.group("directory").rstrip("/")
        self._runner = runner
        self._clock = clock
        self._deadline = deadline

    def info(self, revision: str) -> Manifest:
        """The files that are wanted; with hashes where the directory has a record. Raises GpuFleetError."""
        found = self._run("cat -- %s" % shlex.quote("%s/%s" % (self._directory, RECORD)))
        if found.ok:
            record = parse_record(found.stdout, "%s:%s" % (self._host, self._directory))
            check_same(self._asked, record, revision)
            return Manifest(record.commit, tuple(each for each in record.files if self._asked.wants(each.path)))
        listed = self._run("cd -- %s && find -L . -type f ! -path '*/.*' -printf '%%s %%P\\n'" % shlex.quote(self._directory))
        if not listed.ok:
            raise GpuFleetError(
                "%s has no directory %s that could be read: %s. Correct source, or its rights."
                % (self._host, self._directory, _last(listed)),
                kind="no_source",
            )
        check_proven(self._asked)
        try:
            pairs = [line.split(" ", 1) for line in listed.stdout.splitlines()]
            files = tuple(File(safe(path), int(size)) for size, path in sorted(pairs, key=lambda pair: pair[1]))
        except ValueError as exc:
            raise GpuFleetError("In source %s %s. Rename it there." % (self._asked.source, exc), kind="no_source") from exc
        wanted = tuple(each for each in files if self._asked.wants(each.path))
        if not wanted:
            raise GpuFleetError("source %s has no files in it. Correct it." % self._asked.source, kind="no_source")
        return Manifest(None, wanted)

    def fetch(self, files: List[File], directory: str, parts: str) -> Dict[str, str]:
        """Copy files, several at a time; returns the SHA-256 that the other host gives those without a hash."""
        os.makedirs(parts, exist_ok=True)
        with ThreadPoolExecutor(max_workers=self._asked.workers) as pool:
            hashes = list(pool.map(lambda each: self._copy(each, directory, parts), files))
        return {each.path: said for each, said in zip(files, hashes) if said is not None}

    def _copy(self, file: File, directory: str, parts: str) -> Optional[str]:
        source, target = shlex.quote("%s/%s" % (self._directory, file.path)), os.path.join(directory, file.path)
        part = os.path.join(parts, "ssh-" + file.path.replace("%", "%25").replace("/", "%2F"))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        tries = 0
        while True:
            had = os.path.getsize(part) if os.path.exists(part) else 0
            if had > file.size:
                os.unlink(part)
                continue
            done = self._run("tail -c +%d -- %s" % (had + 1, source), part) if had < file.size or not had else None
            now = os.path.getsize(part)
            if now == file.size:
                break
            tries = 0 if now > had else tries + 1
            if tries > self._asked.retries or (done is not None and done.rc not in (0, None, _NO_CONNECTION)):
                raise self._broken(file, done)
            self._clock.sleep(min(self._asked.retry_delay * 2 ** max(0, tries - 1), 30.0))
        said = None
        if not (file.sha256 or file.git):
            told = self._run("sha256sum -- %s" % source)
            said = told.stdout.lstrip("\\").split(" ")[0]
            if not told.ok or len(said) != 64:
                raise self._broken(file, told)
        _sync(part)
        os.replace(part, target)
        return said

    def _run(self, command: str, append_to: Optional[str] = None) -> Completed:
        argv = [*_SSH, self._host, command]
        if self._asked.ssh_user is not None:
            argv = ["runuser", "-u", self._asked.ssh_user, "--", *argv]
        if append_to is not None:
            argv = ["/bin/sh", "-c", _APPEND, "sh", append_to, *argv]
        done = self._runner.run(argv, self._deadline.remaining)
        if append_to is None and (done.rc == _NO_CONNECTION or done.timed_out):
            raise self._unreachable(done)
        return done

    def _unreachable(self, done: Completed) -> GpuFleetError:
        who = self._asked.ssh_user or "root"
        return GpuFleetError(
            "%s can't be reached over SSH as %s of this host does: %s. Give that account a key that is taken there without a question, and "
            "the host's key in its known_hosts; or set ssh_user to one that has them." % (self._host, who, _last(done)),
            kind="unreachable", detail=_last(done),
        )  # fmt: skip

    def _broken(self, file: File, done: Optional[Completed]) -> GpuFleetError:
        if done is not None and (done.rc == _NO_CONNECTION or done.timed_out):
            return self._unreachable(done)
        return GpuFleetError(
            "%s could not be copied from %s: %s. What was fetched so far stays in %s: run again, and it goes on from there."
            % (file.path, self._asked.source, _last(done) or "it has another size there by now", self._asked.partial),
            kind="copy_failed",
        )


def _last(done: Optional[Completed]) -> str:
    if done is None:
        return ""
    if done.timed_out:
        return "no answer in time"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
