# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One message names everything that the machine lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab import prereq
from lab.errors import LabError


def machine(**changes: Any) -> prereq.Machine:
    """A machine that has everything, but for the changes."""
    complete: dict[str, Any] = {
        "which": lambda name: f"/usr/bin/{name}",
        "exists": lambda path: True,
        "euid": lambda: 0,
        "filesystems": lambda: "nodev\tsysfs\nnodev\toverlay\n",
        "load_module": lambda name: False,
        "cgroup2": lambda: True,
        "pip": lambda: True,
    }
    return prereq.Machine(**{**complete, **changes})


def test_a_complete_machine() -> None:
    assert prereq.missing(machine()) == ([], [])
    prereq.check(machine())


def test_a_bare_machine_gets_one_message_and_one_command() -> None:
    bare = machine(
        which=lambda name: None,
        exists=lambda path: False,
        euid=lambda: 1000,
        filesystems=lambda: "nodev\tsysfs\n",
        cgroup2=lambda: False,
        pip=lambda: False,
    )
    with pytest.raises(LabError) as caught:
        prereq.check(bare)
    message = str(caught.value)
    for needed in (
        "not run as root",
        "no systemd-nspawn",
        "no debootstrap",
        "no gcc",
        "no overlayfs",
        "no cgroup v2",
        "no pip",
    ):
        assert needed in message.replace("the kernel has ", "")
    (command,) = [line for line in message.splitlines() if "apt-get install" in line]
    assert command.split("--no-install-recommends ")[1].split() == [
        "systemd-container",
        "debootstrap",
        "wget",
        "gcc",
        "iproute2",
        "openssh-client",
        "util-linux",
        "mount",
        "debian-archive-keyring",
        "python3-pip",
    ]


def test_only_what_is_missing_is_named() -> None:
    problems, packages = prereq.missing(machine(which=lambda name: None if name == "debootstrap" else name))
    assert problems == ["no debootstrap"]
    assert packages == ["debootstrap"]


def test_nothing_to_install_means_no_command() -> None:
    with pytest.raises(LabError) as caught:
        prereq.check(machine(euid=lambda: 1))
    assert "apt-get" not in str(caught.value)


def test_an_overlay_module_that_can_be_loaded_is_enough() -> None:
    assert prereq.missing(machine(filesystems=lambda: "", load_module=lambda name: name == "overlay")) == ([], [])


def test_a_compiler_without_headers() -> None:
    _problems, packages = prereq.missing(machine(exists=lambda path: path != Path("/usr/include/stdlib.h")))
    assert packages == ["libc6-dev"]


def test_a_keyring_that_is_too_old() -> None:
    problems, packages = prereq.missing(machine(exists=lambda path: not path.name.endswith("-automatic.gpg")))
    assert problems == ["the Debian archive keyring is too old to know Debian 12"]
    assert packages == ["debian-archive-keyring"]


def test_the_key_of_either_release_is_enough() -> None:
    assert prereq.missing(machine(exists=lambda path: "trixie-automatic" not in path.name)) == ([], [])


def test_a_debootstrap_that_is_too_old() -> None:
    problems, packages = prereq.missing(
        machine(exists=lambda path: path != Path("/usr/share/debootstrap/scripts/trixie"))
    )
    assert problems == ["debootstrap doesn't know trixie: it is too old"]
    assert packages == ["debootstrap"]
