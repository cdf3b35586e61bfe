# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nvidia-smi's view of the driver: NVML calls by name, and the GPUs with their readings."""
# Runs on hosts, in one file with its package: standard library alone, Python 3.9.

from __future__ import annotations

import json
import os
from typing import Callable, Dict, List, Optional, Set

from .. import codes
from ..client import Channel, device_dir

MIB = 1024 * 1024
NOT_AVAILABLE = 2**64 - 1
NO_INSTANCE = 2**32 - 1


class NvmlError(Exception):
    """An NVML call that failed; `code` is its return code."""

    def __init__(self, code: int) -> None:
        super().__init__(codes.text_of(code))
        self.code = code


class Ended(Exception):
    """The program ends here: what it prints last, and its exit code."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Driver:
    """A session with the driver, as NVML opens one. Raises NvmlError from open()."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._nodes: List[int] = []
        answer = self._raw("smi")
        self.behaviour: Dict[str, object] = json.loads(answer[0])
        self.unknown_fields: Set[str] = set(self.behaviour["unknown_fields"])
        self.kernel_version, self.driver_version, self.platform = answer[1:4]

    def open(self) -> None:
        """Initialise; the device nodes stay open as long as the program runs."""
        words = self.call("nvmlInitWithFlags", "smi")
        if words[0] == "0":
            return
        if not self._open("nvidiactl"):
            raise NvmlError(codes.DRIVER_NOT_LOADED)
        self.call("visible", *[minor for minor in words[1:] if self._open("nvidia" + minor)])

    def _open(self, name: str) -> bool:
        try:
            self._nodes.append(os.open(os.path.join(device_dir(), name), os.O_RDWR | os.O_CLOEXEC))
        except PermissionError as error:
            if name == "nvidiactl":
                raise NvmlError(codes.NO_PERMISSION) from error
            return False
        except OSError:
            return False
        return True

    def call(self, name: str, *arguments: object) -> List[str]:
        """The words of one NVML call's answer. Raises NvmlError."""
        return self._raw("nvml", name, *arguments)

    def reset(self, bus_id: str) -> None:
        """Reset a GPU, by its PCI id: one that needs it may have no handle. Raises NvmlError."""
        self._raw("reset", bus_id)

    def _raw(self, *words: object) -> List[str]:
        code, answer = self._channel.request(*words)
        if code != 0:
            raise NvmlError(code)
        return answer

    def gpus(self) -> List[Gpu]:
        """The GPUs in the order of their index; those that can't be had carry their `error`."""
        return [self._gpu(index) for index in range(self.count())]

    def count(self) -> int:
        """How many GPUs the driver shows."""
        return int(self.call("nvmlDeviceGetCount_v2")[0])

    def _gpu(self, index: int) -> Gpu:
        try:
            return Gpu(self, index, self.call("nvmlDeviceGetHandleByIndex_v2", index)[0])
        except NvmlError as error:
            return Gpu(self, index, "", error)

    def find(self, wanted: str) -> Optional[Gpu]:
        """The GPU of an index, UUID or PCI id, without touching any other; None when there is none."""
        if wanted.isdigit():
            return self._gpu(int(wanted)) if int(wanted) < self.count() else None
        if wanted.upper().startswith("GPU-"):
            try:
                found = Gpu(self, 0, self.call("nvmlDeviceGetHandleByUUID", wanted)[0])
                found.index = int(found.one("nvmlDeviceGetIndex"))
            except NvmlError as error:
                if error.code == codes.NOT_FOUND:
                    return None
                raise
            return found
        for index, bus_id in enumerate(self.bus_ids()):
            if wanted.upper() in (bus_id, bus_id[4:], bus_id[9:]):
                return self._gpu(index)
        return None

    def bus_ids(self) -> List[str]:
        """The PCI ids of all GPUs that the driver shows, as its /proc tree does: known even of a lost one."""
        return self._raw("bus_ids")


class Process:
    """One process on a GPU: `used` in bytes, None where the driver doesn't report it."""

    def __init__(self, pid: int, used: Optional[int], gpu_instance: Optional[int], compute_instance: Optional[int]):
        self.pid = pid
        self.used = used
        self.gpu_instance = gpu_instance
        self.compute_instance = compute_instance
        self.kinds: List[str] = []

    @property
    def type(self) -> str:
        """C, G, C+G, M+C ..."""
        return "+".join(kind for kind in "MCG" if kind in self.kinds)


class Gpu:
    """One GPU (or MIG device), by its handle."""

    def __init__(self, driver: Driver, index: int, token: str, error: Optional[NvmlError] = None) -> None:
        self.driver = driver
        self.index = index
        self.token = token
        self.error = error

    def get(self, name: str, *arguments: object) -> List[str]:
        """The words of one call about this GPU. Raises NvmlError."""
        return self.driver.call(name, self.token, *arguments)

    def one(self, name: str) -> str:
        """The single word of a call about this GPU. Raises NvmlError."""
        return self.get(name)[0]

    @property
    def uuid(self) -> str:
        """Its UUID. Raises NvmlError."""
        return self.one("nvmlDeviceGetUUID")

    @property
    def bus_id(self) -> str:
        """Its PCI id with eight digits of domain. Raises NvmlError."""
        return self.get("nvmlDeviceGetPciInfo_v3")[6]

    def memory(self) -> Dict[str, int]:
        """total, reserved, used and free in MiB; reserved is 0 where only NVML's first form works."""
        try:
            total, reserved, free, used = (int(word) // MIB for word in self.get("nvmlDeviceGetMemoryInfo_v2"))
        except NvmlError as error:
            if error.code not in (codes.NOT_SUPPORTED, codes.FUNCTION_NOT_FOUND):
                raise
            total, free, used = (int(word) // MIB for word in self.get("nvmlDeviceGetMemoryInfo"))
            reserved = 0
        return {"total": total, "reserved": reserved, "used": used, "free": free}

    def listed(self, kind: str) -> List[Process]:
        """The processes of one list: Compute, Graphics or MPSCompute. Raises NvmlError."""
        words = [int(word) for word in self.get("nvmlDeviceGet" + kind + "RunningProcesses_v3")]
        found = []
        for position in range(2, 2 + 4 * words[1], 4):
            pid, used, gpu_instance, compute_instance = words[position : position + 4]
            found.append(
                Process(
                    pid,
                    None if used == NOT_AVAILABLE else used,
                    None if gpu_instance == NO_INSTANCE else gpu_instance,
                    None if compute_instance == NO_INSTANCE else compute_instance,
                )
            )
        return found

    def processes(self) -> List[Process]:
        """All processes, each once with all its kinds. Lists that this GPU does not have are left out."""
        merged: Dict[object, Process] = {}
        for kind, letter in (("Compute", "C"), ("Graphics", "G"), ("MPSCompute", "M")):
            try:
                listed = self.listed(kind)
            except NvmlError as error:
                if error.code not in (codes.NOT_SUPPORTED, codes.FUNCTION_NOT_FOUND):
                    raise
                continue
            for each in listed:
                key = (each.pid, each.gpu_instance, each.compute_instance)
                merged.setdefault(key, each).kinds.append(letter)
        return sorted(merged.values(), key=lambda process: process.pid)

    def process_name(self, pid: int) -> str:
        """A process's name from the driver or from /proc. Raises NvmlError 6 when there is no such process here."""
        words = self.driver.call("nvmlSystemGetProcessName", pid)
        if words:
            return words[0]
        try:
            with open("/proc/%d/cmdline" % pid, "rb") as file:
                title = file.read(1024).split(b"\0")[0].decode("utf-8", "surrogateescape")
        except OSError as error:
            raise NvmlError(codes.NOT_FOUND) from error
        if not title:
            raise NvmlError(codes.NOT_FOUND)
        return title

    def mig_devices(self) -> List[Gpu]:
        """Its MIG devices; none where MIG is off or unknown."""
        try:
            if self.get("nvmlDeviceGetMigMode")[0] != "1":
                return []
            most = int(self.one("nvmlDeviceGetMaxMigDeviceCount"))
        except NvmlError:
            return []
        found = []
        for number in range(most):
            try:
                token = self.get("nvmlDeviceGetMigDeviceHandleByIndex", number)[0]
            except NvmlError:
                continue
            found.append(Gpu(self.driver, number, token))
        return found


def plain(read: Callable[[], str]) -> str:
    """A reading as -q prints it: "N/A" or the driver's words where there is none."""
    try:
        return read()
    except NvmlError as error:
        return "N/A" if error.code == codes.NOT_SUPPORTED else str(error)


def bracketed(read: Callable[[], str]) -> str:
    """A reading as a query prints it: "[N/A]" or the driver's words in brackets where there is none."""
    try:
        return read()
    except NvmlError as error:
        return "[N/A]" if error.code == codes.NOT_SUPPORTED else "[%s]" % error
