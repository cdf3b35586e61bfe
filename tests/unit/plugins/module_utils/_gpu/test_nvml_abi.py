# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A library that answers with success and rubbish: nothing of it gets through as a fact."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu import raw
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.assemble import assemble
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.nvml import NvmlCollector, Skips
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.nvml_abi import Nvml, NvmlError


class Library:
    """Functions by name, each of which gets what the real one would."""

    def __init__(self, **functions: Callable[..., int]) -> None:
        self.__dict__.update(functions)


def number(value: int, code: int = 0) -> Callable[..., int]:
    """A function that puts a number where its last argument points."""

    def call(*arguments: Any) -> int:
        arguments[-1]._obj.value = value
        return code

    return call


def text(value: bytes) -> Callable[..., int]:
    """A function that puts a text into its buffer."""

    def call(*arguments: Any) -> int:
        arguments[-2].raw = value[: len(arguments[-2])].ljust(len(arguments[-2]), b"\0")
        return 0

    return call


def nvml(**functions: Callable[..., int]) -> Nvml:
    """The calls on such a library."""
    return Nvml(Library(**functions), lambda name: None)


HANDLE = ctypes.c_void_p(1)


@pytest.mark.parametrize("value", [1025, 2**32 - 1, 0xAAAAAAAA])
def test_a_count_that_no_host_has_is_no_count(value: int) -> None:
    with pytest.raises(NvmlError) as caught:
        nvml(nvmlDeviceGetCount_v2=number(value)).count()
    assert caught.value.code == raw.BAD_ANSWER
    assert nvml(nvmlDeviceGetCount_v2=number(16)).count() == 16


@pytest.mark.parametrize("value", [0, -1, -(2**31), 999])
def test_a_version_of_cuda_that_is_none(value: int) -> None:
    with pytest.raises(NvmlError):
        nvml(nvmlSystemGetCudaDriverVersion_v2=number(value)).cuda_version()
    assert nvml(nvmlSystemGetCudaDriverVersion=number(13010)).cuda_version() == "13.1"


def test_an_empty_text_is_unknown_and_a_strange_one_is_kept_readable() -> None:
    with pytest.raises(NvmlError):
        nvml(nvmlDeviceGetUUID=text(b"")).uuid(HANDLE)
    assert nvml(nvmlDeviceGetName=text(b"NVIDIA \xff\xfe RTX")).name(HANDLE) == "NVIDIA \ufffd\ufffd RTX"


@pytest.mark.parametrize(("written", "address"), [
    (b"00000000:1B:00.0", "00000000:1B:00.0"), (b"0000:1b:00.0", "00000000:1B:00.0"), (b"000f:01:00.0", "0000000F:01:00.0"),
    (b"rubbish", None), (b"", None), (b"\xaa" * 31, None),
])
def test_an_address_has_one_form_or_none(written: bytes, address: Optional[str]) -> None:
    def call(*arguments: Any) -> int:
        arguments[-1]._obj.bus_id = written
        return 0

    if address is None:
        with pytest.raises(NvmlError):
            nvml(nvmlDeviceGetPciInfo_v3=call).pci_bus_id(HANDLE)
    else:
        assert nvml(nvmlDeviceGetPciInfo_v3=call).pci_bus_id(HANDLE) == address


def test_a_handle_of_nothing_is_not_passed_on() -> None:
    with pytest.raises(NvmlError) as caught:
        nvml(nvmlDeviceGetHandleByIndex_v2=lambda index, handle: 0).handle(0)
    assert caught.value.code == raw.UNKNOWN


def test_more_mig_devices_than_there_can_be_are_not_asked_for() -> None:
    assert nvml(nvmlDeviceGetMaxMigDeviceCount=number(2**32 - 1)).mig_places(HANDLE) == 64


NAMES = [
    "nvmlInit_v2", "nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeMode", "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
]
CODES = st.sampled_from([0, 0, 0, 0, 0, 1, 2, 3, 4, 6, 7, 9, 13, 15, 16, 18, 25, 999, -1, 4242, 2**31 - 1])


def scribbler(data: bytes, code: int) -> Callable[..., int]:
    """A function that writes these bytes over whatever it was given to write to, and returns the code."""

    def call(*arguments: Any) -> int:
        for argument in arguments:
            target = getattr(argument, "_obj", argument)
            if isinstance(target, (ctypes.Array, ctypes.Structure, ctypes._SimpleCData)) and target is not HANDLE:
                size = ctypes.sizeof(target)
                filled = (data * (size // max(1, len(data)) + 1))[:size]
                ctypes.memmove(ctypes.addressof(target), filled, size if len(filled) == size else 0)
        return code

    return call


@settings(deadline=None)  # what it takes depends on what else the machine does
@given(st.dictionaries(st.sampled_from(NAMES), st.tuples(st.binary(min_size=1, max_size=40), CODES)), st.binary(min_size=1, max_size=16))
def test_whatever_the_library_writes_is_a_sound_snapshot(said: Dict[str, Any], usual: bytes) -> None:
    functions = {name: scribbler(*said.get(name, (usual, 0))) for name in NAMES}
    functions["nvmlDeviceGetCount_v2"] = number(said["nvmlDeviceGetCount_v2"][0][0] % 6 if "nvmlDeviceGetCount_v2" in said else 2)
    collector = NvmlCollector(lambda function, index: None)
    collector._nvml = Nvml(Library(**functions), lambda name: None)
    snapshot = assemble(collector.read(None, True, raw.FULL, Skips()))
    sizes: List[Optional[int]] = [snapshot.total_mib, snapshot.used_mib, snapshot.free_mib]
    for gpu in snapshot.gpus:
        sizes += [gpu.total_mib, gpu.used_mib, gpu.free_mib, gpu.reserved_mib, gpu.unattributed_mib]
        sizes += [device.free_mib for device in gpu.mig_devices]
        assert gpu.utilization_percent is None or 0 <= gpu.utilization_percent <= 100
        assert gpu.state == "ok" or gpu.error
    assert all(size is None or 0 <= size < 1 << 33 for size in sizes)
