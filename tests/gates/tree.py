# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A physical copy of the collection where Ansible's own tools want it.

ansible-test refuses a path with links in it, and antsibull-docs copies a checkout that holds its own copy without end.
So the gates work on a copy of the tracked files, as they are now, outside the checkout, under
``.../ansible_collections/gpufleet/vllm``.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Iterator, List

ROOT = Path(__file__).resolve().parent.parent.parent


def cache() -> Path:
    """The directory for what the gates keep between runs, one for each checkout."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "gpufleet-vllm" / hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]


def tracked_files() -> List[str]:
    """The tracked files that exist, without the links that only a checkout needs; paths from the root."""
    return [name for name in _git("ls-files") if (ROOT / name).is_file() and not (ROOT / name).is_symlink()]


def untracked_files() -> List[str]:
    """Files that git would add: the gates do not see them."""
    return _git("ls-files", "--others", "--exclude-standard")


def uncommitted() -> List[str]:
    """What differs from the last commit, a line each as git status has it; files that git would add too."""
    return _git("status", "--porcelain")


@contextlib.contextmanager
def committed() -> Iterator[Path]:
    """The last commit in a directory of its own, which goes afterwards: what anybody gets who clones it."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-committed-") as place:
        archive = Path(place, "tree.tar")
        subprocess.run(["git", "archive", "--output", str(archive), "HEAD"], cwd=ROOT, check=True)
        target = Path(place, "tree")
        with tarfile.open(archive) as opened:
            opened.extractall(target, filter="data")
        yield target


def _git(*arguments: str) -> List[str]:
    done = subprocess.run(["git", *arguments, "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if name]


@contextlib.contextmanager
def copy(purpose: str) -> Iterator[Path]:
    """The copy's path, for one user of this ``purpose`` at a time. It stays for a look afterwards."""
    with place(purpose) as target:
        for name in tracked_files():
            destination = target / name
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, destination)
        known_to_git(target)
        yield target


@contextlib.contextmanager
def place(purpose: str) -> Iterator[Path]:
    """An empty directory to put the collection into, for one user of this ``purpose`` at a time."""
    base = cache() / purpose
    base.mkdir(parents=True, exist_ok=True)
    with (base / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        collections = base / "ansible_collections"
        if collections.exists():
            shutil.rmtree(collections)
        target = collections / "gpufleet" / "vllm"
        target.mkdir(parents=True)
        yield target


def known_to_git(target: Path) -> None:
    """Ansible's tools ask git what belongs to a collection."""
    for command in (["init", "-q"], ["add", "-A", "-f"]):
        subprocess.run(["git", *command], cwd=target, check=True)
