# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two installers as command lines. Addresses with credentials go through the environment: a command line is everybody's to read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Dict, List, Optional

from .._core.errors import GpuFleetError
from .interpreter import Interpreter, find_command
from .request import Asked


@dataclass(frozen=True)
class Installer:
    """``name`` is ``uv`` or ``pip``; ``uv`` is the path of uv's command."""

    name: str
    uv: Optional[str] = None

    def make_environment(self, interpreter: Interpreter, tree: str) -> List[str]:
        """The command that makes an empty environment."""
        if self.uv is not None:
            return [self.uv, "venv", "--quiet", "--no-project", "--python", interpreter.path, tree]
        return [interpreter.path, "-m", "venv", tree]

    def install(self, tree: str, requirements: str, constraints: Optional[str], dependencies: bool, log: str) -> List[str]:
        """The command that installs what a file of requirements names. pip says only in ``log`` why it could not read an index."""
        python = os.path.join(tree, "bin", "python")
        if self.uv is not None:
            # The services' user can't write the compiled files beside root's: without them every start would compile all of torch.
            command = [self.uv, "pip", "install", "--python", python, "--compile-bytecode", "--no-progress"]
        else:
            command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--log", log]
        command += [] if dependencies else ["--no-deps"]
        command += ["--requirement", requirements]
        return command + (["--constraint", constraints] if constraints else [])

    def environment(self, asked: Asked, temporary: str) -> Dict[str, str]:
        """Variables for both commands. What the host itself configures for the installer (proxies, pip.conf) stays in force."""
        variables = {
            # What would put packages anywhere else than into the environment.
            "PYTHONPATH": "",
            "PYTHONHOME": "",
            "PIP_USER": "0",
            "VIRTUAL_ENV": "",
            # Wheels of a gigabyte are unpacked there, and /tmp is often a small file system in memory.
            "TMPDIR": temporary,
            # An interpreter in root's home could not be run by the services' user.
            "UV_PYTHON_DOWNLOADS": "never",
        }
        if asked.index_url:
            variables.update({"PIP_INDEX_URL": asked.index_url, "UV_DEFAULT_INDEX": asked.index_url})
        if asked.extra_index_urls:
            urls = " ".join(asked.extra_index_urls)
            variables.update({"PIP_EXTRA_INDEX_URL": urls, "UV_INDEX": urls})
        return variables


def choose(asked: Asked, interpreter: Interpreter) -> Installer:
    """uv where it is there or asked for, else the interpreter's own venv and pip. Raises GpuFleetError when there is neither."""
    uv = find_command("uv") if asked.installer in ("auto", "uv") else None
    if uv is not None:
        return Installer("uv", uv)
    if asked.installer == "uv":
        raise GpuFleetError("installer is uv, and there is no uv on this host. Install it, or set installer to pip or auto.")
    if not interpreter.venv:
        raise GpuFleetError(
            "%s lacks its venv and ensurepip modules, and there is no uv on this host. Install python3-venv (Debian, Ubuntu; "
            "python%s-venv for an interpreter of another version) or uv." % (interpreter.path, ".".join(interpreter.version.split(".")[:2]))
        )
    return Installer("pip")
