# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What makes a host that host: the files in its own overlay, written before it boots."""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from lab.plan import HostSpec
from lab.recipe import recipe


@dataclass(frozen=True)
class Identity:
    """What a host keeps through every reset."""

    machine_id: str
    address: IPv4Address
    prefix: int
    # Directory with ssh_host_ed25519_key and its .pub
    host_key: Path
    authorized_key: str


class Upper:
    """Writes into an overlay's upper directory while it isn't mounted.

    Directories on the way get the mode of those that they lie over, since a merged directory shows the upper's.
    """

    def __init__(self, upper: Path, lowers: tuple[Path, ...]) -> None:
        self._upper = upper
        self._lowers = lowers

    def _parent(self, path: str) -> Path:
        directory = self._upper
        for part in Path(path).parent.parts:
            directory = directory / part
            if not directory.is_dir():
                directory.mkdir()
                relative = directory.relative_to(self._upper)
                below = next((lower / relative for lower in self._lowers if (lower / relative).is_dir()), None)
                directory.chmod(stat.S_IMODE(below.stat().st_mode) if below else 0o755)
        return directory

    def write(self, path: str, data: str | bytes, mode: int = 0o644) -> None:
        """Write one file, owned by root."""
        target = self._parent(path) / Path(path).name
        target.write_bytes(data.encode() if isinstance(data, str) else data)
        target.chmod(mode)

    def hide(self, path: str) -> None:
        """Make a file or directory of the lower layers disappear: overlayfs takes device 0:0 for a whiteout."""
        os.mknod(self._parent(path) / Path(path).name, stat.S_IFCHR, os.makedev(0, 0))


def provision(spec: HostSpec, identity: Identity, upper: Path, lowers: tuple[Path, ...]) -> None:
    """Fill a fresh upper directory for the host."""
    if upper.exists():
        shutil.rmtree(upper)
    upper.mkdir(parents=True)
    # The root directory's mode is the upper's as well.
    upper.chmod(0o755)
    files = Upper(upper, lowers)
    files.write("etc/hostname", f"{spec.name}\n")
    files.write("etc/hosts", f"127.0.0.1 localhost\n::1 localhost ip6-localhost\n{identity.address} {spec.name}\n")
    files.write("etc/machine-id", f"{identity.machine_id}\n", 0o444)
    # Sorts before Debian's own 80-container-host0.network, which would ask for an address by DHCP.
    files.write(
        "etc/systemd/network/10-lab.network",
        f"[Match]\nName=host0\n\n[Network]\nAddress={identity.address}/{identity.prefix}\nIPv6AcceptRA=no\n",
    )
    key = identity.host_key
    files.write("etc/ssh/ssh_host_ed25519_key", key.read_bytes(), 0o600)
    files.write("etc/ssh/ssh_host_ed25519_key.pub", key.with_name(f"{key.name}.pub").read_bytes())
    files.write("root/.ssh/authorized_keys", identity.authorized_key, 0o600)
    (upper / "root/.ssh").chmod(0o700)
    if not spec.pynvml:
        packages = f"usr/local/lib/{recipe(spec.base).python_dir}/dist-packages"
        for name in _pynvml_names(packages, lowers):
            files.hide(f"{packages}/{name}")


def _pynvml_names(packages: str, lowers: tuple[Path, ...]) -> list[str]:
    names = {
        path.name
        for lower in lowers
        for pattern in ("pynvml*", "nvidia_ml_py*", "example.py")
        for path in (lower / packages).glob(pattern)
    }
    return sorted(names)
