# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The process list, whatever layout the driver writes."""

from __future__ import annotations

import struct
from typing import Dict, List, Sequence, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu import raw
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.nvml_abi import Nvml
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.nvml_processes import (
    STRIDES,
    decode_list,
    measure_stride,
    read_lists,
)

GIB = 1 << 30
UNKNOWN = 2**64 - 1
NONE = 2**32 - 1
Entry = Tuple[int, int]


def written(entries: Sequence[Entry], stride: int, room: int = 64, tail: bool = True) -> bytes:
    """A buffer full of the sentinel into which a driver wrote these entries; without ``tail`` the last word is left alone."""
    buffer = bytearray(b"\xaa" * (room * 32))
    for number, (pid, used) in enumerate(entries):
        words = struct.pack("=I4xQIIQ", pid, used, NONE, NONE, 0)[:stride]
        buffer[number * stride: number * stride + len(words)] = words
    if not tail and stride == 32 and entries:
        end = len(entries) * stride
        buffer[end - 8: end] = b"\xaa" * 8
    return bytes(buffer)


PIDS = st.integers(2, 1 << 22)
ENTRIES = st.lists(st.tuples(PIDS, st.one_of(st.integers(0, 200 * GIB), st.just(UNKNOWN))), min_size=1, max_size=40)


@given(ENTRIES, st.sampled_from(STRIDES))
def test_every_stride_is_measured_and_read(entries: List[Entry], stride: int) -> None:
    buffer = written(entries, stride)
    assert measure_stride(buffer, len(entries)) == stride
    assert decode_list(buffer, len(entries)) == [
        (pid, None if used == UNKNOWN else used, None, None) for pid, used in entries
    ]


@given(ENTRIES)
def test_a_last_word_that_the_driver_leaves_alone_changes_nothing(entries: List[Entry]) -> None:
    decoded = decode_list(written(entries, 32, tail=False), len(entries))
    assert [entry[0] for entry in decoded or []] == [pid for pid, _used in entries]


def test_the_founding_garbage_does_not_come_out() -> None:
    # 32-byte entries read with the 24-byte layout give pid 0 and pid 4294967295
    buffer = written([(1000, 10 * GIB), (1001, 20 * GIB), (1002, 30 * GIB)], 32)
    assert [entry[:2] for entry in decode_list(buffer, 3) or []] == [(1000, 10 * GIB), (1001, 20 * GIB), (1002, 30 * GIB)]


@pytest.mark.parametrize("written_bytes", [0, 7, 36, 52, 100])
def test_a_length_that_fits_no_layout_is_refused(written_bytes: int) -> None:
    buffer = b"\x01" * written_bytes + b"\xaa" * (2048 - written_bytes)
    assert decode_list(buffer, 2) is None


@given(st.binary(max_size=400), st.integers(0, 10))
def test_any_bytes_are_decoded_or_refused(content: bytes, count: int) -> None:
    decoded = decode_list(content + b"\xaa" * 400, count)
    assert decoded is None or len(decoded) == count


class Library:
    """A driver's library with these symbols; each list is written with its stride."""

    def __init__(self, lists: "dict[str, tuple[int, Sequence[Entry]]]", code: int = 0) -> None:
        self.lists = lists
        self.code = code
        self.calls: List[str] = []
        self.failing: Dict[str, int] = {}

    def __getattr__(self, name: str) -> object:
        if name not in self.lists:
            raise AttributeError(name)
        stride, entries = self.lists[name]

        def call(_handle: object, count: object, buffer: object) -> int:
            self.calls.append(name)
            if self.failing.get(name, self.code):
                return self.failing.get(name, self.code)
            number = count._obj  # type: ignore[attr-defined]
            room, number.value = number.value, len(entries)
            if len(entries) > room:
                return raw.INSUFFICIENT_SIZE
            content = written(entries, stride, room)[: len(entries) * stride]
            for position, byte in enumerate(content):
                buffer[position] = byte  # type: ignore[index]
            return 0

        return call


def lists_of(library: Library, total: "int | None" = 96 * GIB) -> "tuple[list[tuple[int, str, int | None]], int, int]":
    """(processes, code, bad entries) as read from a library."""
    found = read_lists(Nvml(library, lambda name: None), None, total)  # type: ignore[arg-type]
    return [(each.pid, each.kind, each.used) for each in found.processes], found.code, found.bad


def test_the_newest_symbol_is_used_with_the_layout_it_really_has() -> None:
    name = "nvmlDeviceGetComputeRunningProcesses"
    entries = [(1000, GIB), (1001, 2 * GIB)]
    library = Library({name: (16, []), name + "_v2": (24, []), name + "_v3": (32, entries)})
    assert lists_of(library) == ([(1000, "C", GIB), (1001, "C", 2 * GIB)], 0, 0)
    assert library.calls == [name + "_v3"]


def test_old_libraries_have_older_symbols() -> None:
    name = "nvmlDeviceGetComputeRunningProcesses"
    assert lists_of(Library({name: (16, [(77, GIB)])})) == ([(77, "C", GIB)], 0, 0)
    assert lists_of(Library({})) == ([], raw.FUNCTION_NOT_FOUND, 0)


def test_a_list_that_grows_is_asked_for_again() -> None:
    entries = [(pid, GIB) for pid in range(100, 200)]
    processes, code, bad = lists_of(Library({"nvmlDeviceGetComputeRunningProcesses_v3": (24, entries)}))
    assert (len(processes), code, bad) == (100, 0, 0)


def test_entries_that_cannot_be_true_are_counted_and_left_out() -> None:
    entries = [(0, GIB), (1, GIB), (NONE, GIB), (500, 97 * GIB), (501, UNKNOWN), (502, GIB)]
    processes, code, bad = lists_of(Library({"nvmlDeviceGetComputeRunningProcesses_v3": (24, entries)}))
    assert processes == [(501, "C", None), (502, "C", GIB)] and (code, bad) == (0, 4)
    # without a known total (unified memory) no size is too large
    assert lists_of(Library({"nvmlDeviceGetComputeRunningProcesses_v3": (24, [(500, 97 * GIB)])}), None)[2] == 0


def test_one_list_without_the_others_is_enough() -> None:
    library = Library({"nvmlDeviceGetComputeRunningProcesses_v3": (24, [(500, GIB)]),
                       "nvmlDeviceGetGraphicsRunningProcesses_v3": (24, [(600, GIB), (500, GIB)])})
    assert lists_of(library) == ([(500, "C", GIB), (600, "G", GIB), (500, "G", GIB)], 0, 0)


def test_an_error_of_the_compute_list_is_the_lists_error() -> None:
    library = Library({"nvmlDeviceGetComputeRunningProcesses_v3": (24, [])}, code=raw.NO_PERMISSION)
    assert lists_of(library) == ([], raw.NO_PERMISSION, 0)


@pytest.mark.parametrize("kind", ["Graphics", "MPSCompute"])
@pytest.mark.parametrize(("answer", "code"), [(999, 999), (4, 4), (raw.NOT_SUPPORTED, 0), (raw.FUNCTION_NOT_FOUND, 0)])
def test_a_list_that_is_there_and_not_given_is_not_an_empty_one(kind: str, answer: int, code: int) -> None:
    compute, other = "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGet%sRunningProcesses_v3" % kind
    library = Library({compute: (24, [(100, GIB)]), other: (24, [])})
    library.failing[other] = answer
    assert lists_of(library) == ([(100, "C", GIB)], code, 0)
