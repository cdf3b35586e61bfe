# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a simulated driver pretends: the documented form of scenario.json.

Every field has a default; a file needs only what differs. The default machine has eight RTX PRO 6000 Blackwell
Server Edition. Sizes are MiB, durations seconds. An unknown key is an error, not ignored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .ledger import ReleaseSchedule
from .schema import ScenarioError, dump, load

__all__ = ["Failure", "Gpu", "Mig", "MigDevice", "Process", "Scenario", "ScenarioError", "Smi", "default_gpu", "dump"]

DEFAULT_BUS = (0x01, 0x21, 0x41, 0x61, 0x81, 0xA1, 0xC1, 0xE1)


@dataclass(frozen=True)
class Process:
    """An entry of a process list with no allocation behind it: a pid of elsewhere, a stale one, an absurd one."""

    pid: int
    used_mib: int | None = 0  # None: the driver doesn't report it (2^64-1)
    type: str = "C"  # C, G, M or several joined with "+"
    name: str | None = None  # what nvidia-smi shows; None: asked from /proc, "[Not Found]" when that fails
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    counts: bool = True  # whether used_mib is part of the GPU's used memory


@dataclass(frozen=True)
class MigDevice:
    """One MIG device: a compute instance in a GPU instance, with memory of its own."""

    profile: str  # "1g.10gb"
    total_mib: int
    gpu_instance_id: int
    compute_instance_id: int = 0
    uuid: str | None = None  # None: made from the parent's UUID
    multiprocessors: int = 14
    slices: int = 1
    reserved_mib: int = 0
    min_used_mib: int = 13


@dataclass(frozen=True)
class Mig:
    """MIG of one GPU."""

    enabled: bool = True
    pending: bool | None = None  # None: as enabled
    max_devices: int = 7
    devices: tuple[MigDevice, ...] = ()
    parent_memory: Literal["all", "root", "none"] = "root"  # who may read the whole GPU's memory


@dataclass(frozen=True)
class Gpu:
    """One GPU, in the order of its index."""

    name: str = "NVIDIA RTX PRO 6000 Blackwell Server Edition"  # may hold surrogate escapes: bytes that aren't UTF-8
    uuid: str | None = None  # None: made from the scenario's seed and the index
    pci_bus_id: str | None = None  # sysfs form, "0000:01:00.0"; None: by index
    minor: int | None = None  # N of /dev/nvidiaN; None: the index
    serial: str | None = None  # None: made from the UUID
    brand: int = 13  # NVML's numbers: 13 NVIDIA RTX, 14 NVIDIA, 2 Tesla, 5 GeForce
    architecture: int = 10  # NVML's numbers: 10 Blackwell, 9 Hopper, 8 Ada, 7 Ampere
    compute_capability: str = "12.0"
    cores: int = 24064
    pci_device_id: int = 0x2BB510DE  # device in the upper half, vendor in the lower
    pci_subsystem_id: int = 0x204E10DE
    vbios: str = "98.02.81.00.07"
    # memory
    total_mib: int = 97887
    reserved_mib: int = 638  # what the driver keeps for itself: part of "used" in NVML's first form
    min_used_mib: int = 2  # shown as used with nobody on the GPU
    held_mib: int = 0  # used by nobody that any list shows, until changed or the GPU is reset
    leak_mib: int = 0  # of memory given up, this much in all never comes back, until the GPU is reset
    release_delay_s: float = 0.0  # how long memory counts as used after its last holder is gone
    release_ramp: tuple[tuple[float, float], ...] = ()  # instead: (seconds, cumulative share 0..1), last share 1
    # health
    visible: bool = True  # False: on the PCI bus, but the driver doesn't show it
    state: Literal["ok", "lost", "reset_required", "error"] = "ok"
    error_code: int = 999  # what calls return in state "error"
    # what the process lists say
    processes: tuple[Process, ...] = ()
    unlisted: bool = False  # no allocation's process is listed: they live in another PID namespace
    list_as: dict[str, int] = dataclasses.field(default_factory=dict)  # pid to list instead of a real pid
    process_memory: Literal["reported", "not_available"] = "reported"
    # the rest
    unsupported: tuple[str, ...] = ()  # NVML calls (shell patterns) that return NOT_SUPPORTED on this GPU
    mig: Mig | None = None  # None: not MIG-capable
    integrated: bool = False  # shares the host's memory (GB10, Grace)
    utilization_percent: int = 0
    memory_utilization_percent: int = 0
    temperature_c: int = 31
    fan_percent: int | None = None  # None: passively cooled
    power_mw: int = 34_620
    power_limit_mw: int = 600_000
    clock_sm_mhz: int = 180
    clock_memory_mhz: int = 405
    performance_state: int = 8
    compute_mode: Literal["default", "prohibited", "exclusive_process"] = "default"
    persistence_mode: bool = True
    ecc: bool | None = True  # None: no ECC
    display_active: bool = False
    virtualization_mode: int = 0  # NVML's numbers: 0 none, 1 pass-through, 2 vGPU guest, 3 vGPU host
    bar1_total_mib: int = 131072
    bar1_used_mib: int = 1
    remapped_rows: tuple[int, int, int, int] = (0, 0, 0, 0)  # correctable, uncorrectable, pending, failure
    retired_pages: int = 0
    retired_pages_pending: bool = False
    recovery_action: int = 0  # 0 none, 1 reset, 2 reboot, 3 drain, 4 drain and reset

    def __post_init__(self) -> None:
        if self.total_mib <= 0 and not self.integrated:
            raise ValueError("total_mib must be positive")
        for name in ("reserved_mib", "min_used_mib", "held_mib", "leak_mib"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        if self.release_delay_s < 0:
            raise ValueError("release_delay_s must not be negative")
        if self.release_ramp:
            times = [when for when, _share in self.release_ramp]
            shares = [share for _when, share in self.release_ramp]
            if times != sorted(times) or shares != sorted(shares) or shares[-1] != 1.0 or min(times + shares) < 0:
                raise ValueError("release_ramp: seconds and shares must rise, and the last share must be 1")

    @property
    def schedule(self) -> ReleaseSchedule:
        """How this GPU gives memory back."""
        return ReleaseSchedule(self.release_ramp or ((self.release_delay_s, 1.0),))

    @property
    def nvml_bus_id(self) -> str:
        """The bus id as NVML writes it: "00000000:01:00.0"."""
        domain, rest = str(self.pci_bus_id).split(":", 1)
        return f"{int(domain, 16):08X}:{rest.upper()}"


@dataclass(frozen=True)
class Failure:
    """What happens to calls that match: the first that applies wins.

    `call` is a shell pattern over the NVML functions' names as exported (nvmlDeviceGetMemoryInfo_v2), and over
    cuInit and cuMemAlloc, the allocations. A call that hangs is answered when the time is over or the failure is
    taken out of the scenario: with `code`, or truly when there is none.
    """

    call: str
    code: int | None = None  # the return code; None: the true answer, after what else is asked for
    gpu: int | None = None  # index; None: on all, and calls without a device
    times: int | None = None  # how many matching calls it applies to; None: all
    skip: int = 0  # how many matching calls it leaves alone first
    client: Literal["any", "library", "smi", "cuda"] = "any"
    unprivileged: bool = False  # only callers other than root
    hang_s: float | Literal["forever"] = 0.0
    ignore_term: bool = False  # the caller can't be ended by SIGTERM while it hangs (SIGKILL works)
    uninterruptible: bool = False  # the caller is in state D while it hangs (SIGKILL works)
    crash: bool = False  # the caller dies of SIGSEGV
    stdout: str | None = None  # rubbish that the library prints into its caller's stdout
    stderr: str | None = None
    id: str = ""  # tells equal failures apart; control.py fills it


@dataclass(frozen=True)
class Smi:
    """What nvidia-smi does on its own account, beside what the driver tells it."""

    delay_s: float = 0.0
    hang_s: float | Literal["forever"] = 0.0
    ignore_term: bool = False
    exit_code: int | None = None  # ends at once with this code
    stdout: str | None = None  # printed before anything else
    stderr: str | None = None
    banner: Literal["cuda", "umd"] = "cuda"  # the banner's titles: before and since driver 610
    lost_gpu: Literal["abort", "skip"] = "abort"  # a GPU without handle ends the program, or is told of and left out
    unknown_fields: tuple[str, ...] = ()  # query fields that this version is too old to know
    reset_fails: bool = False  # a reset is refused though nobody uses the GPU


@dataclass(frozen=True)
class Strides:
    """Bytes per entry of the process lists, by the symbol that is called; drivers differ without telling."""

    v1: Literal[16, 24, 32] = 16
    v2: Literal[16, 24, 32] = 24
    v3: Literal[16, 24, 32] = 24


@dataclass(frozen=True)
class Scenario:
    """A whole driver with its GPUs."""

    driver_version: str = "580.95.05"
    kernel_driver_version: str | None = None  # of the loaded module; None: the same
    nvml_version: str | None = None  # None: major version 13 and the driver's
    cuda_version: str = "13.0"
    init_code: int = 0  # what nvmlInit returns: 9 not loaded, 18 mismatch, 12, 4, 999 ...
    device_nodes: bool = True  # False: no /dev/nvidia* is needed (WSL)
    platform: Literal["bare_metal", "wsl", "vgpu_guest"] = "bare_metal"
    seed: str = ""  # makes UUIDs differ between hosts
    gpus: tuple[Gpu, ...] = tuple(Gpu() for index in range(8))
    failures: tuple[Failure, ...] = ()
    smi: Smi = Smi()
    strides: Strides = Strides()
    pid_depth: int | None = None  # PID namespace level that pids are told in (1: the daemon's); None: the caller's
    null_handle: Literal["refuse", "crash"] = "refuse"  # what a NULL device handle does

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpus", tuple(_completed(self.seed, *each) for each in enumerate(self.gpus)))
        for what in ("uuid", "pci_bus_id", "minor"):
            values = [getattr(gpu, what) for gpu in self.gpus]
            if len(set(values)) != len(values):
                raise ValueError(f"two GPUs share one {what}: {values}")

    @classmethod
    def from_json(cls, text: str) -> Scenario:
        """Parse a scenario file's text. Raises ScenarioError with the place and what is allowed there."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ScenarioError(f"not JSON: {error}") from error
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Scenario:
        """The scenario of a plain dict; `gpus` may be a number of default GPUs. Raises ScenarioError."""
        if isinstance(data, Mapping) and isinstance(data.get("gpus"), int) and not isinstance(data["gpus"], bool):
            data = {**data, "gpus": [{}] * data["gpus"]}
        return load(cls, data, "scenario")

    def to_json(self) -> str:
        """The whole scenario as text, defaults included."""
        return json.dumps(dump(self), indent=1)

    @property
    def kernel_version(self) -> str:
        """The version of the module that is loaded; another than driver_version after an upgrade without a reboot."""
        return self.kernel_driver_version or self.driver_version

    @property
    def shown(self) -> tuple[int, ...]:
        """Positions in `gpus` of those that the driver shows, in the order of their NVML index."""
        return tuple(number for number, gpu in enumerate(self.gpus) if gpu.visible)


def default_gpu(index: int, seed: str = "", **changes: Any) -> Gpu:
    """One GPU of the default machine, with its identity filled in."""
    return _completed(seed, index, Gpu(**changes))


def _completed(seed: str, index: int, gpu: Gpu) -> Gpu:
    """Fill in what identifies a GPU, where the scenario leaves it open."""
    changes: dict[str, Any] = {}
    digest = hashlib.sha256(f"{seed}/{index}".encode()).digest()
    if gpu.uuid is None:
        changes["uuid"] = f"GPU-{uuid.UUID(bytes=digest[:16], version=4)}"
    if gpu.pci_bus_id is None:
        bus = DEFAULT_BUS[index] if index < len(DEFAULT_BUS) else index * 2
        changes["pci_bus_id"] = f"0000:{bus:02x}:00.0"
    if gpu.minor is None:
        changes["minor"] = index
    if gpu.serial is None:
        changes["serial"] = "165" + str(int.from_bytes(digest[16:22], "big"))[:10].rjust(10, "0")
    gpu = dataclasses.replace(gpu, **changes) if changes else gpu
    if gpu.mig is not None and any(device.uuid is None for device in gpu.mig.devices):
        devices = tuple(
            device
            if device.uuid
            else dataclasses.replace(device, uuid=f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'{gpu.uuid}/{number}')}")
            for number, device in enumerate(gpu.mig.devices)
        )
        gpu = dataclasses.replace(gpu, mig=dataclasses.replace(gpu.mig, devices=devices))
    return gpu
