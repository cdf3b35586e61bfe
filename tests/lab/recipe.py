# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a base is made of. Every change here gives the base another key, so that it is built anew."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from lab import places

WHEELS_FILE = Path(__file__).with_name("wheels.txt")

# Raise when the steps of bases.py change what they leave behind.
_STEPS = 1

# What an ordinary server has and Ansible needs; no Python package beyond the standard library.
_PACKAGES = (
    "acl",
    "ca-certificates",
    "dbus",
    "dbus-user-session",
    "iproute2",
    "kmod",
    "libpam-systemd",
    "openssh-server",
    "procps",
    "python3",
    "sudo",
    "systemd",
    "systemd-sysv",
)

# What vLLM's CPU build links to, for the hosts that run the real one.
_PACKAGES_OF = {"bookworm": ("libnuma1",)}

# What would only slow a boot or wake an idle host.
_MASKED_UNITS = (
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "console-getty.service",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty.target",
    "sshd-keygen.service",
    "systemd-networkd-wait-online.service",
    "systemd-pstore.service",
)


@dataclass(frozen=True)
class Recipe:
    """One base: a Debian release, its packages, and the Python that it has."""

    suite: str
    python: str
    packages: tuple[str, ...]
    masked_units: tuple[str, ...]
    sshd_options: tuple[str, ...]
    wheels: tuple[str, ...]
    architecture: str

    @property
    def python_dir(self) -> str:
        """The directory name below ``lib/``, such as ``python3.11``."""
        return f"python{self.python}"

    def key(self) -> str:
        """Twelve hexadecimal digits that change with everything that goes into the base."""
        text = json.dumps([_STEPS, asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


# Many commands share one connection, and there is no name server to ask.
_SSHD_OPTIONS = ("UseDNS no", "MaxSessions 100", "MaxStartups 100")
# A test that provokes failed connections must not lock out the next; OpenSSH before 9.8 doesn't know the option.
_SSHD_OPTIONS_OF = {"trixie": ("PerSourcePenalties no",)}

_PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}


def pinned_wheels() -> tuple[str, ...]:
    """The requirements in ``wheels.txt``, comments left out."""
    lines = (line.split("#", 1)[0].strip() for line in WHEELS_FILE.read_text(encoding="utf-8").splitlines())
    return tuple(line for line in lines if line)


def recipe(base: str) -> Recipe:
    """The recipe of one of ``plan.BASES``."""
    return Recipe(
        suite=base,
        python=_PYTHONS[base],
        packages=_PACKAGES + _PACKAGES_OF.get(base, ()),
        masked_units=_MASKED_UNITS,
        sshd_options=_SSHD_OPTIONS + _SSHD_OPTIONS_OF.get(base, ()),
        wheels=pinned_wheels(),
        architecture=places.architecture().debian,
    )
