# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vllm_service on a host without Ansible in between: hundreds of runs in the time of some dozen."""

from __future__ import annotations

from typing import Any

from e2e.remote import core

from lab import Host

UNIT = "vllm-small.service"
SMALL: dict[str, Any] = {
    "name": "small", "model": "/models/Qwen3-0.6B", "gpus": ["4"], "port": 8001,
    "args": {"max_model_len": 40960, "gpu_memory_utilization": 0.5},
}  # fmt: skip

_RUN = """
import glob, hashlib, os, stat, subprocess, threading
from core._core.errors import GpuFleetError
from core._service.parameters import to_request
from core._service.ports import Ports
from core._service.run import run

def once(parameters, check):
    try:
        done = run(to_request(parameters), Ports(), check_mode=check)
    except GpuFleetError as exc:
        return dict({"changed": False, "actions": [], "files": []}, **exc.result, msg=exc.msg, failed=True)
    return dict(done.to_result(diff=True), warnings=list(done.warnings), failed=False)

def look(unit):
    files = []
    for pattern in ("/etc/systemd/system/**/*", "/etc/vllm/*", "/usr/local/lib/gpufleet/*", "/var/lib/vllm/*"):
        for path in glob.glob(pattern, recursive=True):
            seen = os.lstat(path)
            where = os.readlink(path) if stat.S_ISLNK(seen.st_mode) else ""
            mtime = seen.st_mtime_ns if stat.S_ISREG(seen.st_mode) else 0
            files.append([path, oct(seen.st_mode), seen.st_uid, seen.st_size, mtime, where])
    names = "ActiveState,SubState,InvocationID,MainPID,NRestarts,LoadState,NeedDaemonReload,UnitFileState,Result"
    shown = subprocess.run(["systemctl", "show", "--property=" + names, unit], capture_output=True, text=True, check=True).stdout
    return {"files": sorted(files), "unit": dict(line.split("=", 1) for line in shown.splitlines())}

def reloads():
    # systemd says so in the journal, once per reload.
    subprocess.run(["journalctl", "--sync"], check=True)
    words = ["journalctl", "--quiet", "--no-pager", "--boot", "--output=cat", "_PID=1"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return sum(line.startswith("Reloading") and "finished" not in line for line in text.splitlines())
"""


def service(machine: Host, /, check: bool = False, **parameters: Any) -> dict[str, Any]:
    """One run; what Ansible would return, with ``failed`` and ``warnings`` in any case."""
    code = _RUN + "result = once(given['parameters'], given['check'])\n"
    done: dict[str, Any] = core(machine, code, parameters={**SMALL, **parameters}, check=check)
    return done


def thrice(machine: Host, /, unit: str = UNIT, release: str = "", **parameters: Any) -> dict[str, Any]:
    """Check mode, the run, and the run again, with a look at the host before and after each of them.

    ``release`` is a file that is removed a second after the run has begun. ``reloads`` counts systemd's reloads in the run
    and in the run again.
    """
    code = _RUN + (
        "p, unit, counted = given['parameters'], given['unit'], [reloads()]\n"
        "result = {'before': look(unit), 'planned': once(p, True), 'still': look(unit)}\n"
        "if given['release']:\n"
        "    threading.Timer(1.0, os.unlink, [given['release']]).start()\n"
        "result['done'], result['after'] = once(p, False), look(unit)\n"
        "counted.append(reloads())\n"
        "result['again'], result['end'] = once(p, False), look(unit)\n"
        "counted.append(reloads())\n"
        "result['reloads'] = [counted[1] - counted[0], counted[2] - counted[1]]\n"
    )
    done: dict[str, Any] = core(machine, code, parameters={**SMALL, **parameters}, unit=unit, release=release)
    return done
