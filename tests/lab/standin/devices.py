# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs this process may use, as CUDA numbers them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from lab.driver.client import Channel, DriverError


@dataclass(frozen=True)
class Device:
    """One visible GPU: what the driver is asked by (an index or a UUID), and what CUDA knows of it."""

    spec: str
    name: str
    total_mib: int


class NoDriver(Exception):
    """There is no GPU driver to ask: vLLM doesn't find a platform to run on."""


def _ask(channel: Channel, *words: object) -> list[str]:
    code, answer = channel.request(*words)
    if code:
        raise DriverError(code, " ".join(map(str, words)))
    return answer


def _every() -> list[tuple[int, str, Device]]:
    """(index, UUID, device) of every GPU that answers, in the driver's order: by PCI bus."""
    try:
        channel = Channel()
    except OSError as error:
        raise NoDriver(str(error)) from error
    try:
        _ask(channel, "nvml", "nvmlInit_v2", "cuda")
        found = []
        for index in range(int(_ask(channel, "nvml", "nvmlDeviceGetCount_v2")[0])):
            try:
                handle = _ask(channel, "nvml", "nvmlDeviceGetHandleByIndex_v2", index)[0]
                name = _ask(channel, "nvml", "nvmlDeviceGetName", handle)[0]
                uuid = _ask(channel, "nvml", "nvmlDeviceGetUUID", handle)[0]
                _free, total = _ask(channel, "memory", index)
            except DriverError:
                continue  # a lost GPU is no CUDA device
            found.append((index, uuid, Device(str(index), name, int(total))))
        return found
    except DriverError as error:
        raise NoDriver(str(error)) from error
    finally:
        channel.close()


def visible() -> list[Device]:
    """The GPUs that CUDA would number 0, 1, ... in this environment. Raises NoDriver."""
    every = _every()
    if not every:
        raise NoDriver("no devices were found")
    if os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        every.sort(key=lambda each: -each[2].total_mib)  # "fastest first"; equal ones stay in order of the bus
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [device for _index, _uuid, device in every]
    devices: list[Device] = []
    for word in (word.strip() for word in chosen.split(",")):
        if word.isdigit() and int(word) < len(every):
            devices.append(every[int(word)][2])
            continue
        matches = [device for _index, uuid, device in every if word and uuid.startswith(word)]
        if len(matches) == 1:
            devices.append(matches[0])
        elif word.startswith("MIG-"):
            devices.append(Device(word, "MIG device", _mig_total(word)))
        else:
            break  # CUDA stops at the first one that isn't there
    return devices


def _mig_total(uuid: str) -> int:
    channel = Channel()
    try:
        return int(_ask(channel, "memory", uuid)[1])
    except DriverError as error:
        raise NoDriver(str(error)) from error
    finally:
        channel.close()
