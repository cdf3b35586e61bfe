# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""-q: everything about each GPU, as one tree that is printed as text or as XML."""
# Runs on hosts, in one file with its package: standard library alone, Python 3.9.

from __future__ import annotations

import time
from typing import Callable, List, Optional, Union

from .driver import MIB, Gpu, NvmlError, Process, plain
from .values import ARCHITECTURES, BRANDS, COMPUTE_MODES, RECOVERY, VIRTUALIZATION, enabled, field, yes

Content = Union[str, List["Node"]]


class Node:
    """One element: its XML name, its label in the text form (None: XML only), its text or children, its attribute."""

    def __init__(self, name: str, label: Optional[str], content: Content, identity: Optional[str] = None) -> None:
        self.name = name
        self.label = label
        self.content = content
        self.identity = identity


def log(gpus: List[Gpu], versions: List[Node], attached: int, sections: Optional[List[str]] = None) -> List[Node]:
    """The whole document's elements; of each GPU only these sections (as -d names them) when some are given."""
    now = time.strftime("%a %b %e %H:%M:%S %Y")
    head = [Node("timestamp", "Timestamp", now), *versions, Node("attached_gpus", "Attached GPUs", str(attached))]
    return head + [Node("gpu", None, _gpu(gpu, sections), identity=gpu.bus_id) for gpu in gpus]


def _gpu(gpu: Gpu, sections: Optional[List[str]]) -> List[Node]:
    nodes: List[Node] = []
    for section, make in _SECTIONS:
        if sections is None or section in sections:
            nodes += make(gpu)
    return nodes


def _leaf(name: str, label: str, read: Callable[[], str]) -> Node:
    return Node(name, label, plain(read))


def _identity(gpu: Gpu) -> List[Node]:
    mode = "nvmlDeviceGetMigMode"
    migs = [_mig(each) for each in gpu.mig_devices()]
    return [
        _leaf("product_name", "Product Name", lambda: gpu.one("nvmlDeviceGetName")),
        _leaf("product_brand", "Product Brand", lambda: BRANDS.get(gpu.one("nvmlDeviceGetBrand"), "Unknown")),
        _leaf(
            "product_architecture",
            "Product Architecture",
            lambda: ARCHITECTURES.get(gpu.one("nvmlDeviceGetArchitecture"), "Unknown"),
        ),
        _leaf("display_active", "Display Active", lambda: enabled(gpu.one("nvmlDeviceGetDisplayActive"))),
        _leaf("persistence_mode", "Persistence Mode", lambda: enabled(gpu.one("nvmlDeviceGetPersistenceMode"))),
        Node(
            "mig_mode",
            "MIG Mode",
            [
                _leaf("current_mig", "Current", lambda: enabled(gpu.get(mode)[0])),
                _leaf("pending_mig", "Pending", lambda: enabled(gpu.get(mode)[1])),
            ],
        ),
        Node("mig_devices", "MIG Device", migs if migs else "None"),
        _leaf("serial", "Serial Number", lambda: gpu.one("nvmlDeviceGetSerial")),
        _leaf("uuid", "GPU UUID", lambda: gpu.uuid),
        _leaf("minor_number", "Minor Number", lambda: gpu.one("nvmlDeviceGetMinorNumber")),
        _leaf("vbios_version", "VBIOS Version", lambda: gpu.one("nvmlDeviceGetVbiosVersion")),
        Node(
            "gpu_virtualization_mode",
            "GPU Virtualization Mode",
            [
                _leaf(
                    "virtualization_mode",
                    "Virtualization Mode",
                    lambda: VIRTUALIZATION.get(gpu.one("nvmlDeviceGetVirtualizationMode"), "Unknown"),
                )
            ],
        ),
        *_recovery(gpu),
        _pci(gpu),
        _leaf("fan_speed", "Fan Speed", lambda: gpu.one("nvmlDeviceGetFanSpeed") + " %"),
        _leaf("performance_state", "Performance State", lambda: "P" + gpu.one("nvmlDeviceGetPerformanceState")),
    ]


def _recovery(gpu: Gpu) -> List[Node]:
    if "gpu_recovery_action" in gpu.driver.unknown_fields:
        return []
    return [_leaf("gpu_recovery_action", "GPU Recovery Action", lambda: RECOVERY.get(field(gpu, 230), "Unknown"))]


def _pci(gpu: Gpu) -> Node:
    words = gpu.get("nvmlDeviceGetPciInfo_v3")
    domain, bus, device, device_id, subsystem_id = (int(word) for word in words[1:6])
    return Node(
        "pci",
        "PCI",
        [
            Node("pci_bus", "Bus", "%02X" % bus),
            Node("pci_device", "Device", "%02X" % device),
            Node("pci_domain", "Domain", "%04X" % domain),
            Node("pci_device_id", "Device Id", "%08X" % device_id),
            Node("pci_bus_id", "Bus Id", words[6]),
            Node("pci_sub_system_id", "Sub System Id", "%08X" % subsystem_id),
        ],
    )


def _mig(device: Gpu) -> Node:
    words = device.get("nvmlDeviceGetAttributes_v2")
    shared = [
        Node("multiprocessor_count", "Multiprocessor count", words[0]),
        Node("copy_engine_count", "Copy Engine count", words[1]),
        Node("encoder_count", "Encoder count", words[3]),
        Node("decoder_count", "Decoder count", words[2]),
        Node("ofa_count", "OFA count", words[5]),
        Node("jpg_count", "JPG count", words[4]),
    ]
    return Node(
        "mig_device",
        "MIG Device",
        [
            Node("index", "Index", str(device.index)),
            _leaf("gpu_instance_id", "GPU Instance ID", lambda: device.one("nvmlDeviceGetGpuInstanceId")),
            _leaf("compute_instance_id", "Compute Instance ID", lambda: device.one("nvmlDeviceGetComputeInstanceId")),
            Node("device_attributes", "Device Attributes", [Node("shared", "Shared", shared)]),
            *_framebuffer(device),
        ],
    )


def _framebuffer(gpu: Gpu) -> List[Node]:
    def part(name: str) -> Callable[[], str]:
        return lambda: "%d MiB" % gpu.memory()[name]

    parts = [
        name for name in ("total", "reserved", "used", "free") if "memory." + name not in gpu.driver.unknown_fields
    ]
    leaves = [_leaf(name, name.capitalize(), part(name)) for name in parts]
    return [Node("fb_memory_usage", "FB Memory Usage", leaves)]


def _memory(gpu: Gpu) -> List[Node]:
    def part(position: int) -> Callable[[], str]:
        return lambda: "%d MiB" % (int(gpu.get("nvmlDeviceGetBAR1MemoryInfo")[position]) // MIB)

    bar1 = [_leaf("total", "Total", part(0)), _leaf("used", "Used", part(2)), _leaf("free", "Free", part(1))]
    return [*_framebuffer(gpu), Node("bar1_memory_usage", "BAR1 Memory Usage", bar1)]


def _compute(gpu: Gpu) -> List[Node]:
    read: Callable[[], str] = lambda: COMPUTE_MODES.get(gpu.one("nvmlDeviceGetComputeMode"), "Unknown")  # noqa: E731
    return [_leaf("compute_mode", "Compute Mode", read)]


def _utilization(gpu: Gpu) -> List[Node]:
    def part(position: int) -> Callable[[], str]:
        return lambda: gpu.get("nvmlDeviceGetUtilizationRates")[position] + " %"

    return [
        Node(
            "utilization",
            "Utilization",
            [_leaf("gpu_util", "GPU", part(0)), _leaf("memory_util", "Memory", part(1))],
        )
    ]


def _ecc(gpu: Gpu) -> List[Node]:
    def part(position: int) -> Callable[[], str]:
        return lambda: enabled(gpu.get("nvmlDeviceGetEccMode")[position])

    return [
        Node(
            "ecc_mode", "ECC Mode", [_leaf("current_ecc", "Current", part(0)), _leaf("pending_ecc", "Pending", part(1))]
        )
    ]


def _rows(gpu: Gpu) -> List[Node]:
    def part(position: int, word: Callable[[str], str] = str) -> Callable[[], str]:
        return lambda: word(gpu.get("nvmlDeviceGetRemappedRows")[position])

    return [
        Node(
            "remapped_rows",
            "Remapped Rows",
            [
                _leaf("remapped_row_corr", "Correctable Error", part(0)),
                _leaf("remapped_row_unc", "Uncorrectable Error", part(1)),
                _leaf("remapped_row_pending", "Pending", part(2, yes)),
                _leaf("remapped_row_failure", "Remapping Failure Occurred", part(3, yes)),
            ],
        )
    ]


def _temperature(gpu: Gpu) -> List[Node]:
    read = _leaf("gpu_temp", "GPU Current Temp", lambda: gpu.one("nvmlDeviceGetTemperature") + " C")
    return [Node("temperature", "Temperature", [read])]


def _power(gpu: Gpu) -> List[Node]:
    def watts(call: str) -> Callable[[], str]:
        return lambda: "%.2f W" % (int(gpu.one(call)) / 1000)

    return [
        Node(
            "gpu_power_readings",
            "GPU Power Readings",
            [
                _leaf("power_state", "Power State", lambda: "P" + gpu.one("nvmlDeviceGetPerformanceState")),
                _leaf("average_power_draw", "Average Power Draw", watts("nvmlDeviceGetPowerUsage")),
                _leaf("instant_power_draw", "Instantaneous Power Draw", watts("nvmlDeviceGetPowerUsage")),
                _leaf("current_power_limit", "Current Power Limit", watts("nvmlDeviceGetEnforcedPowerLimit")),
                _leaf("requested_power_limit", "Requested Power Limit", watts("nvmlDeviceGetPowerManagementLimit")),
            ],
        )
    ]


def _clocks(gpu: Gpu) -> List[Node]:
    return [
        Node(
            "clocks",
            "Clocks",
            [
                _leaf("graphics_clock", "Graphics", lambda: gpu.one("nvmlDeviceGetSmClock") + " MHz"),
                _leaf("sm_clock", "SM", lambda: gpu.one("nvmlDeviceGetSmClock") + " MHz"),
                _leaf("mem_clock", "Memory", lambda: gpu.one("nvmlDeviceGetMemClock") + " MHz"),
            ],
        )
    ]


def _pids(gpu: Gpu) -> List[Node]:
    try:
        processes = gpu.processes()
    except NvmlError as error:
        return [Node("processes", "Processes", str(error))]
    if not processes:
        return [Node("processes", "Processes", [] if processes is None else "")]
    return [Node("processes", "Processes", [_process(gpu, each) for each in processes])]


def _process(gpu: Gpu, process: Process) -> Node:
    unknown = "Not available in WDDM driver model" if gpu.driver.platform == "wsl" else "N/A"
    return Node(
        "process_info",
        None,
        [
            Node("gpu_instance_id", "GPU instance ID", _or_none(process.gpu_instance)),
            Node("compute_instance_id", "Compute instance ID", _or_none(process.compute_instance)),
            Node("pid", "Process ID", str(process.pid)),
            Node("type", "Type", process.type),
            _leaf("process_name", "Name", lambda: gpu.process_name(process.pid)),
            Node(
                "used_memory",
                "Used GPU Memory",
                unknown if process.used is None else "%d MiB" % (process.used // MIB),
            ),
        ],
    )


def _or_none(number: Optional[int]) -> str:
    return "N/A" if number is None else str(number)


_SECTIONS = [
    ("IDENTITY", _identity),
    ("MEMORY", _memory),
    ("COMPUTE", _compute),
    ("UTILIZATION", _utilization),
    ("ECC", _ecc),
    ("ROW_REMAPPER", _rows),
    ("TEMPERATURE", _temperature),
    ("POWER", _power),
    ("CLOCK", _clocks),
    ("PIDS", _pids),
]

SECTION_NAMES = [name for name, _make in _SECTIONS if name != "IDENTITY"]


def as_xml(nodes: List[Node]) -> str:
    """The document as -q -x prints it."""
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
    return head + "".join(_xml(node, 1) for node in nodes) + "</nvidia_smi_log>\n"


def _xml(node: Node, depth: int) -> str:
    indent = "\t" * depth
    opening = node.name if node.identity is None else '%s id="%s"' % (node.name, node.identity)
    if not isinstance(node.content, str):
        inner = "".join(_xml(child, depth + 1) for child in node.content)
        return "%s<%s>\n%s%s</%s>\n" % (indent, opening, inner, indent, node.name)
    if node.name == "processes":
        inner = "%s\t%s\n" % (indent, _escaped(node.content)) if node.content else ""
        return "%s<%s>\n%s%s</%s>\n" % (indent, opening, inner, indent, node.name)
    if node.name == "mig_devices":
        return "%s<%s>\n%s\t%s\n%s</%s>\n" % (indent, opening, indent, node.content, indent, node.name)
    return "%s<%s>%s</%s>\n" % (indent, opening, _escaped(node.content), node.name)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def as_text(nodes: List[Node]) -> str:
    """The document as -q prints it."""
    parts = ["\n==============NVSMI LOG==============\n\n"]
    for node in nodes:
        if node.identity is not None:
            parts.append("\nGPU %s\n" % node.identity)
            parts += [_text(child, 1) for child in node.content if isinstance(child, Node)]
        else:
            parts.append(_text(node, 0))
    return "".join(parts) + "\n"


def _text(node: Node, depth: int) -> str:
    indent = "    " * depth
    if isinstance(node.content, str):
        if node.name == "processes" and not node.content:
            return "%s%-*s: None\n" % (indent, 50 - len(indent), node.label)
        return "%s%-*s: %s\n" % (indent, 50 - len(indent), node.label, node.content)
    head = "" if node.label is None else "%s%s\n" % (indent, node.label)
    return head + "".join(_text(child, depth + (node.label is not None)) for child in node.content)
