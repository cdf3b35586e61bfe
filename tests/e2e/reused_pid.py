# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on a lab host, with the collection's code beside it: a pid that is looked at, dies, and is given to somebody else.

Prints one JSON object: what became of the first process's signal, and whether the second one still runs.
"""
# Python 3.9, standard library: it runs where the modules run.

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.clock import Clock
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.procfs import read_process
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.types import ProcessInfo
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.planned import Signal
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.processes import end_processes
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.seen import Holder

_CLONE3 = 435
_FIELDS = (
    "flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls", "set_tid", "set_tid_size", "cgroup",
)


class _CloneArgs(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in _FIELDS]


def fork_as(pid: int) -> int:
    """fork(), with the pid of the child chosen: as the kernel does it by itself once the numbers have wrapped around."""
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = (ctypes.c_int32 * 1)(pid)
    arguments = _CloneArgs(exit_signal=signal.SIGCHLD, set_tid=ctypes.addressof(wanted), set_tid_size=1)
    got = int(libc.syscall(_CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments)))
    if got < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return got


def hold() -> None:
    """Be a process on the GPU: the same program, user and device node in both lives of the pid."""
    os.open("/dev/nvidia0", os.O_RDWR)
    time.sleep(60)
    os._exit(0)


def seen(pid: int) -> ProcessInfo:
    """A process that is there, once it has opened the node."""
    while "/dev/nvidia0" not in [os.readlink("/proc/%d/fd/%s" % (pid, fd)) for fd in os.listdir("/proc/%d/fd" % pid)]:
        time.sleep(0.01)
    info = read_process(pid)
    assert info is not None
    return info


def try_to_end(info: ProcessInfo) -> Any:
    """Signal the process that was looked at."""
    holder = Holder(
        pid=info.pid, gpus=frozenset({0}), used_mib={0: 1000}, state="running", name=info.comm, user=info.user, unit=None,
        container=None, vllm=True, orphan=True, protected_by=None, proven=True, start_time=info.start_time, info=info,
    )
    (result,) = end_processes([Signal(holder, "test")], 1.0, Clock())
    return {"outcome": result.outcome, "signals": list(result.signals)}


def main() -> None:
    """The whole story, with the check that the same code does end the right process."""
    first = os.fork()
    if not first:
        hold()
    before = seen(first)
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    time.sleep(0.05)  # more than a clock tick: a start time has that grain
    second = fork_as(first)
    if not second:
        hold()
    after = seen(second)
    told: dict[str, Any] = {"same_pid": first == second, "same_program": (before.exe, before.uid) == (after.exe, after.uid)}
    told["old"] = try_to_end(before)
    told["alive"] = os.waitpid(second, os.WNOHANG) == (0, 0)
    told["new"] = try_to_end(after)
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
