# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Machines and surroundings that people have: what nvidia-smi prints besides, MPS, vGPU, MIG, namespaces, stuck processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lab.driver.testing import LocalDriver

from .reading import BACKENDS, COLLECTIONS, Reading, comparable, differences

TEXTS = {
    "warning": "WARNING: infoROM is corrupted at gpu 0000:01:00.0\n",
    "numbers": "3, 4, 5\n0, x\n,,,,,,,,,,,,,\n7\n",
    "banner": "+-----+\n| NVIDIA-SMI 610.47   KMD Version: 610.47   CUDA UMD Version: 13.2 |\n+-----+\n",
    "bytes": "\x01\x02 \ufffd\ufffd \x1b[31mred\x1b[0m\n",
    "other language": "Warnung: 12,5 MiB, n/v; GPU nicht verfügbar, 0\n",
    "long": "y, " * 20000 + "\n",
}


@pytest.fixture
def reading(driver_local: LocalDriver) -> Reading:
    """Readings of an idle driver with eight GPUs."""
    return Reading(driver_local)


def processes(facts: dict[str, Any], gpu: int = 0) -> list[dict[str, Any]]:
    """Who is on a GPU."""
    found: list[dict[str, Any]] = facts["gpus"][gpu]["processes"]
    return found


@pytest.mark.parametrize("where", ["stdout", "stderr"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_what_nvidia_smi_prints_besides_changes_nothing(reading: Reading, text: str, where: str) -> None:
    holder = reading.driver.hold(0, 2000)
    before = reading.one("nvidia_smi")
    reading.driver.gpus.smi(**{where: text})
    after = reading.one("nvidia_smi")
    assert differences(before, after) == []
    assert [process["pid"] for process in processes(after)] == [holder.pid]


@pytest.mark.parametrize(("exit_code", "reason"), [
    (9, "no_driver"), (12, "library_missing"), (4, "permission"), (18, "driver_library_mismatch"), (255, "error"), (1, "error"),
    (13, "error"), (3, "error"), (2, "error"), (127, "error"),
])
def test_every_exit_status_of_nvidia_smi_has_a_reason(reading: Reading, exit_code: int, reason: str) -> None:
    reading.driver.gpus.smi(exit_code=exit_code)
    facts = reading.one("nvidia_smi", timeout=5.0)
    assert (facts["available"], facts["reason"], facts["free_mib"], facts["gpus"]) == (False, reason, None, [])
    assert facts["reason_detail"] and not facts["processes_reliable"]


@pytest.mark.parametrize("ignore_term", [False, True])
def test_an_nvidia_smi_that_hangs_by_itself_is_given_up(reading: Reading, ignore_term: bool) -> None:
    reading.driver.gpus.smi(hang_s="forever", ignore_term=ignore_term)
    facts = reading.one("nvidia_smi", timeout=1.0)
    assert (facts["available"], facts["reason"], facts["free_mib"]) == (False, "driver_hung", None)
    assert reading.took[0] < 6


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_call_in_uninterruptible_sleep_is_given_up(reading: Reading, backend: str) -> None:
    reading.driver.gpus.hang("nvmlDeviceGetMemoryInfo*", gpu=2, uninterruptible=True)
    facts = reading.one(backend, timeout=1.0)
    assert facts["available"] and [gpu["index"] for gpu in facts["gpus"] if gpu["state"] != "ok"] == [2]
    assert facts["gpus"][2]["free_mib"] is None and reading.took[0] < 8


def test_what_counts_is_the_buses_order_not_cudas(reading: Reading) -> None:
    """An index is the driver's, whatever the caller's environment makes of it for CUDA."""
    words = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "3,1"}
    plain = reading.both(gpus=["1"])
    reading.driver.env.update(words)
    try:
        strange = reading.both(gpus=["1"])
    finally:
        for word in words:
            reading.driver.env.pop(word)
    for one, other in zip(plain, strange, strict=True):
        assert differences(one, other) == [] and one["gpus"][0]["pci_bus_id"] == "00000000:21:00.0"


def test_a_mig_instance_is_selected_by_its_uuid_and_has_its_own_memory(reading: Reading) -> None:
    reading.driver.gpus.preset("mig")
    whole, _smi = reading.both()
    devices = [(gpu, device) for gpu in whole["gpus"] for device in gpu["mig_devices"]]
    assert len({device["uuid"] for _gpu, device in devices}) == 5
    first, second = devices[0], devices[1]
    for facts in reading.both(gpus=[first[1]["uuid"], second[1]["uuid"], first[1]["uuid"].lower()]):
        assert [gpu["uuid"] for gpu in facts["gpus"]] == [first[1]["uuid"], second[1]["uuid"]]
        assert [gpu["index"] for gpu in facts["gpus"]] == [first[0]["index"], second[0]["index"]]
        assert facts["total_mib"] == first[1]["total_mib"] + second[1]["total_mib"]
        assert all(gpu["memory_type"] == "mig" for gpu in facts["gpus"])


def test_a_selection_in_every_spelling_is_one_gpu(reading: Reading) -> None:
    uuid = reading.one("nvml", processes=False)["gpus"][2]["uuid"]
    words = ["2", " 2 ", uuid, uuid.lower(), uuid[:12], "00000000:41:00.0", "0000:41:00.0", "41:00.0", "0000:41:00.0".lower()]
    address = reading.one("nvml", processes=False)["gpus"][2]["pci_bus_id"]
    words = [word.replace("41:00.0", address[-7:]) for word in words]
    for facts in reading.both(gpus=words):
        assert [gpu["index"] for gpu in facts["gpus"]] == [2]


@pytest.mark.parametrize("word", ["9", "-1", "", "²", "٣٣", "9" * 5000, "MIG-nothing", "0000:99:00.0", "all0", "0 1"])
def test_a_selection_of_nothing_names_what_there_is(reading: Reading, word: str) -> None:
    for backend in BACKENDS:
        answer = reading.one(backend, gpus=[word])
        assert isinstance(answer, str) and "is not on this host" in answer and "This host has: 0 (GPU-" in answer


def test_a_beginning_that_fits_several_is_said_to_mean_several(reading: Reading) -> None:
    for backend in BACKENDS:
        answer = reading.one(backend, gpus=["GPU-"])
        assert isinstance(answer, str) and "means several GPUs" in answer and "This host has: 0 (GPU-" in answer


def test_a_clients_memory_under_mps_is_not_counted_twice(reading: Reading) -> None:
    server = reading.driver.hold(0, 27, "--name", "nvidia-cuda-mps-server")
    client = reading.driver.hold(0, 4096, "--kind", "M+C")
    for facts in reading.both():
        found = {process["pid"]: process for process in processes(facts)}
        assert (found[server.pid]["type"], found[server.pid]["protected"], found[server.pid]["orphan"]) == ("C", True, False)
        assert "MPS" in found[server.pid]["protected_by"]
        assert (found[client.pid]["type"], found[client.pid]["used_mib"]) == ("C+M", 4096)
        assert facts["gpus"][0]["unattributed_mib"] < 1024


def test_tenants_of_a_vgpu_host_are_protected(reading: Reading) -> None:
    tenant = reading.driver.hold(0, 24000, "--kind", "C+G", "--name", "vgpu")
    for facts in reading.both():
        (process,) = processes(facts)
        assert (process["pid"], process["protected"], process["vllm"], process["orphan"]) == (tenant.pid, True, False, False)
        assert "vGPU" in process["protected_by"]


_INSIDE = """
import json, sys
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.reader import open_reader
found = []
for backend in ("nvml", "nvidia_smi"):
    with open_reader(backend, dev_root=sys.argv[1]) as reader:
        found.append(reader.snapshot(["0"]).to_dict())
print(json.dumps(found))
"""


def in_a_container(reading: Reading) -> list[dict[str, Any]]:
    """A reading through each backend in a pid namespace of its own, as in a container."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", _INSIDE, str(reading.driver.dev)]
    done = reading.driver.run(*command, PYTHONPATH=str(COLLECTIONS))
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_in_a_container_a_number_is_not_taken_for_a_process_of_it(reading: Reading) -> None:
    """The driver gives the machine's pids; inside a pid namespace the same number is another process, or none."""
    holder = reading.driver.hold(0, 2000)
    nvml, smi = in_a_container(reading)
    assert comparable(nvml) == comparable(smi)
    (process,) = processes(nvml)
    assert (process["pid"], process["state"], process["name"], process["orphan"]) == (holder.pid, "not_visible", None, False)
    assert process["used_mib"] == 2000


def test_a_container_that_lost_its_gpus_says_how_that_comes(reading: Reading) -> None:
    reading.driver.gpus.preset("init_unknown")
    for facts in in_a_container(reading):
        assert (facts["available"], facts["reason"]) == (False, "error")
        assert "daemon-reload" in facts["reason_detail"] and "restart the container" in facts["reason_detail"]
    for facts in reading.both():
        assert "daemon-reload" not in facts["reason_detail"]  # on the machine itself it has another cause


def test_a_zombie_that_is_still_listed_is_a_zombie(reading: Reading) -> None:
    dead = subprocess.Popen(["true"])
    try:
        end = time.monotonic() + 10
        while Path(f"/proc/{dead.pid}/stat").read_text(encoding="ascii").split(") ")[1][0] != "Z":
            assert time.monotonic() < end
        holder = reading.driver.hold(0, 1000, "--as-pid", str(dead.pid))
        assert holder.pid != dead.pid
        for facts in reading.both():
            found = {process["pid"]: process["state"] for process in processes(facts)}
            assert found[dead.pid] == "zombie"
    finally:
        dead.wait()


def test_hundreds_of_processes_are_all_there(reading: Reading) -> None:
    """More than the buffer that is offered at first, and a long report."""
    listed = [{"pid": 3_000_000 + number, "used_mib": 3, "type": "C", "counts": False} for number in range(700)]
    reading.driver.gpus.set(0, processes=listed)
    for facts in reading.both(timeout=20.0):
        assert [process["pid"] for process in processes(facts)] == [each["pid"] for each in listed]
        assert {process["state"] for process in processes(facts)} == {"gone"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_divided_gpu_is_never_taken_for_a_whole_one(reading: Reading, backend: str) -> None:
    """When the driver does not say whether it is divided: its parts are looked for, or its memory is not known."""
    reading.driver.gpus.preset("mig")
    reading.driver.gpus.fail("nvmlDeviceGetMigMode", 999)
    facts = reading.one(backend, processes=False)
    for gpu in facts["gpus"]:
        if gpu["mig_devices"]:
            assert (gpu["memory_type"], gpu["state"]) == ("mig", "ok")
        else:
            assert gpu["state"] == "error" and gpu["free_mib"] is None and gpu["error"]
    if backend == "nvml":
        assert [len(gpu["mig_devices"]) for gpu in facts["gpus"]] == [3, 2, 0]


@pytest.mark.parametrize("call", ["nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"])
@pytest.mark.parametrize("code", [999, 4])
def test_parts_that_cannot_be_listed_are_said_to_be_unknown(reading: Reading, call: str, code: int) -> None:
    reading.driver.gpus.preset("mig")
    reading.driver.gpus.fail(call, code)
    nvml, smi = reading.both(processes=False)
    for facts in (nvml, smi):
        for gpu in facts["gpus"][:2]:
            assert gpu["memory_type"] == "mig"
            known = [device for device in gpu["mig_devices"] if device["uuid"]]
            assert len(known) == len(gpu["mig_devices"])  # nothing that is there only as an error
            if facts is nvml:
                assert gpu["state"] == "error" and "MIG devices: " in gpu["error"]
    if call == "nvmlDeviceGetMaxMigDeviceCount":
        assert [len(gpu["mig_devices"]) for gpu in nvml["gpus"][:2]] == [3, 2]


def test_one_gpu_that_is_refused_leaves_the_others(reading: Reading) -> None:
    uuid = reading.one("nvml", processes=False)["gpus"][0]["uuid"]
    for call in ("nvmlDeviceGetHandleByIndex*", "nvmlDeviceGetHandleByPci*"):
        reading.driver.gpus.fail(call, code=4, gpu=1)
    nvml, smi = reading.both()
    assert differences(comparable(nvml), comparable(smi)) == []
    assert [gpu["index"] for gpu in smi["gpus"] if gpu["state"] != "ok"] == [1] and smi["count"] == 8
    for facts in reading.both(gpus=[uuid]):
        assert facts["available"] and [gpu["uuid"] for gpu in facts["gpus"]] == [uuid]


def test_a_lost_gpu_that_nvidia_smi_leaves_out_is_lost(reading: Reading) -> None:
    reading.driver.gpus.preset("lost")
    reading.driver.gpus.smi(lost_gpu="skip")
    nvml, smi = reading.both()
    assert differences(comparable(nvml), comparable(smi)) == []
    assert [gpu["state"] for gpu in smi["gpus"]] == ["ok"] * 3 + ["lost"] + ["ok"] * 4


@pytest.mark.parametrize("call", ["nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo*"])
def test_a_gpu_that_nobody_asked_for_costs_no_time(reading: Reading, call: str) -> None:
    uuid = reading.one("nvml", processes=False)["gpus"][0]["uuid"]
    reading.driver.gpus.hang(call, gpu=3)
    for word in ["0"] + ([uuid] if "Memory" in call else []):
        facts = reading.one("nvidia_smi", gpus=[word], timeout=10.0)
        assert facts["available"] and facts["count"] == 8 and [gpu["index"] for gpu in facts["gpus"]] == [0]
        assert reading.took[0] < 10


def test_a_process_list_that_hangs_costs_only_its_gpus(reading: Reading) -> None:
    holder = reading.driver.hold(1, 1000)
    reading.driver.gpus.hang("nvmlDeviceGetGraphicsRunningProcesses*", gpu=1)
    nvml, smi = reading.both(timeout=3.0)
    assert differences(comparable(nvml), comparable(smi)) == []
    assert [gpu["index"] for gpu in smi["gpus"] if gpu["error"]] == [1]
    assert [process["pid"] for process in processes(smi, 1)] == [holder.pid] and reading.took[1] < 10


def test_process_lists_that_hang_everywhere_are_given_up_together(reading: Reading) -> None:
    reading.driver.gpus.hang("nvmlDeviceGetComputeRunningProcesses*")
    facts = reading.one("nvidia_smi", timeout=2.0)
    assert facts["available"] and not facts["processes_reliable"] and facts["free_mib"] == 777976
    assert reading.took[0] < 9


@pytest.mark.parametrize("gpu", [1, None])
def test_an_optional_value_that_hangs_leaves_memory_and_identity(reading: Reading, gpu: "int | None") -> None:
    reading.driver.gpus.hang("nvmlDeviceGetUtilizationRates", gpu=gpu)
    facts = reading.one("nvidia_smi", processes=False, timeout=4.0)
    assert facts["available"] and facts["free_mib"] == 777976
    assert [each["state"] for each in facts["gpus"]] == ["ok"] * 8 and all(each["uuid"] for each in facts["gpus"])
    silent = [each["index"] for each in facts["gpus"] if each["utilization_percent"] is None]
    assert silent == ([1] if gpu else list(range(8))) and "driver_hung" in facts["gpus"][1]["error"]


def test_access_that_the_system_blocks_is_named(reading: Reading) -> None:
    reading.driver.gpus.fail("nvmlDeviceGetMemoryInfo*", 17, gpu=1)
    nvml, smi = reading.both()
    assert differences(comparable(nvml), comparable(smi)) == []
    assert "blocked by the operating system" in smi["gpus"][1]["error"]
