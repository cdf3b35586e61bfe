# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The words that nvidia-smi has for NVML's numbers."""
# Runs on hosts, in one file with its package: standard library alone, Python 3.9.

from __future__ import annotations

from typing import Dict

from .driver import Gpu, NvmlError

BRANDS: Dict[str, str] = {
    "0": "Unknown",
    "1": "Quadro",
    "2": "Tesla",
    "3": "NVS",
    "4": "GRID",
    "5": "GeForce",
    "6": "Titan",
    "7": "NVIDIA Virtual Applications",
    "8": "NVIDIA Virtual PC",
    "9": "NVIDIA Virtual Compute Server",
    "10": "NVIDIA RTX Virtual Workstation",
    "11": "NVIDIA Cloud Gaming",
    "12": "Quadro RTX",
    "13": "NVIDIA RTX",
    "14": "NVIDIA",
}

ARCHITECTURES: Dict[str, str] = {
    "2": "Kepler",
    "3": "Maxwell",
    "4": "Pascal",
    "5": "Volta",
    "6": "Turing",
    "7": "Ampere",
    "8": "Ada Lovelace",
    "9": "Hopper",
    "10": "Blackwell",
}

COMPUTE_MODES: Dict[str, str] = {"0": "Default", "1": "Exclusive_Thread", "2": "Prohibited", "3": "Exclusive_Process"}

VIRTUALIZATION: Dict[str, str] = {"0": "None", "1": "Pass-Through", "2": "VGPU", "3": "Host VGPU", "4": "Host VSGA"}

RECOVERY: Dict[str, str] = {"0": "None", "1": "Reset", "2": "Reboot", "3": "Drain P2P", "4": "Drain and Reset"}


def enabled(word: str) -> str:
    """Enabled or Disabled."""
    return "Enabled" if word == "1" else "Disabled"


def yes(word: str) -> str:
    """Yes or No."""
    return "No" if word == "0" else "Yes"


def product_name(gpu: Gpu) -> str:
    """The product's name. Raises NvmlError."""
    return gpu.one("nvmlDeviceGetName")


def cuda_version(word: str) -> str:
    """ "13.0" from NVML's 13000."""
    return "%d.%d" % (int(word) // 1000, int(word) % 1000 // 10)


def field(gpu: Gpu, number: int) -> str:
    """One of NVML's field values. Raises NvmlError."""
    code, _kind, value = gpu.get("nvmlDeviceGetFieldValues", number)
    if code != "0":
        raise NvmlError(int(code))
    return value
