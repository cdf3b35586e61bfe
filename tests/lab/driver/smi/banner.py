# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table that nvidia-smi prints when it is asked nothing."""
# Runs on hosts, in one file with its package: standard library alone, Python 3.9.

from __future__ import annotations

import time
from typing import Callable, List

from .. import codes
from .driver import MIB, Driver, Gpu, NvmlError, plain
from .values import COMPUTE_MODES, cuda_version, enabled

_RULE = "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+"
_WIDE = "+" + "-" * 89 + "+"


def banner(driver: Driver, gpus: List[Gpu]) -> str:
    """The whole table. The titles of its first line changed with driver 610."""
    cuda = cuda_version(driver.call("nvmlSystemGetCudaDriverVersion_v2")[0])
    version = driver.driver_version
    if driver.behaviour["banner"] == "umd":
        first = "NVIDIA-SMI %-23sKMD Version: %-14sCUDA UMD Version: %-9s" % (version, version, cuda)
    else:
        first = "NVIDIA-SMI %-23sDriver Version: %-15sCUDA Version: %-9s" % (version, version, cuda)
    lines = [
        time.strftime("%a %b %e %H:%M:%S %Y       "),
        _WIDE,
        "| " + first + "|",
        _RULE,
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|                                         |                        |               MIG M. |",
        "|=========================================+========================+======================|",
    ]
    for gpu in gpus:
        lines += _gpu(gpu)
    return "\n".join(lines) + "\n\n" + _processes(gpus)


def _cell(read: Callable[[], str]) -> str:
    """A reading, or ERR! where there is no room for what went wrong."""
    try:
        return read()
    except NvmlError as error:
        return "N/A" if error.code == codes.NOT_SUPPORTED else "ERR!"


def _gpu(gpu: Gpu) -> List[str]:
    name = _cell(lambda: gpu.one("nvmlDeviceGetName"))
    name = name if len(name) <= 27 else name[:24] + "..."
    persistence = _cell(lambda: _on(gpu.one("nvmlDeviceGetPersistenceMode")))
    display = _cell(lambda: _on(gpu.one("nvmlDeviceGetDisplayActive")))
    ecc = _cell(lambda: "0" if gpu.get("nvmlDeviceGetEccMode")[0] == "1" else "Off")
    fan = _cell(lambda: gpu.one("nvmlDeviceGetFanSpeed") + "%")
    temperature = _cell(lambda: gpu.one("nvmlDeviceGetTemperature") + "C")
    state = _cell(lambda: "P" + gpu.one("nvmlDeviceGetPerformanceState"))
    draw = _cell(lambda: "%dW" % (int(gpu.one("nvmlDeviceGetPowerUsage")) // 1000))
    limit = _cell(lambda: "%dW" % (int(gpu.one("nvmlDeviceGetEnforcedPowerLimit")) // 1000))
    used = _cell(lambda: "%dMiB" % gpu.memory()["used"])
    total = _cell(lambda: "%dMiB" % gpu.memory()["total"])
    busy = _cell(lambda: gpu.get("nvmlDeviceGetUtilizationRates")[0] + "%")
    mode = _cell(lambda: COMPUTE_MODES.get(gpu.one("nvmlDeviceGetComputeMode"), "Unknown"))
    mig = _cell(lambda: enabled(gpu.get("nvmlDeviceGetMigMode")[0]))
    memory = "%11s / %9s" % (used, total) if total != "N/A" else "Not Supported"
    return [
        "|%4d  %-27s%6s  | %18s %3s |%21s |" % (gpu.index, name, persistence, gpu.bus_id, display, ecc),
        "|%4s%6s%6s%16s / %5s |%23s |%8s%13s |" % (fan, temperature, state, draw, limit, memory, busy, mode),
        "|%41s|%24s|%21s |" % ("", "", mig),
        _RULE,
    ]


def _on(word: str) -> str:
    return "On" if word == "1" else "Off"


def _processes(gpus: List[Gpu]) -> str:
    lines = [
        _WIDE,
        "| Processes:                                                                              |",
        "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
        "|        ID   ID                                                               Usage      |",
        "|=========================================================================================|",
    ]
    rows = [row for gpu in gpus for row in _process_rows(gpu)]
    lines += rows or ["|  %-86s |" % "No running processes found"]
    return "\n".join([*lines, _WIDE]) + "\n"


def _process_rows(gpu: Gpu) -> List[str]:
    try:
        processes = gpu.processes()
    except NvmlError as error:
        return ["|  %3d   %-80s |" % (gpu.index, error)]
    rows = []
    for each in processes:
        name = _tail(plain(lambda each=each: gpu.process_name(each.pid)), 35)  # type: ignore[misc]
        used = "N/A" if each.used is None else "%dMiB" % (each.used // MIB)
        gi, ci = ("N/A" if value is None else str(value) for value in (each.gpu_instance, each.compute_instance))
        rows.append("|  %3d   %-4s %-4s %15d %6s   %-35s %9s |" % (gpu.index, gi, ci, each.pid, each.type, name, used))
    return rows


def _tail(text: str, width: int) -> str:
    """The end of a long name, as the program cuts it."""
    return text if len(text) <= width else "..." + text[-(width - 3) :]
