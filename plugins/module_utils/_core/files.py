# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files written whole or not at all, with what changed said as a diff."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from typing import Any, Dict, List, Optional

from .directories import make_directories
from .errors import GpuFleetError

HIDDEN = "(content hidden: it may hold secrets)\n"


@dataclass(frozen=True)
class WantedFile:
    """A file as it should be. ``content`` None means: it should not be there.

    ``secret`` hides it from diffs; ``opaque`` shows only its size and checksum there (an archive is nothing to read).
    """

    path: str
    content: Optional[bytes]
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    secret: bool = False
    opaque: bool = False


@dataclass(frozen=True)
class FileChange:
    """What has to be done to one file. ``what`` is ``created``, ``content``, ``mode`` or ``removed``."""

    wanted: WantedFile
    what: str
    before: Optional[bytes]
    before_mode: Optional[int]
    before_status: Optional[os.stat_result] = None

    def to_result(self) -> Dict[str, str]:
        """The entry for the module's ``files``."""
        return {"path": self.wanted.path, "change": self.what}

    def to_diff(self) -> Dict[str, str]:
        """The entry for Ansible's diff mode; secrets are never shown."""
        wanted = self.wanted
        after = wanted.content
        if wanted.secret:
            before_text = "" if self.before is None else HIDDEN
            after_text = "" if after is None else HIDDEN
            if self.what == "content":
                after_text = HIDDEN + "(changed)\n"
        elif wanted.opaque:
            before_text, after_text = _checksum(self.before), _checksum(after)
        else:
            before_text = (self.before or b"").decode("utf-8", "replace")
            after_text = (after or b"").decode("utf-8", "replace")
        if self.what == "mode":
            before_text = "mode: %s\n" % ("?" if self.before_mode is None else "%04o" % self.before_mode)
            after_text = "mode: %04o\n" % wanted.mode
        return {
            "before_header": wanted.path if self.before is not None else wanted.path + " (absent)",
            "after_header": wanted.path if after is not None else wanted.path + " (absent)",
            "before": before_text,
            "after": after_text,
        }


def _checksum(content: Optional[bytes]) -> str:
    if content is None:
        return ""
    return "%d bytes, sha256 %s\n" % (len(content), hashlib.sha256(content).hexdigest())


def read_bytes(path: str) -> Optional[bytes]:
    """The file's content, or None where there is none. Raises GpuFleetError for anything else in the way."""
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise GpuFleetError("Cannot read %s: %s." % (path, exc.strerror)) from exc


def compare(wanted: WantedFile) -> Optional[FileChange]:
    """What would have to change to make the file as wanted; None when it already is."""
    try:
        status = os.lstat(wanted.path)
    except FileNotFoundError:
        return None if wanted.content is None else FileChange(wanted, "created", None, None)
    except OSError as exc:
        raise GpuFleetError("Cannot look at %s: %s." % (wanted.path, exc.strerror)) from exc
    if not stat.S_ISREG(status.st_mode):
        raise GpuFleetError(
            "%s is not a regular file (it may be a link or a directory): it is left alone. Move it away and run again."
            % wanted.path
        )
    before = read_bytes(wanted.path)
    mode = stat.S_IMODE(status.st_mode)
    if wanted.content is None:
        return FileChange(wanted, "removed", before, mode, status)
    if before != wanted.content:
        return FileChange(wanted, "content", before, mode, status)
    if (mode, status.st_uid, status.st_gid) != (wanted.mode, wanted.uid, wanted.gid):
        return FileChange(wanted, "mode", before, mode, status)
    return None


def changes(wanted: List[WantedFile]) -> List[FileChange]:
    """The changes that a list of files needs, in order."""
    return [change for change in map(compare, wanted) if change is not None]


def apply_change(change: FileChange) -> None:
    """Carry out one change. The file is never seen half-written: temporary file, fsync, rename.

    A mode or an owner is set in place: the content stays, and so does its time, which says what a process has read.
    """
    wanted = change.wanted
    try:
        if wanted.content is None:
            os.unlink(wanted.path)
            sync_directory(os.path.dirname(wanted.path))
            _tidy(os.path.dirname(wanted.path))
            return
        if change.what == "mode":
            _set_mode(wanted)
            return
        make_directories(os.path.dirname(wanted.path))
        _replace(wanted)
    except OSError as exc:
        raise GpuFleetError("Cannot write %s: %s." % (wanted.path, exc.strerror)) from exc


def restore(change: FileChange) -> None:
    """Undo one change: put back what was there before, its owner and its time included.

    The time matters: a process older than its files is taken for one that has yet to read them.
    """
    wanted, status = change.wanted, change.before_status
    mode = wanted.mode if change.before_mode is None else change.before_mode
    uid, gid = (wanted.uid, wanted.gid) if status is None else (status.st_uid, status.st_gid)
    again = compare(WantedFile(wanted.path, change.before, mode, uid, gid, wanted.secret))
    if again is not None:
        apply_change(again)
    # What was never changed is not touched: on a disk that can't be written to, that would look like a roll-back that failed.
    if status is not None and os.stat(wanted.path).st_mtime_ns != status.st_mtime_ns:
        os.utime(wanted.path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _tidy(directory: str) -> None:
    """A drop-in directory goes with its last file."""
    if directory.endswith(".d"):
        try:
            os.rmdir(directory)
        except OSError as exc:
            if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def _replace(wanted: WantedFile) -> None:
    directory = os.path.dirname(wanted.path)
    fd, temporary = tempfile.mkstemp(prefix=".gpufleet-", dir=directory)
    try:
        with os.fdopen(fd, "wb") as handle:
            _own(handle.fileno(), wanted)
            handle.write(wanted.content or b"")
            handle.flush()
            os.fsync(handle.fileno())
        os.rename(temporary, wanted.path)
    except BaseException:
        os.unlink(temporary)
        raise
    sync_directory(directory)  # the rename itself must survive a power cut


def _set_mode(wanted: WantedFile) -> None:
    fd = os.open(wanted.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _own(fd, wanted)
        os.fsync(fd)
    finally:
        os.close(fd)


def _own(fd: int, wanted: WantedFile) -> None:
    os.fchmod(fd, wanted.mode)
    if os.geteuid() == 0:
        os.fchown(fd, wanted.uid, wanted.gid)


def sync_directory(path: str) -> None:
    """Wait until what was made, renamed and removed in a directory is on disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: str, mode: int = 0o755, uid: int = 0, gid: int = 0) -> bool:
    """Make a directory with this mode and owner; returns whether anything changed."""
    try:
        os.mkdir(path, mode)
        created = True
    except FileExistsError:
        created = False
    except OSError as exc:
        raise GpuFleetError("Cannot make the directory %s: %s." % (path, exc.strerror)) from exc
    fixed = False
    try:
        status = os.stat(path)
        if not stat.S_ISDIR(status.st_mode):
            raise GpuFleetError("%s is in the way: a directory is needed there. Move it away and run again." % path)
        if stat.S_IMODE(status.st_mode) != mode:
            os.chmod(path, mode)
            fixed = True
        if os.geteuid() == 0 and (status.st_uid, status.st_gid) != (uid, gid):
            os.chown(path, uid, gid)
            fixed = True
    except OSError as exc:
        raise GpuFleetError("Cannot set the mode and owner of %s: %s." % (path, exc.strerror)) from exc
    return created or fixed


def diff_of(all_changes: List[FileChange]) -> List[Dict[str, Any]]:
    """Ansible's ``diff`` for a list of changes."""
    return [change.to_diff() for change in all_changes]
