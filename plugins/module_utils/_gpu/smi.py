# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nvidia-smi backend: CSV for memory, XML for what CSV does not carry (process types, MIG, the CUDA version)."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, FrozenSet, List, Optional, Sequence, Tuple

from .._core.runner import Completed, Runner
from . import host, raw
from .lists import plausible
from .smi_text import (
    GOOD_EXITS,
    LAST_FIELD,
    OPTIONAL_FIELDS,
    REQUIRED_FIELDS,
    Details,
    GpuDetails,
    Row,
    count_listed,
    failure_code,
    parse_apps,
    parse_list,
    parse_rows,
    parse_xml,
    refused_field,
    xml_failure_code,
)

# Where it is when PATH does not say (a unit's PATH is short).
_PLACES = ("/usr/bin/nvidia-smi", "/usr/local/bin/nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi", "/run/current-system/sw/bin/nvidia-smi")
# Exit statuses: a selection that is none; no GPU (of this selection).
_BAD_ARGUMENT, _NO_DEVICES = 2, 6
# More than this is not used by nobody.
_IN_USE = 1 << 30
# Marks a row that does not come from the driver.
_NO_ANSWER = "no answer"
# GPUs are asked one by one up to this index when nothing else says how many there are; so many at once.
_MOST_GPUS = 64
_AT_ONCE = 8


class SmiCollector:
    """Reads the driver through nvidia-smi. Keeps what does not change: the fields that it knows, the CUDA version."""

    def __init__(self, runner: Runner, timeout: float, proc_root: str = "/proc") -> None:
        self._runner = runner
        self._timeout = timeout
        self._proc_root = proc_root
        self._optional: Tuple[str, ...] = OPTIONAL_FIELDS
        self._cuda_version: Optional[str] = None
        self._minors: Dict[str, int] = {}

    def read(self, only: Optional[FrozenSet[int]], processes: bool, depth: int) -> raw.RawReading:
        """One reading; arguments as for the NVML backend."""
        reading = raw.RawReading(backend="nvidia_smi")
        binary = find_smi()
        if binary is None:
            reading.failure = raw.Failure("library_missing", "nvidia-smi was not found on this host", absent=True)
            return reading
        rows, trouble = self._rows(binary, only)
        if trouble is not None:
            rows, reading.count, reading.failure = self._one_by_one(binary, only, trouble)
            if reading.failure is not None:
                return reading
        reading.gpus = sorted((row.gpu for row in rows), key=lambda gpu: gpu.index)
        reading.driver_version = next((row.driver_version for row in rows if row.driver_version), None)
        reading.unread["driver_version"] = rows[0].version_code if rows else raw.NO_GPUS
        if reading.count is None:
            reading.count = len(rows) if only is None else self._count(binary, len(rows))
        self._details(binary, reading, only, processes, depth)
        reading.cuda_version = self._cuda_version
        return reading

    # --- memory, by CSV

    def _rows(self, binary: str, only: Optional[FrozenSet[int]]) -> "_Rows":
        """(rows, None), or what is there of them and how the command ended."""
        while True:
            fields = REQUIRED_FIELDS + self._optional + (LAST_FIELD,)
            argv = [binary, "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"] + _only(only)
            done = self._runner.run(argv, timeout=self._timeout)
            unknown = refused_field(done.stdout + done.stderr)
            if unknown in self._optional:
                self._optional = tuple(field for field in self._optional if field != unknown)
                continue
            rows = parse_rows(done.stdout, fields)
            # nothing is no answer, also with exit status 0: a driver without GPUs says so
            return rows, None if rows and done.rc in GOOD_EXITS else done

    def _one_by_one(self, binary: str, only: Optional[FrozenSet[int]], whole: Completed) -> "_Salvage":
        """After the whole query failed: ask each GPU alone, so that a bad one does not hide the others.

        Each has the whole time-out: without persistence mode every nvidia-smi takes seconds, and many at once take longer still.
        """
        code = raw.HUNG if whole.timed_out else _text_code(whole)
        if _no_devices(whole) and only is None:
            return [], 0, None  # the driver works and shows no GPU
        if code in raw.INIT_REASONS:
            return [], None, raw.Failure(raw.INIT_REASONS[code], _said(whole))
        addresses = host.driver_gpus(self._proc_root)
        indices = sorted(only) if only is not None else range(len(addresses) if addresses else _MOST_GPUS)
        rows: List[Row] = []
        answered = False
        for start in range(0, len(indices), _AT_ONCE):
            # together, because each may take its whole time
            part = indices[start: start + _AT_ONCE]
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                results = list(pool.map(lambda index: self._single(binary, index), part))
            rows += [row for row in results if row is not None]
            answered = answered or any(row is not None and row.gpu.detail != _NO_ANSWER for row in results)
            if None in results or not answered:
                break  # the end of the GPUs, or a driver that answers for none
        if not answered and _no_devices(whole):
            return [], None, None  # the driver works and has none of those that were asked for
        if not answered:
            return [], None, raw.Failure("driver_hung" if code == raw.HUNG else "error", _said(whole))
        return rows, len(rows) if only is None else None, None

    def _single(self, binary: str, index: int) -> Optional[Row]:
        """One GPU's row, or a row that says what is wrong with it; None when there is no such GPU."""
        found, trouble = self._rows(binary, frozenset([index]))
        if found:
            return found[0]
        if trouble is not None and trouble.timed_out:
            return Row(raw.RawGpu(index, code=raw.HUNG, detail=_NO_ANSWER), None, raw.HUNG)
        if trouble is None or _no_devices(trouble) or trouble.rc == _BAD_ARGUMENT:
            return None
        code = _text_code(trouble)
        # only a driver that works has something to say about a single GPU
        known = code in (raw.GPU_IS_LOST, raw.RESET_REQUIRED) or "device handle" in _text(trouble).lower()
        return Row(raw.RawGpu(index, code=code, detail=None if known else _NO_ANSWER), None, code)

    def _count(self, binary: str, at_least: int) -> int:
        done = self._runner.run([binary, "-L"], timeout=self._timeout)
        return max(count_listed(_text(done)), at_least)

    # --- the rest, by XML

    def _details(
        self, binary: str, reading: raw.RawReading, only: Optional[FrozenSet[int]], processes: bool, depth: int
    ) -> None:
        readable = [gpu for gpu in reading.gpus if gpu.code == raw.SUCCESS]
        divided = any(gpu.mig_enabled or gpu.mig_code != raw.SUCCESS for gpu in readable)
        wanted = processes or divided or (self._cuda_version is None and depth == raw.FULL)
        if not readable and depth == raw.FULL:
            reading.unread["cuda_version"] = reading.gpus[0].code if reading.gpus else raw.NO_GPUS
        if not readable or not wanted:
            return
        if len(readable) < len(reading.gpus):
            only = frozenset(gpu.index for gpu in readable)  # a bad one could spoil the whole, or cost the time-out again
        details, code = self._xml(binary, only)
        self._cuda_version = self._cuda_version or details.cuda_version
        reading.unread["cuda_version"] = details.cuda_code
        named = parse_list(self._runner.run([binary, "-L"], timeout=self._timeout).stdout) if divided else {}
        for gpu in readable:
            found = details.gpus.get(gpu.pci_bus_id or "")
            self._add(gpu, found, named.get(gpu.uuid or "", []))
            if processes:
                self._add_processes(binary, gpu, found, code)
                _sift(gpu)
        missing = [str(gpu.index) for gpu in readable if gpu.pci_bus_id not in details.gpus]
        if missing:
            # it carries more than the other reports: what is missing now is said, not passed over
            reading.notes += ("nvidia-smi -q -x says nothing usable about GPU %s: %s" % (", ".join(missing), raw.code_text(code)),)

    def _xml(self, binary: str, only: Optional[FrozenSet[int]]) -> Tuple[Details, int]:
        """(what it says, the code that stands for a GPU that is missing there)."""
        done = self._runner.run([binary, "-q", "-x"] + _only(only), timeout=self._timeout)
        code = raw.HUNG if done.timed_out else xml_failure_code(done.rc, done.stdout, done.stderr)
        return parse_xml(done.stdout) or Details(cuda_code=code), code

    def _add(self, gpu: raw.RawGpu, details: Optional[GpuDetails], named: Sequence[raw.RawMig]) -> None:
        gpu.minor = details.minor if details is not None else None
        if gpu.minor is None:
            gpu.minor = host.driver_minor(gpu.pci_bus_id or "", self._proc_root)
        if not gpu.mig_enabled and gpu.mig_code == raw.SUCCESS:
            return
        found = details.mig_devices if details is not None else []
        gpu.mig_devices = [_named(device, named) for device in found]
        if gpu.mig_devices and not gpu.mig_enabled:
            gpu.mig_enabled, gpu.mig_code = True, raw.SUCCESS
        elif gpu.mig_enabled and (details is None or {device.index for device in found} != {device.index for device in named}):
            gpu.mig_devices = gpu.mig_devices or list(named)  # without their memory, which stands in the XML alone
            gpu.mig_code = raw.BAD_ANSWER

    def _add_processes(self, binary: str, gpu: raw.RawGpu, details: Optional[GpuDetails], code: int) -> None:
        if details is not None:
            gpu.processes, gpu.processes_code, gpu.bad_processes = details.processes, details.code, details.bad_processes
            used = gpu.memory.used if gpu.memory is not None else 0
            if details.processes != [] or used <= _IN_USE:
                return
        # By CSV: the XML lacks this GPU, or shows nobody on it although it is in use. A list that is not supported looks empty there.
        argv = [binary, "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits", "-i", str(gpu.index)]
        done = self._runner.run(argv, timeout=self._timeout)
        if done.rc not in GOOD_EXITS:
            gpu.processes, gpu.processes_code = None, raw.HUNG if done.timed_out else _text_code(done)
        elif details is None:
            # those that compute; the graphics processes stand nowhere else, so that this is less than all
            gpu.processes, gpu.processes_code = parse_apps(done.stdout).get(gpu.uuid or "", []), code


_Rows = Tuple[List[Row], Optional[Completed]]
_Salvage = Tuple[List[Row], Optional[int], Optional[raw.Failure]]


def find_smi() -> Optional[str]:
    """The nvidia-smi of this host; None when there is none."""
    found = shutil.which("nvidia-smi")
    if found is not None:
        return found
    return next((place for place in _PLACES if os.access(place, os.X_OK)), None)


def _named(device: raw.RawMig, named: Sequence[raw.RawMig]) -> raw.RawMig:
    for other in named:
        if other.index == device.index:
            device.uuid, device.name = other.uuid, other.name
            return device
    device.unread = {"uuid": raw.BAD_ANSWER, "name": raw.BAD_ANSWER}  # they stand in `nvidia-smi -L` alone, and there they do not
    return device


def _sift(gpu: raw.RawGpu) -> None:
    """Leave out entries that can't be true, and count them."""
    listed = gpu.processes or []
    total = gpu.memory.total if gpu.memory is not None and gpu.memory.total > 0 else None
    kept = [entry for entry in listed if plausible(entry.pid, entry.used, total)]
    if len(kept) < len(listed):
        gpu.processes, gpu.bad_processes = kept, gpu.bad_processes + len(listed) - len(kept)


def _only(only: Optional[FrozenSet[int]]) -> List[str]:
    return [] if only is None else ["-i", ",".join(str(index) for index in sorted(only))]


def _text(done: Completed) -> str:
    return done.stdout + "\n" + done.stderr


def _text_code(done: Completed) -> int:
    return failure_code(done.rc, _text(done))


def _no_devices(done: Completed) -> bool:
    return done.rc == _NO_DEVICES or "no devices were found" in _text(done).lower()


def _said(done: Completed) -> str:
    if done.timed_out:
        left = ", and could not be killed" if done.abandoned else ""
        return "nvidia-smi did not answer in time%s" % left
    # without the answer itself: what is wrong with it stands beside it
    lines = [line.strip() for line in _text(done).splitlines() if line.strip() and line.count(",") < len(REQUIRED_FIELDS)]
    return "nvidia-smi ended with exit status %s: %s" % (done.rc, " ".join(lines[-3:]) or "no text")
