# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs a selection means."""

from __future__ import annotations

from typing import List

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.select import resolve
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, MigDevice

GPUS = [
    Gpu(0, "GPU-11111111-aaaa", "00000000:01:00.0", "NVIDIA A"),
    Gpu(1, "GPU-11112222-bbbb", "00000000:21:00.0", "NVIDIA A"),
    Gpu(2, "GPU-33333333-cccc", "0000000F:21:00.0", "NVIDIA A", mig_devices=(
        MigDevice(0, "MIG-44444444-dddd", "NVIDIA A MIG 1g.10gb", 7, 0, total_mib=9984, used_mib=13, free_mib=9971),)),
    Gpu(3, None, None, None, state="lost"),
]


def indices(*words: "str | int") -> List[int]:
    """The indices that a selection means."""
    return [gpu.index for gpu in resolve(words, GPUS)]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), [0, 1, 2, 3]),
        (("all",), [0, 1, 2, 3]),
        (("ALL",), [0, 1, 2, 3]),
        ((2, 0), [2, 0]),
        (("2", " 0 "), [2, 0]),
        (("1", 1, "GPU-11112222-bbbb"), [1]),
        (("gpu-33333333-CCCC",), [2]),
        (("GPU-3333",), [2]),
        (("0000:01:00.0",), [0]),
        (("00000000:01:00.0",), [0]),
        (("01:00.0",), [0]),
        (("000f:21:00.0",), [2]),
        (("3",), [3]),
    ],
)
def test_every_spelling_finds_its_gpu(words: "tuple[str | int, ...]", found: List[int]) -> None:
    assert indices(*words) == found


def test_a_mig_device_is_its_own_memory() -> None:
    (device,) = resolve(["MIG-4444"], GPUS)
    assert (device.index, device.uuid, device.memory_type, device.free_mib) == (2, "MIG-44444444-dddd", "mig", 9971)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("9", "GPU '9' is not on this host"),
        ("GPU-1111", "means several GPUs"),
        ("GPU-9", "is not on this host"),
        ("0000:99:00.0", "is not on this host"),
        ("NVIDIA A", "is not on this host"),
        ("-1", "is not on this host"),
    ],
)
def test_a_wrong_one_names_what_there_is(word: str, message: str) -> None:
    with pytest.raises(GpuFleetError, match=message) as failed:
        resolve([word], GPUS[:3])  # all of which say who they are
    assert "GPU-33333333-cccc" in failed.value.msg and "MIG-44444444-dddd" in failed.value.msg


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("0,1", "each GPU is a word of its own in the list, as in ['0', '1']"),
        ("GPU-11111111-aaaa,GPU-11112222-bbbb", "a word of its own"),
        ("0-1", "a word of its own"),
        ("0 1", "a word of its own"),
        ("33333333-cccc", "a UUID begins with GPU-, as in 'GPU-33333333-cccc'"),
        ("44444444", "a UUID begins with MIG-, as in 'MIG-44444444'"),
        ("none", "all GPUs are 'all', or an empty list"),
        ("NVIDIA A", "on this host. This host has"),
        ("9", "on this host. This host has"),
    ],
)
def test_a_slip_of_the_pen_is_named(word: str, hint: str) -> None:
    with pytest.raises(GpuFleetError) as failed:
        resolve([word], GPUS[:3])
    assert hint in failed.value.msg


def test_all_and_one_is_a_contradiction() -> None:
    with pytest.raises(GpuFleetError, match="mixes 'all'"):
        indices("all", "1")


def test_a_host_without_gpus_says_so() -> None:
    with pytest.raises(GpuFleetError, match="shows no GPU"):
        resolve(["0"], [])


@pytest.mark.parametrize("word", ["GPU-99999999-eeee", "MIG-99999999-eeee", "61:00.0"])
def test_what_fits_none_may_be_one_that_does_not_say(word: str) -> None:
    """A lost GPU has neither a UUID nor always an address: whoever asks for it must hear of it, and of the others too."""
    healthy, lost = resolve(["0", word], GPUS)
    assert (healthy.index, healthy.error, lost.index, lost.state) == (0, None, 3, "lost")
    assert lost.error == "it may be '%s', which was asked for, and does not say" % word
    # one that is well but for its name is not known to be the right one: nothing on it counts as free for this
    silent = Gpu(0, None, None, "NVIDIA A", total_mib=100, used_mib=0, free_mib=100)
    (doubtful,) = resolve([word], [silent])
    assert (doubtful.state, doubtful.free_mib, doubtful.total_mib) == ("error", None, None)


@pytest.mark.parametrize("word", ["9", "NVIDIA A", "-1"])
def test_what_names_no_gpu_is_none_of_those_either(word: str) -> None:
    with pytest.raises(GpuFleetError, match="is not on this host"):
        resolve([word], GPUS)


def test_a_mig_device_may_be_one_of_those_that_could_not_be_listed() -> None:
    parent = Gpu(0, "GPU-1", "00000000:01:00.0", "NVIDIA A", "error", "MIG devices: unknown error", "mig", parts_unknown=True)
    (found,) = resolve(["MIG-99999999-eeee"], [parent, GPUS[0]])
    assert found.index == 0 and found.error is not None and "MIG-99999999-eeee" in found.error


def test_a_beginning_that_fits_all_is_ambiguous() -> None:
    with pytest.raises(GpuFleetError, match="GPU 'GPU-' is ambiguous, it means several GPUs"):
        resolve(["GPU-"], GPUS)
