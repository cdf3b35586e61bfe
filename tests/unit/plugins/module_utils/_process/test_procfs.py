# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes read from /proc, also those that make it hard."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._process import procfs

from .proc import Proc


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    """An empty /proc made of files."""
    return Proc(tmp_path / "proc")


def test_this_process_is_read_as_it_is() -> None:
    info = procfs.read_process(os.getpid())
    assert info is not None
    assert (info.pid, info.ppid, info.uid) == (os.getpid(), os.getppid(), os.getuid())
    assert info.exe == os.path.realpath(sys.executable)
    # xdist may have given it a title, or not: what the kernel shows is what is read.
    assert info.cmdline and info.cmdline == Path("/proc/self/cmdline").read_text(encoding="utf-8").rstrip("\0").replace("\0", " ")
    assert info.nspids and info.nspids[-1] == os.getpid()
    assert info.start_time is not None and 0 <= time.time() - info.start_time < 24 * 3600


def test_a_name_with_blanks_and_parentheses_does_not_shift_the_fields() -> None:
    # the kernel lets a process choose any name; only the last parenthesis ends it
    code = "import ctypes,time; ctypes.CDLL(None).prctl(15, b') R 1 (evil) x', 0, 0, 0); print(1, flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        info = procfs.read_process(child.pid)
        assert info is not None
        assert info.comm == ") R 1 (evil) x"[:15]
        assert info.ppid == os.getpid() and info.state in ("R", "S")
        assert info.start_ticks == procfs.start_ticks(child.pid)
    finally:
        child.kill()
        child.communicate()


def test_the_whole_title_is_in_the_command_line(proc: Proc) -> None:
    proc.add(50, ["VLLM::Worker_DP0_TP3_EP3"], comm="VLLM::Worker_DP")
    info = procfs.read_process(50, proc.root)
    assert info is not None
    assert (info.comm, info.cmdline) == ("VLLM::Worker_DP", "VLLM::Worker_DP0_TP3_EP3")
    assert info.start_time == 1700000000 + 100 / os.sysconf("SC_CLK_TCK")
    assert info.wchan == "do_wait"


def test_the_title_can_be_left_alone(proc: Proc) -> None:
    proc.add(50, ["/usr/bin/python3", "x.py"], comm="python3")
    info = procfs.read_process(50, proc.root, title=False)
    assert info is not None and (info.cmdline, info.argv, info.comm) == ("", (), "python3")


def test_what_is_not_there_is_none(proc: Proc) -> None:
    assert procfs.read_process(51, proc.root) is None
    assert procfs.start_ticks(51, proc.root) is None
    assert procfs.parent_of(51, proc.root) is None
    assert procfs.cgroup_text(51, proc.root) == ""
    (proc.path / "52").mkdir()
    (proc.path / "52/stat").write_text("52 (half) S")  # it ended while it was read
    assert procfs.read_process(52, proc.root) is None


def test_a_zombie_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    try:
        deadline = time.monotonic() + 10
        while (info := procfs.read_process(child.pid)) is not None and not info.zombie:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert info is not None and info.state == "Z"
    finally:
        child.wait()


def test_ancestors_go_up_to_the_first_process(proc: Proc) -> None:
    proc.add(1, ["init"], ppid=0)
    proc.add(10, ["sshd"], ppid=1)
    proc.add(20, ["bash"], ppid=10)
    assert procfs.ancestors(20, proc.root) == [20, 10, 1]
    assert procfs.ancestors(99, proc.root) == [99]


def test_a_container_is_told_by_its_pid_namespace(proc: Proc) -> None:
    assert procfs.in_initial_pid_namespace(proc.root)
    proc.namespace("pid:[4026532345]")
    assert not procfs.in_initial_pid_namespace(proc.root)


def test_an_account_that_does_not_exist_is_its_number() -> None:
    assert procfs.user_name(0) == "root"
    assert procfs.user_name(1000910000) == "1000910000"


def test_a_renamed_process_keeps_fifteen_characters() -> None:
    name = ctypes.create_string_buffer(b"VLLM::EngineCore")
    old = ctypes.create_string_buffer(16)
    libc = ctypes.CDLL(None)
    libc.prctl(16, old, 0, 0, 0)
    try:
        libc.prctl(15, name, 0, 0, 0)
        info = procfs.read_process(os.getpid())
        assert info is not None and info.comm == "VLLM::EngineCor"
    finally:
        libc.prctl(15, old, 0, 0, 0)


@given(st.text(max_size=200))
def test_any_text_for_stat_is_read_or_refused(text: str) -> None:
    stat = procfs.parse_stat(text)
    assert stat is None or isinstance(stat.start_ticks, int)


@given(st.text(alphabet=st.characters(blacklist_characters="\n\0", blacklist_categories=["Cs"]), max_size=15), st.integers(0, 2**40))
def test_any_name_is_read_back(name: str, ticks: int) -> None:
    stat = procfs.parse_stat("7 (%s) S 1" % name + " 0" * 17 + " %d 5 5" % ticks)
    assert stat is not None and (stat.comm, stat.ppid, stat.start_ticks) == (name, 1, ticks)


def test_the_controlling_terminal_is_read() -> None:
    fields = "S 1 7 7 %d 7 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0 0"
    for terminal in (0, 34816):
        stat = procfs.parse_stat("7 (sh) " + fields % terminal)
        assert stat is not None and (stat.terminal, stat.start_ticks) == (terminal, 99)
