# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVML's functions on the driver's side: one call's name and arguments to the words of its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from . import codes, fields, procs
from .machine import Machine, Memory, Refused, Target
from .scenario import Gpu

MIB = 1024 * 1024
NOT_AVAILABLE = 2**64 - 1
NO_INSTANCE = 2**32 - 1

# Calls that tell who a GPU is: they work while the GPU waits for a reset.
_IDENTITY = frozenset(
    {
        "nvmlDeviceGetName",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetIndex",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetSerial",
        "nvmlDeviceGetPciInfo",
        "nvmlDeviceGetPciInfo_v2",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetBrand",
        "nvmlDeviceGetArchitecture",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceIsMigDeviceHandle",
        "nvmlDeviceGetVirtualizationMode",
    }
)

# What a handle of a MIG device answers; all else is NOT_SUPPORTED there.
_ON_MIG = frozenset(
    {
        "nvmlDeviceGetName",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetIndex",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetBAR1MemoryInfo",
        "nvmlDeviceGetAttributes_v2",
        "nvmlDeviceGetGpuInstanceId",
        "nvmlDeviceGetComputeInstanceId",
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
        "nvmlDeviceIsMigDeviceHandle",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetArchitecture",
        "nvmlDeviceGetBrand",
    }
)

# Calls whose answers need an allocation list that a MIG device has too.
_LISTS = {"Compute": "C", "Graphics": "G", "MPSCompute": "M"}


@dataclass
class Session:
    """One client's connection as NVML sees it."""

    client: str = "library"
    pid: int = 0
    uid: int = 0
    initialised: bool = False
    minors: frozenset[int] | None = None  # device nodes that the client could open; None: all
    _depth: int | None = field(default=None, repr=False)

    def depth(self) -> int:
        """How many PID namespaces deep the client lives; 1: in the daemon's own."""
        if self._depth is None:
            self._depth = len(procs.pid_chain(self.pid))
        return self._depth


class Nvml:
    """The calls, on a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def answer(self, session: Session, call: str, arguments: Sequence[str], now: float) -> list[object]:
        """The words that a successful call returns. Raises Refused with its code otherwise."""
        if call in _SYSTEM:
            if not session.initialised and not call.startswith("nvmlInit"):
                raise Refused(codes.UNINITIALIZED)
            return _SYSTEM[call](self, session, list(arguments))
        if not session.initialised:
            raise Refused(codes.UNINITIALIZED)
        target = Target.parse(arguments[0])
        self._refuse_unable(target, call)
        rest = list(arguments[1:])
        if call in _ATTRIBUTES:
            return list(_ATTRIBUTES[call](self.machine.gpu(target.gpu)))
        if call in _DEVICE:
            return _DEVICE[call](self, session, target, rest, now)
        kind = _list_kind(call)
        if kind is None:
            raise Refused(codes.FUNCTION_NOT_FOUND)
        return self._process_list(session, target, kind, call, now)

    def shown(self, session: Session) -> list[int]:
        """Positions of the GPUs that a client sees, in the order of their index."""
        gpus = self.machine.scenario.gpus
        return [
            position
            for position in self.machine.scenario.shown
            if session.minors is None or gpus[position].minor in session.minors
        ]

    def index_of(self, token: str) -> int | None:
        """The NVML index of a handle's GPU, for failures that are bound to a GPU; None for no GPU's handle."""
        try:
            return self.machine.scenario.shown.index(Target.parse(token).gpu)
        except (Refused, ValueError):
            return None

    def _refuse_unable(self, target: Target, call: str) -> None:
        gpu = self.machine.gpu(target.gpu)
        if gpu.state == "lost":
            raise Refused(codes.GPU_IS_LOST)
        if gpu.state == "error":
            raise Refused(gpu.error_code)
        if gpu.state == "reset_required" and call not in _IDENTITY:
            raise Refused(codes.RESET_REQUIRED)
        if any(fnmatchcase(call, pattern) for pattern in gpu.unsupported):
            raise Refused(codes.NOT_SUPPORTED)
        if target.mig is not None:
            self.machine.mig_device(target)
            if call not in _ON_MIG and _list_kind(call) is None:
                raise Refused(codes.NOT_SUPPORTED)

    # --- system

    def _init(self, session: Session, _arguments: list[str]) -> list[object]:
        scenario = self.machine.scenario
        if scenario.init_code:
            raise Refused(scenario.init_code)
        session.initialised = True
        if not scenario.device_nodes:
            return [0]
        return [1, *(scenario.gpus[position].minor for position in scenario.shown)]

    def _visible(self, session: Session, arguments: list[str]) -> list[object]:
        session.minors = frozenset(int(each) for each in arguments)
        return []

    def _shutdown(self, _session: Session, _arguments: list[str]) -> list[object]:
        return []

    def _count(self, session: Session, _arguments: list[str]) -> list[object]:
        return [len(self.shown(session))]

    def _nvml_version(self, _session: Session, _arguments: list[str]) -> list[object]:
        scenario = self.machine.scenario
        return [scenario.nvml_version or f"13.{scenario.driver_version}"]

    def _cuda_version(self, _session: Session, _arguments: list[str]) -> list[object]:
        major, minor = (int(each) for each in self.machine.scenario.cuda_version.split("."))
        return [major * 1000 + minor * 10]

    def _process_name(self, _session: Session, arguments: list[str]) -> list[object]:
        for gpu in self.machine.scenario.gpus:
            for ghost in gpu.processes:
                if str(ghost.pid) == arguments[0] and ghost.name is not None:
                    return [ghost.name]
        return []  # the client asks its own /proc

    def _handle(self, position: int) -> list[object]:
        gpu = self.machine.gpu(position)
        if gpu.state == "lost":
            raise Refused(codes.GPU_IS_LOST)
        if gpu.state == "error":
            raise Refused(gpu.error_code)
        return [Target(position).token]

    def _by_index(self, session: Session, arguments: list[str]) -> list[object]:
        shown = self.shown(session)
        if int(arguments[0]) >= len(shown):
            raise Refused(codes.INVALID_ARGUMENT)
        return self._handle(shown[int(arguments[0])])

    def _by_name(self, session: Session, arguments: list[str]) -> list[object]:
        if arguments[0].isdigit():
            raise Refused(codes.NOT_FOUND)
        target = self.machine.find(arguments[0])
        if target.gpu not in self.shown(session):
            raise Refused(codes.NOT_FOUND)
        self._handle(target.gpu)
        return [target.token]

    def _by_serial(self, session: Session, arguments: list[str]) -> list[object]:
        for position in self.shown(session):
            if self.machine.gpu(position).serial == arguments[0]:
                return self._handle(position)
        raise Refused(codes.NOT_FOUND)

    # --- one device

    def _name(self, _session: Session, target: Target, _rest: list[str], _now: float) -> list[object]:
        gpu = self.machine.gpu(target.gpu)
        if target.mig is None:
            return [gpu.name]
        return [f"{gpu.name} MIG {self.machine.mig_device(target).profile}"]

    def _uuid(self, _session: Session, target: Target, _rest: list[str], _now: float) -> list[object]:
        if target.mig is None:
            return [self.machine.gpu(target.gpu).uuid]
        return [self.machine.mig_device(target).uuid]

    def _index(self, session: Session, target: Target, _rest: list[str], _now: float) -> list[object]:
        return [self.shown(session).index(target.gpu) if target.mig is None else target.mig]

    def _memory(self, session: Session, target: Target, now: float) -> Memory:
        gpu = self.machine.gpu(target.gpu)
        if target.mig is None and gpu.mig is not None and gpu.mig.enabled:
            readable = gpu.mig.parent_memory
            if readable == "none":
                raise Refused(codes.NOT_SUPPORTED)
            if readable == "root" and session.uid != 0:
                raise Refused(codes.NO_PERMISSION)
        return self.machine.memory(target, now)

    def _memory_v1(self, session: Session, target: Target, _rest: list[str], now: float) -> list[object]:
        memory = self._memory(session, target, now)
        return [memory.total * MIB, memory.free * MIB, (memory.used + memory.reserved) * MIB]

    def _memory_v2(self, session: Session, target: Target, _rest: list[str], now: float) -> list[object]:
        memory = self._memory(session, target, now)
        return [memory.total * MIB, memory.reserved * MIB, memory.free * MIB, memory.used * MIB]

    def _process_list(self, session: Session, target: Target, kind: str, call: str, _now: float) -> list[object]:
        strides = self.machine.scenario.strides
        version = call[-3:] if call.endswith(("_v2", "_v3")) else "_v1"
        if session.client == "smi":
            stride = 24
        else:
            stride = {"_v1": strides.v1, "_v2": strides.v2, "_v3": strides.v3}[version]
        depth = self.machine.scenario.pid_depth or session.depth()
        found = self.machine.processes(target, kind)
        words: list[object] = [stride, len(found)]
        for each in found:
            words += [
                procs.pid_at(each.pids, depth) % 2**32,
                NOT_AVAILABLE if each.used_mib is None else each.used_mib * MIB,
                NO_INSTANCE if each.gpu_instance_id is None else each.gpu_instance_id,
                NO_INSTANCE if each.compute_instance_id is None else each.compute_instance_id,
            ]
        return words

    def _utilisation(self, _session: Session, target: Target, _rest: list[str], _now: float) -> list[object]:
        gpu = self.machine.gpu(target.gpu)
        if gpu.mig is not None and gpu.mig.enabled:
            raise Refused(codes.NOT_SUPPORTED)
        return [gpu.utilization_percent, gpu.memory_utilization_percent]

    def _mig_count(self, _session: Session, target: Target, _rest: list[str], _now: float) -> list[object]:
        mig = self.machine.gpu(target.gpu).mig
        return [0 if mig is None else mig.max_devices]

    def _mig_handle(self, _session: Session, target: Target, rest: list[str], _now: float) -> list[object]:
        mig = self.machine.gpu(target.gpu).mig
        if mig is None or not mig.enabled:
            raise Refused(codes.NOT_SUPPORTED)
        if int(rest[0]) >= mig.max_devices:
            raise Refused(codes.INVALID_ARGUMENT)
        if int(rest[0]) >= len(mig.devices):
            raise Refused(codes.NOT_FOUND)
        return [Target(target.gpu, int(rest[0])).token]

    def _mig_parent(self, _session: Session, target: Target, _rest: list[str], _now: float) -> list[object]:
        self.machine.mig_device(target)
        return [Target(target.gpu).token]

    def _is_mig(self, _session: Session, target: Target, _rest: list[str], _now: float) -> list[object]:
        return [0 if target.mig is None else 1]

    def _gpu_instance(self, _session: Session, target: Target, _rest: list[str], _now: float) -> list[object]:
        return [self.machine.mig_device(target).gpu_instance_id]

    def _compute_instance(self, _session: Session, target: Target, _rest: list[str], _now: float) -> list[object]:
        return [self.machine.mig_device(target).compute_instance_id]

    def _attributes(self, _session: Session, target: Target, _rest: list[str], _now: float) -> list[object]:
        device = self.machine.mig_device(target)
        return [device.multiprocessors, device.slices, device.slices, 0, 0, 0, device.slices, 1, device.total_mib]

    def _bar1(self, _session: Session, target: Target, _rest: list[str], _now: float) -> list[object]:
        gpu = self.machine.gpu(target.gpu)
        used = min(gpu.bar1_used_mib, gpu.bar1_total_mib)
        return [gpu.bar1_total_mib * MIB, (gpu.bar1_total_mib - used) * MIB, used * MIB]

    def _field_values(self, _session: Session, target: Target, rest: list[str], _now: float) -> list[object]:
        gpu = self.machine.gpu(target.gpu)
        return [word for number in rest for word in fields.value(gpu, int(number))]

    def _set_persistence(self, session: Session, target: Target, rest: list[str], _now: float) -> list[object]:
        self._refuse_other_users(session)
        self.machine.override(target.gpu, persistence_mode=rest[0] == "1")
        return []

    def _set_compute_mode(self, session: Session, target: Target, rest: list[str], _now: float) -> list[object]:
        self._refuse_other_users(session)
        modes = {"0": "default", "2": "prohibited", "3": "exclusive_process"}
        if rest[0] not in modes:
            raise Refused(codes.INVALID_ARGUMENT)
        self.machine.override(target.gpu, compute_mode=modes[rest[0]])
        return []

    @staticmethod
    def _refuse_other_users(session: Session) -> None:
        if session.uid != 0:
            raise Refused(codes.NO_PERMISSION)


def _list_kind(call: str) -> str | None:
    if not call.startswith("nvmlDeviceGet"):
        return None
    bare = call[:-3] if call.endswith(("_v2", "_v3")) else call
    return _LISTS.get(bare.removeprefix("nvmlDeviceGet").removesuffix("RunningProcesses"))


def _known(value: object) -> object:
    """The value, or NOT_SUPPORTED where this GPU has none."""
    if value is None:
        raise Refused(codes.NOT_SUPPORTED)
    return value


def _pci(gpu: Gpu) -> list[object]:
    domain, bus, rest = str(gpu.pci_bus_id).split(":")
    device = rest.split(".")[0]
    legacy = f"{domain[-4:].upper()}:{bus.upper()}:{rest.upper()}"
    numbers = (int(domain, 16), int(bus, 16), int(device, 16))
    return [legacy, *numbers, gpu.pci_device_id, gpu.pci_subsystem_id, gpu.nvml_bus_id]


def _mig_mode(gpu: Gpu) -> list[object]:
    if gpu.mig is None:
        raise Refused(codes.NOT_SUPPORTED)
    pending = gpu.mig.enabled if gpu.mig.pending is None else gpu.mig.pending
    return [int(gpu.mig.enabled), int(pending)]


_Attribute = Callable[[Gpu], Sequence[object]]
_Device = Callable[[Nvml, Session, Target, list[str], float], list[object]]
_System = Callable[[Nvml, Session, list[str]], list[object]]

_COMPUTE_MODES = {"default": 0, "prohibited": 2, "exclusive_process": 3}

# Calls whose answer stands in the GPU's description.
_ATTRIBUTES: dict[str, _Attribute] = {
    "nvmlDeviceGetMinorNumber": lambda gpu: [_known(gpu.minor)],
    "nvmlDeviceGetSerial": lambda gpu: [_known(gpu.serial)],
    "nvmlDeviceGetPciInfo": _pci,
    "nvmlDeviceGetPciInfo_v2": _pci,
    "nvmlDeviceGetPciInfo_v3": _pci,
    "nvmlDeviceGetComputeMode": lambda gpu: [_COMPUTE_MODES[gpu.compute_mode]],
    "nvmlDeviceGetPersistenceMode": lambda gpu: [int(gpu.persistence_mode)],
    "nvmlDeviceGetMigMode": _mig_mode,
    "nvmlDeviceGetTemperature": lambda gpu: [gpu.temperature_c],
    "nvmlDeviceGetFanSpeed": lambda gpu: [_known(gpu.fan_percent)],
    "nvmlDeviceGetPowerUsage": lambda gpu: [gpu.power_mw],
    "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: [gpu.power_limit_mw],
    "nvmlDeviceGetPowerManagementLimit": lambda gpu: [gpu.power_limit_mw],
    "nvmlDeviceGetPerformanceState": lambda gpu: [gpu.performance_state],
    "nvmlDeviceGetSmClock": lambda gpu: [gpu.clock_sm_mhz],
    "nvmlDeviceGetMemClock": lambda gpu: [gpu.clock_memory_mhz],
    "nvmlDeviceGetArchitecture": lambda gpu: [gpu.architecture],
    "nvmlDeviceGetBrand": lambda gpu: [gpu.brand],
    "nvmlDeviceGetCudaComputeCapability": lambda gpu: gpu.compute_capability.split("."),
    "nvmlDeviceGetNumGpuCores": lambda gpu: [gpu.cores],
    "nvmlDeviceGetVbiosVersion": lambda gpu: [gpu.vbios],
    "nvmlDeviceGetDisplayActive": lambda gpu: [int(gpu.display_active)],
    "nvmlDeviceGetVirtualizationMode": lambda gpu: [gpu.virtualization_mode],
    "nvmlDeviceGetEccMode": lambda gpu: [int(bool(_known(gpu.ecc)))] * 2,
    "nvmlDeviceGetRemappedRows": lambda gpu: gpu.remapped_rows,
    "nvmlDeviceGetRetiredPages": lambda gpu: [0x1000 * (page + 1) for page in range(gpu.retired_pages)],
    "nvmlDeviceGetRetiredPagesPendingStatus": lambda gpu: [int(gpu.retired_pages_pending)],
}

_DEVICE: dict[str, _Device] = {
    "nvmlDeviceGetName": Nvml._name,
    "nvmlDeviceGetUUID": Nvml._uuid,
    "nvmlDeviceGetIndex": Nvml._index,
    "nvmlDeviceGetMemoryInfo": Nvml._memory_v1,
    "nvmlDeviceGetMemoryInfo_v2": Nvml._memory_v2,
    "nvmlDeviceGetUtilizationRates": Nvml._utilisation,
    "nvmlDeviceGetMaxMigDeviceCount": Nvml._mig_count,
    "nvmlDeviceGetMigDeviceHandleByIndex": Nvml._mig_handle,
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": Nvml._mig_parent,
    "nvmlDeviceIsMigDeviceHandle": Nvml._is_mig,
    "nvmlDeviceGetGpuInstanceId": Nvml._gpu_instance,
    "nvmlDeviceGetComputeInstanceId": Nvml._compute_instance,
    "nvmlDeviceGetAttributes_v2": Nvml._attributes,
    "nvmlDeviceGetBAR1MemoryInfo": Nvml._bar1,
    "nvmlDeviceGetFieldValues": Nvml._field_values,
    "nvmlDeviceSetPersistenceMode": Nvml._set_persistence,
    "nvmlDeviceSetComputeMode": Nvml._set_compute_mode,
}

_SYSTEM: dict[str, _System] = {
    "nvmlInit": Nvml._init,
    "nvmlInit_v2": Nvml._init,
    "nvmlInitWithFlags": Nvml._init,
    "nvmlShutdown": Nvml._shutdown,
    "visible": Nvml._visible,
    "nvmlSystemGetDriverVersion": lambda nvml, _session, _rest: [nvml.machine.scenario.driver_version],
    "nvmlSystemGetNVMLVersion": Nvml._nvml_version,
    "nvmlSystemGetCudaDriverVersion": Nvml._cuda_version,
    "nvmlSystemGetCudaDriverVersion_v2": Nvml._cuda_version,
    "nvmlSystemGetProcessName": Nvml._process_name,
    "nvmlDeviceGetCount": Nvml._count,
    "nvmlDeviceGetCount_v2": Nvml._count,
    "nvmlDeviceGetHandleByIndex": Nvml._by_index,
    "nvmlDeviceGetHandleByIndex_v2": Nvml._by_index,
    "nvmlDeviceGetHandleByUUID": Nvml._by_name,
    "nvmlDeviceGetHandleByPciBusId": Nvml._by_name,
    "nvmlDeviceGetHandleByPciBusId_v2": Nvml._by_name,
    "nvmlDeviceGetHandleBySerial": Nvml._by_serial,
}

CALLS = frozenset(_SYSTEM) | frozenset(_DEVICE) | frozenset(_ATTRIBUTES) - {"visible"}
