# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real Python interpreters of this machine.

Version managers put shims on PATH: scripts that pick an interpreter by the current directory. They break inside
ansible-test, which runs its tools elsewhere. So every candidate is run once and asked where it really lives.
"""

from __future__ import annotations

import glob
import json
import os
import subprocess
from typing import Dict, List, NamedTuple, Optional, Tuple

_ASK = (
    "import importlib.util as u, json, os, sys; print(json.dumps([list(sys.version_info[:3]),"
    " os.path.realpath(sys.executable), sys.base_prefix, u.find_spec('venv') is not None and"
    " u.find_spec('ensurepip') is not None, sys.base_prefix != sys.prefix]))"
)


class Interpreter(NamedTuple):
    """A real interpreter: ``version`` (3, 11, 7), ``path`` without links, whether it can make virtual environments."""

    version: Tuple[int, ...]
    path: str
    prefix: str
    has_venv: bool

    @property
    def minor(self) -> Tuple[int, int]:
        """Major and minor version, as (3, 11)."""
        return (self.version[0], self.version[1])


def ask(candidate: str) -> Optional[Interpreter]:
    """The interpreter behind ``candidate``; None when it does not run or is a virtual environment's."""
    try:
        done = subprocess.run(
            [candidate, "-I", "-c", _ASK], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=False
        )
        version, path, prefix, has_venv, inside_venv = json.loads(done.stdout.decode("utf-8"))
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None  # a shim without an interpreter behind it, or no Python at all
    if inside_venv:
        return None
    return Interpreter(tuple(version), path, prefix, has_venv)


def find_pythons() -> List[Interpreter]:
    """Every real Python 3 on PATH and beside those found there, newest first, each once."""
    found: Dict[str, Interpreter] = {}
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        for name in ["python3"] + ["python3.%d" % minor for minor in range(9, 20)]:
            path = os.path.join(directory, name)
            if os.access(path, os.X_OK):
                _add(found, path)
    # An interpreter in a directory of its own (a version manager's) has its siblings beside that directory.
    for prefix in {python.prefix for python in found.values()} - {"/usr", "/usr/local"}:
        for path in glob.glob(os.path.join(os.path.dirname(prefix), "*", "bin", "python3")):
            _add(found, path)
    return sorted(found.values(), key=lambda python: python.version, reverse=True)


def _add(found: Dict[str, Interpreter], candidate: str) -> None:
    if os.path.realpath(candidate) in found:
        return
    python = ask(candidate)
    if python is not None:
        found.setdefault(python.path, python)
