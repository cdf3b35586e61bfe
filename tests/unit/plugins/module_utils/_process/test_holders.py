# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds a GPU's device node open."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from ansible_collections.gpufleet.vllm.plugins.module_utils._process.holders import (
    device_holders,
    gpu_minors,
    mapped_nodes,
    nodes_of,
)

from .proc import Proc


def test_every_kind_of_node_is_known_and_nothing_else(tmp_path: Path) -> None:
    proc = Proc(tmp_path / "proc")
    names = ["nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps/nvidia-cap3", "dxg", "nvhost-gpu"]
    others = ["null", "nvidia", "nvidiaX", "nvidia0x", "shm/nvidia0", "dri/card0"]
    proc.add(5, fds={number: "/dev/" + name for number, name in enumerate(names + others)})
    proc.add(6, fds={0: "/home/me/dev/nvidia0", 1: "socket:[1]", 2: "/dev/nvidia3 (deleted)"})
    proc.add(7)
    assert device_holders(proc.root) == {5: frozenset(names), 6: frozenset({"nvidia3"})}
    assert gpu_minors(frozenset(names)) == frozenset({0, 12})


def test_nothing_held_and_nothing_seen_are_told_apart(tmp_path: Path) -> None:
    proc = Proc(tmp_path / "proc")
    proc.add(7)
    assert nodes_of(7, proc.root) == frozenset()
    assert nodes_of(8, proc.root) is None


def test_a_real_descriptor_is_found_also_in_a_forked_child(tmp_path: Path) -> None:
    # what fuser finds and the driver's list does not: a child that only inherited the open node
    node = tmp_path / "dev" / "nvidia4"
    node.parent.mkdir()
    node.touch()
    held = os.open(node, os.O_RDWR)
    release, hold = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hold)
        os.read(release, 1)
        os._exit(0)
    try:
        os.close(held)
        assert device_holders(dev=str(node.parent)) == {child: frozenset({"nvidia4"})}
    finally:
        os.close(hold)
        os.close(release)
        os.waitpid(child, 0)
    assert device_holders(dev=str(node.parent)) == {}


def test_a_mapping_outlives_its_descriptor(tmp_path: Path) -> None:
    node = tmp_path / "dev" / "nvidia1"
    node.parent.mkdir()
    node.write_bytes(b"\0" * 4096)
    with node.open("r+b") as handle, mmap.mmap(handle.fileno(), 4096):
        handle.close()
        assert "nvidia1" in mapped_nodes(os.getpid(), dev=str(node.parent))
    assert mapped_nodes(os.getpid(), dev=str(node.parent)) == frozenset()
