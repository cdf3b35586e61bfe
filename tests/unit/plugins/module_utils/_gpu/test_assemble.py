# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a reading amounts to: the judgement that both backends share."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, List, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu import raw
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.assemble import assemble
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.attribution import Attribution
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.host import MemInfo
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.lists import merge
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.inspect import Inspection
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.types import CgroupOwner, ProcessInfo

MIB = 1 << 20
TOTAL = 97887
HOST = MemInfo(124610, 20000, 90000)
CONTRACT = ("available reason reason_detail backend driver_version cuda_version count pci_count total_mib used_mib free_mib "
            "processes_reliable gpus").split()
CONTRACT_GPU = ("index uuid pci_bus_id name state error memory_type total_mib used_mib free_mib reserved_mib unattributed_mib "
                "utilization_percent compute_mode mig_devices processes").split()
CONTRACT_PROCESS = ("pid type used_mib name cmdline user start_time unit container state vllm orphan protected protected_by").split()


def memory(used: int, total: int = TOTAL, reserved: Optional[int] = 638) -> raw.RawMemory:
    """Memory in MiB, with what is left as free."""
    free = total - used - (reserved or 0)
    return raw.RawMemory(total * MIB, used * MIB, free * MIB, None if reserved is None else reserved * MIB)


def gpu(index: int = 0, **more: Any) -> raw.RawGpu:
    """A GPU with 5,002 MiB used."""
    fields = {"uuid": "GPU-%d" % index, "pci_bus_id": "00000000:%02d:00.0" % index, "name": "NVIDIA RTX PRO 6000", "minor": index,
              "memory": memory(5002), "utilization_percent": 0, "compute_mode": "Default", "processes": [], **more}
    return raw.RawGpu(index, **fields)


def reading(*gpus: raw.RawGpu, **more: Any) -> raw.RawReading:
    """A reading of these GPUs."""
    fields = {"backend": "nvml", "driver_version": "580.95.05", "cuda_version": "13.0", "count": len(gpus), **more}
    return raw.RawReading(gpus=list(gpus), **fields)


def one(each: raw.RawGpu, at: Optional[Attribution] = None, memory: Optional[MemInfo] = None) -> Gpu:
    """The judgement of one GPU."""
    if at is None:
        (judged,) = assemble(reading(each), None, memory).gpus
    else:
        (judged,) = assemble(reading(each), None, memory, at.on).gpus
    return judged


def entry(pid: int, kind: str = "C", used: Optional[int] = 5000, instance: Optional[int] = None) -> raw.RawProcess:
    """An entry of a process list, in MiB."""
    return raw.RawProcess(pid, kind, None if used is None else used * MIB, instance, None if instance is None else 0)


def info(pid: int, **more: Any) -> ProcessInfo:
    """A process."""
    fields = {"ppid": 1, "comm": "python3", "state": "S", "start_ticks": 7, "start_time": 1.5, "uid": 5, "user": "alice",
              "cmdline": "python3 x.py", "argv": ("python3", "x.py"), "exe": "/usr/bin/python3", **more}
    return ProcessInfo(pid=pid, **fields)


def world(*infos: ProcessInfo, **more: Any) -> Attribution:
    """A host with these processes, which hold the first GPU's node."""
    inspection = Inspection(infos={each.pid: each for each in infos}, owners={each.pid: CgroupOwner() for each in infos},
                            nodes={each.pid: frozenset({"nvidia0"}) for each in infos})
    for name, value in more.items():
        setattr(inspection, name, value)
    return Attribution(inspection)


def test_the_dicts_are_the_contracts() -> None:
    snapshot = assemble(reading(gpu(processes=[entry(50)])), processes=world(info(50)).on)
    facts = snapshot.to_dict()
    assert list(facts) == CONTRACT
    assert list(facts["gpus"][0]) == CONTRACT_GPU
    assert list(facts["gpus"][0]["processes"][0]) == CONTRACT_PROCESS


def test_sums_are_over_the_readable_gpus() -> None:
    lost = raw.RawGpu(1, code=raw.GPU_IS_LOST)
    snapshot = assemble(reading(gpu(0), lost, gpu(2)))
    assert (snapshot.total_mib, snapshot.used_mib, snapshot.free_mib) == (2 * TOTAL, 10004, 2 * (TOTAL - 638 - 5002))
    assert [each.state for each in snapshot.gpus] == ["ok", "lost", "ok"]
    assert snapshot.gpus[1].total_mib is None and "lost" in (snapshot.gpus[1].error or "")


def test_unknown_is_never_zero() -> None:
    snapshot = assemble(reading(raw.RawGpu(0, code=raw.GPU_IS_LOST)))
    assert snapshot.available and (snapshot.total_mib, snapshot.used_mib, snapshot.free_mib) == (None, None, None)
    failed = assemble(raw.RawReading("nvml", raw.Failure("driver_library_mismatch", "x")), ["a"])
    assert (failed.available, failed.count, failed.pci_count, failed.total_mib) == (False, None, 1, None)
    assert not failed.processes_reliable


def test_a_host_without_a_driver_shows_no_gpu() -> None:
    snapshot = assemble(raw.RawReading(None, raw.Failure("no_driver", "none")), [])
    assert (snapshot.available, snapshot.reason, snapshot.count, snapshot.gpus) == (False, "no_driver", 0, ())


@pytest.mark.parametrize(
    ("each", "state", "text"),
    [
        (raw.RawGpu(0, code=raw.GPU_IS_LOST), "lost", "lost"),
        (gpu(memory=None, code=raw.RESET_REQUIRED), "reset_required", "reset"),
        (raw.RawGpu(0, code=raw.UNKNOWN), "error", "unknown error"),
        (raw.RawGpu(0, code=4242), "error", "NVML error 4242"),
        (gpu(memory=None, memory_code=raw.NOT_SUPPORTED), "error", "memory: not supported"),
        (gpu(memory=None, memory_code=raw.HUNG, name="x"), "error", "driver_hung"),
        (gpu(memory=raw.RawMemory(2**64 - 1, 2**64 - 1, 2**64 - 1)), "error", "makes no sense"),
        (gpu(memory=raw.RawMemory(0, 0, 0)), "error", "makes no sense"),
        (gpu(memory=raw.RawMemory(100, 90, 90)), "error", "makes no sense"),
        (gpu(recovery_action="Reset"), "reset_required", "asks for a reset"),
        (gpu(recovery_action="Drain and Reset"), "reset_required", "drained"),
        (gpu(recovery_action="Reboot"), "error", "reboot"),
        (gpu(recovery_action="None"), "ok", None),
    ],
)
def test_a_state_has_its_reason(each: raw.RawGpu, state: str, text: Optional[str]) -> None:
    other = gpu(1)
    judged = assemble(reading(each, other)).gpus[0]
    assert judged.state == state
    assert (text is None and judged.error is None) or (text is not None and text in (judged.error or ""))


def test_a_gpu_that_asks_for_a_reset_still_has_memory() -> None:
    assert one(gpu(recovery_action="Reset")).used_mib == 5002


def test_all_gpus_hung_is_a_hung_driver() -> None:
    hung = [raw.RawGpu(index, memory_code=raw.HUNG) for index in range(2)]
    snapshot = assemble(reading(*hung, notes=("nvmlX on GPU 0 did not answer within 2 s",)))
    assert (snapshot.available, snapshot.reason) == (False, "driver_hung")
    assert "nvmlX" in (snapshot.reason_detail or "")
    assert assemble(reading(hung[0], gpu(1))).available


def test_version_one_memory_counts_the_reserve_as_used() -> None:
    judged = one(gpu(memory=memory(640, reserved=None)))
    assert (judged.used_mib, judged.reserved_mib, judged.free_mib) == (640, None, TOTAL - 640)


@pytest.mark.parametrize("name", ["NVIDIA GB10", "NVIDIA Thor", "Orin (nvgpu)"])
@pytest.mark.parametrize(
    "each",
    [{"memory": None, "memory_code": raw.NOT_SUPPORTED}, {"memory": raw.RawMemory(0, 0, 0)}, {"memory": memory(60000, 124610, 0)}],
    ids=["not supported", "zero", "the host's"],
)
def test_unified_memory_is_the_hosts(name: str, each: "dict[str, Any]") -> None:
    judged = one(gpu(name=name, **each), memory=HOST)
    assert (judged.state, judged.memory_type, judged.total_mib, judged.free_mib) == ("ok", "unified", 124610, 90000)
    assert judged.used_mib == 34610 and judged.unattributed_mib is None


def test_a_discrete_card_without_memory_is_an_error_not_unified() -> None:
    judged = one(gpu(memory=None, memory_code=raw.NOT_SUPPORTED), memory=HOST)
    assert (judged.state, judged.memory_type, judged.free_mib) == ("error", "discrete", None)


def test_a_gpu_with_its_own_memory_beside_the_hosts_keeps_it() -> None:
    judged = one(gpu(name="NVIDIA Thor", memory=memory(10, 65000, 0)), memory=HOST)
    assert (judged.total_mib, judged.used_mib) == (65000, 10)


def test_mig_memory_belongs_to_the_instances() -> None:
    devices = [raw.RawMig(0, "MIG-a", "A MIG 1g", 7, 0, memory=memory(13, 9984, 0)), raw.RawMig(1, "MIG-b", code=raw.NO_PERMISSION)]
    judged = one(gpu(memory=None, memory_code=raw.NO_PERMISSION, mig_enabled=True, mig_devices=devices))
    assert (judged.state, judged.memory_type, judged.total_mib) == ("ok", "mig", None)
    assert "mig_devices" in (judged.error or "")
    assert [(each.state, each.free_mib) for each in judged.mig_devices] == [("ok", 9971), ("error", None)]
    narrowed = judged.of_mig(judged.mig_devices[0])
    assert (narrowed.uuid, narrowed.index, narrowed.free_mib) == ("MIG-a", 0, 9971)


def test_fewer_gpus_than_on_the_bus_is_said() -> None:
    pci = ["00000000:%02d:00.0" % index for index in range(3)]
    snapshot = assemble(reading(gpu(0), gpu(1)), pci)
    assert (snapshot.count, snapshot.pci_count) == (2, 3)
    assert "2 of 3" in (snapshot.reason_detail or "") and pci[2] in (snapshot.reason_detail or "")
    # a bus that shows fewer than the driver says nothing
    assert assemble(reading(gpu(0), gpu(1)), pci[:1]).pci_count is None


def test_lists_are_merged_by_process() -> None:
    entries = [entry(50, "C", 100), entry(50, "G", 120), entry(60, "G", None), entry(70, "C", 10, 7), entry(70, "C", 20, 8),
               entry(80, "M", 5), entry(80, "C", None)]
    assert merge(entries) == [(50, "C+G", 120 * MIB), (60, "G", None), (70, "C", 30 * MIB), (80, "C+M", 5 * MIB)]


def test_what_no_process_accounts_for_is_counted() -> None:
    assert one(gpu(processes=[entry(50, used=3000), entry(51, used=1000)])).unattributed_mib == 1002
    assert one(gpu(processes=[])).unattributed_mib == 5002
    # shared memory can make the sum exceed what is used: that is nothing unattributed, not less than nothing
    assert one(gpu(processes=[entry(50, used=9000)])).unattributed_mib == 0
    for unknown in ({"processes": [entry(50, used=None)]}, {"processes": None}, {"processes": [], "bad_processes": 1},
                    {"processes": None, "processes_code": raw.NOT_SUPPORTED}, {"memory": None, "memory_code": raw.UNKNOWN}):
        assert one(gpu(**unknown)).unattributed_mib is None


def test_a_list_that_cannot_be_trusted_is_said() -> None:
    for each in (gpu(bad_processes=2), gpu(processes=None, processes_code=raw.NO_PERMISSION)):
        snapshot = assemble(reading(gpu(0), each))
        assert not snapshot.processes_reliable and "process list" in (snapshot.gpus[1].error or "")
    assert assemble(reading(gpu())).processes_reliable


def test_a_process_is_described() -> None:
    at = world(info(50))
    at.inspection.owners[50] = CgroupOwner(unit="train.service")
    (process,) = one(gpu(processes=[entry(50)]), at).processes
    assert (process.pid, process.type, process.used_mib, process.name, process.user) == (50, "C", 5000, "python3", "alice")
    assert (process.unit, process.state, process.start_ticks, process.uid, process.proven) == ("train.service", "running", 7, 5, True)


@pytest.mark.parametrize(("initial", "state"), [(True, "gone"), (False, "not_visible")])
def test_a_pid_that_does_not_exist_is_gone_or_of_elsewhere(initial: bool, state: str) -> None:
    (process,) = one(gpu(processes=[entry(50)]), world(initial_pid_namespace=initial)).processes
    assert (process.state, process.name, process.user, process.used_mib) == (state, None, None, 5000)


def test_a_pid_that_means_another_process_here_is_not_described_by_it() -> None:
    # the driver's number comes from another pid namespace; here it is somebody who holds no GPU
    (process,) = one(gpu(processes=[entry(50)]), world(info(50), nodes={50: frozenset()})).processes
    assert (process.state, process.name, process.cmdline, process.start_ticks) == ("not_visible", None, None, None)
    assert not process.proven


def test_without_a_look_at_its_descriptors_a_process_is_believed_but_not_proven() -> None:
    (process,) = one(gpu(processes=[entry(50)]), world(info(50), nodes={50: None})).processes
    assert (process.state, process.name, process.proven) == ("running", "python3", False)
    (zombie,) = one(gpu(processes=[entry(50)]), world(info(50, state="Z"), nodes={50: None})).processes
    assert zombie.state == "zombie"


def test_holders_that_no_list_shows_are_found_on_their_gpu() -> None:
    at = world(info(50), info(60), info(70), holders={60: frozenset({0, 3}), 70: frozenset({1}), 50: frozenset({0})})
    at.own_pids = frozenset({61})
    at.inspection.holders[61] = frozenset({0})
    found = one(gpu(processes=[entry(50)]), at).processes
    assert [(each.pid, each.type, each.used_mib) for each in found] == [(50, "C", 5000), (60, None, None)]
    assert one(gpu(minor=None, processes=[]), at).processes == ()


def test_who_belongs_is_asked_for() -> None:
    at = world(info(50, comm="VLLM::Worker_TP", cmdline="VLLM::Worker_TP0", argv=("VLLM::Worker_TP0",)))
    for belongs, orphan in ((True, False), (False, True), (None, True)):
        at.belongs = lambda _info, _owner, answer=belongs: answer  # type: ignore[misc]
        (process,) = one(gpu(processes=[entry(50)]), at).processes
        assert (process.vllm, process.orphan) == (True, orphan)


def test_a_job_of_a_scheduler_is_no_orphan_and_says_who_keeps_it() -> None:
    starter = info(40, ppid=1, comm="condor_starter", argv=("condor_starter",), exe="/usr/sbin/condor_starter")
    worker = info(4711, ppid=40, comm="VLLM::Worker_TP", cmdline="VLLM::Worker_TP0")
    (process,) = one(gpu(processes=[entry(4711)]), world(worker, starter)).processes
    assert (process.vllm, process.orphan, process.protected) == (True, False, True)
    assert process.kept_by is not None and "condor_starter (pid 40" in process.kept_by
    (process,) = one(gpu(processes=[entry(4711)]), world(worker)).processes
    assert process.orphan and process.kept_by is None


BYTES = st.one_of(st.just(2**64 - 1), st.integers(0, 2**63), st.integers(0, 200_000).map(lambda mib: mib * MIB), st.just(0))
MEMORY = st.one_of(
    st.none(),
    st.builds(raw.RawMemory, BYTES, BYTES, BYTES, st.one_of(st.none(), BYTES)),
    st.integers(0, 90_000).map(memory),
    st.integers(0, 90_000).map(lambda used: memory(used, reserved=None)),
)
CODES = st.sampled_from([0, 0, 0, 0, 3, 4, 6, 9, 13, 15, 16, 18, 999, 12345, raw.HUNG, raw.CRASHED])
ENTRIES = st.lists(st.builds(raw.RawProcess, st.integers(2, 60), st.sampled_from("CGM"), st.one_of(st.none(), BYTES),
                             st.one_of(st.none(), st.integers(0, 3)), st.one_of(st.none(), st.integers(0, 3))), max_size=6)
MIGS = st.lists(st.builds(raw.RawMig, st.integers(0, 6), st.one_of(st.none(), st.text(max_size=5)), st.none(), st.none(), st.none(),
                          CODES, MEMORY), max_size=3)
GPU = st.builds(
    raw.RawGpu, st.integers(0, 7), uuid=st.one_of(st.none(), st.text(max_size=6)), name=st.sampled_from([None, "NVIDIA GB10", "A100"]),
    minor=st.one_of(st.none(), st.integers(0, 3)), code=CODES, memory=MEMORY, memory_code=CODES,
    utilization_percent=st.one_of(st.none(), st.integers(-5, 2**32)), recovery_action=st.sampled_from([None, "None", "Reset", "9"]),
    mig_enabled=st.booleans(), mig_devices=MIGS, processes=st.one_of(st.none(), ENTRIES), processes_code=CODES,
    bad_processes=st.integers(0, 2),
)
PROCESS = st.builds(info, st.integers(2, 60), state=st.sampled_from("SRDZ"), comm=st.sampled_from(["python3", "VLLM::EngineCor", "Xorg"]))
NODES = st.one_of(st.none(), st.frozensets(st.sampled_from(["nvidia0", "nvidia2", "nvidiactl"])))


@given(st.lists(GPU, max_size=5), st.lists(PROCESS, max_size=8), st.lists(NODES, min_size=8, max_size=8), st.booleans(),
       st.one_of(st.none(), st.just(HOST)))
def test_any_state_of_a_driver_is_a_sound_snapshot(
    gpus: List[raw.RawGpu], infos: List[ProcessInfo], nodes: List[Any], initial: bool, host: Optional[MemInfo]
) -> None:
    at = world(*infos, nodes={each.pid: nodes[number] for number, each in enumerate(infos)}, initial_pid_namespace=initial)
    sound(assemble(reading(*gpus), None, host, at.on), gpus)


def sound_sizes(total: Optional[int], used: Optional[int], free: Optional[int]) -> None:
    """All known, or all unknown; none larger than the whole."""
    if total is None or used is None or free is None:
        assert (total, used, free) == (None, None, None)
    else:
        assert 0 <= used <= total < 1 << 30 and 0 <= free <= total


def sound(snapshot: Snapshot, gpus: List[raw.RawGpu]) -> None:
    """Nothing negative, nothing absurd, sums that add up, JSON that is JSON."""
    facts = snapshot.to_dict()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert len(snapshot.gpus) == len(gpus)
    for each in snapshot.gpus:
        sound_sizes(each.total_mib, each.used_mib, each.free_mib)
        for device in each.mig_devices:
            sound_sizes(device.total_mib, device.used_mib, device.free_mib)
        assert each.state in ("ok", "lost", "reset_required", "error") and (each.state == "ok" or each.error)
        assert each.unattributed_mib is None or 0 <= each.unattributed_mib <= (each.used_mib or 0)
        assert each.utilization_percent is None or 0 <= each.utilization_percent <= 100
        assert len({process.pid for process in each.processes}) == len(each.processes)
        for process in each.processes:
            assert process.pid > 1 and (process.vllm or not process.orphan)
            if process.state in ("gone", "not_visible"):
                assert process.name is None and not process.proven
    known = [each.used_mib for each in snapshot.gpus if each.used_mib is not None]
    if snapshot.available:
        assert snapshot.used_mib == (sum(known) if known else None)
    else:
        assert snapshot.reason == "driver_hung" and snapshot.free_mib is None


def test_what_is_unknown_says_why_and_the_gpu_is_well_all_the_same() -> None:
    memory = raw.RawMemory(100 * MIB, 0, 100 * MIB)
    unread = {"uuid": raw.UNKNOWN, "utilization_percent": raw.NOT_SUPPORTED, "compute_mode": raw.FUNCTION_NOT_FOUND, "name": raw.UNKNOWN,
              "pci_bus_id": raw.UNKNOWN}
    gpu = raw.RawGpu(0, pci_bus_id="00000000:01:00.0", memory=memory, unread=unread)
    device = raw.RawMig(0, uuid="MIG-1", memory=memory, unread={"name": raw.NO_PERMISSION})
    divided = raw.RawGpu(1, "GPU-1", name="A", mig_enabled=True, memory=memory, mig_devices=[device], utilization_percent=101)
    snapshot = assemble(raw.RawReading("nvml", count=2, gpus=[gpu, divided], unread={"cuda_version": raw.NOT_SUPPORTED}))
    assert [each.state for each in snapshot.gpus] == ["ok", "ok"]
    # the address became known in another way
    assert snapshot.gpus[0].error == "compute_mode, utilization_percent: not supported; name, uuid: unknown error"
    assert snapshot.gpus[1].error == "utilization_percent: the driver's answer makes no sense"
    assert (snapshot.gpus[1].mig_devices[0].state, snapshot.gpus[1].mig_devices[0].error) == ("ok", "name: insufficient permissions")
    assert snapshot.reason_detail == "cuda_version: not supported"


def test_what_was_not_asked_for_needs_no_reason() -> None:
    """A reading of memory alone knows no compute mode, which is nothing to speak of."""
    snapshot = assemble(raw.RawReading("nvml", count=1, gpus=[raw.RawGpu(0, "GPU-0", memory=raw.RawMemory(100, 0, 100))]))
    assert (snapshot.reason_detail, snapshot.gpus[0].error, snapshot.gpus[0].compute_mode) == (None, None, None)


def test_types_that_everybody_shares_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Gpu(0, None, None, None).free_mib = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("comm", "nodes", "listed", "shown"),
    [
        ("gpufleet-reader", {"nvidiactl", "nvidia0", "nvidia1"}, False, False),
        ("gpufleet-reader", {"nvidiactl", "nvidia0", "nvidia-uvm"}, False, True),  # the name alone hides nobody
        ("gpufleet-reader", {"nvidiactl", "nvidia0"}, True, True),
        ("gpufleet-reader", None, False, True),
        ("python3", {"nvidiactl", "nvidia0"}, False, True),
    ],
)
def test_another_reader_of_ours_holds_nothing(comm: str, nodes: "set[str] | None", listed: bool, shown: bool) -> None:
    at = world(info(60, comm=comm), nodes={60: None if nodes is None else frozenset(nodes)}, holders={60: frozenset({0})})
    found = one(gpu(processes=[entry(60)] if listed else []), at)
    assert [process.pid for process in found.processes] == ([60] if shown else [])


def test_who_has_ended_since_holds_nothing() -> None:
    """Seen with the node open, and gone before it was looked at: no phantom. One that a list shows still has its memory."""
    at = world(holders={60: frozenset({0})})
    assert one(gpu(processes=[]), at).processes == ()
    assert [process.state for process in one(gpu(processes=[entry(60)]), at).processes] == ["gone"]
