# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What else the host has to have: memory of its own, and a fabric manager where GPUs are joined by NVSwitch."""

from __future__ import annotations

import glob
import os
from typing import Any, List

from .._core.errors import GpuFleetError
from .._gpu.host import meminfo
from .._model.parallel import Check
from .._systemd.manager import Systemd
from .asked import Asked, Places, fail, passed, skip, warn

FABRIC_MANAGER = "nvidia-fabricmanager.service"
# What each rank takes beside its weights: CUDA's context, torch, pinned buffers.
_RANK_MIB = 2048
_BRIDGE_CLASS = "0x0680"


def check_host_memory(asked: Asked, places: Places) -> Check:
    """One check, ``host_memory``: whether the host's own memory can hold the ranks, and what is offloaded to it."""
    found = meminfo(places.proc)
    if found is None:
        return skip("host_memory", "%s/meminfo can't be read" % places.proc)
    offload = _gib(asked.args.get("cpu_offload_gb"))
    each, total = int(offload * 1024), found.total_mib
    said = "the host has {:,} MiB of memory".format(total)
    if each and each * asked.ranks > total:
        detail = "{}, and cpu_offload_gb puts {:,} MiB of {} ranks into it".format(said, each * asked.ranks, asked.ranks)
        return fail("host_memory", detail, "Lower cpu_offload_gb.")
    needed = asked.ranks * (_RANK_MIB + each)
    if needed > total:
        detail = "{}; {} ranks take about {:,} MiB".format(said, asked.ranks, needed)
        return warn("host_memory", detail, "Watch the first start: the kernel ends processes when memory runs out.")
    return passed("host_memory", "{}; {} rank{} take about {:,} MiB".format(said, asked.ranks, "" if asked.ranks == 1 else "s", needed))


def check_fabric(asked: Asked, places: Places, systemd: Systemd) -> List[Check]:
    """``fabric_manager``, on hosts with NVSwitch: without it every CUDA call ends with error 802 although nvidia-smi looks well."""
    if not has_nvswitch(places):
        return []
    if _runs("nv-fabricmanager", places.proc):
        return [passed("fabric_manager", "the fabric manager runs")]
    try:
        status = systemd.status(FABRIC_MANAGER)
    except GpuFleetError as exc:
        return [skip("fabric_manager", "whether %s runs can't be asked: %s" % (FABRIC_MANAGER, exc.msg))]
    if not status.exists:
        detail = "the GPUs are joined by NVSwitch, but there is no %s, and no fabric manager runs" % FABRIC_MANAGER
        return [warn("fabric_manager", detail, "Install nvidia-fabricmanager in the driver's version, unless it runs elsewhere.")]
    if status.running:
        return [passed("fabric_manager", "%s runs" % FABRIC_MANAGER)]
    detail = "the GPUs are joined by NVSwitch, and %s is %s" % (FABRIC_MANAGER, status.active_state)
    fix = "systemctl enable --now %s; its version has to be the driver's." % FABRIC_MANAGER
    return [fail("fabric_manager", detail, fix)]


def has_nvswitch(places: Places) -> bool:
    """Whether this host drives NVSwitches: as PCI devices (class "other bridge" of NVIDIA's), or as the driver's device nodes."""
    if glob.glob(os.path.join(glob.escape(places.dev), "nvidia-nvswitch[0-9]*")):
        return True
    base = os.path.join(places.sys, "bus/pci/devices")
    for name in _names(base):
        if _line(os.path.join(base, name, "vendor")) == "0x10de" and _line(os.path.join(base, name, "class")).startswith(_BRIDGE_CLASS):
            return True
    return False


def _runs(program: str, proc: str) -> bool:
    # The kernel keeps fifteen characters of a name.
    return any(name.isdigit() and _line(os.path.join(proc, name, "comm")) == program[:15] for name in _names(proc))


def _gib(value: Any) -> float:
    try:
        found = float(value or 0)
    except (TypeError, ValueError):
        return 0.0
    return found if 0 < found < 1 << 20 else 0.0


def _names(directory: str) -> List[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.readline().strip()
    except OSError:
        return ""
