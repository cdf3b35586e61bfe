# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVML's field values: the few that speak of a GPU's health."""

from __future__ import annotations

from collections.abc import Callable

from . import codes
from .scenario import Gpu

_UINT = 1  # NVML_VALUE_TYPE_UNSIGNED_INT


def _action(gpu: Gpu) -> int:
    return gpu.recovery_action or (1 if gpu.state == "reset_required" else 0)


_FIELDS: dict[int, Callable[[Gpu], int | None]] = {
    1: lambda gpu: None if gpu.ecc is None else int(gpu.ecc),  # ECC_CURRENT
    2: lambda gpu: None if gpu.ecc is None else int(gpu.ecc),  # ECC_PENDING
    29: lambda gpu: 0,  # RETIRED_SBE
    30: lambda gpu: gpu.retired_pages,  # RETIRED_DBE
    31: lambda gpu: int(gpu.retired_pages_pending),  # RETIRED_PENDING
    142: lambda gpu: gpu.remapped_rows[0],  # REMAPPED_COR
    143: lambda gpu: gpu.remapped_rows[1],  # REMAPPED_UNC
    144: lambda gpu: gpu.remapped_rows[2],  # REMAPPED_PENDING
    145: lambda gpu: gpu.remapped_rows[3],  # REMAPPED_FAILURE
    186: lambda gpu: gpu.power_mw,  # POWER_INSTANT
    226: lambda gpu: int(_action(gpu) == 1),  # RESET_STATUS
    227: lambda gpu: int(_action(gpu) == 4),  # DRAIN_AND_RESET_STATUS
    230: _action,  # GET_GPU_RECOVERY_ACTION
}


def value(gpu: Gpu, number: int) -> tuple[int, int, int]:
    """(return code, value type, value) of one field of a GPU; NOT_SUPPORTED for what it doesn't have."""
    found = _FIELDS[number](gpu) if number in _FIELDS else None
    if found is None:
        return codes.NOT_SUPPORTED, _UINT, 0
    return codes.SUCCESS, _UINT, found
