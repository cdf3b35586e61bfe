# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reader around the driver: what it does with answers, selections and trouble."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Callable, FrozenSet, List, Optional, Tuple

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu import raw, reader
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, MigDevice, Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.worker import WorkerGone


class FakeDriver:
    """A driver with four GPUs; ``look`` answers for processes."""

    def __init__(self, *_arguments: Any) -> None:
        self.asked: List[Tuple[Optional[FrozenSet[int]], bool, int]] = []
        self.helpers: List[int] = []
        self.closed = False
        self.within: List[float] = []

    def read(
        self, only: Optional[FrozenSet[int]], processes: bool, depth: int, meanwhile: Optional[Callable[[], None]] = None,
        within: float = math.inf,
    ) -> raw.RawReading:
        """Four GPUs with a process each."""
        self.within.append(within)
        self.asked.append((only, processes, depth))
        if meanwhile is not None:
            meanwhile()
        mib = 1 << 20
        gpus = [
            raw.RawGpu(index, uuid="GPU-%d000" % index, pci_bus_id="00000000:0%d:00.0" % index, name="A",
                       memory=raw.RawMemory(1000 * mib, 10 * mib, 980 * mib, 10 * mib),
                       processes=[raw.RawProcess(999_999_999, "C", 5 * mib)] if processes else None)
            for index in range(4) if only is None or index in only
        ]
        return raw.RawReading("nvml", driver_version="580.1", count=4, gpus=gpus)

    def look(self, *_arguments: Any) -> Any:
        """Nobody can be looked at."""
        raise WorkerGone("the holders", True, "the look did not end")

    def close(self) -> None:
        """Let go."""
        self.closed = True


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """The driver that open_reader() finds."""
    made = FakeDriver()
    monkeypatch.setattr(reader, "Driver", lambda *arguments: made)
    return made


def opened(tmp_path: Path, **options: Any) -> reader.GpuReader:
    """A reader in a world without anything else."""
    return reader.open_reader(proc_root=str(tmp_path), sys_root=str(tmp_path), dev_root=str(tmp_path), **options)


def test_memory_stands_though_nobody_can_be_looked_at(driver: FakeDriver, tmp_path: Path) -> None:
    snapshot = opened(tmp_path).snapshot()
    assert snapshot.available and snapshot.free_mib == 4 * 980
    assert not snapshot.processes_reliable and "the look did not end" in (snapshot.reason_detail or "")
    assert all(gpu.processes == () and gpu.unattributed_mib is None for gpu in snapshot.gpus)


def test_each_reading_is_told_what_time_its_caller_has(driver: FakeDriver, tmp_path: Path) -> None:
    left = iter([7.0, 6.0, 5.0])
    with opened(tmp_path) as reading:
        reading.snapshot()
        reading.within = lambda: next(left)
        reading.snapshot()
        reading.snapshot(["GPU-2000"], processes=False)  # who they are, and their memory
    assert driver.within == [math.inf, 7.0, 6.0, 5.0]


def test_only_what_is_selected_is_read(driver: FakeDriver, tmp_path: Path) -> None:
    with opened(tmp_path) as reading:
        assert [gpu.index for gpu in reading.snapshot(["2", "0"], processes=False).gpus] == [2, 0]
        assert driver.asked == [(frozenset({0, 2}), False, raw.FULL)]
        # a UUID needs to know who is there, once
        for _again in range(2):
            assert [gpu.index for gpu in reading.snapshot(["GPU-3000"], processes=False).gpus] == [3]
        assert [ask[2] for ask in driver.asked[1:]] == [raw.IDENTITY, raw.FULL, raw.FULL]
        assert all(ask[0] == frozenset({3}) for ask in driver.asked[2:])
    assert driver.closed


def test_sums_are_the_selections(driver: FakeDriver, tmp_path: Path) -> None:
    snapshot = opened(tmp_path).snapshot(["1", "3"], processes=False)
    assert (snapshot.total_mib, snapshot.free_mib, snapshot.count) == (2000, 1960, 4)


@pytest.mark.parametrize("selection", [None, ["1"], ["GPU-1000"]])
def test_a_selection_does_not_hide_that_gpus_are_missing(driver: FakeDriver, tmp_path: Path, selection: Optional[List[str]]) -> None:
    """What the driver shows besides is known without asking it about GPUs that were not selected."""
    for index in range(5):
        device = tmp_path / "bus/pci/devices" / ("0000:0%d:00.0" % index)
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
    for index in range(4):
        (tmp_path / "driver/nvidia/gpus" / ("0000:0%d:00.0" % index)).mkdir(parents=True)
    snapshot = opened(tmp_path).snapshot(selection, processes=False)
    assert snapshot.reason_detail == "the driver shows 4 of 5 GPUs on the PCI bus (missing: 00000000:04:00.0)"
    assert all(depth == raw.IDENTITY for only, _processes, depth in driver.asked[:-1])


@pytest.mark.parametrize("selection", [["7"], ["0", "7"], ["GPU-9"], ["0000:77:00.0"]])
def test_a_gpu_that_is_not_there_is_named_with_those_that_are(driver: FakeDriver, tmp_path: Path, selection: List[str]) -> None:
    with pytest.raises(GpuFleetError, match="is not on this host") as failed:
        opened(tmp_path).snapshot(selection, processes=False)
    assert "GPU-3000" in failed.value.msg


def test_a_quick_reader_asks_for_memory_alone(driver: FakeDriver, tmp_path: Path) -> None:
    opened(tmp_path, quick=True).snapshot(processes=False)
    assert driver.asked == [(None, False, raw.MEMORY)]


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(GpuFleetError, match="use one of auto, nvml, nvidia_smi"):
        reader.open_reader("cuda")


@pytest.mark.parametrize("timeout", [0.0, -1.0, 1e9, 1e308, float("inf"), float("nan")])
def test_a_limit_that_is_none_is_refused_with_its_bounds(timeout: float) -> None:
    with pytest.raises(GpuFleetError, match="over 0 and at most 86400 seconds"):
        reader.open_reader(timeout=timeout)


def test_a_part_beside_its_whole_counts_once() -> None:
    device = MigDevice(0, "MIG-a", None, 1, 0, total_mib=10, used_mib=1, free_mib=9)
    whole = Gpu(0, "GPU-0", None, "A", memory_type="mig", total_mib=40, used_mib=4, free_mib=36, mig_devices=(device,))
    snapshot = Snapshot(True, gpus=(whole,))
    assert reader._narrowed(snapshot, [whole, whole.of_mig(device)]).total_mib == 40
    assert reader._narrowed(snapshot, [whole.of_mig(device)]).total_mib == 10


@pytest.mark.parametrize(
    ("backend", "indices", "count", "filled"),
    [("nvidia_smi", [0, 1, 2], 3, True), ("nvidia_smi", [0, 1, 3], 3, False), ("nvidia_smi", [1, 2, 3], 3, False),
     ("nvidia_smi", [2], 3, False), ("nvidia_smi", [0, 2, 1], 3, False), ("nvml", [2], 3, True), ("nvml", [0, 1, 2], 3, True)],
)
def test_an_address_is_taken_from_the_bus_only_where_its_place_is_certain(
    tmp_path: Path, backend: str, indices: List[int], count: int, filled: bool
) -> None:
    """A GPU that is missing in the middle shifts all that follow."""
    on_bus = ["00000000:0%d:00.0" % number for number in range(count)]
    reading = raw.RawReading(backend, count=count, gpus=[raw.RawGpu(index) for index in indices])
    reader._fill_addresses(reading, on_bus, str(tmp_path))
    assert [gpu.pci_bus_id for gpu in reading.gpus] == [on_bus[index] if filled else None for index in indices]


def test_the_module_knows_the_device_nodes_that_the_driver_does_not_tell(tmp_path: Path) -> None:
    """Without the number, whoever holds the node without being listed would not be seen."""
    for address, minor in (("0000:00:00.0", 4), ("0000:01:00.0", 7)):
        base = tmp_path / "driver/nvidia/gpus" / address
        base.mkdir(parents=True)
        (base / "information").write_text("Model: A\nDevice Minor: \t %d\n" % minor)
    gpus = [raw.RawGpu(index, pci_bus_id="00000000:0%d:00.0" % index) for index in range(3)] + [raw.RawGpu(3, code=raw.GPU_IS_LOST)]
    gpus[1].minor = 1
    assert reader._fill_minors(raw.RawReading("nvml", count=4, gpus=gpus), str(tmp_path)) == [2]
    assert [gpu.minor for gpu in gpus] == [4, 1, None, None]
