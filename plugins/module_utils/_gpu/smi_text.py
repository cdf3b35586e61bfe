# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvidia-smi prints, as data. Pure functions over its text; the banner, whose titles change, is never read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

from . import raw
from .host import natural, normal_pci

MIB = 1 << 20

# The fields of --query-gpu, those that every driver knows and those that may be refused. `name` comes last: it alone may hold a comma.
REQUIRED_FIELDS = ("index", "uuid", "pci.bus_id", "memory.total", "memory.used", "memory.free", "driver_version")
OPTIONAL_FIELDS = ("memory.reserved", "utilization.gpu", "compute_mode", "mig.mode.current", "gpu_recovery_action")
LAST_FIELD = "name"

_BAD_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query')
_BAD_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# A process names itself as it likes, and nvidia-smi writes the name as it is. It is not read here, so it is taken out, one line as
# it is written, and cannot end itself early.
_PROCESS_NAME = re.compile(r"<process_name>.*?</process_name>[ \t\r]*(?=\n)", re.DOTALL)
_XML_START, _XML_END = "<?xml", "</nvidia_smi_log>"
_BARE_AMPERSAND = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#[0-9]+|#x[0-9a-fA-F]+);)")
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
    """One line of --query-gpu. ``version_code`` is why the driver's version is unknown."""

    gpu: raw.RawGpu
    driver_version: Optional[str] = None
    version_code: int = raw.SUCCESS


def parse_rows(text: str, fields: Tuple[str, ...]) -> List[Row]:
    """The lines of --query-gpu with these fields (the last one the name); lines that are none are skipped (warnings)."""
    rows: List[Row] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",", len(fields) - 1)]
        index = natural(cells[0]) if len(cells) == len(fields) else None
        if index is not None and index not in [row.gpu.index for row in rows]:
            rows.append(_row(index, dict(zip(fields, cells))))
    return rows


def _row(index: int, cells: Dict[str, str]) -> Row:
    gpu = raw.RawGpu(index)
    gpu.uuid = _known(cells["uuid"])
    gpu.pci_bus_id = normal_pci(cells["pci.bus_id"])
    gpu.name = _known(cells[LAST_FIELD])
    gpu.utilization_percent = _number(cells.get("utilization.gpu", ""))
    gpu.compute_mode = _known(cells.get("compute_mode", ""))
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
    if mode.startswith("[") and _cell_code(mode) not in (raw.NOT_SUPPORTED, raw.FUNCTION_NOT_FOUND):
        gpu.mig_code = _cell_code(mode)
    gpu.recovery_action = _known(cells.get("gpu_recovery_action", ""))
    # no card keeps nothing for itself: 0 stands for a driver that does not tell its reserve apart from what is used
    total, used, free = (_number(cells["memory." + part]) for part in ("total", "used", "free"))
    reserved = _number(cells.get("memory.reserved", "")) or None
    if total is None or used is None or free is None:
        gpu.memory_code = _cell_code(next(cells["memory." + part] for part in ("total", "used", "free")
                                          if _number(cells["memory." + part]) is None))
    else:
        gpu.memory = raw.RawMemory(total * MIB, used * MIB, free * MIB, None if reserved is None else reserved * MIB)
    # one cell that says so speaks for the whole GPU, whatever the others hold
    whole = [_cell_code(cell) for cell in cells.values() if cell.startswith("[")]
    gpu.code = next((code for code in whole if code in (raw.GPU_IS_LOST, raw.RESET_REQUIRED)), raw.SUCCESS)
    if gpu.code != raw.SUCCESS:
        gpu.memory_code = raw.SUCCESS
    version = cells["driver_version"]
    return Row(gpu, _known(version), _why(version))


def _known(cell: str) -> Optional[str]:
    """A cell's text; None for [N/A], [Not Supported], [Unknown Error] and their like."""
    if not cell or cell.upper() == "N/A" or (cell.startswith("[") and cell.endswith("]")):
        return None
    return cell


def _number(cell: str) -> Optional[int]:
    return natural(cell.split(" ")[0])


def _cell_code(cell: str) -> int:
    return failure_code(None, cell.strip("[]"))


def _why(cell: str) -> int:
    """The code for a cell without a value."""
    return raw.BAD_ANSWER if _known(cell) or not cell else _cell_code(cell)


@dataclass
class Details:
    """What the XML adds, per GPU by PCI address. ``cuda_code`` is why it has no CUDA version."""

    cuda_version: Optional[str] = None
    cuda_code: int = raw.SUCCESS
    gpus: Dict[str, "GpuDetails"] = field(default_factory=dict)


@dataclass
class GpuDetails:
    """One GPU of the XML. ``processes`` None: the list itself is not available."""

    minor: Optional[int] = None
    mig_devices: List[raw.RawMig] = field(default_factory=list)
    processes: Optional[List[raw.RawProcess]] = None
    bad_processes: int = 0
    code: int = raw.SUCCESS


def parse_xml(text: str) -> Optional[Details]:
    """`nvidia-smi -q -x`; None when it is no XML."""
    from xml.etree import ElementTree  # only here: it costs more than everything else that is imported

    clean = _BARE_AMPERSAND.sub("&amp;", _PROCESS_NAME.sub("", _BAD_XML.sub("\ufffd", _split_xml(text)[0])))
    try:
        root = ElementTree.fromstring(clean)
    except (ElementTree.ParseError, ValueError):
        return None
    # an old nvidia-smi does not write it
    cuda = _first(root, "cuda_version", "cuda_umd_version")
    details = Details(_version(cuda), raw.SUCCESS if _version(cuda) else _cell_code(cuda or "N/A"))
    for node in root.iter("gpu"):
        address = normal_pci(node.get("id") or "") or normal_pci(_first(node, "pci/pci_bus_id") or "")
        if address is not None:
            details.gpus[address] = _gpu_details(node)
    return details


def _split_xml(text: str) -> Tuple[str, str]:
    """(the document, what stands around it): warnings may come before it, and about an infoROM after it."""
    start, end = text.find(_XML_START), text.rfind(_XML_END)
    start, end = max(start, 0), len(text) if end < 0 else end + len(_XML_END)
    return text[start:end], text[:start] + "\n" + text[end:]


def xml_failure_code(rc: Optional[int], out: str, err: str) -> int:
    """Why `nvidia-smi -q -x` says nothing about a GPU: what it complains of beside the document, which is full of N/A itself."""
    if rc in GOOD_EXITS:
        return raw.BAD_ANSWER
    around = _split_xml(out)[1] if _XML_START in out else out
    return failure_code(rc, around + "\n" + err)


def _gpu_details(node: Any) -> GpuDetails:
    found = GpuDetails(minor=_number(_first(node, "minor_number") or ""))
    for device in node.iterfind("mig_devices/mig_device"):
        found.mig_devices.append(
            raw.RawMig(
                index=_number(_first(device, "index") or "") or 0,
                gpu_instance_id=_number(_first(device, "gpu_instance_id") or ""),
                compute_instance_id=_number(_first(device, "compute_instance_id") or ""),
                memory=_memory(device),
                code=raw.SUCCESS if _memory(device) else _cell_code(_first(device, "fb_memory_usage/total") or "n/a"),
            )
        )
    processes = node.find("processes")
    if processes is None or (len(processes) == 0 and _known((processes.text or "").strip()) is None
                             and (processes.text or "").strip() not in ("", "None")):
        found.code = _cell_code((processes.text or "n/a").strip() if processes is not None else "n/a")
        return found
    found.processes = []
    for process in processes.iterfind("process_info"):
        pid = _number(_first(process, "pid") or "")
        if pid is None:
            found.bad_processes += 1
            continue
        used = _number(_first(process, "used_memory") or "")
        for kind in (_first(process, "type") or "C").split("+"):
            found.processes.append(
                raw.RawProcess(
                    pid,
                    kind.strip() or "C",
                    None if used is None else used * MIB,
                    _number(_first(process, "gpu_instance_id") or ""),
                    _number(_first(process, "compute_instance_id") or ""),
                )
            )
    return found


def _memory(node: Any) -> Optional[raw.RawMemory]:
    parts = {part: _number(_first(node, "fb_memory_usage/" + part) or "") for part in ("total", "used", "free", "reserved")}
    total, used, free, reserved = parts["total"], parts["used"], parts["free"], parts["reserved"]
    if total is None or used is None or free is None:
        return None
    return raw.RawMemory(total * MIB, used * MIB, free * MIB, None if reserved is None else reserved * MIB)


def _first(node: Any, *paths: str) -> Optional[str]:
    for path in paths:
        text: Optional[str] = node.findtext(path)
        if text is not None:
            return text.strip()
    return None


def _version(text: Optional[str]) -> Optional[str]:
    """``13.0`` out of ``13.0 [Deprecated; ...]``."""
    match = re.match(r"\d+\.\d+", text or "")
    return match.group(0) if match else None


def parse_apps(text: str) -> Dict[str, List[raw.RawProcess]]:
    """`--query-compute-apps=gpu_uuid,pid,used_memory`: GPU UUID -> its compute processes."""
    found: Dict[str, List[raw.RawProcess]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        pid = natural(cells[1]) if len(cells) == 3 else None
        if pid is not None:
            used = _number(cells[2])
            found.setdefault(cells[0], []).append(raw.RawProcess(pid, "C", None if used is None else used * MIB))
    return found


def count_listed(text: str) -> int:
    """How many GPUs `nvidia-smi -L` is about, those included that it only complains of."""
    lines = text.splitlines()
    return sum(1 for line in lines if _GPU_LINE.match(line)) + sum(1 for line in lines if "device handle for gpu" in line.lower())


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
