# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the lab needs from this machine; all that is missing is said in one message, with the command that installs it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lab import cgroup
from lab.errors import LabError
from lab.plan import BASES

_PROGRAMS = {
    "systemd-nspawn": "systemd-container",
    "debootstrap": "debootstrap",
    "wget": "wget",
    "gcc": "gcc",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "setsid": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
}
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# Debian 13 is signed with Debian 12's key too: either will do for both.
_KEYS = [Path(f"/usr/share/keyrings/debian-archive-{name}-automatic.gpg") for name in ("bookworm", "trixie")]
_SCRIPTS = Path("/usr/share/debootstrap/scripts")
_HEADERS = Path("/usr/include/stdlib.h")


def _modprobe(name: str) -> bool:
    program = shutil.which("modprobe")
    return program is not None and subprocess.run([program, "--quiet", name], check=False).returncode == 0


@dataclass
class Machine:
    """The looks at the machine that the check makes; tests put others in their place."""

    which: Callable[[str], str | None] = shutil.which
    exists: Callable[[Path], bool] = Path.exists
    euid: Callable[[], int] = os.geteuid
    filesystems: Callable[[], str] = field(default=lambda: Path("/proc/filesystems").read_text(encoding="ascii"))
    load_module: Callable[[str], bool] = field(default=_modprobe)
    cgroup2: Callable[[], bool] = field(default=lambda: cgroup.find_unified() is not None)
    pip: Callable[[], bool] = field(default=lambda: importlib.util.find_spec("pip") is not None)


def missing(machine: Machine) -> tuple[list[str], list[str]]:
    """What is missing: sentences about it, and the packages that provide it (in order, each once)."""
    problems: list[str] = []
    packages: list[str] = []

    def lacks(problem: str, package: str | None = None) -> None:
        problems.append(problem)
        if package is not None and package not in packages:
            packages.append(package)

    if machine.euid() != 0:
        lacks("not run as root: the lab makes machines, mounts and network links (use sudo)")
    for program, package in _PROGRAMS.items():
        if machine.which(program) is None:
            lacks(f"no {program}", package)
    if machine.which("gcc") is not None and not machine.exists(_HEADERS):
        lacks("no C library headers", "libc6-dev")
    unknown = [base for base in BASES if not machine.exists(_SCRIPTS / base)]
    if machine.which("debootstrap") is not None and unknown:
        lacks(f"debootstrap doesn't know {' and '.join(unknown)}: it is too old", "debootstrap")
    if not machine.exists(_KEYRING):
        lacks("no Debian archive keyring", "debian-archive-keyring")
    elif not any(machine.exists(key) for key in _KEYS):
        lacks("the Debian archive keyring is too old to know Debian 12", "debian-archive-keyring")
    if not machine.pip():
        lacks(f"no pip for {sys.executable}", "python3-pip")
    if "\toverlay\n" not in machine.filesystems() and not machine.load_module("overlay"):
        lacks("the kernel has no overlayfs (module overlay)")
    if not machine.cgroup2():
        lacks("no cgroup v2 tree is mounted (boot with systemd.unified_cgroup_hierarchy=1, or mount cgroup2)")
    return problems, packages


def check(machine: Machine | None = None) -> None:
    """Raise one LabError that names everything missing and the one command that installs it."""
    problems, packages = missing(machine or Machine())
    if not problems:
        return
    lines = ["The lab can't run on this machine yet:", *(f"  - {problem}" for problem in problems)]
    if packages:
        lines += ["On Debian or Ubuntu, install what is missing with:"]
        lines += [f"  apt-get update && apt-get install --no-install-recommends {' '.join(packages)}"]
    raise LabError("\n".join(lines))
