# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What changes a GPU: reset, persistence mode, compute mode."""
# Runs on hosts, in one file with its package: standard library alone, Python 3.9.

from __future__ import annotations

from typing import Callable, List

from .. import codes
from .driver import Driver, Ended, Gpu, NvmlError
from .values import COMPUTE_MODES, enabled

_IN_USE = (
    "%d device is currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, "
    "graphics application such as an X server, or a monitoring application such as another instance of nvidia-smi). "
    "Please first kill all processes using this device and all compute applications running in the system.\n"
)


def reset(driver: Driver, gpus: List[Gpu]) -> str:
    """Reset the GPUs, one by one. Raises Ended 255 when one is in use, 4 without the right."""
    refused = []
    parts = []
    for gpu in gpus:
        bus_id = driver.bus_ids()[gpu.index]
        try:
            driver.reset(bus_id)
        except NvmlError as error:
            refused.append((bus_id, error))
        else:
            parts.append("GPU %s was successfully reset.\n" % bus_id)
    if not refused:
        return "".join(parts) + "All done.\n"
    parts.append("The following GPUs could not be reset:\n")
    parts += ["  GPU %s: %s\n" % each for each in refused]
    in_use = sum(error.code == codes.IN_USE for _bus_id, error in refused)
    if in_use:
        parts.append("\n" + _IN_USE % in_use)
    raise Ended(4 if refused[0][1].code == codes.NO_PERMISSION else 255, "".join(parts))


def persistence(gpus: List[Gpu], mode: str) -> str:
    """Switch persistence mode. Raises Ended 2 for a bad mode, 4 without the right."""
    word = {"0": "0", "1": "1", "DISABLED": "0", "ENABLED": "1"}.get(mode.upper())
    if word is None:
        raise Ended(2, "Invalid persistence mode value: %s\n" % mode)
    parts = []
    for gpu in gpus:
        if gpu.one("nvmlDeviceGetPersistenceMode") == word:
            parts.append("Persistence mode is already %s for GPU %s.\n" % (enabled(word), gpu.bus_id))
            continue
        _change(gpu, "persistence mode", lambda gpu=gpu: gpu.get("nvmlDeviceSetPersistenceMode", word))  # type: ignore[misc]
        parts.append("%s persistence mode for GPU %s.\n" % (enabled(word), gpu.bus_id))
    return "".join(parts) + "All done.\n"


def compute_mode(gpus: List[Gpu], mode: str) -> str:
    """Set the compute mode. Raises Ended 2 for a bad mode, 4 without the right."""
    words = {name.upper(): number for number, name in COMPUTE_MODES.items()}
    word = mode if mode in COMPUTE_MODES else words.get(mode.upper())
    if word is None:
        raise Ended(2, "Invalid compute mode value: %s\n" % mode)
    parts = []
    for gpu in gpus:
        _change(gpu, "compute mode", lambda gpu=gpu: gpu.get("nvmlDeviceSetComputeMode", word))  # type: ignore[misc]
        parts.append("Set compute mode to %s for GPU %s.\n" % (COMPUTE_MODES[word].upper(), gpu.bus_id))
    return "".join(parts) + "All done.\n"


def _change(gpu: Gpu, what: str, act: Callable[[], object]) -> None:
    try:
        act()
    except NvmlError as error:
        text = "Unable to set %s for GPU %s: %s\nTerminating early due to previous errors.\n"
        raise Ended(min(error.code, 255), text % (what, gpu.bus_id, error)) from error
