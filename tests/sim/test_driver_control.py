# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scenario file and the tests' hand on it: strict, atomic, in force at once; the daemon's life."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.driver.client import Channel, DriverError, pack, quote, unpack, unquote
from lab.driver.control import Gpus
from lab.driver.scenario import Scenario, ScenarioError
from lab.driver.testing import TESTS, LocalDriver, running_driver

Nvml = Callable[[str], Any]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"gpu": []}, "scenario: unknown key 'gpu'; known are driver_version"),
        ({"gpus": [{"held": 3}]}, r"scenario.gpus\[0\]: unknown key 'held'"),
        ({"gpus": [{"held_mib": "3"}]}, r"scenario.gpus\[0\].held_mib: expected int, got '3'"),
        ({"gpus": [{"held_mib": True}]}, "expected a number, got True"),
        ({"gpus": [{"held_mib": -3}]}, "held_mib must not be negative"),
        ({"gpus": [{"state": "tired"}]}, "'tired' is not one of 'ok', 'lost'"),
        ({"gpus": [{"release_ramp": [[0, 0.5]]}]}, "the last share must be 1"),
        ({"gpus": [{"uuid": "GPU-1"}, {"uuid": "GPU-1"}]}, "two GPUs share one uuid"),
        ({"failures": [{"code": 3}]}, r"scenario.failures\[0\]: .*call"),
        ({"failures": [{"call": "x", "hang_s": "long"}]}, "hang_s"),
        ({"strides": {"v3": 20}}, "20 is not one of 16, 24, 32"),
        ([], "expected an object"),
    ],
)
def test_a_scenario_that_can_not_be_meant_is_refused(data: Any, words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        Scenario.from_dict(data)


def test_a_file_that_can_not_be_meant_fails_every_call(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    gpus = driver_local.gpus
    good = gpus.path.read_text(encoding="utf-8")
    try:
        gpus.path.write_text('{"gpsu": 3}', encoding="utf-8")
        with pytest.raises(ScenarioError, match="unknown key 'gpsu'"):
            gpus.state()
        done = driver_local.python("import pynvml as n\ntry: n.nvmlInit()\nexcept n.NVMLError as e: print(e.value)")
        assert done.stdout.split() == ["999"]
        gpus.path.write_text("not json", encoding="utf-8")
        with pytest.raises(ScenarioError, match="not JSON"):
            gpus.calls()
    finally:
        gpus.path.write_text(good, encoding="utf-8")
    assert driver_nvml("out = n.nvmlDeviceGetCount()") == 8


def test_control_refuses_what_the_daemon_would(driver_local: LocalDriver) -> None:
    before = driver_local.gpus.path.read_bytes()
    with pytest.raises(ScenarioError, match="unknown key 'colour'"):
        driver_local.gpus.set(0, colour="green")
    with pytest.raises(ScenarioError, match="no GPU 8"):
        driver_local.gpus.set(8, held_mib=1)
    with pytest.raises(ScenarioError, match="unknown key"):
        driver_local.gpus.scenario(driver="580")
    assert driver_local.gpus.path.read_bytes() == before


def test_a_rewritten_file_is_in_force_at_the_next_call(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    code = "import pynvml as n, sys\nn.nvmlInit()\nfor _ in sys.stdin: print(n.nvmlDeviceGetCount(), flush=True)"
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        env=driver_local.environ(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        for count in (8, 4, 2):
            staged = driver_local.gpus.path.with_suffix(".new")
            staged.write_text(json.dumps({"gpus": count}), encoding="utf-8")
            staged.replace(driver_local.gpus.path)
            child.stdin.write("\n")
            assert child.stdout.readline() == f"{count}\n"
    finally:
        child.kill()
        child.communicate()


def test_top_level_fields_are_changed_and_the_rest_kept(driver_local: LocalDriver) -> None:
    driver_local.gpus.set(1, held_mib=77)
    driver_local.gpus.scenario(driver_version="570.124.04", smi={"banner": "umd"})
    current = driver_local.gpus.current
    assert (current.driver_version, current.smi.banner, current.gpus[1].held_mib) == ("570.124.04", "umd", 77)
    driver_local.gpus.scenario(gpus=2)
    assert len(driver_local.gpus.current.gpus) == 2


def test_all_gpus_can_be_changed_at_once(driver_local: LocalDriver) -> None:
    driver_local.gpus.set(min_used_mib=600)
    assert [gpu["used_mib"] for gpu in driver_local.gpus.state()] == [600] * 8


def test_clear_is_as_good_as_new(driver_local: LocalDriver) -> None:
    driver_local.gpus.preset("lost")
    driver_local.gpus.fail("nvmlInit*", 9)
    driver_local.gpus.clear()
    assert driver_local.gpus.current == Scenario()
    assert driver_local.gpus.calls() == {}
    assert driver_local.gpus.releases() == []


def test_allocations_outlive_a_changed_scenario(driver_local: LocalDriver) -> None:
    driver_local.hold(0, 1000)
    driver_local.gpus.preset("a100")
    assert driver_local.gpus.used_mib(0) == 1002


def test_a_wait_that_fails_says_what_it_is_instead(driver_local: LocalDriver) -> None:
    with pytest.raises(TimeoutError, match="GPU 0 has 2 MiB used, not 5"):
        driver_local.gpus.wait_for_used(0, 5, timeout=0.05)


def test_words_survive_the_wire() -> None:
    for text in ("", "plain", "two words", "100%", "line\nbreak", "tab\t", "é", "\udcff\udc80", "%41"):
        assert unquote(quote(text)) == text
        assert " " not in quote(text)
    assert unpack(pack("alloc", 0, "", "a b").rstrip(b"\n")) == ["alloc", "0", "", "a b"]


def test_what_is_no_request_is_refused(driver_local: LocalDriver) -> None:
    channel = Channel(str(driver_local.gpus.socket))
    try:
        for verb in ("nonsense", "alloc", "resize", "nodes", "memory", "nvml", "control", "reset"):
            assert channel.request(verb)[0] == 2, verb
        assert channel.request("alloc", 0)[0] == 2
        assert channel.request("alloc", 0, "many", "C", 1, "")[0] == 2
        assert channel.request("alloc", 0, 10, "X", 1, "")[0] == 2
        assert channel.request("resize", 12345, 10)[0] == 6
        assert channel.request("nvml", "nvmlNothing", "g0")[0] == 13
    finally:
        channel.close()


def test_one_directory_has_one_driver(driver_local: LocalDriver) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "lab.driver.daemon", "--dir", str(driver_local.gpus.directory)],
        env={"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert second.returncode == 1
    assert "another driver serves" in second.stderr
    assert len(driver_local.gpus.state()) == 8


def test_a_killed_driver_leaves_nothing_in_the_way_of_the_next(tmp_path: Path) -> None:
    with running_driver(tmp_path / "first") as driver:
        directory = driver.gpus.directory
        driver._daemon.kill()
        driver._daemon.wait()
        assert (directory / "driver.sock").exists()
        reader = subprocess.Popen(
            [sys.executable, "-m", "lab.driver.daemon", "--dir", str(directory), "--ready-fd", "1"],
            env={"PYTHONPATH": str(TESTS)},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
            assert len(Gpus(directory).state()) == 8
        finally:
            reader.terminate()
            reader.communicate(timeout=10)
        assert reader.returncode == 0
        assert not (directory / "driver.sock").exists()


def test_the_first_scenario_is_written_for_the_host(tmp_path: Path) -> None:
    daemon = subprocess.Popen(
        [sys.executable, "-m", "lab.driver.daemon", "--dir", str(tmp_path / "gpu"), "--ready-fd", "1"]
        + ["--seed", "gpu01", "--gpus", "4"],
        env={"PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "ready\n"
        current = Gpus(tmp_path / "gpu").current
        assert (len(current.gpus), current.seed) == (4, "gpu01")
        assert (tmp_path / "gpu/driver.sock").stat().st_mode & 0o777 == 0o666
    finally:
        daemon.terminate()
        daemon.communicate(timeout=10)


def test_no_driver_is_an_error_of_control_too(tmp_path: Path) -> None:
    with pytest.raises((OSError, DriverError)):
        Gpus(tmp_path).state()


def test_holders_may_outlive_their_gpu(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.preset("mig")
    mig = driver_local.gpus.current.gpus[0].mig
    assert mig is not None
    sliced, last = driver_local.hold(str(mig.devices[2].uuid), 100), driver_local.hold(2, 100)
    driver_local.gpus.scenario(gpus=1)
    assert driver_local.gpus.state()[0]["used_mib"] == 102
    assert driver_nvml("out = [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(gpu(0))]") == [sliced.pid]
    for process in (sliced, last):
        process.kill()
        process.wait()
    driver_local.gpus.wait_for_used(0, 2)


def test_a_drivers_end_is_its_owners_end(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from lab.driver.testing import running_driver\n"
        "with running_driver(Path(sys.argv[1])) as driver:\n"
        "    print(driver._daemon.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    owner = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=20,
        check=False,
    )
    assert owner.returncode == -9
    deadline = time.monotonic() + 5
    while (tmp_path / "driver/driver.sock").exists():
        assert time.monotonic() < deadline, f"driver {owner.stdout} is still there"
        time.sleep(0.02)
