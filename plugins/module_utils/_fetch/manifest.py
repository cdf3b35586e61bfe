# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a model: how large, with which hash; the record of them in its directory; whether they are there and right."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .._core.errors import GpuFleetError

# Lies in a directory that this collection made, written before the directory gets its name.
RECORD = ".gpufleet-model.json"
_CHUNK = 1 << 22
# Hashing is done outside of Python's lock; more threads than this wait for the disk.
_THREADS = 4


@dataclass(frozen=True)
class File:
    """A file. ``path`` is relative; ``sha256`` for what a hub keeps in LFS, ``git`` (the blob's SHA-1) for the rest."""

    path: str
    size: int
    sha256: Optional[str] = None
    git: Optional[str] = None

    def to_dict(self) -> Dict[str, Any]:
        """As the record has it: with the hash that the content was held against."""
        if self.sha256:
            return {"path": self.path, "size": self.size, "sha256": self.sha256}
        return {"path": self.path, "size": self.size, "git": self.git}


@dataclass(frozen=True)
class Manifest:
    """A commit's files."""

    commit: Optional[str]
    files: Tuple[File, ...]

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(each.size for each in self.files)


@dataclass(frozen=True)
class Record:
    """Where a directory's content came from, and what it is."""

    repo: Optional[str]
    revision: Optional[str]
    commit: Optional[str]
    source: Optional[str]
    files: Tuple[File, ...]
    include: Tuple[str, ...] = ()
    exclude: Tuple[str, ...] = ()

    def text(self) -> str:
        """As it is written."""
        content = {
            "format": 1, "repo": self.repo, "revision": self.revision, "commit": self.commit, "source": self.source,
            "include": list(self.include), "exclude": list(self.exclude), "files": [each.to_dict() for each in self.files],
        }  # fmt: skip
        return json.dumps(content, indent=1) + "\n"


def read_record(directory: str) -> Optional[Record]:
    """The record of a directory; None where there is none. Raises GpuFleetError for one that can't be understood."""
    path = os.path.join(directory, RECORD)
    try:
        with open(path, encoding="utf-8") as handle:
            return parse_record(handle.read(), directory)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise GpuFleetError("The record %s can't be read (%s). Move the directory away and run again." % (path, exc)) from exc


def parse_record(text: str, directory: str) -> Record:
    """A record from its text. Raises GpuFleetError for one that can't be understood."""
    try:
        data = json.loads(text)
        files = tuple(File(safe(each["path"]), int(each["size"]), each.get("sha256"), each.get("git")) for each in data["files"])
        return Record(
            data.get("repo"), data.get("revision"), data.get("commit"), data.get("source"), files,
            tuple(data.get("include") or ()), tuple(data.get("exclude") or ()),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise GpuFleetError(
            "The record %s of %s can't be understood (%s). Move the directory away and run again." % (RECORD, directory, exc)
        ) from exc


def safe(path: str) -> str:
    """A path as it was given, when it can't lead out of a directory. Raises ValueError for others."""
    parts = path.split("/")
    if not path or "\0" in path or any(part in ("", ".", "..") for part in parts) or parts[0].startswith(".gpufleet"):
        raise ValueError("the file name %r can't be used" % path)
    return path


def missing(directory: str, files: Sequence[File]) -> List[File]:
    """The files that are not there in their size. One ``stat`` each."""
    return [each for each in files if _size(os.path.join(directory, each.path)) != each.size]


def wrong(directory: str, files: Sequence[File]) -> List[File]:
    """The files whose content is not what it should be, or that are not there. Reads all of it."""
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        right = list(pool.map(lambda each: is_right(directory, each), files))
    return [each for each, good in zip(files, right) if not good]


def is_right(directory: str, file: File) -> bool:
    """Whether a file has its size and its hash."""
    path = os.path.join(directory, file.path)
    if _size(path) != file.size:
        return False
    if file.sha256:
        return digest(path) == file.sha256
    return file.git is None or digest(path, git_size=file.size) == file.git


def digest(path: str, git_size: Optional[int] = None) -> Optional[str]:
    """SHA-256 of a file, or, with ``git_size``, the SHA-1 that git gives it as a blob. None when it can't be read."""
    if git_size is None:
        running = hashlib.sha256()
    else:
        running = hashlib.sha1(b"blob %d\0" % git_size, usedforsecurity=False)
    try:
        with open(path, "rb") as handle:
            for chunk in iter(lambda: handle.read(_CHUNK), b""):
                running.update(chunk)
    except OSError:
        return None
    return running.hexdigest()


def _size(path: str) -> int:
    try:
        status = os.stat(path)
    except OSError:
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1
