# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one look at everything that concerns a set of processes."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.gpufleet.vllm.plugins.module_utils._process.holders import device_holders
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.inspect import inspect
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.sessions import session_state

from .proc import Proc


def test_listed_processes_their_ancestors_and_the_holders_are_seen(tmp_path: Path) -> None:
    proc = Proc(tmp_path / "proc")
    proc.add(1, ["systemd"], ppid=0, comm="systemd")
    proc.add(10, ["vllm", "serve"], ppid=1, cgroup="0::/system.slice/vllm-a.service\n")
    proc.add(11, ["VLLM::EngineCore"], ppid=10, fds={3: "/dev/nvidia0", 4: "/dev/nvidiactl"})
    proc.add(20, ["python3", "loader.py"], ppid=1, fds={3: "/dev/nvidia2"})
    proc.add(21, ["nvidia-powerd"], ppid=1, fds={3: "/dev/nvidiactl"})
    proc.add(30, ["sleep", "1"], ppid=1)
    steps: "list[str]" = []
    seen = inspect([11, 30, 99], device_holders(proc.root), proc.root, beat=steps.append)
    assert sorted(seen.infos) == [1, 10, 11, 20, 30]
    assert [info.pid for info in seen.family(11)] == [10, 1]
    assert seen.holders == {11: frozenset({0}), 20: frozenset({2})}
    assert seen.nodes[30] == frozenset() and 99 not in seen.nodes
    assert "/proc/11" in steps and seen.initial_pid_namespace


def test_a_mapped_node_counts_and_a_zombie_proves_nothing(tmp_path: Path) -> None:
    proc = Proc(tmp_path / "proc")
    proc.add(11, maps="7f00-7f01 rw-s 00000000 00:05 12    /dev/nvidia0\n7f02-7f03 r-xp 0 08:01 3   /usr/lib/libc.so\n")
    proc.add(12, state="Z", argv=[], comm="VLLM::EngineCor")
    seen = inspect([11, 12], {}, proc.root)
    assert seen.nodes[11] == frozenset({"nvidia0"})
    assert seen.nodes[12] is None


def test_a_title_that_must_not_be_read_is_not_read(tmp_path: Path) -> None:
    proc = Proc(tmp_path / "proc")
    proc.add(11, ["VLLM::EngineCore"], comm="VLLM::EngineCor")
    (proc.path / "11/cmdline").unlink()
    (proc.path / "11/maps").unlink()
    seen = inspect([11], {}, proc.root, untitled=frozenset([11]))
    assert seen.infos[11].comm == "VLLM::EngineCor" and seen.nodes[11] == frozenset()


def test_logind_says_whether_the_user_is_still_there(tmp_path: Path) -> None:
    sessions = tmp_path / "systemd" / "sessions"
    sessions.mkdir(parents=True)
    (sessions / "3").write_text("# This is private data. Do not parse.\nUID=1000\nSTATE=closing\nACTIVE=0\n")
    (sessions / "4").write_text("UID=1000\n")
    assert session_state("3", str(tmp_path)) == "closing"
    assert session_state("4", str(tmp_path)) is None
    assert session_state("../5", str(tmp_path)) is None
