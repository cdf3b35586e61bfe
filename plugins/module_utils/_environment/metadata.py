# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands in a virtual environment, read from its files: nothing is imported, nothing is run."""

from __future__ import annotations

import os
import re
from typing import Dict, List, Optional

from .request import canonical

_PYTHON_DIRECTORY = re.compile(r"^python3(\.\d+)?t?$")
# name-version.dist-info, as the installers write it: hyphens in the name are underscores there
_DIST_INFO = re.compile(r"^(?P<name>[^-]+)-(?P<version>[^-]+)\.dist-info$")


def is_environment(tree: str) -> bool:
    """Whether this directory is a virtual environment of whatever origin."""
    return os.path.isfile(os.path.join(tree, "pyvenv.cfg"))


def distributions(tree: str) -> Dict[str, str]:
    """What is installed: versions by name (PEP 503). One listing of one directory."""
    found: Dict[str, str] = {}
    for site in _site_directories(tree):
        for entry in _names(site):
            match = _DIST_INFO.match(entry)
            # An installation that was killed leaves the directory without its last file.
            if match is not None and os.path.isfile(os.path.join(site, entry, "METADATA")):
                found[canonical(match.group("name"))] = match.group("version")
    return found


def broken_part(tree: str) -> Optional[str]:
    """What of an environment can't work: its interpreter gone, its ``vllm`` missing or somebody else's. None when it looks whole."""
    python = os.path.join(tree, "bin", "python")
    if not os.path.lexists(python):
        return "%s is missing" % python
    if not os.access(python, os.X_OK):
        return "%s leads to %s, which is no longer there" % (python, os.path.realpath(python))
    script = os.path.join(tree, "bin", "vllm")
    if not os.path.isfile(script):
        return "%s is missing" % script
    if not os.access(script, os.X_OK):
        return "%s is not executable" % script
    return None


def python_version(tree: str) -> Optional[str]:
    """The interpreter's version as ``pyvenv.cfg`` has it (venv: ``version``, uv: ``version_info``)."""
    try:
        with open(os.path.join(tree, "pyvenv.cfg"), encoding="utf-8", errors="replace") as handle:
            text = handle.read(65536)
    except OSError:
        return None
    match = re.search(r"^version(?:_info)?\s*=\s*(\S+)", text, re.MULTILINE)
    return match.group(1) if match is not None else None


def _site_directories(tree: str) -> List[str]:
    base = os.path.join(tree, "lib")
    found = [os.path.join(base, name, "site-packages") for name in sorted(_names(base)) if _PYTHON_DIRECTORY.match(name)]
    return [path for path in found if os.path.isdir(path)]


def _names(directory: str) -> List[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
