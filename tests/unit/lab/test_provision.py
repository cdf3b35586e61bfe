# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that make a host that host."""

from __future__ import annotations

import os
import stat
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from lab import provision
from lab.plan import HostSpec
from lab.provision import Identity, Upper


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A lower layer with the directories that a base has."""
    root = tmp_path / "base"
    for name in ("etc/ssh", "etc/systemd/network", "root", "usr/local/lib/python3.11/dist-packages"):
        (root / name).mkdir(parents=True)
    (root / "root").chmod(0o700)
    (root / "usr/local/lib/python3.11/dist-packages/pynvml.py").touch()
    (root / "usr/local/lib/python3.11/dist-packages/nvidia_ml_py-1.dist-info").mkdir()
    return root


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    key = tmp_path / "ssh_host_ed25519_key"
    key.write_text("secret\n", encoding="ascii")
    key.with_name(f"{key.name}.pub").write_text("public\n", encoding="ascii")
    return Identity("0" * 32, IPv4Address("198.18.0.11"), 24, key, "ssh-ed25519 AAAA lab\n")


def test_files_of_a_host(tmp_path: Path, base: Path, identity: Identity) -> None:
    upper = tmp_path / "upper"
    provision.provision(HostSpec("gpu01"), identity, upper, (base,))
    assert (upper / "etc/hostname").read_text(encoding="ascii") == "gpu01\n"
    assert (upper / "etc/machine-id").read_text(encoding="ascii") == "0" * 32 + "\n"
    unit = (upper / "etc/systemd/network/10-lab.network").read_text(encoding="ascii")
    assert "Name=host0\n" in unit and "Address=198.18.0.11/24\n" in unit
    modes = {
        name: stat.S_IMODE((upper / name).stat().st_mode) for name in ("root", "root/.ssh", "root/.ssh/authorized_keys")
    }
    assert modes == {"root": 0o700, "root/.ssh": 0o700, "root/.ssh/authorized_keys": 0o600}
    assert stat.S_IMODE((upper / "etc/ssh/ssh_host_ed25519_key").stat().st_mode) == 0o600
    assert not (upper / "usr").exists()


def test_what_an_earlier_life_left_is_gone(tmp_path: Path, base: Path, identity: Identity) -> None:
    upper = tmp_path / "upper"
    (upper / "etc").mkdir(parents=True)
    (upper / "etc/left").touch()
    provision.provision(HostSpec("gpu01"), identity, upper, (base,))
    assert not (upper / "etc/left").exists()


def test_pynvml_is_hidden(tmp_path: Path, base: Path, identity: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, tuple[int, int]] = {}
    monkeypatch.setattr(os, "mknod", lambda path, mode, device: made.update({Path(path).name: (mode, device)}))
    provision.provision(HostSpec("gpu01", pynvml=False), identity, tmp_path / "upper", (base,))
    # A character device with number 0:0 is overlayfs' whiteout.
    assert made == {"pynvml.py": (stat.S_IFCHR, 0), "nvidia_ml_py-1.dist-info": (stat.S_IFCHR, 0)}


def test_directories_take_the_mode_of_the_layer_below(tmp_path: Path) -> None:
    top, bottom = tmp_path / "top", tmp_path / "bottom"
    (bottom / "var/spool").mkdir(parents=True)
    (bottom / "var/spool").chmod(0o1777)
    (top / "var").mkdir(parents=True)
    upper = tmp_path / "upper"
    upper.mkdir()
    Upper(upper, (top, bottom)).write("var/spool/new/file", b"x", 0o640)
    assert stat.S_IMODE((upper / "var/spool").stat().st_mode) == 0o1777
    assert stat.S_IMODE((upper / "var/spool/new").stat().st_mode) == 0o755
    assert stat.S_IMODE((upper / "var/spool/new/file").stat().st_mode) == 0o640
