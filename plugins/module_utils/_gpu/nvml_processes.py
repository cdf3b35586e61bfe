# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver's process lists, read with the layout that the driver really writes.

An entry takes 16, 24 or 32 bytes, depending on the driver, and the symbol's name does not tell which: 535.43 to 535.86 wrote
32 behind a name that meant 24 before and after. Read with the wrong one, the list yields pid 0, pid 4294967295 and
sizes that are pids. So the buffer is filled with a sentinel, and what the driver overwrote is measured.
"""

from __future__ import annotations

import ctypes
import struct
from typing import List, Optional, Tuple

from . import raw
from .lists import plausible
from .nvml_abi import LISTS, Nvml, NvmlError, call_list, function_of_list

STRIDES = (16, 24, 32)
_SENTINEL = 0xAA
_NOT_AVAILABLE = 2**64 - 1
_NO_SUCH_LIST = (raw.NOT_SUPPORTED, raw.FUNCTION_NOT_FOUND)
_NO_INSTANCE = 2**32 - 1


class ProcessLists:
    """The lists of one GPU, merged. ``code`` is the error when one of them could not be read, ``compute`` whether the one of
    computing processes could."""

    def __init__(self) -> None:
        self.processes: List[raw.RawProcess] = []
        self.code = raw.SUCCESS
        self.bad = 0
        self.compute = True


def read_lists(nvml: Nvml, handle: ctypes.c_void_p, total: Optional[int]) -> ProcessLists:
    """All three lists of a GPU. ``total`` is its memory in bytes: no process can hold more.

    A list that the driver does not have (MPS on an old one, graphics on a data centre card) is left out; one that it has and does
    not give makes the whole incomplete. Entries that can't be
    true are counted in ``bad`` and left out.
    """
    found = ProcessLists()
    for kind, letter in LISTS:
        try:
            entries = _read_list(nvml, kind, handle)
        except NvmlError as exc:
            if letter == "C":
                found.code, found.compute = exc.code, False
            elif exc.code not in _NO_SUCH_LIST:
                found.code = found.code or exc.code  # somebody may be there who computes nothing
            continue
        if entries is None:
            found.bad += 1
            continue
        for entry in entries:
            if plausible(entry[0], entry[1], total):
                found.processes.append(raw.RawProcess(entry[0], letter, entry[1], entry[2], entry[3]))
            else:
                found.bad += 1
    return found


_Entry = Tuple[int, Optional[int], Optional[int], Optional[int]]


def _read_list(nvml: Nvml, kind: str, handle: ctypes.c_void_p) -> Optional[List[_Entry]]:
    """The entries of one list; None when the driver wrote something that has no known layout."""
    name = function_of_list(nvml, kind)
    if name is None:
        raise NvmlError(raw.FUNCTION_NOT_FOUND, "nvmlDeviceGet%sRunningProcesses" % kind)
    room = 32
    for _attempt in range(4):
        size = room * STRIDES[-1]
        buffer = (ctypes.c_ubyte * size)()
        ctypes.memset(buffer, _SENTINEL, size)
        code, count = call_list(nvml, name, handle, buffer, room)
        if code == raw.INSUFFICIENT_SIZE:
            room = min(max(count, room) * 2 + 8, 65536)  # more may start meanwhile
            continue
        if code != raw.SUCCESS:
            raise NvmlError(code, name)
        if count > room:
            return None
        return decode_list(bytes(buffer), count)
    raise NvmlError(raw.INSUFFICIENT_SIZE, name)


def decode_list(written: bytes, count: int) -> Optional[List[_Entry]]:
    """The entries in a buffer that was full of the sentinel before; None when no known stride explains what was written."""
    if count == 0:
        return []
    stride = measure_stride(written, count)
    if stride is None:
        return None
    return [_entry(written[start: start + stride]) for start in range(0, count * stride, stride)]


def measure_stride(written: bytes, count: int) -> Optional[int]:
    """Bytes per entry: the stride whose ``count`` entries end where the driver stopped writing."""
    extent = len(written.rstrip(bytes([_SENTINEL])))
    for stride in STRIDES:
        # a last word that the driver leaves alone (padding, protected memory) may be missing at the end
        if count * stride - 8 <= extent <= count * stride:
            return stride
    return None


def _entry(part: bytes) -> _Entry:
    pid, used = struct.unpack_from("=I4xQ", part)
    instance = compute = _NO_INSTANCE
    if len(part) >= 24:
        instance, compute = struct.unpack_from("=II", part, 16)
    return (
        pid,
        None if used == _NOT_AVAILABLE else used,
        None if instance == _NO_INSTANCE else instance,
        None if compute == _NO_INSTANCE else compute,
    )
