# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nvidia-smi's texts, of several drivers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu import raw, smi_text
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.smi_text import (
    LAST_FIELD,
    OPTIONAL_FIELDS,
    REQUIRED_FIELDS,
    failure_code,
    parse_apps,
    parse_list,
    parse_rows,
    refused_field,
)

MIB = 1 << 20
FIELDS = REQUIRED_FIELDS + OPTIONAL_FIELDS + (LAST_FIELD,)
OLD_FIELDS = REQUIRED_FIELDS + ("utilization.gpu", "compute_mode") + (LAST_FIELD,)

ROW = (
    "0, GPU-06c9, 00000000:01:00.0, 97887, 5002, 92247, 580.95.05, 8, 638, 0, Default, Disabled, None, "
    "NVIDIA RTX PRO 6000 Blackwell Server Edition\n"
)


def one(text: str, fields: "tuple[str, ...]" = FIELDS) -> raw.RawGpu:
    """The only GPU of a text."""
    (row,) = parse_rows(text, fields)
    return row.gpu


def test_a_row_is_a_gpu() -> None:
    (row,) = parse_rows(ROW, FIELDS)
    assert row.driver_version == "580.95.05"
    assert row.gpu == raw.RawGpu(
        0,
        uuid="GPU-06c9",
        pci_bus_id="00000000:01:00.0",
        name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        memory=raw.RawMemory(97887 * MIB, 5002 * MIB, 92247 * MIB, 638 * MIB),
        utilization_percent=0,
        compute_mode="Default",
        recovery_action="None",
    )


def test_a_name_may_hold_commas() -> None:
    assert one(ROW.replace("NVIDIA RTX", "NVIDIA, RTX,")).name == "NVIDIA, RTX, PRO 6000 Blackwell Server Edition"


def test_an_old_driver_has_fewer_fields() -> None:
    gpu = one("3, GPU-a, 00000000:0F:00.0, 40960, 515, 40445, 470.256.02, 12, Exclusive_Process, NVIDIA A100\n", OLD_FIELDS)
    assert (gpu.memory, gpu.compute_mode, gpu.utilization_percent) == (
        raw.RawMemory(40960 * MIB, 515 * MIB, 40445 * MIB), "Exclusive_Process", 12)


def test_nothing_reserved_means_not_told() -> None:
    gpu = one(ROW.replace(" 638,", " 0,"))
    assert gpu.memory is not None and gpu.memory.reserved is None


@pytest.mark.parametrize(
    ("cell", "code", "memory_code"),
    [
        ("[N/A]", 0, raw.NOT_SUPPORTED),
        ("[Not Supported]", 0, raw.NOT_SUPPORTED),
        ("[Unknown Error]", 0, raw.UNKNOWN),
        ("[Insufficient Permissions]", 0, raw.NO_PERMISSION),
        ("[GPU access blocked by the operating system]", 0, 17),
        ("[GPU is lost]", raw.GPU_IS_LOST, 0),
        ("[GPU requires reset]", raw.RESET_REQUIRED, 0),
    ],
)
def test_a_cell_without_a_number_says_why(cell: str, code: int, memory_code: int) -> None:
    gpu = one(ROW.replace("97887", cell).replace("5002", cell).replace("92247", cell))
    assert (gpu.memory, gpu.code, gpu.memory_code) == (None, code, memory_code)


def test_what_a_row_does_not_say_has_its_reason() -> None:
    gpu = one(ROW.replace("GPU-06c9", "[Unknown Error]").replace(" 0, Default,", " [N/A], [Insufficient Permissions],"))
    assert gpu.unread == {"uuid": raw.UNKNOWN, "utilization_percent": raw.NOT_SUPPORTED, "compute_mode": raw.NO_PERMISSION}
    assert one(ROW).unread == {}
    fields = tuple(field for field in FIELDS if field != "compute_mode")  # one that this nvidia-smi does not know
    assert one(ROW.replace(" Default,", ""), fields).unread == {"compute_mode": raw.NOT_SUPPORTED}
    (row,) = parse_rows(ROW.replace("580.95.05", "[N/A]"), FIELDS)
    assert (row.driver_version, row.version_code) == (None, raw.NOT_SUPPORTED)


def test_warnings_between_the_rows_are_no_rows() -> None:
    text = "WARNING: infoROM is corrupted at gpu 0000:01:00.0\n" + ROW + "\n" + ROW.replace("0, GPU-06c9", "1, GPU-17da")
    assert [row.gpu.index for row in parse_rows(text, FIELDS)] == [0, 1]


def test_the_count_of_all_gpus_is_in_each_row() -> None:
    for written, count in (("8", 8), ("0", None), ("[N/A]", None), ("99999999", None)):
        (row,) = parse_rows(ROW.replace(" 8,", " %s," % written), FIELDS)
        assert row.count == count


def test_fields_that_hung_are_not_taken_for_unsupported_ones() -> None:
    asked = tuple(field for field in FIELDS if field not in ("utilization.gpu", "mig.mode.current"))
    (row,) = parse_rows(ROW.replace(" 0, Default, Disabled,", " Default,"), asked, ("utilization.gpu", "mig.mode.current"))
    assert (row.gpu.unread, row.gpu.mig_code) == ({"utilization_percent": raw.HUNG}, raw.HUNG)
    sizes = ("memory.total", "memory.used", "memory.free", "memory.reserved")
    asked = tuple(field for field in FIELDS if field not in sizes)
    text = ROW.replace(" 97887, 5002, 92247,", "").replace(" 638,", "")
    assert [row.gpu.memory_code for row in parse_rows(text, asked, sizes)] == [raw.HUNG]
    assert [row.gpu.memory_code for row in parse_rows(text, asked)] == [raw.SUCCESS]  # nobody wanted to know


def test_mig_mode_is_in_the_row() -> None:
    assert one(ROW.replace("Disabled", "Enabled")).mig_enabled
    assert not one(ROW.replace("Disabled", "[N/A]")).mig_enabled


def test_the_refused_field_is_named() -> None:
    assert refused_field('Field "gpu_recovery_action" is not a valid field to query.\n') == "gpu_recovery_action"
    assert refused_field("No devices were found\n") is None


@pytest.mark.parametrize(
    ("rc", "text", "code"),
    [
        (9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that ...", raw.DRIVER_NOT_LOADED),
        (12, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", raw.LIBRARY_NOT_FOUND),
        (18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.107", raw.LIB_RM_VERSION_MISMATCH),
        (1, "Failed to initialize NVML: Driver/library version mismatch", raw.LIB_RM_VERSION_MISMATCH),
        (4, "Failed to initialize NVML: Insufficient Permissions", raw.NO_PERMISSION),
        (6, "No devices were found", raw.NOT_FOUND),
        (15, "Unable to determine the device handle for GPU0000:1B:00.0: GPU is lost.  Reboot the system ...", raw.GPU_IS_LOST),
        (255, "Unable to determine the device handle for GPU0000:1B:00.0: Unknown Error", raw.UNKNOWN),
        (255, "Failed to initialize NVML: Unknown Error", raw.UNKNOWN),
        (255, "Unable to determine the device handle for GPU0000:1B:00.0: GPU access blocked by the operating system", 17),
        (9, "", raw.DRIVER_NOT_LOADED),
        (1, "", raw.UNKNOWN),
        (None, "", raw.UNKNOWN),
    ],
)
def test_an_exit_and_its_text_are_one_code(rc: "int | None", text: str, code: int) -> None:
    assert failure_code(rc, text) == code


def test_compute_apps_by_csv() -> None:
    text = "GPU-a, 100, 500\nGPU-a, 101, [N/A]\nGPU-b, 102, 7\npid, x\n"
    assert parse_apps(text) == {
        "GPU-a": [raw.RawProcess(100, "C", 500 * MIB), raw.RawProcess(101, "C", None)],
        "GPU-b": [raw.RawProcess(102, "C", 7 * MIB)],
    }


def test_the_list_names_mig_devices() -> None:
    text = (
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aa)\n"
        "  MIG 3g.20gb     Device  0: (UUID: MIG-11)\n"
        "  MIG 1g.5gb      Device  1: (UUID: MIG-GPU-aa/7/0)\n"
        "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bb)\n"
    )
    found = parse_list(text)
    assert [(each.index, each.uuid, each.name) for each in found["GPU-aa"]] == [
        (0, "MIG-11", "NVIDIA A100-SXM4-40GB MIG 3g.20gb"), (1, "MIG-GPU-aa/7/0", "NVIDIA A100-SXM4-40GB MIG 1g.5gb")]
    assert found["GPU-bb"] == []


@given(st.text(max_size=400))
def test_any_text_is_read_without_an_error(text: str) -> None:
    parse_rows(text, FIELDS)
    parse_apps(text)
    parse_list(text)
    smi_text.failure_code(1, text)


@given(st.lists(st.sampled_from(["[N/A]", "97887", "0", "-5", "99999999999999999999", "x", "", "[GPU is lost]", "Enabled"]),
                min_size=len(FIELDS) - 1, max_size=len(FIELDS) - 1))
def test_any_cells_are_read_without_an_error(cells: "list[str]") -> None:
    gpu = one("5, " + ", ".join(cells))
    assert gpu.index == 5 and (gpu.memory is not None or gpu.code != 0 or gpu.memory_code != 0)
    assert gpu.memory is None or gpu.memory_code == 0
