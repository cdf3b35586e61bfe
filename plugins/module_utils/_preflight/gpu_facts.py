# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of a machine that is not there, as somebody gives them."""

from __future__ import annotations

import math
from typing import Any, Mapping, Optional

from .._core.errors import GpuFleetError
from .._gpu.types import Gpu, Snapshot
from .._memory_plan.versions import parse_version

_MOST_GPUS = 1024
_MOST_MIB = 1 << 31
_FORMS = (
    "Give it as gpu_memory_facts returns it (ansible_facts.gpu_memory), or in short: {count: 8, gpu_mib: 97887}, or "
    "{gpus: [{name: ..., total_mib: 97887}, ...]}."
)


def snapshot_of(given: Any) -> Snapshot:
    """A reading made of what was given. GpuFleetError for what can't be one, naming the place."""
    facts = _unwrapped(given)
    if "gpus" not in facts and "count" in facts:
        facts = _of_short_form(facts)
    if facts.get("available") is False:
        raise GpuFleetError(
            "gpu_facts was read on a host whose GPUs could not be read (%s). %s" % (facts.get("reason") or "no reason given", _FORMS)
        )
    listed = facts.get("gpus")
    if not isinstance(listed, (list, tuple)) or not listed:
        raise GpuFleetError("gpu_facts names no GPUs. %s" % _FORMS)
    if len(listed) > _MOST_GPUS:
        raise GpuFleetError("gpu_facts names %d GPUs; that is no machine." % len(listed))
    gpus = tuple(_gpu(entry, number) for number, entry in enumerate(listed))
    if len({gpu.index for gpu in gpus}) != len(gpus):
        raise GpuFleetError("gpu_facts.gpus names an index twice.")
    return Snapshot(
        True,
        driver_version=_text(facts, "driver_version", "gpu_facts"),
        cuda_version=_text(facts, "cuda_version", "gpu_facts"),
        count=len(gpus),
        gpus=gpus,
    )


def version_of(given: Any) -> Optional[str]:
    """The vLLM that would run there, where ``gpu_facts.vllm_version`` says so. GpuFleetError for what is no version."""
    for _depth in range(3):
        if not isinstance(given, Mapping):
            return None
        if given.get("vllm_version") is not None:
            found = _text(given, "vllm_version", "gpu_facts")
            if parse_version(found) is None:
                raise GpuFleetError("gpu_facts.vllm_version is %r; a version such as 0.19.1 is needed." % _short(found))
            return found
        given = given.get("ansible_facts", given.get("gpu_memory"))
    return None


def _unwrapped(given: Any) -> Mapping[str, Any]:
    for name in ("ansible_facts", "gpu_memory"):
        if isinstance(given, Mapping) and isinstance(given.get(name), Mapping):
            given = given[name]
    if not isinstance(given, Mapping):
        raise GpuFleetError("gpu_facts is a %s and not a dictionary. %s" % (type(given).__name__, _FORMS))
    return given


def _of_short_form(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    count = _whole(facts, "count", "gpu_facts", 1, _MOST_GPUS)
    size = _whole(facts, "gpu_mib", "gpu_facts", 1, _MOST_MIB)
    if count is None or size is None:
        raise GpuFleetError("gpu_facts has no list of gpus, and not both of count and gpu_mib (MiB of each GPU). %s" % _FORMS)
    entry = {"name": facts.get("name"), "total_mib": size}
    return {**facts, "gpus": [entry] * count}


def _gpu(entry: Any, number: int) -> Gpu:
    where = "gpu_facts.gpus[%d]" % number
    if not isinstance(entry, Mapping):
        raise GpuFleetError("%s is a %s and not a dictionary. %s" % (where, type(entry).__name__, _FORMS))
    total = _whole(entry, "total_mib", where, 1, _MOST_MIB)
    if total is None:
        raise GpuFleetError("%s has no total_mib (MiB of the GPU)." % where)
    index = _whole(entry, "index", where, 0, 1 << 20)
    reserved = _whole(entry, "reserved_mib", where, 0, _MOST_MIB)
    free = _whole(entry, "free_mib", where, 0, _MOST_MIB)
    if free is not None and free > total:
        raise GpuFleetError("%s.free_mib is %d, and total_mib %d." % (where, free, total))
    return Gpu(
        number if index is None else index,
        _text(entry, "uuid", where),
        _text(entry, "pci_bus_id", where),
        _text(entry, "name", where),
        state=_text(entry, "state", where) or "ok",
        error=_text(entry, "error", where),
        memory_type=_text(entry, "memory_type", where) or "discrete",
        total_mib=total,
        used_mib=_whole(entry, "used_mib", where, 0, _MOST_MIB),
        free_mib=free,
        reserved_mib=reserved,
    )


def _whole(entry: Mapping[str, Any], name: str, where: str, low: int, high: int) -> Optional[int]:
    value = entry.get(name)
    if value is None:
        return None
    if isinstance(value, str) and value.strip().isdigit() and len(value) < 20:
        value = int(value)  # facts that went through templates arrive as text
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (isinstance(value, float) and not math.isfinite(value)):
        raise GpuFleetError("%s.%s is %r; a whole number is needed." % (where, name, _short(value)))
    if not low <= value <= high or int(value) != value:
        raise GpuFleetError("%s.%s is %s; it has to be a whole number from %d to %d." % (where, name, _short(value), low, high))
    return int(value)


def _text(entry: Mapping[str, Any], name: str, where: str) -> Optional[str]:
    value = entry.get(name)
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)  # 13.0 without its quotes
    raise GpuFleetError("%s.%s is %r; text is needed." % (where, name, _short(value)))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
