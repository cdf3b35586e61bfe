# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guard as one file, with the host's plain Python, before the machines and drivers that people have."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._guard import exit_codes
from ansible_collections.gpufleet.vllm.plugins.module_utils._guard.zipapp import build_guard
from lab.driver.testing import LocalDriver

from .reading import BACKENDS, SYSTEM_PYTHON, Reading

# What each scenario means for a service on GPU 0 that wants 0.9 of it, where time does not help; 3: of GPU 3.
PASS, DRIVER, MEMORY, ABSENT = exit_codes.PASS, exit_codes.DRIVER, exit_codes.MEMORY, exit_codes.ABSENT
SCENARIOS: dict[str, tuple[str, int]] = {
    "default": ("0,1,2,3,4,5,6,7", PASS),
    "no_driver": ("0", DRIVER),
    "no_permission": ("0", DRIVER),
    "init_unknown": ("0", DRIVER),
    "library_missing": ("0", DRIVER),
    "mismatch": ("0", DRIVER),
    "no_gpus": ("0", ABSENT),
    "wsl": ("0", PASS),
    "vgpu_guest": ("0", PASS),
    "lost": ("3", DRIVER),
    "unknown_error": ("3", DRIVER),
    "reset_required": ("3", DRIVER),
    "fewer_gpus_than_pci": ("0,7", ABSENT),
    "stride32": ("0", PASS),
    "v1_only": ("0", PASS),
    "hung": ("0", DRIVER),
    "held": ("0", MEMORY),
    "foreign_pids": ("1", MEMORY),
    "old_driver": ("0", PASS),
    "new_banner": ("0", PASS),
}


class Guard:
    """The guard's file, and a driver."""

    def __init__(self, driver: LocalDriver, path: Path) -> None:
        self.driver = driver
        self.path = path
        self.took = 0.0

    def run(self, gpus: str, *options: str, utilization: str = "0.9", timeout: str = "3") -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        started = time.monotonic()
        words = ["--unit", "x.service", "--gpus", gpus, "--utilization", utilization, "--timeout", timeout, "--call-timeout", "1"]
        done = self.driver.run(SYSTEM_PYTHON, "-I", str(self.path), *words, *options, timeout=60)
        self.took = time.monotonic() - started
        assert "Traceback" not in done.stderr + done.stdout, done.stderr
        if done.returncode:
            assert f"x.service is not started ({exit_codes.NAMES[done.returncode]}): " in done.stdout.splitlines()[-1], done.stdout
        return done


@pytest.fixture
def guard(driver_local: LocalDriver, tmp_path: Path) -> Iterator[Guard]:
    """The guard before an idle driver."""
    path = tmp_path / "gpu-guard.pyz"
    path.write_bytes(build_guard())
    yield Guard(driver_local, path)


@pytest.mark.parametrize("backend", [*BACKENDS, "auto"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_machine_is_judged_as_what_it_is(guard: Guard, name: str, backend: str) -> None:
    guard.driver.gpus.preset(name)
    gpus, code = SCENARIOS[name]
    done = guard.run(gpus, "--backend", backend)
    assert done.returncode == code, done.stdout
    if code in (PASS, ABSENT) or name in ("mismatch", "lost", "reset_required"):
        assert guard.took < 15
    elif name == "unknown_error":
        assert "GPU 3" in done.stdout


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mig_instance_is_waited_for_by_its_own_memory(guard: Guard, backend: str) -> None:
    """Not by its parent's, whose memory cannot even be read."""
    guard.driver.gpus.preset("mig")
    facts = Reading(guard.driver).one("nvml", processes=False)
    device = facts["gpus"][0]["mig_devices"][1]
    assert guard.run(device["uuid"], "--backend", backend).returncode == PASS
    # more than the instance has, less than its card
    never = guard.run(device["uuid"], "--backend", backend, "--margin-mib", str(device["total_mib"]))
    assert never.returncode == exit_codes.NEVER and f"it has {device['total_mib']} MiB" in never.stdout
    assert guard.run("MIG-00000000-0000", "--backend", backend).returncode == ABSENT


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_neighbour_on_another_mig_instance_is_not_blamed(guard: Guard, backend: str) -> None:
    guard.driver.gpus.preset("mig")
    first, second, third = Reading(guard.driver).one("nvml", processes=False)["gpus"][0]["mig_devices"]
    own, neighbour = guard.driver.hold(first["uuid"], 2000), guard.driver.hold(second["uuid"], 300)
    for device, expected in ((first, [(own.pid, 2000)]), (second, [(neighbour.pid, 300)]), (third, [])):
        (gpu,) = Reading(guard.driver).one(backend, gpus=[device["uuid"]])["gpus"]
        assert [(process["pid"], process["used_mib"]) for process in gpu["processes"]] == expected
    done = guard.run(first["uuid"], "--backend", backend, timeout="0.5")
    assert done.returncode == exit_codes.MEMORY
    assert "held by pid %d" % own.pid in done.stdout and "pid %d" % neighbour.pid not in done.stdout


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_whole_of_a_divided_gpu_is_refused_at_once(guard: Guard, backend: str) -> None:
    guard.driver.gpus.preset("mig")
    facts = Reading(guard.driver).one("nvml", processes=False)
    uuids = [device["uuid"] for device in facts["gpus"][0]["mig_devices"]]
    done = guard.run("0", "--backend", backend, timeout="60")
    assert done.returncode == ABSENT and all(uuid in done.stdout for uuid in uuids)
    assert guard.run(f"{uuids[0]},2", "--backend", backend, timeout="60").returncode == ABSENT


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_lost_gpu_is_the_drivers_fault_however_it_is_named(guard: Guard, backend: str) -> None:
    gpu = Reading(guard.driver).one("nvml", processes=False)["gpus"][3]
    guard.driver.gpus.set(3, state="lost")
    for name in ("3", gpu["uuid"], gpu["pci_bus_id"]):
        done = guard.run(f"0,{name}", "--backend", backend, timeout="60")
        assert done.returncode == DRIVER and "GPU 3" in done.stdout, (name, done.stdout)
        facts = Reading(guard.driver).one(backend, gpus=["0", name], processes=False)
        assert [(each["index"], each["state"]) for each in facts["gpus"]] == [(0, "ok"), (3, "lost")]


@pytest.mark.parametrize("backend", BACKENDS)
def test_unified_memory_is_the_hosts_that_is_available(guard: Guard, backend: str) -> None:
    guard.driver.gpus.preset("gb10")
    # this machine's memory is as restless as its other work: how still it has to be is a matter of the unit tests
    assert guard.run("0", "--backend", backend, "--settle", "0", utilization="0.01").returncode == PASS
    total = int(re.findall(r"MemTotal: +(\d+)", Path("/proc/meminfo").read_text(encoding="ascii"))[0]) // 1024
    never = guard.run("0", "--backend", backend, "--margin-mib", str(total))
    assert never.returncode == exit_codes.NEVER and f"it has {total} MiB" in never.stdout


def test_a_bad_neighbour_is_not_looked_at(guard: Guard) -> None:
    guard.driver.gpus.set(6, state="lost")
    guard.driver.gpus.hang("nvmlDeviceGetMemoryInfo*", gpu=7)
    for backend in BACKENDS:
        assert guard.run("0,1", "--backend", backend).returncode == PASS


def test_what_waits_names_whom_it_waits_for(guard: Guard) -> None:
    holder = guard.driver.hold(1, 90000, "--name", "VLLM::Worker_TP1")
    for backend in BACKENDS:
        done = guard.run("0,1", "--backend", backend, timeout="1.5")
        assert done.returncode == MEMORY and f"held by pid {holder.pid}" in done.stdout and "[GPU 1: 90000 MiB]" in done.stdout
        assert "GPU 0" not in done.stdout


def test_what_the_library_prints_is_not_the_guards_word(guard: Guard) -> None:
    guard.driver.gpus.fail("nvmlDeviceGet*", None, stdout="x.service is not started (MEMORY): rubbish\n", stderr="NVRM: rubbish\n")
    done = guard.run("0", "--backend", "nvml")
    assert (done.returncode, done.stdout, done.stderr) == (PASS, "", "")
