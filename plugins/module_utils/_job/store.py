# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the one change that is under way is written down, and what came of the last one.

``record.json`` exists from before the first step of a change until after its last one: making it is the mutex between
changes, and finding it is how an interrupted change is known. It holds secrets (0600 in a directory of 0700);
``last.json`` does not, but what is in it is nobody's business either. Everything written here is on disk when the call returns.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from typing import Any, Dict, Optional, Tuple

from .._core.directories import make_directories
from .._core.errors import GpuFleetError
from .._core.files import make_directory, sync_directory

DIRECTORY = "/var/lib/gpufleet/change"
# In memory: what came of a change is told also when the disk is full.
SPARE = "/run/gpufleet"
_RECORD, _LAST, _SPARE_LAST = "record.json", "last.json", "change-last.json"
_PAUSE_S = 0.1


class Store:
    """The files in one directory. Every failure is a GpuFleetError that names the file.

    What came of a change goes to the directory ``spare`` when it can't be written there.
    """

    def __init__(self, directory: str = DIRECTORY, spare: str = SPARE) -> None:
        self._directory = directory
        self._record = os.path.join(directory, _RECORD)
        self._last = os.path.join(directory, _LAST)
        self._spare = os.path.join(spare, _SPARE_LAST)
        self._read: Dict[str, Tuple[Any, Optional[Dict[str, Any]]]] = {}

    def create(self, record: Dict[str, Any]) -> bool:
        """Begin a change; False when another one has begun meanwhile. Never seen half-written."""
        try:
            make_directories(os.path.dirname(self._directory))
        except OSError as exc:
            raise GpuFleetError("Cannot make the directory %s: %s." % (os.path.dirname(self._directory), exc.strerror)) from exc
        make_directory(self._directory, 0o700, os.geteuid(), os.getegid())
        temporary = self._write(record, self._directory)
        try:
            os.link(temporary, self._record)
        except FileExistsError:
            return False
        except OSError as exc:
            raise GpuFleetError("Cannot write %s: %s." % (self._record, exc.strerror)) from exc
        finally:
            os.unlink(temporary)
        sync_directory(self._directory)
        return True

    def load(self) -> Optional[Dict[str, Any]]:
        """The change that was begun and not finished, None when there is none."""
        return _load(self._record)

    def exists(self) -> bool:
        """Whether there is one."""
        return os.path.lexists(self._record)

    def save(self, record: Dict[str, Any]) -> None:
        """Replace the record."""
        self._replace(record, self._record)

    def finish(self, last: Dict[str, Any]) -> None:
        """The change has ended: keep what came of it, then forget the change. In this order: whoever waits finds one or the other."""
        try:
            self._replace(last, self._last)
        except GpuFleetError:
            self._replace(last, self._spare)
        else:
            try:
                os.unlink(self._spare)
            except FileNotFoundError:
                pass
        self.discard()

    def discard(self) -> None:
        """Forget the change: it has ended, or nothing of it was ever carried out."""
        try:
            os.unlink(self._record)
            sync_directory(self._directory)
        except OSError as exc:
            raise GpuFleetError(
                "The change that has ended cannot be forgotten, so no other one can begin: cannot remove %s: %s. Run again when its "
                "file system can be written to." % (self._record, exc.strerror)
            ) from exc

    def received(self, change: str) -> bool:
        """Whoever asked for a change has heard what came of it; False where that could not be written down, or it is not the last one."""
        for path in (self._last, self._spare):
            kept = self._last_in(path)
            if kept is not None and kept.get("id") == change:
                try:
                    self._replace(dict(kept, received=True), path)
                except GpuFleetError:
                    return False
                return True
        return False

    def last(self) -> Optional[Dict[str, Any]]:
        """What came of the last change that ended; read again only when it is another file."""
        kept, spare = self._last_in(self._last), self._last_in(self._spare)
        if kept is None or spare is None:
            return kept or spare
        return spare if spare["ended"] > kept["ended"] else kept

    def _last_in(self, path: str) -> Optional[Dict[str, Any]]:
        try:
            status = os.stat(path)
        except OSError:
            return None
        mark = (status.st_ino, status.st_mtime_ns, status.st_size)
        if self._read.get(path, (None, None))[0] != mark:
            self._read[path] = (mark, _load(path))
        return self._read[path][1]

    def _replace(self, content: Dict[str, Any], path: str) -> None:
        temporary = self._write(content, os.path.dirname(path))
        try:
            os.rename(temporary, path)
            sync_directory(os.path.dirname(path))
        except OSError as exc:
            raise GpuFleetError("Cannot write %s: %s." % (path, exc.strerror)) from exc

    def _write(self, content: Dict[str, Any], directory: str) -> str:
        """A new file beside the others, on disk, readable by root alone."""
        temporary = None
        try:
            fd, temporary = tempfile.mkstemp(prefix=".new-", dir=directory)  # made with mode 0600
            with os.fdopen(fd, "w", encoding="utf-8") as handle:
                json.dump(content, handle)
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as exc:
            if temporary is not None:
                os.unlink(temporary)
            raise GpuFleetError("Cannot write to %s: %s." % (directory, exc.strerror)) from exc
        return temporary


def wait_for_result(change: str, seconds: float, directory: str = DIRECTORY) -> Dict[str, Any]:
    """What came of a change: ``done`` with ``result``, or not ``done`` after ``seconds``; ``unknown`` when nothing is known of it."""
    store = Store(directory)
    end = time.monotonic() + seconds
    while True:
        last = store.last()
        if last is not None and last.get("id") == change:
            return {"id": change, "done": True, "result": last["result"]}
        if time.monotonic() >= end:
            break
        time.sleep(_PAUSE_S)
    record = store.load()
    known = record is not None and record.get("id") == change
    return {"id": change, "done": False} if known else {"id": change, "done": False, "unknown": True}


def _load(path: str) -> Optional[Dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as handle:
            content = json.load(handle)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise GpuFleetError("Cannot read %s: %s." % (path, exc.strerror)) from exc
    except ValueError as exc:
        raise GpuFleetError(
            "%s cannot be understood (%s). It is never written in part, so somebody has changed it. See with `systemctl list-units "
            "'vllm-*'` what serves, remove the file and run again." % (path, exc)
        ) from exc
    if not isinstance(content, dict):
        raise GpuFleetError("%s holds no record. Remove the file and run again." % path)
    return content
