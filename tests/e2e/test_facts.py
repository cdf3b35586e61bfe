# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_memory_facts on real hosts: what the driver says, and whose the processes are."""

from __future__ import annotations

import time
from typing import Any

import pytest

from lab import Host

from .adhoc import facts, module
from .programs import Programs

TOTAL = 97887


def on(found: dict[str, Any], gpu: int) -> list[dict[str, Any]]:
    """The processes on one GPU."""
    processes: list[dict[str, Any]] = found["gpus"][gpu]["processes"]
    return processes


def test_an_idle_host(host: Host) -> None:
    found = facts(host)
    assert (found["available"], found["backend"], found["reason_detail"]) == (True, "nvml", None)
    assert (found["count"], found["pci_count"]) == (8, 8)
    assert (found["total_mib"], found["used_mib"], found["free_mib"]) == (8 * TOTAL, 16, 8 * (TOTAL - 638 - 2))
    assert found["driver_version"] == "580.95.05" and found["cuda_version"] == "13.0"
    assert [gpu["index"] for gpu in found["gpus"]] == list(range(8)) and not any(gpu["processes"] for gpu in found["gpus"])
    assert facts(host, "--check") == found


def test_a_process_of_a_unit_is_the_units(host: Host) -> None:
    before = time.time()
    program = Programs(host).service("trainer", gpus=(2,), mib=5000)
    (process,) = on(facts(host), 2)
    assert process["pid"] == program.pid
    assert (process["type"], process["used_mib"], process["user"], process["state"]) == ("C", 5000, "root", "running")
    assert (process["unit"], process["container"]) == ("trainer.service", None)
    assert (process["vllm"], process["orphan"], process["protected"]) == (False, False, False)
    assert before - 2 < process["start_time"] < time.time() + 2 and "client.py" in process["cmdline"]


def test_an_orphan_is_a_vllm_process_whose_unit_is_no_more(host: Host) -> None:
    programs = Programs(host)
    orphan = programs.orphan(gpus=(0,), mib=96801 - 638)
    alive = programs.service("vllm-other", gpus=(1,), mib=5000, name="VLLM::EngineCore")
    found = facts(host)
    (left,), (kept,) = on(found, 0), on(found, 1)
    assert (left["pid"], left["name"], left["vllm"], left["orphan"]) == (orphan.pid, "VLLM::Worker_TP", True, True)
    assert (kept["pid"], kept["unit"], kept["vllm"], kept["orphan"]) == (alive.pid, "vllm-other.service", True, False)


def test_a_process_of_a_login_session_is_no_orphan_while_somebody_is_logged_in(host: Host) -> None:
    program = Programs(host).job(gpus=(3,), mib=4000, name="VLLM::EngineCore", unit="by-hand")
    (process,) = on(facts(host), 3)
    assert (process["pid"], process["unit"], process["vllm"], process["orphan"]) == (program.pid, "by-hand.scope", True, False)


def test_a_users_own_unit_is_found(host: Host) -> None:
    host.run("useradd --create-home --shell /bin/bash alice && loginctl enable-linger alice")
    client = Programs(host).client
    command = f"/usr/bin/python3 {client} --gpu 4 --mib 3000 --name VLLM::EngineCore"
    host.run(f"systemctl start user@$(id -u alice).service && systemd-run --quiet --user -M alice@ --unit=mine {command}")
    deadline = time.monotonic() + 10
    while not (processes := on(facts(host, gpus=["4"]) | {}, 0)):
        assert time.monotonic() < deadline
    (process,) = processes
    assert (process["user"], process["unit"], process["vllm"], process["orphan"]) == ("alice", "mine.service", True, False)


def test_a_forked_child_that_no_list_shows_is_found(host: Host) -> None:
    # its parent allocated and ended; the child inherited the open node, and with it the memory
    program = Programs(host).service("loader", gpus=(5,), mib=7000, options="--fork-child --exit-after 0.2",
                                     properties=("KillMode=process", "RemainAfterExit=yes"))
    assert program.child is not None
    deadline = time.monotonic() + 10
    while Programs(host).alive(program.pid):
        assert time.monotonic() < deadline
    found = facts(host)
    (holder,) = on(found, 5)
    assert (holder["pid"], holder["type"], holder["used_mib"]) == (program.child, None, None)
    assert found["gpus"][5]["unattributed_mib"] == 7002


def test_protected_processes_say_by_what(host: Host) -> None:
    Programs(host).service("mps", gpus=(6,), mib=30, name="nvidia-cuda-mps-server")
    (process,) = on(facts(host), 6)
    assert process["protected"] and "MPS" in process["protected_by"]


def test_a_number_from_elsewhere_is_not_taken_for_a_process_of_this_host(host: Host) -> None:
    innocent = int(host.run("systemd-run --quiet --unit=innocent sleep 1000 && systemctl show -P MainPID innocent").stdout)
    host.gpu.set(0, processes=[{"pid": innocent, "used_mib": 20000}, {"pid": 3_900_001, "used_mib": 10000}])
    found = facts(host)
    assert [(process["pid"], process["state"], process["name"], process["unit"]) for process in on(found, 0)] == [
        (innocent, "not_visible", None, None), (3_900_001, "not_visible", None, None)]


def test_without_pynvml_the_same_is_read_through_nvidia_smi(host: Host) -> None:
    Programs(host).service("trainer", gpus=(2,), mib=5000)
    by_library = facts(host)
    host.run("rm -rf /usr/local/lib/python3*/dist-packages/pynvml* /usr/local/lib/python3*/dist-packages/nvidia_ml_py*")
    by_command = facts(host)
    assert by_command["backend"] == "nvidia_smi" and "pynvml" in by_command["reason_detail"]
    for found in (by_library, by_command):
        found.pop("backend")
        found.pop("reason_detail")
    assert by_library == by_command
    assert facts(host, backend="nvml")["backend"] == "nvml"


def test_a_host_without_a_driver_is_no_failure(host: Host) -> None:
    host.gpu.preset("no_driver")
    found = facts(host)
    assert (found["available"], found["reason"], found["count"], found["gpus"]) == (False, "no_driver", 0, [])


def test_a_host_that_never_had_a_driver_is_no_failure(host: Host) -> None:
    host.run("rm -f /usr/bin/nvidia-smi /usr/lib/*/libnvidia-ml.so.1")
    host.run("umount /proc/driver/nvidia", check=False)
    found = facts(host)
    assert found["available"] is False and found["reason"] in ("no_driver", "library_missing")
    assert found["free_mib"] is None and found["reason_detail"]


def test_a_mismatch_names_both_versions(host: Host) -> None:
    host.gpu.preset("mismatch")
    host.refresh_hardware()
    found = facts(host)
    assert (found["available"], found["reason"]) == (False, "driver_library_mismatch")
    assert "570.124.04" in found["reason_detail"] and "reboot" in found["reason_detail"]


def test_a_lost_gpu_keeps_its_address(host: Host) -> None:
    host.gpu.preset("lost")
    found = facts(host)
    assert [gpu["state"] for gpu in found["gpus"]] == ["ok"] * 3 + ["lost"] + ["ok"] * 4
    assert found["gpus"][3]["pci_bus_id"] == "00000000:61:00.0" and found["gpus"][3]["free_mib"] is None


def test_fewer_gpus_than_on_the_bus(host: Host) -> None:
    host.gpu.preset("fewer_gpus_than_pci")
    found = facts(host)
    assert (found["count"], found["pci_count"]) == (7, 8)
    assert "7 of 8" in found["reason_detail"] and "61:00.0" in found["reason_detail"]


def test_a_hung_driver_is_given_up(host: Host) -> None:
    host.gpu.hang("nvmlDeviceGet*", ignore_term=True)
    started = time.monotonic()
    found = facts(host, timeout=2)
    assert (found["available"], found["reason"]) == (False, "driver_hung")
    assert time.monotonic() - started < 20
    host.gpu.clear_failures()


def test_a_selection_by_every_name(host: Host) -> None:
    everything = facts(host)
    chosen = [everything["gpus"][1]["uuid"], "0000:41:00.0", 7]
    found = facts(host, gpus=chosen, processes=False)
    assert [gpu["index"] for gpu in found["gpus"]] == [1, 2, 7] and found["total_mib"] == 3 * TOTAL and found["count"] == 8
    failed = module(host, "gpu_memory_facts", gpus=["12"])
    assert failed["failed"] and "GPU '12' is not on this host" in failed["msg"] and everything["gpus"][0]["uuid"] in failed["msg"]


@pytest.mark.parametrize("preset", ["mig", "gb10", "stride32", "bad_name"])
def test_other_machines_read_alike_through_both(host: Host, preset: str) -> None:
    host.gpu.preset(preset)
    host.refresh_hardware()
    found = [facts(host, backend=backend) for backend in ("nvml", "nvidia_smi")]
    for each in found:
        each.pop("backend")
        for place in (each, *each["gpus"]) if preset == "gb10" else ():
            place["used_mib"] = place["free_mib"] = None
    assert found[0] == found[1] and found[0]["available"]


def test_debian_13_reads_alike(trixie_host: Host) -> None:
    program = Programs(trixie_host).service("trainer", gpus=(2,), mib=5000)
    found = facts(trixie_host)
    assert found["available"] and found["count"] == 8
    assert [process["pid"] for process in on(found, 2)] == [program.pid] and on(found, 2)[0]["unit"] == "trainer.service"
