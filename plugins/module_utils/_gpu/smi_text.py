# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvidia-smi prints, as data. Pure functions over its text; the banner, whose titles change, is never read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from . import raw
from .host import natural, normal_pci

MIB = 1 << 20
# No host has more GPUs: a number beyond is none.
_MOST_COUNTED = 1024

# The fields of --query-gpu, those that every driver knows and those that may be refused. `name` comes last: it alone may hold a comma.
REQUIRED_FIELDS = ("index", "uuid", "pci.bus_id", "memory.total", "memory.used", "memory.free", "driver_version")
# `count` is how many GPUs there are in all, also where only some are selected.
OPTIONAL_FIELDS = ("count", "memory.reserved", "utilization.gpu", "compute_mode", "mig.mode.current", "gpu_recovery_action")
# Those without which memory could be taken for what it is not.
NEEDED_OPTIONAL = ("count", "memory.reserved", "mig.mode.current")
# Who a GPU is, and nothing that its memory is asked for.
IDENTITY_FIELDS = ("index", "uuid", "pci.bus_id", "driver_version", "count", "mig.mode.current")
LAST_FIELD = "name"

_BAD_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query')
_MIG_LINE = re.compile(r"\s+MIG\s+(?P<profile>\S+)\s+Device\s+(?P<index>\d+):\s+\(UUID:\s*(?P<uuid>[^)]+)\)")
_GPU_LINE = re.compile(r"GPU\s+(?P<index>\d+):\s+(?P<name>.*?)\s+\(UUID:\s*(?P<uuid>[^)]+)\)")

# What nvidia-smi says -> the NVML code it stands for. Read from the top.
_PHRASES: Tuple[Tuple[str, int], ...] = (
    ("version mismatch", raw.LIB_RM_VERSION_MISMATCH),
    ("is lost", raw.GPU_IS_LOST),
    ("requires reset", raw.RESET_REQUIRED),
    ("reset required", raw.RESET_REQUIRED),
    ("communicate with the nvidia driver", raw.DRIVER_NOT_LOADED),
    ("driver is not loaded", raw.DRIVER_NOT_LOADED),
    ("driver not loaded", raw.DRIVER_NOT_LOADED),
    ("couldn't find libnvidia-ml", raw.LIBRARY_NOT_FOUND),
    ("shared library not found", raw.LIBRARY_NOT_FOUND),
    ("insufficient permissions", raw.NO_PERMISSION),
    ("no devices were found", raw.NOT_FOUND),
    ("not supported", raw.NOT_SUPPORTED),
    ("n/a", raw.NOT_SUPPORTED),
    ("function not found", raw.FUNCTION_NOT_FOUND),
    ("not found", raw.NOT_FOUND),
    ("driver_hung", raw.HUNG),  # ours, for a cell that was left out because asking for it hung
    ("blocked by the operating system", 17),
    ("unknown error", raw.UNKNOWN),
)
# The answer is good; also where a GPU's infoROM is not.
GOOD_EXITS = (0, 14)
# Exit codes that say something by themselves.
_EXITS = {3: raw.NOT_SUPPORTED, 4: raw.NO_PERMISSION, 6: raw.NOT_FOUND, 9: raw.DRIVER_NOT_LOADED, 12: raw.LIBRARY_NOT_FOUND,
          13: raw.FUNCTION_NOT_FOUND, 15: raw.GPU_IS_LOST, 18: raw.LIB_RM_VERSION_MISMATCH}


def refused_field(text: str) -> Optional[str]:
    """The field that this nvidia-smi does not know; None when it complains of something else."""
    match = _BAD_FIELD.search(text)
    return match.group(1) if match else None


def failure_code(rc: Optional[int], text: str) -> int:
    """The NVML code that an exit and its text stand for; the text says more than the exit code where both speak."""
    lowered = text.lower()
    for phrase, code in _PHRASES:
        if phrase in lowered:
            return code
    return _EXITS.get(rc if rc is not None else 999, raw.UNKNOWN)


@dataclass
class Row:
    """One line of --query-gpu. ``version_code`` is why the driver's version is unknown; ``count`` how many GPUs there are in all."""

    gpu: raw.RawGpu
    driver_version: Optional[str] = None
    version_code: int = raw.SUCCESS
    count: Optional[int] = None


def parse_rows(text: str, fields: Tuple[str, ...], hung: Sequence[str] = ()) -> List[Row]:
    """The lines of --query-gpu with these fields (the last one the name); lines that are none are skipped (warnings).

    ``hung`` are fields that were not asked for, because the driver hung with them.
    """
    unasked = dict.fromkeys(hung, "[driver_hung]")
    rows: List[Row] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",", len(fields) - 1)]
        index = natural(cells[0]) if len(cells) == len(fields) else None
        if index is not None and index not in [row.gpu.index for row in rows]:
            rows.append(_row(index, {**unasked, **dict(zip(fields, cells))}))
    return rows


def _row(index: int, cells: Dict[str, str]) -> Row:
    gpu = raw.RawGpu(index)
    gpu.uuid = known(cells["uuid"])
    gpu.pci_bus_id = normal_pci(cells["pci.bus_id"])
    gpu.name = known(cells[LAST_FIELD])
    gpu.utilization_percent = number(cells.get("utilization.gpu", ""))
    gpu.compute_mode = known(cells.get("compute_mode", ""))
    for name, queried, value in (
        ("uuid", "uuid", gpu.uuid),
        ("pci_bus_id", "pci.bus_id", gpu.pci_bus_id),
        ("name", LAST_FIELD, gpu.name),
        ("utilization_percent", "utilization.gpu", gpu.utilization_percent),
        ("compute_mode", "compute_mode", gpu.compute_mode),
    ):
        if value is None:
            gpu.unread[name] = _why(cells.get(queried, "[Not Supported]"))  # this nvidia-smi does not know the field
    mode = cells.get("mig.mode.current", "Disabled")
    gpu.mig_enabled = mode == "Enabled"
    if mode.startswith("[") and cell_code(mode) not in (raw.NOT_SUPPORTED, raw.FUNCTION_NOT_FOUND):
        gpu.mig_code = cell_code(mode)
    gpu.recovery_action = known(cells.get("gpu_recovery_action", ""))
    # no card keeps nothing for itself: 0 stands for a driver that does not tell its reserve apart from what is used
    sizes = [cells["memory." + part] for part in ("total", "used", "free") if "memory." + part in cells]
    total, used, free = map(number, sizes or ("", "", ""))
    reserved = number(cells.get("memory.reserved", "")) or None
    if total is None or used is None or free is None:
        gpu.memory_code = cell_code(next(cell for cell in sizes if number(cell) is None)) if sizes else raw.SUCCESS
    else:
        gpu.memory = raw.RawMemory(total * MIB, used * MIB, free * MIB, None if reserved is None else reserved * MIB)
    # one cell that says so speaks for the whole GPU, whatever the others hold
    whole = [cell_code(cell) for cell in cells.values() if cell.startswith("[")]
    gpu.code = next((code for code in whole if code in (raw.GPU_IS_LOST, raw.RESET_REQUIRED)), raw.SUCCESS)
    if gpu.code != raw.SUCCESS:
        gpu.memory_code = raw.SUCCESS
    version = cells["driver_version"]
    count = number(cells.get("count", ""))
    return Row(gpu, known(version), _why(version), count if count is not None and index < count <= _MOST_COUNTED else None)


def known(cell: str) -> Optional[str]:
    """A cell's text; None for [N/A], [Not Supported], [Unknown Error] and their like."""
    if not cell or cell.upper() == "N/A" or (cell.startswith("[") and cell.endswith("]")):
        return None
    return cell


def number(cell: str) -> Optional[int]:
    """The number that a cell begins with, without its unit."""
    return natural(cell.split(" ")[0])


def cell_code(cell: str) -> int:
    """The NVML code that a cell without a value stands for."""
    return failure_code(None, cell.strip("[]"))


def _why(cell: str) -> int:
    """The code for a cell without a value."""
    return raw.BAD_ANSWER if known(cell) or not cell else cell_code(cell)


def parse_apps(text: str) -> Dict[str, List[raw.RawProcess]]:
    """`--query-compute-apps=gpu_uuid,pid,used_memory`: GPU UUID -> its compute processes."""
    found: Dict[str, List[raw.RawProcess]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        pid = natural(cells[1]) if len(cells) == 3 else None
        if pid is not None:
            used = number(cells[2])
            found.setdefault(cells[0], []).append(raw.RawProcess(pid, "C", None if used is None else used * MIB))
    return found


def count_listed(text: str) -> int:
    """How many GPUs `nvidia-smi -L` is about, those included that it only complains of."""
    return sum(1 for line in text.splitlines() if _GPU_LINE.match(line)) + count_complaints(text)


def count_complaints(text: str) -> int:
    """How many GPUs it has nothing to say of but that; it names them by index or by PCI address."""
    return sum(1 for line in text.splitlines() if "device handle for gpu" in line.lower())


def parse_list(text: str) -> Dict[str, List[raw.RawMig]]:
    """`nvidia-smi -L`: GPU UUID -> its MIG devices with index, UUID and profile (the driver names them by the profile)."""
    found: Dict[str, List[raw.RawMig]] = {}
    devices: List[raw.RawMig] = []
    product = ""
    for line in text.splitlines():
        gpu = _GPU_LINE.match(line)
        if gpu:
            devices = found.setdefault(gpu.group("uuid"), [])
            product = gpu.group("name")
            continue
        mig = _MIG_LINE.match(line)
        if mig:
            devices.append(raw.RawMig(int(mig.group("index")), uuid=mig.group("uuid"), name="%s MIG %s" % (product, mig.group("profile"))))
    return found
