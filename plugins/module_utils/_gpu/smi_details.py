# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvidia-smi's CSV does not carry, by XML: process types, MIG devices, the CUDA version."""

from __future__ import annotations

from typing import Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple

from .._core.runner import Completed
from . import host, raw
from .lists import plausible
from .smi_command import Command, each, text_code
from .smi_text import GOOD_EXITS, parse_apps, parse_list
from .smi_xml import Details, GpuDetails, parse_xml, xml_failure_code

# More than this is not used by nobody.
_IN_USE = 1 << 30


class _Xml(NamedTuple):
    """What it says; the code that stands for a GPU that is missing there."""

    details: Details
    code: int


def add_details(
    command: Command,
    reading: raw.RawReading,
    only: Optional[FrozenSet[int]],
    processes: bool,
    for_version: bool,
    proc_root: str,
) -> Optional[str]:
    """Add to a reading what is wanted of it; the CUDA version where it was met. ``for_version``: that alone is worth asking."""
    readable = [gpu for gpu in reading.gpus if gpu.code == raw.SUCCESS]
    divided = any(gpu.mig_enabled or gpu.mig_code != raw.SUCCESS for gpu in readable)
    if not readable or not (processes or divided or for_version):
        return None
    quick = [gpu for gpu in readable if not _hangs(gpu)]
    if len(quick) < len(reading.gpus):
        only = frozenset(gpu.index for gpu in quick)  # a bad one could spoil the whole, or cost the time-out again
    details, codes = _all(command, quick, only) if quick else (Details(cuda_code=raw.HUNG), {})
    reading.unread["cuda_version"] = details.cuda_code
    named = parse_list(command.run(["-L"], again=len(quick) < len(readable)).stdout) if divided else {}
    found = {gpu.index: details.gpus.get(gpu.pci_bus_id or "") for gpu in readable}
    missing: Dict[int, int] = {index: codes.get(index, raw.HUNG) for index, each_found in found.items() if each_found is None}
    for gpu in readable:
        _add(gpu, found[gpu.index], named.get(gpu.uuid or "", []), proc_root)
    if processes:
        _add_processes(command, readable, found, missing)
    for code in sorted(set(missing.values())):
        # it carries more than the other reports: what is missing now is said, not passed over
        which = ", ".join(str(index) for index in sorted(missing) if missing[index] == code)
        reading.notes += ("nvidia-smi -q -x says nothing usable about GPU %s: %s" % (which, raw.code_text(code)),)
    return details.cuda_version


def _hangs(gpu: raw.RawGpu) -> bool:
    """Whether something of it is known to hang, which the XML would ask for too.

    The report can't be had without that: ``-d PIDS`` works for the report as text alone, in which each process writes its name as it
    likes, with line breaks and all, so that it could list others. The list of compute processes is asked for instead.
    """
    return raw.HUNG in (gpu.memory_code, gpu.mig_code, *gpu.unread.values())


def _all(command: Command, gpus: Sequence[raw.RawGpu], only: Optional[FrozenSet[int]]) -> Tuple[Details, Dict[int, int]]:
    """The XML of these GPUs: at once, and where it lacks some, of those one by one; with the codes of the GPUs that it lacks."""
    whole = _xml(command, only)
    details = whole.details
    missing = [gpu for gpu in gpus if gpu.pci_bus_id not in details.gpus]
    codes = {gpu.index: whole.code for gpu in missing}
    if missing and len(gpus) > 1:
        alone = each([gpu.index for gpu in missing], lambda index: _xml(command, frozenset([index]), again=True),
                     lambda answers: any(answer.code != raw.HUNG for answer in answers))
        for index, answer in alone.items():
            codes[index] = answer.code
            details.gpus.update(answer.details.gpus)
            if details.cuda_version is None and answer.details.cuda_version is not None:
                details.cuda_version, details.cuda_code = answer.details.cuda_version, raw.SUCCESS
    return details, codes


def _xml(command: Command, only: Optional[FrozenSet[int]], again: bool = False) -> _Xml:
    done = command.run(["-q", "-x"], only, again)
    code = raw.HUNG if done.timed_out else xml_failure_code(done.rc, done.stdout, done.stderr)
    return _Xml(parse_xml(done.stdout) or Details(cuda_code=code), code)


def _add(gpu: raw.RawGpu, details: Optional[GpuDetails], named: Sequence[raw.RawMig], proc_root: str) -> None:
    gpu.minor = details.minor if details is not None else None
    if gpu.minor is None:
        gpu.minor = host.driver_minor(gpu.pci_bus_id or "", proc_root)
    if not gpu.mig_enabled and gpu.mig_code == raw.SUCCESS:
        return
    found = details.mig_devices if details is not None else []
    gpu.mig_devices = [_named(device, named) for device in found]
    if gpu.mig_devices and not gpu.mig_enabled:
        gpu.mig_enabled, gpu.mig_code = True, raw.SUCCESS
    elif gpu.mig_enabled and (details is None or {device.index for device in found} != {device.index for device in named}):
        gpu.mig_devices = gpu.mig_devices or list(named)  # without their memory, which stands in the XML alone
        gpu.mig_code = raw.BAD_ANSWER


def _named(device: raw.RawMig, named: Sequence[raw.RawMig]) -> raw.RawMig:
    for other in named:
        if other.index == device.index:
            device.uuid, device.name = other.uuid, other.name
            return device
    device.unread = {"uuid": raw.BAD_ANSWER, "name": raw.BAD_ANSWER}  # they stand in `nvidia-smi -L` alone, and there they do not
    return device


def _add_processes(
    command: Command, gpus: Sequence[raw.RawGpu], found: Dict[int, Optional[GpuDetails]], codes: Dict[int, int]
) -> None:
    doubtful: List[raw.RawGpu] = []
    for gpu in gpus:
        details = found[gpu.index]
        if details is not None:
            gpu.processes, gpu.processes_code, gpu.bad_processes = details.processes, details.code, details.bad_processes
        used = gpu.memory.used if gpu.memory is not None else 0
        # the XML lacks this GPU, or shows nobody on it although it is in use: a list that is not supported looks empty there
        if details is None or details.processes == [] and used > _IN_USE:
            doubtful.append(gpu)
    hung = raw.HUNG in codes.values()
    listed = each([gpu.index for gpu in doubtful], lambda index: _apps(command, index, hung),
                  lambda answers: not all(answer.timed_out for answer in answers))
    for gpu in doubtful:
        done = listed.get(gpu.index)
        if done is None or done.rc not in GOOD_EXITS:
            gpu.processes, gpu.processes_code = None, raw.HUNG if done is None or done.timed_out else text_code(done)
        elif found[gpu.index] is None:
            # those that compute; the graphics processes stand nowhere else, so that this is less than all
            gpu.processes, gpu.processes_code = parse_apps(done.stdout).get(gpu.uuid or "", []), codes[gpu.index]
    for gpu in gpus:
        _sift(gpu)


def _apps(command: Command, index: int, again: bool) -> Completed:
    arguments = ["--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits"]
    return command.run(arguments, frozenset([index]), again)


def _sift(gpu: raw.RawGpu) -> None:
    """Leave out entries that can't be true, and count them."""
    listed = gpu.processes or []
    total = gpu.memory.total if gpu.memory is not None and gpu.memory.total > 0 else None
    kept = [entry for entry in listed if plausible(entry.pid, entry.used, total)]
    if len(kept) < len(listed):
        gpu.processes, gpu.bad_processes = kept, gpu.bad_processes + len(listed) - len(kept)
