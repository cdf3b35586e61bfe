# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nvidia-smi backend as a conversation with the command."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Callable, List, Mapping, Optional, Sequence, Set, Tuple

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.runner import Completed, Runner
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu import raw, smi
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.assemble import assemble
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.smi import SmiCollector

Answer = Tuple[Optional[int], str, str]
NO_SUCH = (6, "No devices were found\n", "")


class Smi(Runner):
    """An nvidia-smi that answers by a function of its arguments."""

    def __init__(self, answer: Callable[[List[str]], Answer], takes: float = 0.0) -> None:
        self.answer = answer
        self.takes = takes
        self.calls: List[List[str]] = []

    def run(self, argv: Sequence[str], timeout: float = 30.0, stdin: Optional[str] = None,
            env: Optional[Mapping[str, str]] = None) -> Completed:
        arguments = list(argv[1:])
        self.calls.append(arguments)
        rc, out, err = self.answer(arguments) if self.takes < timeout else (None, "", "")
        return Completed(tuple(argv), rc, out, err, timed_out=rc is None)


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smi, "find_smi", lambda: "/usr/bin/nvidia-smi")


def row(index: int, fields: "list[str]", **cells: str) -> str:
    """A line of --query-gpu with these fields."""
    values = {"index": str(index), "uuid": "GPU-%d" % index, "pci.bus_id": "00000000:%02d:00.0" % index, "memory.total": "1000",
              "memory.used": "10", "memory.free": "980", "memory.reserved": "10", "driver_version": "580.1", "utilization.gpu": "0",
              "compute_mode": "Default", "mig.mode.current": "[N/A]", "count": "[N/A]", "gpu_recovery_action": "None", "name": "NVIDIA A"}
    values.update(cells)
    return ", ".join(values[field] for field in fields) + "\n"


def xml(indices: Sequence[int]) -> str:
    """-q -x of GPUs with nobody on them."""
    gpus = ['<gpu id="00000000:%02d:00.0"><processes></processes></gpu>' % index for index in indices]
    return '<?xml version="1.0" ?><nvidia_smi_log><cuda_version>13.0</cuda_version>%s</nvidia_smi_log>' % "".join(gpus)


def fields_of(arguments: List[str]) -> List[str]:
    """The queried fields; none for another command."""
    return arguments[0].split("=", 1)[1].split(",") if arguments[0].startswith("--query-gpu=") else []


def selected(arguments: List[str], count: int) -> List[int]:
    """The GPUs of -i."""
    return [int(word) for word in arguments[arguments.index("-i") + 1].split(",")] if "-i" in arguments else list(range(count))


def read(runner: Smi, tmp_path: Path, only: "frozenset[int] | None" = None, processes: bool = False,
         timeout: float = 5) -> raw.RawReading:
    """One reading of memory."""
    return SmiCollector(runner, timeout, str(tmp_path)).read(only, processes, raw.MEMORY)


def test_fields_that_this_driver_does_not_know_are_left_out_once(tmp_path: Path) -> None:
    def answer(arguments: List[str]) -> Answer:
        fields = fields_of(arguments)
        for unknown in ("gpu_recovery_action", "memory.reserved"):
            if unknown in fields:
                return 2, 'Field "%s" is not a valid field to query.\n\n' % unknown, ""
        return 0, row(0, fields), ""

    runner = Smi(answer)
    collector = SmiCollector(runner, 5, str(tmp_path))
    for _again in range(2):
        (gpu,) = collector.read(None, False, raw.MEMORY).gpus
        assert gpu.memory is not None and gpu.memory.reserved is None
    assert len(runner.calls) == 4  # the refusals are remembered


def test_a_bad_gpu_does_not_hide_the_others(tmp_path: Path) -> None:
    def answer(arguments: List[str]) -> Answer:
        wanted = selected(arguments, 4)
        if 2 in wanted:
            return 15, "", "Unable to determine the device handle for GPU0000:02:00.0: GPU is lost.  Reboot the system\n"
        if max(wanted) > 3:
            return NO_SUCH
        return 0, "".join(row(index, fields_of(arguments)) for index in wanted), ""

    reading = read(Smi(answer), tmp_path)
    assert reading.failure is None and reading.count == 4
    assert [(gpu.index, gpu.code) for gpu in reading.gpus] == [(0, 0), (1, 0), (2, raw.GPU_IS_LOST), (3, 0)]


@pytest.mark.parametrize("whole", [15, None], ids=["lost", "hung"])
def test_a_bad_gpu_beside_a_slow_nvidia_smi_does_not_hide_the_others(tmp_path: Path, whole: Optional[int]) -> None:
    """Without persistence mode each nvidia-smi takes seconds, however little it is asked for."""

    def answer(arguments: List[str]) -> Answer:
        wanted = selected(arguments, 4)
        if 2 in wanted:
            return whole, "", "" if whole is None else "Unable to determine the device handle for GPU0000:02:00.0: GPU is lost.\n"
        if max(wanted) > 3:
            return NO_SUCH
        if arguments[0] == "-q":
            return 0, xml(wanted), ""
        return 0, "".join(row(index, fields_of(arguments)) for index in wanted), ""

    runner = Smi(answer, takes=29.0)
    reading = read(runner, tmp_path, processes=True, timeout=30.0)
    assert reading.failure is None and reading.count == 4
    bad = raw.HUNG if whole is None else raw.GPU_IS_LOST
    assert [(gpu.index, gpu.code) for gpu in reading.gpus] == [(0, 0), (1, 0), (2, bad), (3, 0)]
    assert all(gpu.processes == [] for gpu in reading.gpus if gpu.index != 2)
    # whatever comes after leaves the bad one alone: it would cost its time again
    assert [selected(call, 4) for call in runner.calls if call[0] == "-q"] == [[0, 1, 3]]


def test_a_hung_driver_is_given_up_with_one_more_try(tmp_path: Path) -> None:
    runner = Smi(lambda arguments: (None, "", ""))
    reading = read(runner, tmp_path)
    assert reading.failure is not None and reading.failure.reason == "driver_hung"
    assert len(runner.calls) <= 11  # the last two ask the first GPU for less


def test_one_hung_gpu_leaves_the_others(tmp_path: Path) -> None:
    def answer(arguments: List[str]) -> Answer:
        wanted = selected(arguments, 3)
        if max(wanted) > 2:
            return NO_SUCH
        return (None, "", "") if 1 in wanted else (0, "".join(row(index, fields_of(arguments)) for index in wanted), "")

    reading = read(Smi(answer), tmp_path)
    assert [(gpu.index, gpu.code) for gpu in reading.gpus] == [(0, 0), (1, raw.HUNG), (2, 0)]


def test_rows_with_a_complaint_are_rows(tmp_path: Path) -> None:
    reading = read(Smi(lambda arguments: (14, row(0, fields_of(arguments)), "WARNING: infoROM is corrupted at gpu 0\n")), tmp_path)
    assert reading.failure is None and [gpu.code for gpu in reading.gpus] == [0]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", ""), "no_driver"),
        ((18, "Failed to initialize NVML: Driver/library version mismatch\n", ""), "driver_library_mismatch"),
        ((4, "", "Failed to initialize NVML: Insufficient Permissions\n"), "permission"),
        ((12, "NVIDIA-SMI couldn't find libnvidia-ml.so library\n", ""), "library_missing"),
        ((255, "Failed to initialize NVML: Unknown Error\n", ""), "error"),
        ((127, "", "not found"), "error"),
        ((0, "", ""), "error"),
        ((0, "Everything is fine.\n", ""), "error"),
    ],
)
def test_a_driver_that_cannot_be_read_has_a_reason(tmp_path: Path, answer: Answer, reason: str) -> None:
    reading = read(Smi(lambda arguments: answer), tmp_path)
    assert reading.failure is not None and reading.failure.reason == reason
    assert reading.gpus == []


def test_no_devices_is_a_driver_that_works(tmp_path: Path) -> None:
    reading = read(Smi(lambda arguments: NO_SUCH), tmp_path)
    assert (reading.failure, reading.count, reading.gpus) == (None, 0, [])


def test_only_the_selected_are_asked(tmp_path: Path) -> None:
    runner = Smi(lambda arguments: (0, "".join(row(index, fields_of(arguments)) for index in selected(arguments, 8)), ""))
    reading = read(runner, tmp_path, only=frozenset([5, 1]))
    assert [gpu.index for gpu in reading.gpus] == [1, 5]
    assert all("-i" in call for call in runner.calls if call[0].startswith("--query"))


@pytest.mark.parametrize(
    ("answer", "code"),
    [((0, "", ""), raw.BAD_ANSWER), ((0, "<broken", ""), raw.BAD_ANSWER), ((0, "%XML%", ""), raw.BAD_ANSWER),
     ((None, "", ""), raw.HUNG), ((255, "Unknown Error\n", ""), raw.UNKNOWN)],
    ids=["empty", "broken", "another GPU", "hung", "failed"],
)
def test_without_xml_only_compute_processes_come_and_that_is_told(tmp_path: Path, answer: Answer, code: int) -> None:
    def answers(arguments: List[str]) -> Answer:
        if arguments[0].startswith("--query-compute-apps"):
            return 0, "GPU-0, 100, 5\n", ""
        if arguments[0] == "-q":
            return answer[0], answer[1].replace("%XML%", xml([7])), answer[2]
        return 0, row(0, fields_of(arguments)), ""

    reading = read(Smi(answers), tmp_path, processes=True)
    (gpu,) = reading.gpus
    assert gpu.processes == [raw.RawProcess(100, "C", 5 << 20)] and gpu.processes_code == code
    assert reading.notes == ("nvidia-smi -q -x says nothing usable about GPU 0: %s" % raw.code_text(code),)
    snapshot = assemble(reading)
    assert snapshot.available and not snapshot.processes_reliable and snapshot.gpus[0].unattributed_mib is None


def test_without_any_list_the_processes_are_unknown(tmp_path: Path) -> None:
    def answer(arguments: List[str]) -> Answer:
        return (0, row(0, fields_of(arguments)), "") if arguments[0].startswith("--query-gpu") else (3, "", "")

    (gpu,) = read(Smi(answer), tmp_path, processes=True).gpus
    assert gpu.processes is None and gpu.processes_code != raw.SUCCESS


def test_a_host_without_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smi, "find_smi", lambda: None)
    reading = read(Smi(lambda arguments: NO_SUCH), tmp_path)
    assert reading.failure is not None and reading.failure.reason == "library_missing"


def test_a_warning_about_an_inforom_costs_no_process_list(tmp_path: Path) -> None:
    """It comes at the end, with an exit status of its own."""
    warning = "WARNING: infoROM is corrupted at gpu 0000:00:00.0\n"

    def answer(arguments: List[str]) -> Answer:
        if arguments[0].startswith("--query-compute-apps"):
            return 14, "GPU-1, 100, 5\n" + warning, ""
        if arguments[0] == "-q":
            return 14, xml([0]) + "\n" + warning, ""
        return 14, row(0, fields_of(arguments)) + row(1, fields_of(arguments)) + warning, ""

    first, second = read(Smi(answer), tmp_path, processes=True).gpus
    assert (first.processes, first.processes_code) == ([], raw.SUCCESS)
    assert (second.processes, second.processes_code) == ([raw.RawProcess(100, "C", 5 << 20)], raw.BAD_ANSWER)


@pytest.mark.parametrize("kind", ["-q", "--query-compute-apps"])
@pytest.mark.parametrize(("pid", "mib"), [(100, 17592186044415), (100, 10**9), (100, 1001), (0, 5), (4294967295, 5)])
def test_an_entry_that_cannot_be_true_is_left_out_and_told(tmp_path: Path, kind: str, pid: int, mib: int) -> None:
    listed = "<process_info><pid>%d</pid><used_memory>%d MiB</used_memory></process_info>" % (pid, mib)

    def answer(arguments: List[str]) -> Answer:
        if arguments[0].startswith("--query-compute-apps"):
            return 0, "GPU-0, %d, %d\nGPU-0, 101, 5\n" % (pid, mib), ""
        if arguments[0] == "-q":
            return 0, xml([0]).replace("<processes>", "<processes>" + listed) if kind == "-q" else "", ""
        return 0, row(0, fields_of(arguments)), ""

    (gpu,) = read(Smi(answer), tmp_path, processes=True).gpus
    assert gpu.bad_processes == 1
    assert gpu.processes == ([] if kind == "-q" else [raw.RawProcess(101, "C", 5 << 20)])


def test_a_lost_gpu_counts_also_where_others_are_selected(tmp_path: Path) -> None:
    def answer(arguments: List[str]) -> Answer:
        if arguments[0] == "-L":
            return 15, "GPU 0: NVIDIA A (UUID: GPU-0)\nUnable to determine the device handle for gpu 0000:02:00.0: GPU is lost.\n", ""
        return 0, row(0, fields_of(arguments)), ""

    assert read(Smi(answer), tmp_path, only=frozenset([0])).count == 2


REFUSED = "Unable to determine the device handle for GPU0000:01:00.0: Insufficient Permissions\n"


def test_a_refusal_of_one_gpu_is_none_of_the_driver(tmp_path: Path) -> None:
    def answer(arguments: List[str]) -> Answer:
        wanted = selected(arguments, 3)
        if 1 in wanted:
            return 4, REFUSED, ""
        return NO_SUCH if max(wanted) > 2 else (0, "".join(row(index, fields_of(arguments)) for index in wanted), "")

    reading = read(Smi(answer), tmp_path)
    assert (reading.failure, reading.count) == (None, 3)
    assert [(gpu.index, gpu.code) for gpu in reading.gpus] == [(0, 0), (1, raw.NO_PERMISSION), (2, 0)]


@pytest.mark.parametrize("complaint", [
    "Unable to determine the device handle for GPU1: 0000:01:00.0: GPU is lost.\n",
    "Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost.\n",
    "Unable to determine the device handle for GPU0000:01:00.0: GPU is lost.\n",
])
@pytest.mark.parametrize("lost", [1, 3], ids=["a gap", "the last"])
@pytest.mark.parametrize("count", ["4", "[N/A]"])
@pytest.mark.parametrize("only", [None, frozenset([0, 1, 3])], ids=["all", "selected"])
def test_a_lost_gpu_that_is_left_out_is_lost(
    tmp_path: Path, complaint: str, lost: int, count: str, only: "frozenset[int] | None"
) -> None:
    def answer(arguments: List[str]) -> Answer:
        if arguments[0] == "-L":
            return 0, "".join("GPU %d: NVIDIA A (UUID: GPU-%d)\n" % (index, index) for index in range(4) if index != lost), complaint
        wanted = selected(arguments, 4)
        rows = "".join(row(index, fields_of(arguments), count=count) for index in wanted if index != lost)
        return NO_SUCH if max(wanted) > 3 else (0, rows, complaint if lost in wanted else "")

    reading = read(Smi(answer), tmp_path, only)
    codes = {gpu.index: gpu.code for gpu in reading.gpus}
    assert codes == {index: raw.GPU_IS_LOST if index == lost else 0 for index in sorted(only or range(4))}
    assert reading.count == 4


def test_a_gpu_that_is_counted_and_not_shown_is_not_passed_over(tmp_path: Path) -> None:
    def answer(arguments: List[str]) -> Answer:
        wanted = [index for index in selected(arguments, 4) if index != 2]
        return (0, "".join(row(index, fields_of(arguments), count="4") for index in wanted), "") if wanted else NO_SUCH

    reading = read(Smi(answer), tmp_path)
    assert [(gpu.index, gpu.code) for gpu in reading.gpus] == [(0, 0), (1, 0), (2, raw.NOT_FOUND), (3, 0)] and reading.count == 4


def test_the_count_is_asked_of_the_selected_gpus_alone(tmp_path: Path) -> None:
    runner = Smi(lambda arguments: (0, row(0, fields_of(arguments), count="8"), ""))
    reading = read(runner, tmp_path, only=frozenset([0]))
    assert reading.count == 8 and [selected(call, 8) for call in runner.calls] == [[0]]


@pytest.mark.parametrize("listed", [None, 255])
def test_half_a_list_is_no_count(tmp_path: Path, listed: Optional[int]) -> None:
    def answer(arguments: List[str]) -> Answer:
        return (listed, "GPU 0: NVIDIA A (UUID: GPU-0)\n", "") if arguments[0] == "-L" else (0, row(0, fields_of(arguments)), "")

    reading = read(Smi(answer), tmp_path, only=frozenset([0]))
    assert reading.count is None and [note for note in reading.notes if note.startswith("count is unknown: nvidia-smi ")]
    (tmp_path / "driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    (tmp_path / "driver/nvidia/gpus/0000:02:00.0").mkdir()
    assert read(Smi(answer), tmp_path, only=frozenset([0])).count == 2


def test_who_the_gpus_are_is_asked_without_their_memory(tmp_path: Path) -> None:
    def answer(arguments: List[str]) -> Answer:
        fields = fields_of(arguments)
        return (None, "", "") if any(field.startswith("memory") for field in fields) else (0, row(0, fields), "")

    reading = SmiCollector(Smi(answer), 5, str(tmp_path)).read(None, False, raw.IDENTITY)
    assert [(gpu.uuid, gpu.code, gpu.memory_code) for gpu in reading.gpus] == [("GPU-0", 0, 0)]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("bad", [[0], [0, 1, 2]], ids=["one", "all"])
def test_a_value_that_hangs_costs_neither_memory_nor_identity(tmp_path: Path, count: int, bad: List[int]) -> None:
    def answer(arguments: List[str]) -> Answer:
        wanted = selected(arguments, count)
        if max(wanted) >= count:
            return NO_SUCH
        fields = fields_of(arguments)
        hangs = "utilization.gpu" in fields and set(bad) & set(wanted)
        return (None, "", "") if hangs else (0, "".join(row(index, fields) for index in wanted), "")

    reading = read(Smi(answer), tmp_path)
    assert [gpu.index for gpu in reading.gpus] == list(range(count))
    for gpu in reading.gpus:
        assert gpu.memory is not None and gpu.uuid and gpu.code == raw.SUCCESS and gpu.mig_code == raw.SUCCESS
        assert (gpu.unread.get("utilization_percent") == raw.HUNG) is (gpu.index in bad)


def test_memory_that_hangs_costs_no_identity(tmp_path: Path) -> None:
    def answer(arguments: List[str]) -> Answer:
        wanted, fields = selected(arguments, 2), fields_of(arguments)
        if max(wanted) > 1:
            return NO_SUCH
        return (None, "", "") if 1 in wanted and "memory.used" in fields else (0, "".join(row(index, fields) for index in wanted), "")

    gpu = read(Smi(answer), tmp_path).gpus[1]
    assert (gpu.uuid, gpu.memory, gpu.code, gpu.memory_code) == ("GPU-1", None, 0, raw.HUNG)


def test_one_gpu_whose_report_hangs_does_not_cost_the_others_theirs(tmp_path: Path) -> None:
    def answer(arguments: List[str]) -> Answer:
        wanted = selected(arguments, 3)
        if arguments[0] == "-q":
            return (None, "", "") if 1 in wanted else (0, xml(wanted), "")
        if arguments[0].startswith("--query-compute-apps"):
            return 0, "GPU-1, 100, 5\n", ""
        return 0, "".join(row(index, fields_of(arguments)) for index in wanted), ""

    reading = read(Smi(answer), tmp_path, processes=True)
    assert [(len(gpu.processes or []), gpu.processes_code) for gpu in reading.gpus] == [(0, 0), (1, raw.HUNG), (0, 0)]
    assert reading.notes == ("nvidia-smi -q -x says nothing usable about GPU 1: %s" % raw.code_text(raw.HUNG),)
    assert reading.cuda_version == "13.0"


def test_lists_that_all_hang_are_not_asked_for_one_after_another(tmp_path: Path) -> None:
    def answer(arguments: List[str]) -> Answer:
        wanted = selected(arguments, 20)
        return (0, "".join(row(index, fields_of(arguments)) for index in wanted), "") if fields_of(arguments) else (None, "", "")

    runner = Smi(answer)
    reading = read(runner, tmp_path, processes=True)
    assert [(gpu.processes, gpu.processes_code) for gpu in reading.gpus] == [(None, raw.HUNG)] * 20
    assert len(runner.calls) == 1 + 1 + 8 + 8  # memory, the report, and the first round of reports and of lists


def test_the_search_for_gpus_ends_where_the_driver_says(tmp_path: Path) -> None:
    """On a busy host also a question about a GPU that is none may take too long."""

    def answer(arguments: List[str]) -> Answer:
        wanted = selected(arguments, 6)
        if 2 in wanted or max(wanted) > 5:
            return None, "", ""
        return 0, "".join(row(index, fields_of(arguments), count="6") for index in wanted), ""

    runner = Smi(answer)
    reading = read(runner, tmp_path)
    assert [(gpu.index, gpu.code) for gpu in reading.gpus] == [(index, raw.HUNG if index == 2 else 0) for index in range(6)]
    assert reading.count == 6 and max(max(selected(call, 6)) for call in runner.calls) <= 7


@pytest.mark.parametrize("listed", [None, 0, 1], ids=["not listed", "all listed", "one not listed"])
@pytest.mark.parametrize("selects", [False, True], ids=["all", "selected"])
@pytest.mark.parametrize(("total", "lost", "hung"), [
    (4, {1}, {2}), (4, {2}, {1}), (4, {1}, {3}), (4, {0}, {1}), (4, {3}, {0}), (4, {0, 1}, {2}),
    (16, {7}, {3}), (16, {1, 2}, {9}), (16, {15}, {0, 8}),
])
def test_neither_lost_nor_hung_gpus_hide_one_that_answers(
    tmp_path: Path, total: int, lost: Set[int], hung: Set[int], selects: bool, listed: Optional[int]
) -> None:
    """One that is left out is not counted, and the others keep their numbers: the last one's is not under the count."""
    present = [index for index in range(total) if index not in lost]

    def answer(arguments: List[str]) -> Answer:
        if arguments[0] == "-L":
            return 0, "".join("GPU %d: NVIDIA A (UUID: GPU-%d)\n" % (index, index) for index in present), ""
        wanted = selected(arguments, total)
        if hung & set(wanted):
            return None, "", ""
        rows = [row(index, fields_of(arguments), count=str(len(present))) for index in wanted if index in present]
        return (0, "".join(rows), "") if rows else NO_SUCH

    if listed is not None:
        for number in range(total - listed):
            (tmp_path / ("driver/nvidia/gpus/0000:%02x:00.0" % number)).mkdir(parents=True)
    reading = read(Smi(answer), tmp_path, frozenset(range(total)) if selects else None)
    codes = {gpu.index: gpu.code for gpu in reading.gpus}
    last = max(present)
    good = {index: 0 for index in present if index not in hung}
    expected = {**good, **dict.fromkeys(hung, raw.HUNG), **dict.fromkeys([each for each in lost if each < last], raw.NOT_FOUND)}
    assert reading.failure is None and codes == expected
    assert reading.count == last + 1 and all(gpu.memory is not None for gpu in reading.gpus if gpu.index in good)


@pytest.mark.parametrize("selects", [False, True], ids=["all", "selected"])
def test_a_value_that_hangs_everywhere_costs_no_gpu_of_many(tmp_path: Path, selects: bool) -> None:
    """None of the first eight answers at first, and the others are not asked until one of these does."""

    def answer(arguments: List[str]) -> Answer:
        wanted, fields = selected(arguments, 12), fields_of(arguments)
        if max(wanted) > 11:
            return NO_SUCH
        hangs = "utilization.gpu" in fields or 11 in wanted
        return (None, "", "") if hangs else (0, "".join(row(index, fields, count="12") for index in wanted), "")

    reading = read(Smi(answer), tmp_path, frozenset(range(12)) if selects else None)
    assert [(gpu.index, gpu.code) for gpu in reading.gpus] == [(index, raw.HUNG if index == 11 else 0) for index in range(12)]
    assert all(gpu.memory is not None for gpu in reading.gpus[:11])


def test_a_reading_has_an_end_however_many_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not begun by then counts as hung; what was read stands."""
    monkeypatch.setattr(smi, "reading_limit", lambda timeout: 3 * timeout)

    class Slow(Smi):
        def run(self, argv: Sequence[str], timeout: float = 30.0, stdin: Optional[str] = None,
                env: Optional[Mapping[str, str]] = None) -> Completed:
            done = super().run(argv, timeout, stdin, env)
            time.sleep(timeout if done.timed_out else 0)
            return done

    def answer(arguments: List[str]) -> Answer:
        wanted = selected(arguments, 24)
        if arguments[0] == "-q" or any(index % 8 for index in wanted):
            return None, "", ""
        return 0, "".join(row(index, fields_of(arguments), count="24") for index in wanted), ""

    begin = time.monotonic()
    reading = SmiCollector(Slow(answer), 0.4, str(tmp_path)).read(None, True, raw.FULL)
    assert time.monotonic() - begin < 1.2 + 0.4
    assert reading.failure is None and [gpu.index for gpu in reading.gpus] == list(range(24))
    assert reading.gpus[0].memory is not None and reading.gpus[0].processes is None and reading.gpus[0].processes_code == raw.HUNG
