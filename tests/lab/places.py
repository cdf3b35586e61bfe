# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the lab keeps its things on this machine, and the name that sets one lab apart from another."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError

CACHE_VARIABLE = "GPUFLEET_LAB_CACHE"
STATE_VARIABLE = "GPUFLEET_LAB_STATE"
DEFAULT_CACHE = "/var/cache/gpufleet-lab"
DEFAULT_STATE = "/var/lib/gpufleet-lab"

# overlayfs separates its options with commas and its layers with colons, the launcher its lists with blanks.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9._/+@-]*")


@dataclass(frozen=True)
class Architecture:
    """The names that one machine architecture goes by."""

    debian: str
    multiarch: str
    wheel: str


_ARCHITECTURES = {
    "x86_64": Architecture("amd64", "x86_64-linux-gnu", "x86_64"),
    "aarch64": Architecture("arm64", "aarch64-linux-gnu", "aarch64"),
}


def architecture() -> Architecture:
    """This machine's architecture; the hosts share its kernel and so its architecture."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise LabError(f"the lab runs on {' and '.join(_ARCHITECTURES)}; this machine is {machine}")
    return _ARCHITECTURES[machine]


def _directory(variable: str, default: str) -> Path:
    given = os.environ.get(variable) or default
    path = Path(os.path.abspath(given)).resolve()
    if not _PLAIN_PATH.fullmatch(str(path)):
        raise LabError(f"{variable}={given}: use a path of letters, digits and ._+@-/ only (it becomes a mount option)")
    if path.is_relative_to("/run"):
        # Each host's launcher puts a fresh /run over the machine's own.
        raise LabError(f"{variable}={given}: choose a directory outside /run, which the hosts' launcher hides")
    if path == Path("/"):
        raise LabError(f"{variable}={given}: choose a directory of the lab's own")
    return path


def cache_dir() -> Path:
    """Where bases, wheels and models are kept between labs."""
    return _directory(CACHE_VARIABLE, DEFAULT_CACHE)


def state_dir() -> Path:
    """Where the lab that is up keeps its hosts and the record of what it started."""
    return _directory(STATE_VARIABLE, DEFAULT_STATE)


def lab_id(state: Path) -> str:
    """Six hexadecimal digits from the state directory's path: two labs with different directories never share a name."""
    return hashlib.sha256(str(state).encode()).hexdigest()[:6]


@contextlib.contextmanager
def usual_umask() -> Iterator[None]:
    """Make files as root usually does, whatever the caller's umask: other users of a host must read them."""
    former = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(former)
