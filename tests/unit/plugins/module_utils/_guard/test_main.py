# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guard from its command line to its exit status, with time and driver in hand."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.clock import Clock
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._diagnosis.guard import guard_diagnosis
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.reader import GpuReader
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, GpuProcess, Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._guard import exit_codes, leftovers, lock, port
from ansible_collections.gpufleet.vllm.plugins.module_utils._guard import main as guard_main
from ansible_collections.gpufleet.vllm.plugins.module_utils._guard.main import Ports, main
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.procfs import start_ticks

ARGV = ["--unit", "vllm-a.service", "--gpus", "0", "--utilization", "0.92", "--timeout", "60", "--settle", "1"]
HOLDER = GpuProcess(4711, "C", 90051, "VLLM::Worker_TP", "VLLM::Worker_TP0", "vllm", 1.0, "vllm-old.service")


class Hands(Clock):
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(0.0, seconds)


def free(mib: Optional[int], **more: Any) -> Snapshot:
    """A reading with so much free on GPU 0."""
    used = None if mib is None else 97249 - mib
    fields = {"total_mib": 97887, "used_mib": used, "free_mib": mib, "reserved_mib": 638, "processes": (HOLDER,), **more}
    return Snapshot(True, gpus=(Gpu(0, "GPU-0", None, "A", **fields),))


class Driver(GpuReader):
    """A driver whose answer depends on the time since the start."""

    def __init__(self, clock: Hands, answer: Callable[[float], Union[Snapshot, Exception]]) -> None:
        self.clock = clock
        self.answer = answer
        self.asked: List[float] = []

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        found = self.answer(self.clock.now - 100.0)
        self.asked.append(self.clock.now - 100.0)
        if isinstance(found, Exception):
            raise found
        return found


class Run:
    """One run of the guard."""

    def __init__(self, answer: Callable[[float], Union[Snapshot, Exception]], argv: Sequence[str] = (), **ports: Any) -> None:
        self.clock = Hands()
        self.said: List[str] = []
        self.opened: List[str] = []
        self.driver = Driver(self.clock, answer)

        def opened(backend: str, _timeout: float) -> GpuReader:
            self.opened.append(backend)
            return self.driver

        free_ports = {"taken": lambda host, number: None, "remains": lambda unit: [], "open_backend": opened, **ports}
        self.code = main([*ARGV, *argv], Ports(self.clock, say=self.said.append, **free_ports))
        if self.code != exit_codes.PASS:
            self.must_be_understood()

    def must_be_understood(self) -> None:
        """However a guard ends, its last words give the diagnosis what its exit status gives."""
        journal = ["gpu-guard: " + line for line in self.said]
        by_words, by_status = guard_diagnosis(journal, None), guard_diagnosis([], self.code)
        assert by_words is not None and by_status is not None, self.said
        assert (by_words.kind, by_words.advice) == (by_status.kind, by_status.advice)
        assert by_words.evidence[0] == journal[-1] and by_words.summary != by_status.summary
        assert guard_diagnosis(journal, self.code) == by_words

    @property
    def took(self) -> float:
        """Seconds of the run."""
        return self.clock.now - 100.0


def test_an_idle_gpu_lets_it_start_without_a_word() -> None:
    run = Run(lambda now: free(97247))
    assert (run.code, run.said, run.took, run.opened) == (exit_codes.PASS, [], 0.0, ["nvml"])
    assert len(run.driver.asked) == 1


def test_memory_that_comes_late_is_seen_at_once() -> None:
    run = Run(lambda now: free(10 if now < 12.34 else 97247))
    assert run.code == exit_codes.PASS and 12.34 <= run.took < 12.44
    assert run.said[0] == "vllm-a.service waits: GPU 0: 10 MiB free, 90057 needed (0 of 60 s)"
    assert run.said[1] == "  held by pid 4711 VLLM::Worker_TP0 (user vllm, unit vllm-old.service) [GPU 0: 90051 MiB]"
    waits = [line for line in run.said if " waits: " in line]
    assert len(waits) == 3 and re.search(r"\(5 of 60 s\)", waits[1])
    assert run.said[-1] == "the memory is free after 12.3 s" or run.said[-1] == "the memory is free after 12.4 s"


def test_what_stays_enough_and_still_must_settle() -> None:
    run = Run(lambda now: free(91000))
    assert run.code == exit_codes.PASS and 1.0 <= run.took < 1.2


@pytest.mark.parametrize("came", [0, 0.5, 0.97, 1.0])
def test_what_is_free_in_time_has_the_time_to_settle(came: float) -> None:
    """Nothing that came free within the limit "did not come free"."""
    run = Run(lambda now: free(91000 if now >= came else 10), ["--timeout", "1", "--settle", "3"])
    assert run.code == exit_codes.PASS and came + 3 <= run.took < came + 3.2
    assert len(run.driver.asked) < 90


def test_what_never_settles_is_not_called_taken() -> None:
    run = Run(lambda now: free(91000 + int(now * 20) % 2 * 1000), ["--timeout", "1", "--settle", "3"])
    assert run.code == exit_codes.MEMORY and 4 <= run.took < 4.2
    assert "did not come free" not in run.said[-1] and "enough memory is free, but after 4 s it still moves" in run.said[-1]
    assert "held by pid 4711" in run.said[-2]  # whoever moves it is among those


def test_what_is_taken_again_while_it_settles_ends_the_waiting() -> None:
    run = Run(lambda now: free(91000 if now < 2 else 10), ["--timeout", "1", "--settle", "3"])
    assert run.code == exit_codes.MEMORY and 2 <= run.took < 2.2 and "did not come free" in run.said[-1]


def test_the_end_of_waiting_names_who_holds_it() -> None:
    run = Run(lambda now: free(10))
    assert run.code == exit_codes.MEMORY and 60 <= run.took < 60.2
    assert "held by pid 4711" in run.said[-2]
    assert run.said[-1].startswith("vllm-a.service is not started (MEMORY): the memory did not come free within 60 s: GPU 0: 10 MiB free")
    assert "gpufleet.vllm.gpu_reclaim" in run.said[-1]


def test_a_gpu_that_moved_is_not_mistaken_for_the_one_that_has_its_index_now() -> None:
    def there(uuid: str, index: int) -> Gpu:
        return Gpu(index, uuid, None, "A", total_mib=97887, used_mib=0, free_mib=97249)

    words = ["--gpus", "GPU-a,GPU-b", "--indices", "3,5"]
    same = Run(lambda now: Snapshot(True, gpus=(there("GPU-a", 3), there("GPU-b", 5))), words)
    assert same.code == exit_codes.PASS
    moved = Run(lambda now: Snapshot(True, gpus=(there("GPU-a", 3), there("GPU-b", 4))), words)
    assert (moved.code, moved.took) == (exit_codes.ABSENT, 0.0)
    assert moved.said == [
        "vllm-a.service is not started (ABSENT): GPU-b is GPU 4 now, not GPU 5, and the unit would give the server another one in its "
        "place; deploy the service again"
    ]


@pytest.mark.parametrize(
    ("words", "indices"),
    [("1,1,2", "1,1,2"), ("1,2,1", "1,2,1"), ("GPU-b,1,GPU-c", "1,1,2"), ("2,0000:01:00.0,GPU-b,gpu-B", "2,1,1,1"), ("all", "1")],
)
def test_a_gpu_that_is_named_twice_has_not_moved(words: str, indices: str) -> None:
    idle: Dict[str, Any] = {"total_mib": 97887, "used_mib": 0, "free_mib": 97249}
    both = {1: Gpu(1, "GPU-b", "00000000:01:00.0", "A", **idle), 2: Gpu(2, "GPU-c", "00000000:02:00.0", "A", **idle)}

    def run(numbers: str) -> Run:
        order = list(dict.fromkeys(int(word) for word in indices.split(","))) if words != "all" else [1, 2]
        return Run(lambda now: Snapshot(True, gpus=tuple(both[each] for each in order)), ["--gpus", words, "--indices", numbers])

    assert run(indices).code == exit_codes.PASS
    if words != "all":
        moved = run("7" + indices[1:])
        assert moved.code == exit_codes.ABSENT and "now, not GPU 7, and the unit" in moved.said[-1] and moved.said[-1].count("now,") == 1


def test_a_gpu_that_may_be_meant_and_does_not_say_so_has_not_moved() -> None:
    lost = Gpu(5, None, None, None, state="lost", error="it may be 'GPU-b', which was asked for, and does not say")
    run = Run(lambda now: Snapshot(True, gpus=(lost,)), ["--gpus", "GPU-b", "--indices", "3"])
    assert run.code == exit_codes.DRIVER and "it may be 'GPU-b'" in run.said[-1]


def test_a_gpu_that_is_not_there_is_not_waited_for() -> None:
    run = Run(lambda now: GpuFleetError("GPU '9' is not on this host. This host has: 0."))
    assert (run.code, run.took) == (exit_codes.ABSENT, 0.0) and "GPU '9' is not on this host" in run.said[-1]


def test_more_than_there_is_is_not_waited_for() -> None:
    run = Run(lambda now: free(97247), ["--margin-mib", "20000"])
    assert (run.code, run.took) == (exit_codes.NEVER, 0.0)


def test_a_driver_that_loads_late_is_waited_for() -> None:
    run = Run(lambda now: free(97247) if now > 9.9 else Snapshot(False, reason="no_driver", reason_detail="not loaded"))
    assert run.code == exit_codes.PASS and 9.9 < run.took < 10.1
    assert "not loaded" in run.said[0]


def test_a_driver_that_never_comes() -> None:
    run = Run(lambda now: Snapshot(False, reason="driver_hung", reason_detail="nvmlX did not answer"))
    assert run.code == exit_codes.DRIVER and run.took >= 60
    assert "driver_hung" in run.said[-1] and "nvmlX" in run.said[-1]


def test_a_mismatch_ends_at_once() -> None:
    run = Run(lambda now: Snapshot(False, reason="driver_library_mismatch", reason_detail="580.1 and 580.2"))
    assert (run.code, run.took) == (exit_codes.DRIVER, 0.0) and "580.2" in run.said[-1]


def test_memory_that_stays_unknown_is_the_drivers_fault() -> None:
    run = Run(lambda now: free(None, total_mib=None, state="error", error="memory: unknown error"))
    assert run.code == exit_codes.DRIVER and "does not say how much memory is free" in run.said[-1]


def test_the_other_backend_is_taken_where_the_library_is_missing() -> None:
    clock_answers = iter([Snapshot(False, reason="library_missing"), free(97247)])
    run = Run(lambda now: next(clock_answers))
    assert (run.code, run.opened) == (exit_codes.PASS, ["nvml", "nvidia_smi"])
    only = Run(lambda now: Snapshot(False, reason="library_missing"), ["--backend", "nvml"])
    assert (only.code, only.opened) == (exit_codes.DRIVER, ["nvml"])


def test_a_port_that_stays_taken() -> None:
    run = Run(lambda now: free(97247), ["--port", "8000"], taken=lambda host, number: "is in use by pid 5")
    assert run.code == exit_codes.PORT and 10 <= run.took < 10.2 and not run.driver.asked
    assert run.said[-1] == "vllm-a.service is not started (PORT): port 8000 on 0.0.0.0 is in use by pid 5"


def test_a_port_that_is_being_released() -> None:
    answers = iter(["pid 5 vllm", "pid 5 vllm", None])
    run = Run(lambda now: free(97247), ["--port", "8000"], taken=lambda host, number: next(answers))
    assert run.code == exit_codes.PASS and 0 < run.took < 1


def test_the_remains_of_an_earlier_run() -> None:
    class Info:
        pid, cmdline, comm = 77, "VLLM::EngineCore", "VLLM::EngineCor"

    run = Run(lambda now: free(97247), remains=lambda unit: [Info])
    assert run.code == exit_codes.CGROUP and "pid 77 VLLM::EngineCore" in run.said[-1]
    gone = iter([[Info], []])
    assert Run(lambda now: free(97247), remains=lambda unit: next(gone)).code == exit_codes.PASS


def test_a_fault_of_its_own_has_its_own_status(capfd: pytest.CaptureFixture[str]) -> None:
    run = Run(lambda now: ZeroDivisionError("oh"))
    assert run.code == exit_codes.INTERNAL and "ZeroDivisionError: oh" in capfd.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [[], ["--unit", "x"], ARGV + ["--utilization", "0"], ARGV + ["--utilization", "1.5"], ARGV + ["--margin-mib", "-1"],
     ARGV + ["--timeout", "nan"], ARGV + ["--timeout", "1e18"],
     ARGV + ["--call-timeout", "0"], ARGV + ["--call-timeout", "1e6"],
     ARGV + ["--port", "0"], ARGV + ["--backend", "cuda"], ARGV + ["--nonsense"]],
)
def test_bad_arguments(argv: List[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == exit_codes.USAGE
    said = capfd.readouterr().err
    assert "usage: gpu-guard" in said
    assert "1e18" not in said or "0 to 10000000 seconds" in said


def test_help_is_no_failure(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == exit_codes.PASS
    said = capfd.readouterr().out
    assert "--utilization" in said and "75 MEMORY" in said and "default: 300" in said


@pytest.mark.parametrize("words", [["--utilization", "much"], ["--margin-mib", "1.5"], ["--port", "http"], ["--timeout", "5m"]])
def test_what_is_no_number_is_called_so(words: List[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGV, *words]) == exit_codes.USAGE
    assert "number, not '%s'" % words[1] in capfd.readouterr().err


def test_the_table_of_exit_statuses_is_complete() -> None:
    numbers = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    assert numbers == set(exit_codes.NAMES)
    documented = dict(re.findall(r"^(\d+)\s+([A-Z]+)", exit_codes.__doc__ or "", re.MULTILINE))
    assert documented == {str(number): name for number, name in exit_codes.NAMES.items()}
    assert not numbers & {1, 2, 130, 143} and max(numbers) < 200


def test_a_real_port_is_free_taken_or_bound() -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        number = probe.getsockname()[1]
        # a vLLM that loads has bound its port and does not listen yet
        assert "does not listen yet" in (port.port_trouble("127.0.0.1", number) or "")
        probe.listen(1)
        owner = port.port_trouble("127.0.0.1", number)
        assert owner is not None and str(os.getpid()) in owner
        assert port.port_trouble("0.0.0.0", number) is not None
    assert port.port_trouble("127.0.0.1", number) is None


def test_the_remains_of_a_connection_are_not_in_the_way() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", number))
        accepted, _address = server.accept()
    accepted.close()  # the side that closes first keeps the address for a minute
    client.close()
    assert port.port_trouble("127.0.0.1", number) is None


@pytest.mark.parametrize("host", ["no.such.host.invalid", "198.51.100.7", "2001:db8::7", "xn--"])
def test_an_address_that_cannot_be_bound_is_not_passed(host: str) -> None:
    assert "can't be bound: " in (port.port_trouble(host, 8000) or "")


@pytest.mark.parametrize(
    ("listener", "host", "free"),
    [("127.0.0.1", "::", False), ("0.0.0.0", "::", False), ("127.0.0.1", "::1", True), ("127.0.0.1", "", False),
     ("127.0.0.1", "localhost", False), ("::1", "localhost", True), ("::1", "", True), ("::1", "::", False), ("::", "", True)],
)
def test_the_address_is_bound_as_the_server_will_bind_it(listener: str, host: str, free: bool) -> None:
    with socket.socket(socket.AF_INET6 if ":" in listener else socket.AF_INET) as other:
        if ":" in listener:
            other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        other.bind((listener, 0))
        other.listen(1)
        number = other.getsockname()[1]
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind((host, number))
                server.listen(1)
                assert free
            except OSError:
                assert not free
        assert (port.port_trouble(host, number) is None) is free


@pytest.mark.parametrize("host", ["x\xc2\x80y", "x\x80y", "foo..bar", "a" * 300, "a" * 64 + ".example", "\udcff", "two words"])
def test_what_can_be_no_host_is_a_wrong_argument(host: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGV, "--port", "8000", "--host", host]) == exit_codes.USAGE
    assert "can be no address" in capfd.readouterr().err


@pytest.mark.parametrize("host", ["", "::", "fe80::1%lo", "0.0.0.0", "localhost", "gpu01.example.com.", "b\xfccher.example"])
def test_what_can_be_a_host_is_taken(host: str) -> None:
    assert port.host_trouble(host) is None


@pytest.mark.parametrize("form", ["v2", "v1"])
def test_what_is_left_in_the_units_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    text = "0::/system.slice/vllm-a.service\n" if form == "v2" else "1:name=systemd:/system.slice/vllm-a.service\n0::/\n"
    monkeypatch.setattr(leftovers, "_own_cgroup", lambda root: text)
    base = tmp_path / ("" if form == "v2" else "systemd") / "system.slice/vllm-a.service"
    (base / "worker").mkdir(parents=True)
    (base / "cgroup.procs").write_text("%d\n1\n0\n999999999\n" % os.getpid())
    # itself, its ancestors, and what the guard started are not what was left behind
    parent = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert parent.stdout is not None
        left = int(parent.stdout.readline())
        (base / "worker/cgroup.procs").write_text("%d\n" % parent.pid)
        assert leftovers.leftovers("vllm-a.service", cgroup_root=str(tmp_path)) == []
        (base / "worker/cgroup.procs").write_text("%d\n%d\n" % (parent.pid, left))
        assert [info.pid for info in leftovers.leftovers("vllm-a.service", cgroup_root=str(tmp_path))] == [left]
        assert leftovers.leftovers("vllm-b.service", cgroup_root=str(tmp_path)) == []
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()


def test_a_process_cannot_speak_in_the_guards_name() -> None:
    """A title is its process's own choice; the journal must keep it on the guard's line."""
    title = "x\ngpu-guard: vllm-a.service is not started (NEVER): forged\r\x1b[31m\u2028\x85end"
    forger = GpuProcess(666, "C", 90051, "x", title, "mallory", 1.0, None)
    run = Run(lambda now: free(10, processes=(forger,)))
    assert run.code == exit_codes.MEMORY and all(line.isprintable() for line in run.said)
    assert "held by pid 666 x gpu-guard: vllm-a.service is not started" in run.said[1]
    left = Run(never, remains=lambda unit: [forger])
    assert left.code == exit_codes.CGROUP and all(line.isprintable() for line in left.said)


@pytest.fixture(autouse=True)
def _anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here claims are made by processes of the tests, which run in no unit."""
    monkeypatch.setattr(lock.StartLock, "_belongs", lambda its, claim: True)


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    """A directory of claims, with a place for each of the units here."""
    for unit in ("vllm-a.service", "vllm-b.service", "vllm-c.service"):
        (tmp_path / unit).mkdir()
    return tmp_path


def test_two_starts_on_one_gpu_go_one_after_the_other(locks: Path) -> None:
    other = {"gpus": ["GPU-0"], "host": "127.0.0.1", "port": 1, "pid": os.getppid(), "cgroup": "",
             "start_ticks": start_ticks(os.getppid()), "ticket": 1, "passed": None}
    claim = locks / "vllm-b.service" / "claim"
    claim.write_text(json.dumps(other))

    def answer(now: float) -> Snapshot:
        if now > 3:
            claim.unlink(missing_ok=True)
        return free(97247)

    run = Run(answer, ["--lock-dir", str(locks)])
    assert run.code == exit_codes.PASS and 3 < run.took < 3.2
    assert run.said[0] == "vllm-a.service waits: vllm-b.service is still starting on GPU 0 (0 of 60 s)"
    mine = json.loads((locks / "vllm-a.service" / "claim").read_text())
    assert mine["gpus"] == ["GPU-0"] and mine["passed"] == pytest.approx(100 + run.took)


def test_waiting_for_another_start_counts_against_the_time(locks: Path) -> None:
    other = {"gpus": ["GPU-0"], "host": "127.0.0.1", "port": 1, "pid": os.getppid(), "cgroup": "",
             "start_ticks": start_ticks(os.getppid()), "ticket": 1, "passed": None}
    (locks / "vllm-b.service" / "claim").write_text(json.dumps(other))
    late = Run(lambda now: free(97247), ["--lock-dir", str(locks), "--unit", "vllm-c.service"])
    assert late.code == exit_codes.LOCKED and 60 <= late.took < 60.2
    assert late.said[-1] == ("vllm-c.service is not started (LOCKED): vllm-b.service is still starting on GPU 0, after 60 s of waiting")
    assert list((locks / "vllm-c.service").iterdir()) == []

    def answer(now: float) -> Snapshot:  # the other one is gone after 50 s, and its memory never comes back
        if now > 50:
            (locks / "vllm-b.service" / "claim").unlink(missing_ok=True)
        return free(10)

    both = Run(answer, ["--lock-dir", str(locks), "--unit", "vllm-c.service"])
    assert both.code == exit_codes.MEMORY and 60 <= both.took < 60.2


def test_what_is_unlocked_at_the_last_moment_has_the_time_to_settle(locks: Path) -> None:
    other = {"gpus": ["GPU-0"], "host": "127.0.0.1", "port": 1, "pid": os.getppid(), "cgroup": "",
             "start_ticks": start_ticks(os.getppid()), "ticket": 1, "passed": None}
    (locks / "vllm-b.service" / "claim").write_text(json.dumps(other))

    def answer(now: float) -> Snapshot:
        if now > 59.5:
            (locks / "vllm-b.service" / "claim").unlink(missing_ok=True)
        return free(91000)

    run = Run(answer, ["--lock-dir", str(locks), "--unit", "vllm-c.service"])
    assert run.code == exit_codes.PASS and 60.5 <= run.took < 60.7


def test_a_failed_guard_leaves_no_claim(locks: Path) -> None:
    assert Run(lambda now: free(10), ["--lock-dir", str(locks)]).code == exit_codes.MEMORY
    assert list((locks / "vllm-a.service").iterdir()) == []


@pytest.mark.parametrize("made", ["", "vllm-b.service"])
def test_without_a_usable_lock_it_warns_and_goes_on(tmp_path: Path, made: str) -> None:
    (tmp_path / "locks" / made).mkdir(parents=True)
    run = Run(lambda now: free(97247), ["--lock-dir", str(tmp_path / "locks")])
    assert run.code == exit_codes.PASS and run.said[0].startswith("warning: starts on these GPUs are not kept apart")
    assert len(run.said) == 1


def never(_now: float) -> Snapshot:
    """A reading that must not be needed."""
    raise AssertionError("the driver was read")


def unreadable(reason: str) -> Callable[[float], Snapshot]:
    """A driver that can't be read."""
    return lambda now: Snapshot(False, reason, "told", processes_reliable=False)


def of_gpu(**fields: Any) -> Callable[[float], Snapshot]:
    """A driver with one GPU that is as said."""
    return lambda now: free(97247, **fields)


def locked(tmp_path: Path) -> Run:
    """Another unit starts on the GPU all the time."""
    for unit in ("vllm-a.service", "vllm-b.service"):
        (tmp_path / unit).mkdir()
    other = {"gpus": ["GPU-0"], "host": "", "port": 1, "pid": os.getppid(), "start_ticks": start_ticks(os.getppid()), "cgroup": "",
             "ticket": 1, "passed": None}
    (tmp_path / "vllm-b.service" / "claim").write_text(json.dumps(other))
    return Run(lambda now: free(97247), ["--lock-dir", str(tmp_path)])


# Every way for a guard to end but well. Run() holds each against the diagnosis.
ENDS: Dict[str, Tuple[int, Callable[[Path], Run]]] = {
    "an unknown option": (exit_codes.USAGE, lambda tmp: Run(never, ["--colour"])),
    "no GPU named": (exit_codes.USAGE, lambda tmp: Run(never, ["--gpus", " , "])),
    "a share over 1": (exit_codes.USAGE, lambda tmp: Run(never, ["--utilization", "1.5"])),
    "a port that is none": (exit_codes.USAGE, lambda tmp: Run(never, ["--port", "70000"])),
    "a unit that is a path": (exit_codes.USAGE, lambda tmp: Run(never, ["--unit", "../x"])),
    "a fault of its own": (exit_codes.INTERNAL, lambda tmp: Run(lambda now: RuntimeError("boom"))),
    "leftovers": (exit_codes.CGROUP, lambda tmp: Run(never, remains=lambda unit: [HOLDER])),
    "a port in use": (exit_codes.PORT, lambda tmp: Run(never, ["--port", "8000"], taken=lambda host, number: "is in use by pid 5")),
    "another version of the driver": (exit_codes.DRIVER, lambda tmp: Run(unreadable("driver_library_mismatch"))),
    "no permission": (exit_codes.DRIVER, lambda tmp: Run(unreadable("permission"))),
    "no library": (exit_codes.DRIVER, lambda tmp: Run(unreadable("library_missing"))),
    "no driver": (exit_codes.DRIVER, lambda tmp: Run(unreadable("no_driver"))),
    "a hung driver": (exit_codes.DRIVER, lambda tmp: Run(unreadable("driver_hung"))),
    "another trouble of the driver": (exit_codes.DRIVER, lambda tmp: Run(unreadable("error"))),
    "a lost GPU": (exit_codes.DRIVER, lambda tmp: Run(of_gpu(state="lost", error="GPU is lost"))),
    "a GPU to be reset": (exit_codes.DRIVER, lambda tmp: Run(of_gpu(state="reset_required", error=None))),
    "unknown memory": (exit_codes.DRIVER, lambda tmp: Run(of_gpu(free_mib=None, error="memory: not supported"))),
    "a GPU that is not there": (exit_codes.ABSENT, lambda tmp: Run(lambda now: GpuFleetError("GPU '9' is not on this host. It has: 0."))),
    "a name of two GPUs": (exit_codes.ABSENT, lambda tmp: Run(lambda now: GpuFleetError("GPU 'GPU-0' means several GPUs."))),
    "no GPU at all": (exit_codes.ABSENT, lambda tmp: Run(lambda now: Snapshot(True, count=0), ["--gpus", "all"])),
    "another one's start": (exit_codes.LOCKED, locked),
    "memory that never settles": (exit_codes.MEMORY, lambda tmp: Run(lambda now: free(91000 + int(now * 2) % 2 * 1000))),
    "memory that does not come": (exit_codes.MEMORY, lambda tmp: Run(lambda now: free(10))),
    "more than there is": (exit_codes.NEVER, lambda tmp: Run(lambda now: free(97247), ["--margin-mib", "20000"])),
}


@pytest.mark.parametrize("name", ENDS)
def test_every_end_has_its_status_and_says_why(name: str, tmp_path: Path) -> None:
    code, run = ENDS[name]
    found = run(tmp_path)
    assert found.code == code
    assert re.match(r"(the service|vllm-a\.service) is not started \(%s\): \S" % exit_codes.NAMES[code], found.said[-1])


def test_a_reading_that_hangs_leaves_time_for_the_last_words() -> None:
    """systemd gives a unit a minute more than its guard, and kills it then without a word of its own."""

    class Hung(Driver):
        def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
            self.clock.now += min(58.0, self.within() if self.within is not None else 58.0)
            return super().snapshot(gpus, processes)

    for answer, code in (
        (Snapshot(False, reason="driver_hung", reason_detail="it hangs"), exit_codes.DRIVER),
        (free(None, state="error", error="driver_hung"), exit_codes.DRIVER),
        (free(10), exit_codes.MEMORY),
    ):
        clock = Hands()
        said: List[str] = []
        driver = Hung(clock, lambda now, answer=answer: answer)  # type: ignore[misc]
        found = main(ARGV, Ports(clock, say=said.append, taken=lambda host, number: None, remains=lambda unit: [],
                                 open_backend=lambda backend, timeout, driver=driver: driver))  # type: ignore[misc]
        assert found == code and said[-1].startswith("vllm-a.service is not started")
        assert len(driver.asked) > 1 and clock.now - 100.0 <= 60.0 + 55.0


def test_there_is_an_end_for_every_status() -> None:
    assert {code for code, _run in ENDS.values()} == set(exit_codes.NAMES) - {exit_codes.PASS}


def test_no_status_is_returned_without_words() -> None:
    """In the source: what is not PASS is returned by way of the one function that says why."""
    tree = ast.parse(Path(str(guard_main.__file__)).read_text(encoding="utf-8"))
    bare = [ast.unparse(node.value) for node in ast.walk(tree) if isinstance(node, ast.Return) and node.value is not None]
    codes = [text for text in bare if "exit_codes." in text]
    assert codes and all(text == "exit_codes.PASS" or "_fail(exit_codes." in text or "_refuse(ports, " in text for text in codes)
    said = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".say")]
    assert sum("is not started" in text for text in said) == 1


def test_the_documented_table_is_the_guards() -> None:
    text = (Path(__file__).resolve().parents[5] / "docs" / "guard.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\d+) \| ([A-Z]+) \|", text, re.MULTILINE))
    assert rows == {str(number): name for number, name in exit_codes.NAMES.items()}
