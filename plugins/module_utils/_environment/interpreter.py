# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The interpreter that an environment is made of. It is asked, never changed."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from typing import List, Optional

from .._core.errors import GpuFleetError
from .._core.runner import Runner

_QUESTION = (
    "import importlib.util as u, json, sys;"
    "print(json.dumps([list(sys.version_info[:3]), bool(u.find_spec('venv')) and bool(u.find_spec('ensurepip'))]))"
)
_ALSO = ("/usr/local/bin", "/usr/bin", "/root/.local/bin", "/root/.cargo/bin")


@dataclass(frozen=True)
class Interpreter:
    """A Python of the host. ``venv``: whether its standard library can make environments with pip in them."""

    path: str
    version: str
    venv: bool

    @property
    def unreachable(self) -> Optional[str]:
        """The directory that keeps other users than its owner from running it; None when everybody can."""
        directory = os.path.dirname(os.path.realpath(self.path))
        while directory != "/":
            if not os.stat(directory).st_mode & 0o001:
                return directory
            directory = os.path.dirname(directory)
        return None


def find_command(name: str) -> Optional[str]:
    """A command's full path, looked for where root's PATH may not lead; None where there is none."""
    if os.path.isabs(name):
        return name if os.access(name, os.X_OK) and os.path.isfile(name) else None
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(_ALSO))


def find_interpreter(name: str, runner: Runner) -> Interpreter:
    """The interpreter of this name or path. Raises GpuFleetError when it isn't there or doesn't answer."""
    path = find_command(name)
    if path is None:
        others = _others()
        raise GpuFleetError(
            "There is no Python %r on this host%s. Install it, or set python to one that is there."
            % (name, ": there are %s" % ", ".join(others) if others else "")
        )
    done = runner.run([path, "-I", "-c", _QUESTION], timeout=60, env={"PYTHONHOME": "", "PYTHONPATH": ""})
    try:
        version, venv = json.loads(done.stdout)
    except ValueError:
        raise GpuFleetError(
            "%s can't be used: asked for its version it ended with %s: %s. Set python to one that works."
            % (path, "no answer in time" if done.timed_out else done.rc, (done.stderr or done.stdout).strip()[-300:] or "no output")
        ) from None
    return Interpreter(path, ".".join(str(part) for part in version), bool(venv))


def _others() -> List[str]:
    found = set()
    for directory in ("/usr/bin", "/usr/local/bin"):
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        found |= {os.path.join(directory, name) for name in names if name.startswith("python3.") and name[8:].isdigit()}
    return sorted(found)
