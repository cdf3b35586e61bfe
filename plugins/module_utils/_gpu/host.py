# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel says about GPUs without the driver's library: the PCI bus, the loaded module, the host's memory."""

from __future__ import annotations

import os
import re
from typing import Dict, List, NamedTuple, Optional

_PCI = re.compile(r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})\.(?P<function>[0-9a-f])$", re.IGNORECASE)
_SHORT_PCI = re.compile(r"(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})\.(?P<function>[0-9a-f])$", re.IGNORECASE)
_VERSION = re.compile(r"(?:Kernel Module|NVRM version:.*?)\s+(\d+\.\d+(?:\.\d+)?)\b")


class MemInfo(NamedTuple):
    """The host's memory in MiB. ``free`` is what nobody uses, ``available`` counts reclaimable caches in."""

    total_mib: int
    free_mib: int
    available_mib: int


def natural(text: str) -> Optional[int]:
    """A number written in plain digits; None for anything else, also for one that no counter here can reach."""
    return int(text) if len(text) < 19 and text.isascii() and text.isdigit() else None


def normal_pci(text: str) -> Optional[str]:
    """A PCI address in the driver's form, ``00000000:1B:00.0``; None for what is none. Domains of 4 or 8 digits, or none."""
    match = _PCI.match(text.strip()) or _SHORT_PCI.match(text.strip())
    if match is None:
        return None
    parts = match.groupdict()
    return ("%08x:%s:%s.%s" % (int(parts.get("domain") or "0", 16), parts["bus"], parts["device"], parts["function"])).upper()


def pci_gpus(sys_root: str = "/sys") -> Optional[List[str]]:
    """The addresses of NVIDIA's display and 3D controllers in bus order; None where there is no PCI bus to look at.

    Virtual functions are not counted: they are slices that a vGPU host hands out.
    """
    base = sys_root + "/bus/pci/devices"
    try:
        names = os.listdir(base)
    except OSError:
        return None
    found: List[str] = []
    for name in names:
        device = "%s/%s" % (base, name)
        if _line(device + "/vendor") != "0x10de" or not (_line(device + "/class") or "").startswith(("0x0300", "0x0302")):
            continue
        address = normal_pci(name)
        if address is not None and not os.path.exists(device + "/physfn"):
            found.append(address)
    return sorted(found)


def driver_gpus(proc_root: str = "/proc") -> Optional[List[str]]:
    """The addresses that the loaded module drives, in its order; None where the module shows none."""
    try:
        names = os.listdir(proc_root + "/driver/nvidia/gpus")
    except OSError:
        return None
    return sorted(address for address in map(normal_pci, names) if address is not None)


def driver_minor(pci_bus_id: str, proc_root: str = "/proc") -> Optional[int]:
    """The N of /dev/nvidiaN for a PCI address, as the module says."""
    base = proc_root + "/driver/nvidia/gpus"
    try:
        names = os.listdir(base)
    except OSError:
        return None
    for name in names:
        if normal_pci(name) == pci_bus_id:
            for line in (_text("%s/%s/information" % (base, name)) or "").splitlines():
                key, _colon, value = line.partition(":")
                if key.strip() == "Device Minor":
                    return natural(value.strip())
    return None


def module_version(proc_root: str = "/proc") -> Optional[str]:
    """The version of the kernel module that is loaded; None when none is."""
    match = _VERSION.search(_text(proc_root + "/driver/nvidia/version") or "")
    return match.group(1) if match else None


def module_loaded(proc_root: str = "/proc") -> bool:
    """Whether the driver's kernel module is loaded."""
    return os.path.exists(proc_root + "/driver/nvidia/version")


def meminfo(proc_root: str = "/proc") -> Optional[MemInfo]:
    """The host's memory; None when it can't be read."""
    values: Dict[str, int] = {}
    for line in (_text(proc_root + "/meminfo") or "").splitlines():
        words = line.split()
        size = natural(words[1]) if len(words) >= 2 else None
        if size is not None:
            values[words[0].rstrip(":")] = size // 1024
    if "MemTotal" not in values or "MemFree" not in values:
        return None
    return MemInfo(values["MemTotal"], values["MemFree"], values.get("MemAvailable", values["MemFree"]))


def _line(path: str) -> Optional[str]:
    text = _text(path)
    return None if text is None else text.strip().lower()


def _text(path: str) -> Optional[str]:
    try:
        with open(path, "rb") as handle:
            return handle.read().decode("utf-8", "replace")
    except OSError:
        return None
