# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nvidia-smi's course: connect, act, print, and the exit code for what went wrong."""
# Runs on hosts, in one file with its package: standard library alone, Python 3.9.

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Dict, List, Optional

from .. import codes
from ..client import Channel, DriverError
from .actions import compute_mode, persistence, reset
from .banner import banner
from .driver import Driver, Ended, Gpu, NvmlError, plain
from .options import csv_format, parse
from .query_apps import BY_NAME as APP_FIELDS
from .query_apps import FIELDS as ALL_APP_FIELDS
from .query_apps import subjects
from .query_gpu import BY_NAME as GPU_FIELDS
from .query_gpu import FIELDS as ALL_GPU_FIELDS
from .report import SECTION_NAMES, Node, as_text, as_xml, log
from .table import chosen, csv, listing
from .values import cuda_version

_NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n\n"
)
_NO_LIBRARY = (
    "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. "
    "Please make sure that the NVIDIA Display Driver is properly installed and present in your system.\n"
    "Please also try adding directory that contains libnvidia-ml.so to your system PATH.\n"
)
_USAGE = "NVIDIA System Management Interface\n\nnvidia-smi [OPTION1 [ARG1]] [OPTION2 [ARG2]] ...\n"


def main(arguments: List[str]) -> int:
    """Run the program; returns its exit code."""
    try:
        _run(arguments)
    except Ended as end:
        _print(end.text)
        return end.code
    except NvmlError as error:
        _print("Unable to complete the request: %s\n" % error)
        return _exit_code(error)
    except DriverError as error:
        _print("Failed to communicate with the driver: %s\n" % error)
        return 255
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    return 0


def _run(arguments: List[str]) -> None:
    given = parse(arguments)
    if "help" in given:
        return _print(_USAGE)
    if "help_gpu" in given:
        return _print(listing("--query-gpu", ALL_GPU_FIELDS))
    if "help_apps" in given:
        return _print(listing("--query-compute-apps", ALL_APP_FIELDS))
    # Fields and formats are checked before the driver is asked.
    formats = csv_format(given.get("format")) if {"query_gpu", "query_apps"} & set(given) else {}
    driver = _connect()
    if "file" in given:
        sys.stdout = open(str(given["file"]), "w", encoding="utf-8", errors="surrogateescape")
    pause = _pause(given)
    while True:
        _once(driver, given, formats)
        if pause is None:
            return None
        sys.stdout.flush()
        time.sleep(pause)


def _once(driver: Driver, given: Dict[str, Optional[str]], formats: Dict[str, bool]) -> None:
    if "version" in given:
        return _print(_versions(driver))
    gpus = _selected(driver, given.get("id"))
    if "list" in given:
        return _list(driver, gpus)
    if "reset" in given:
        return _print(reset(driver, gpus))
    if "query_gpu" in given:
        fields = chosen(GPU_FIELDS, str(given["query_gpu"]), driver.unknown_fields)
        usable = _usable(driver, gpus)
        return _print(csv(fields, [(gpu,) for gpu in usable], **formats))
    if "query_apps" in given:
        fields = chosen(APP_FIELDS, str(given["query_apps"]), driver.unknown_fields)
        return _print(csv(fields, subjects(_usable(driver, gpus)), **formats))
    usable = _usable(driver, gpus)
    if "persistence" in given:
        return _print(persistence(usable, str(given["persistence"])))
    if "compute_mode" in given:
        return _print(compute_mode(usable, str(given["compute_mode"])))
    if "query" in given:
        return _print(_report(driver, usable, given))
    if {"xml", "display"} & set(given):
        raise Ended(2, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n")
    return _print(banner(driver, usable))


def _connect() -> Driver:
    """An open session. Raises Ended with the real program's words for each way that this fails."""
    try:
        driver = Driver(Channel())
    except OSError:
        raise Ended(9, _NO_DRIVER) from None
    _misbehave(driver.behaviour)
    try:
        driver.open()
    except NvmlError as error:
        if error.code == codes.DRIVER_NOT_LOADED:
            raise Ended(9, _NO_DRIVER) from error
        if error.code == codes.LIBRARY_NOT_FOUND:
            raise Ended(12, _NO_LIBRARY) from error
        text = "Failed to initialize NVML: %s\n" % error
        if error.code == codes.LIB_RM_VERSION_MISMATCH:
            text += "NVML library version: %s\n" % ".".join(driver.driver_version.split(".")[:2])
        raise Ended(_exit_code(error), text) from error
    return driver


def _misbehave(behaviour: Dict[str, object]) -> None:
    """What the scenario wants of this program alone."""
    if behaviour["ignore_term"]:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    if behaviour["stdout"] is not None:
        _print(str(behaviour["stdout"]))
    if behaviour["stderr"] is not None:
        sys.stderr.write(str(behaviour["stderr"]))
    if behaviour["hang_s"] == "forever":
        while True:
            time.sleep(3600)
    time.sleep(float(str(behaviour["hang_s"])) + float(str(behaviour["delay_s"])))
    if behaviour["exit_code"] is not None:
        raise Ended(int(str(behaviour["exit_code"])))


def _selected(driver: Driver, ids: Optional[str]) -> List[Gpu]:
    """The GPUs of -i, or all. Raises Ended 6 when there are none, or an id is of none."""
    if ids is None:
        gpus = driver.gpus()
    else:
        found = [driver.find(each.strip()) for each in ids.split(",")]
        gpus = [gpu for gpu in found if gpu is not None]
        if len(gpus) < len(found):
            gpus = []
    if not gpus:
        raise Ended(6, "No devices were found\n")
    return gpus


def _usable(driver: Driver, gpus: List[Gpu]) -> List[Gpu]:
    """The GPUs that answer. One that does not ends the program, or (as newer drivers do it) is told of and left out."""
    for gpu in gpus:
        if gpu.error is None:
            continue
        bus = driver.bus_ids()[gpu.index][4:]
        if driver.behaviour["lost_gpu"] == "abort":
            text = "Unable to determine the device handle for GPU%s: %s\n" % (bus, _reason(gpu.error))
            raise Ended(_exit_code(gpu.error), text)
        sys.stderr.write(
            "Unable to determine the device handle for GPU%d: %s: %s\n" % (gpu.index, bus, _reason(gpu.error))
        )
    return [gpu for gpu in gpus if gpu.error is None]


def _reason(error: NvmlError) -> str:
    if error.code == codes.GPU_IS_LOST:
        return "GPU is lost.  Reboot the system to recover this GPU"
    return str(error)


def _list(driver: Driver, gpus: List[Gpu]) -> None:
    """-L: each GPU and its MIG devices. Raises Ended with the code of a GPU that does not answer, after the others."""
    failed = None
    for gpu in gpus:
        if gpu.error is not None:
            failed = gpu.error
            bus = driver.bus_ids()[gpu.index][4:]
            _print("Unable to determine the device handle for gpu %s: %s\n" % (bus, _reason(gpu.error)))
            continue
        name = plain(lambda gpu=gpu: gpu.one("nvmlDeviceGetName"))  # type: ignore[misc]
        _print("GPU %d: %s (UUID: %s)\n" % (gpu.index, name, gpu.uuid))
        for device in gpu.mig_devices():
            profile = device.one("nvmlDeviceGetName").rpartition(" MIG ")[2]
            _print("  MIG %-11s Device %2d: (UUID: %s)\n" % (profile, device.index, device.uuid))
    if failed is not None and driver.behaviour["lost_gpu"] == "abort":
        raise Ended(_exit_code(failed))


def _report(driver: Driver, gpus: List[Gpu], given: Dict[str, Optional[str]]) -> str:
    sections = None
    if "display" in given:
        sections = [each.strip().upper() for each in str(given["display"]).split(",")]
        for each in sections:
            if each not in SECTION_NAMES:
                raise Ended(2, "Unrecognized display type: %s\n" % each)
    cuda = cuda_version(driver.call("nvmlSystemGetCudaDriverVersion_v2")[0])
    newer = driver.behaviour["banner"] == "umd" and "xml" not in given
    note = " [Deprecated; will be removed in CUDA 14.0. Use KMD Version instead]" if newer else ""
    versions = [Node("driver_version", "Driver Version", driver.driver_version + note)]
    if newer:
        versions.append(Node("kmd_version", "KMD Version", driver.driver_version))
    versions.append(Node("cuda_version", "CUDA UMD Version" if newer else "CUDA Version", cuda))
    nodes = log(gpus, versions, driver.count(), sections)
    return as_xml(nodes) if "xml" in given else as_text(nodes)


def _versions(driver: Driver) -> str:
    cuda = cuda_version(driver.call("nvmlSystemGetCudaDriverVersion_v2")[0])
    nvml = driver.call("nvmlSystemGetNVMLVersion")[0].partition(".")[2]
    rows = [("NVIDIA-SMI", driver.driver_version), ("NVML", nvml), ("DRIVER", driver.driver_version), ("CUDA", cuda)]
    return "".join("%-22s: %s\n" % (name + " version", value) for name, value in rows)


def _pause(given: Dict[str, Optional[str]]) -> Optional[float]:
    """Seconds between two rounds of -l or -lms; None: one round. Raises Ended 2."""
    for name, unit in (("loop", 1.0), ("loop_ms", 0.001)):
        if name in given:
            try:
                return float(str(given[name])) * unit
            except ValueError:
                raise Ended(2, "Invalid loop interval: %s\n" % given[name]) from None
    return None


def _exit_code(error: NvmlError) -> int:
    return error.code if error.code < 256 else 255


def _print(text: str) -> None:
    """Write text as the bytes it came as: a name need not be UTF-8."""
    target = sys.stdout
    buffer = getattr(target, "buffer", None)
    if buffer is None:
        target.write(text)
    else:
        target.flush()
        buffer.write(text.encode("utf-8", "surrogateescape"))
        buffer.flush()
