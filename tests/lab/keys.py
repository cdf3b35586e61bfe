# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SSH: the lab's own key pair and known hosts, and the arguments of every connection."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

# A Unix socket's path has 107 characters at most, and ssh appends 17 of its own while it makes one.
_LONGEST_SOCKET = 107 - 17


def generate(path: Path, comment: str) -> None:
    """Make an ed25519 key pair at ``path`` and ``path.pub``, unless it is there."""
    if path.with_name(path.name + ".pub").exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )


def private_key(state: Path) -> Path:
    """The key that opens every host of the lab."""
    return state / "ssh" / "id_ed25519"


def public_key(state: Path) -> str:
    """The line that each host has in its ``authorized_keys``."""
    return private_key(state).with_name("id_ed25519.pub").read_text(encoding="ascii")


def known_hosts(state: Path) -> Path:
    """The hosts' public keys."""
    return state / "ssh" / "known_hosts"


def write_known_hosts(path: Path, hosts: Mapping[str, tuple[str, str]]) -> None:
    """Write ``known_hosts`` from name -> (address, public key line)."""
    lines = [f"{name},{address} {' '.join(key.split()[:2])}\n" for name, (address, key) in sorted(hosts.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    draft.write_text("".join(lines), encoding="ascii")
    draft.replace(path)


def options(state: Path) -> list[str]:
    """The options of ``ssh`` for the lab's hosts: nothing of the user's own set-up takes part."""
    settings = {
        "UserKnownHostsFile": str(known_hosts(state)),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "BatchMode": "yes",
        "ConnectTimeout": "10",
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "3",
        "LogLevel": "ERROR",
    }
    words = ["-F", "/dev/null", "-i", str(private_key(state))]
    for name, value in settings.items():
        words += ["-o", f"{name}={value}"]
    return words


def control_socket(state: Path, host: str) -> Path | None:
    """Where the connection that a host's commands share has its socket; None where the path would be too long."""
    path = state / "ssh" / f"{host}.ctl"
    return path if len(str(path)) <= _LONGEST_SOCKET else None
