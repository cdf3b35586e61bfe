# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `nvidia-smi -q -x` prints, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

from . import raw
from .host import normal_pci
from .smi_text import GOOD_EXITS, MIB, cell_code, failure_code, known, number

_BAD_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# A process names itself as it likes, and nvidia-smi writes the name as it is. It is not read here, so it is taken out, one line as
# it is written, and cannot end itself early.
_PROCESS_NAME = re.compile(r"<process_name>.*?</process_name>[ \t\r]*(?=\n)", re.DOTALL)
_XML_START, _XML_END = "<?xml", "</nvidia_smi_log>"
_BARE_AMPERSAND = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#[0-9]+|#x[0-9a-fA-F]+);)")


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
    details = Details(_version(cuda), raw.SUCCESS if _version(cuda) else cell_code(cuda or "N/A"))
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
    found = GpuDetails(minor=number(_first(node, "minor_number") or ""))
    for device in node.iterfind("mig_devices/mig_device"):
        found.mig_devices.append(
            raw.RawMig(
                index=number(_first(device, "index") or "") or 0,
                gpu_instance_id=number(_first(device, "gpu_instance_id") or ""),
                compute_instance_id=number(_first(device, "compute_instance_id") or ""),
                memory=_memory(device),
                code=raw.SUCCESS if _memory(device) else cell_code(_first(device, "fb_memory_usage/total") or "n/a"),
            )
        )
    processes = node.find("processes")
    if processes is None or (len(processes) == 0 and known((processes.text or "").strip()) is None
                             and (processes.text or "").strip() not in ("", "None")):
        found.code = cell_code((processes.text or "n/a").strip() if processes is not None else "n/a")
        return found
    found.processes = []
    for process in processes.iterfind("process_info"):
        pid = number(_first(process, "pid") or "")
        if pid is None:
            found.bad_processes += 1
            continue
        used = number(_first(process, "used_memory") or "")
        for kind in (_first(process, "type") or "C").split("+"):
            found.processes.append(
                raw.RawProcess(
                    pid,
                    kind.strip() or "C",
                    None if used is None else used * MIB,
                    number(_first(process, "gpu_instance_id") or ""),
                    number(_first(process, "compute_instance_id") or ""),
                )
            )
    return found


def _memory(node: Any) -> Optional[raw.RawMemory]:
    parts = {part: number(_first(node, "fb_memory_usage/" + part) or "") for part in ("total", "used", "free", "reserved")}
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
