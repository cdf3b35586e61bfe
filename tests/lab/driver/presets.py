# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Scenarios that tests call by name: the machines and the ways to fail that people report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from .scenario import Failure, Gpu, Mig, MigDevice, Process, Scenario, ScenarioError, Smi, Strides

_A100 = Gpu(
    name="NVIDIA A100-SXM4-40GB",
    brand=14,
    architecture=7,
    compute_capability="8.0",
    cores=6912,
    pci_device_id=0x20B010DE,
    pci_subsystem_id=0x134F10DE,
    total_mib=40960,
    reserved_mib=515,
    power_limit_mw=400_000,
    bar1_total_mib=65536,
)

_H100 = Gpu(
    name="NVIDIA H100 80GB HBM3",
    brand=14,
    architecture=9,
    compute_capability="9.0",
    cores=16896,
    pci_device_id=0x233010DE,
    pci_subsystem_id=0x16C110DE,
    total_mib=81559,
    reserved_mib=551,
    power_limit_mw=700_000,
    bar1_total_mib=131072,
)

_GB10 = Gpu(
    name="NVIDIA GB10",
    pci_bus_id="000f:01:00.0",
    brand=14,
    architecture=10,
    compute_capability="12.1",
    cores=6144,
    pci_device_id=0x2E1210DE,
    total_mib=124610,
    reserved_mib=0,
    min_used_mib=0,
    integrated=True,
    ecc=None,
    power_limit_mw=140_000,
    unsupported=(
        "nvmlDeviceGetMemoryInfo*",
        "nvmlDeviceGetBAR1MemoryInfo",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetPowerManagementLimit",
        "nvmlDeviceGetMemClock",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetRetiredPages*",
    ),
)

_VGPU = Gpu(
    name="GRID A100-20C",
    brand=9,
    architecture=7,
    compute_capability="8.0",
    cores=6912,
    pci_bus_id="0000:02:00.0",
    pci_device_id=0x20B510DE,
    total_mib=20480,
    reserved_mib=1350,
    min_used_mib=0,
    virtualization_mode=2,
    ecc=None,
    unsupported=(
        "nvmlDeviceGetPower*",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetFanSpeed",
        "nvmlDeviceGetSerial",
        "nvmlDeviceGetBAR1MemoryInfo",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetRetiredPages*",
        "nvmlDeviceGetMPSComputeRunningProcesses*",
    ),
)

_WSL = Gpu(
    name="NVIDIA GeForce RTX 4090",
    brand=5,
    architecture=8,
    compute_capability="8.9",
    cores=16384,
    pci_device_id=0x268410DE,
    total_mib=24564,
    reserved_mib=345,
    min_used_mib=1180,
    ecc=None,
    fan_percent=0,
    power_limit_mw=450_000,
    process_memory="not_available",
    unsupported=("nvmlDeviceGetMinorNumber", "nvmlDeviceGetSerial", "nvmlDeviceGetMemoryInfo_v2"),
    processes=(Process(30, None, "G", name="/Xwayland", counts=False),),
)


def _with_gpus(seed: str, **changes: Any) -> Scenario:
    """Eight default GPUs, all with these changes."""
    return Scenario(seed=seed, gpus=tuple(Gpu(**changes) for index in range(8)))


def _one_changed(seed: str, position: int, **changes: Any) -> Scenario:
    """Eight default GPUs, one of them with these changes."""
    gpus = list(Scenario(seed=seed).gpus)
    gpus[position] = dataclasses.replace(gpus[position], **changes)
    return Scenario(seed=seed, gpus=tuple(gpus))


def _mig_devices(*profiles: tuple[str, int, int, int]) -> tuple[MigDevice, ...]:
    """MIG devices from (profile, MiB, GPU instance, slices)."""
    return tuple(
        MigDevice(profile, mib, instance, multiprocessors=14 * slices, slices=slices)
        for profile, mib, instance, slices in profiles
    )


def _mig(seed: str) -> Scenario:
    a100 = dataclasses.replace(
        _A100,
        mig=Mig(devices=_mig_devices(("3g.20gb", 19968, 2, 3), ("1g.5gb", 4864, 7, 1), ("2g.10gb", 9856, 3, 2))),
    )
    h100 = dataclasses.replace(_H100, mig=Mig(devices=_mig_devices(("1g.10gb", 9984, 9, 1), ("3g.40gb", 40448, 1, 3))))
    return Scenario(seed=seed, gpus=(a100, h100, dataclasses.replace(_H100, mig=Mig(enabled=False))))


def _foreign_pids(seed: str) -> Scenario:
    gpus = list(Scenario(seed=seed).gpus)
    gpus[0] = dataclasses.replace(gpus[0], processes=(Process(3_900_001, 20_000), Process(1, 500)))
    gpus[1] = dataclasses.replace(gpus[1], held_mib=30_000)
    return Scenario(seed=seed, gpus=tuple(gpus))


def _mps(seed: str) -> Scenario:
    gpus = list(Scenario(seed=seed).gpus)
    server = Process(3_900_010, 27, "C", name="nvidia-cuda-mps-server")
    client = Process(3_900_011, 4096, "M+C", name="python3")
    gpus[0] = dataclasses.replace(gpus[0], processes=(server, client), compute_mode="exclusive_process")
    return Scenario(seed=seed, gpus=tuple(gpus))


def _graphics(seed: str) -> Scenario:
    xorg = Process(3_900_020, 90, "G", name="/usr/lib/xorg/Xorg")
    shell = Process(3_900_021, 60, "C+G", name="/usr/bin/gnome-shell")
    return _one_changed(seed, 0, processes=(xorg, shell), display_active=True)


def _hung(seed: str) -> Scenario:
    return Scenario(
        seed=seed,
        failures=(Failure("nvmlDeviceGet*", hang_s="forever", ignore_term=True),),
    )


def _wsl(seed: str) -> Scenario:
    return Scenario(seed=seed, platform="wsl", device_nodes=False, gpus=(_WSL,))


_PRESETS: dict[str, Callable[[str], Scenario]] = {
    "default": lambda seed: Scenario(seed=seed),
    "no_driver": lambda seed: Scenario(seed=seed, init_code=9),
    "no_permission": lambda seed: Scenario(seed=seed, init_code=4),
    "init_unknown": lambda seed: Scenario(seed=seed, init_code=999),
    "library_missing": lambda seed: Scenario(seed=seed, init_code=12),
    "mismatch": lambda seed: Scenario(seed=seed, init_code=18, kernel_driver_version="570.124.04"),
    "no_gpus": lambda seed: Scenario(seed=seed, gpus=()),
    "gb10": lambda seed: Scenario(seed=seed, gpus=(_GB10,)),
    "wsl": _wsl,
    "vgpu_guest": lambda seed: Scenario(seed=seed, platform="vgpu_guest", gpus=(_VGPU,)),
    "vgpu_host": lambda seed: _one_changed(
        seed, 0, virtualization_mode=3, processes=(Process(3_900_030, 24_000, "C+G", name="vgpu"),)
    ),
    "mig": _mig,
    "a100": lambda seed: Scenario(seed=seed, gpus=(_A100,) * 8),
    "h100": lambda seed: Scenario(seed=seed, gpus=(_H100,) * 8),
    "lost": lambda seed: _one_changed(seed, 3, state="lost"),
    "unknown_error": lambda seed: _one_changed(seed, 3, state="error", error_code=999),
    "reset_required": lambda seed: _one_changed(seed, 3, state="reset_required"),
    "fewer_gpus_than_pci": lambda seed: _one_changed(seed, 3, visible=False),
    "stride16": lambda seed: Scenario(seed=seed, strides=Strides(16, 16, 16)),
    "stride24": lambda seed: Scenario(seed=seed, strides=Strides(24, 24, 24)),
    "stride32": lambda seed: Scenario(seed=seed, strides=Strides(16, 24, 32)),
    "v1_only": lambda seed: Scenario(seed=seed, failures=(Failure("nvmlDeviceGetMemoryInfo_v2", 3),)),
    "process_memory_not_available": lambda seed: _with_gpus(seed, process_memory="not_available"),
    "hung": _hung,
    "slow_release": lambda seed: _with_gpus(seed, release_delay_s=3.0),
    "staged_release": lambda seed: _with_gpus(seed, release_ramp=((0.5, 0.25), (1.0, 0.5), (2.0, 1.0))),
    "leak": lambda seed: _with_gpus(seed, leak_mib=4096),
    "held": lambda seed: _one_changed(seed, 0, held_mib=96_000),
    "unlisted": lambda seed: _with_gpus(seed, unlisted=True),
    "foreign_pids": _foreign_pids,
    "mps": _mps,
    "graphics": _graphics,
    "bad_name": lambda seed: _one_changed(seed, 0, name="NVIDIA \udcff\udcfe RTX"),
    "old_driver": lambda seed: Scenario(
        seed=seed,
        driver_version="470.256.02",
        nvml_version="11.470.256.02",
        cuda_version="11.4",
        gpus=(_A100,) * 8,
        failures=(Failure("nvmlDeviceGetMemoryInfo_v2", 13),),
        smi=Smi(unknown_fields=("memory.reserved", "gpu_recovery_action", "reset_status.reset_required")),
    ),
    "new_banner": lambda seed: Scenario(seed=seed, driver_version="610.47", smi=Smi(banner="umd")),
}

NAMES = tuple(_PRESETS)


def build(name: str, seed: str = "") -> Scenario:
    """The scenario of that name. Raises ScenarioError, naming those there are."""
    if name not in _PRESETS:
        raise ScenarioError(f"no preset {name!r}; there are {', '.join(NAMES)}")
    return _PRESETS[name](seed)
