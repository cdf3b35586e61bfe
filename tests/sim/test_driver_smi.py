# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nvidia-smi prints the real program's formats, refuses what it refuses and ends with its exit codes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from lab.driver.build import smi_path
from lab.driver.scenario import Process
from lab.driver.testing import LocalDriver, running_driver

NAME = "NVIDIA RTX PRO 6000 Blackwell Server Edition"


def smi(driver: LocalDriver, *arguments: str) -> subprocess.CompletedProcess[str]:
    return driver.run("nvidia-smi", *arguments)


def test_a_query_prints_header_and_units(driver_local: LocalDriver) -> None:
    driver_local.hold(1, 1000)
    done = smi(
        driver_local,
        "--query-gpu=index,gpu_name,memory.total,memory.reserved,memory.used,memory.free,utilization.gpu,power.draw,"
        "temperature.gpu,clocks.sm,pstate,compute_mode,mig.mode.current,ecc.mode.current,compute_cap",
        "--format=csv",
        "-i",
        "1",
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "index, name, memory.total [MiB], memory.reserved [MiB], memory.used [MiB], memory.free [MiB], "
        "utilization.gpu [%], power.draw [W], temperature.gpu, clocks.current.sm [MHz], pstate, compute_mode, "
        "mig.mode.current, ecc.mode.current, compute_cap",
        f"1, {NAME}, 97887 MiB, 638 MiB, 1002 MiB, 96247 MiB, 0 %, 34.62 W, 31, 180 MHz, P8, Default, [N/A], Enabled, 12.0",
    ]


def test_a_query_without_header_and_units(driver_local: LocalDriver) -> None:
    done = smi(driver_local, "--query-gpu=index,memory.used,pci.bus_id", "--format=csv,noheader,nounits", "-i", "0,2")
    assert done.stdout == "0, 2, 00000000:01:00.0\n2, 2, 00000000:41:00.0\n"
    bare = smi(driver_local, "--query-gpu=memory.used", "--format=csv,nounits", "-i", "0")
    assert bare.stdout == "memory.used [MiB]\n2\n".replace(" [MiB]", "")


def test_identity_fields(driver_local: LocalDriver) -> None:
    gpu = driver_local.gpus.current.gpus[1]
    done = smi(
        driver_local,
        "--query-gpu=uuid,gpu_uuid,serial,pci.domain,pci.bus,pci.device,pci.device_id,count,driver_version,vbios_version",
        "--format=csv,noheader",
        "--id=1",
    )
    expected = [gpu.uuid, gpu.uuid, gpu.serial, "0x0000", "0x21", "0x00", "0x2BB510DE", "8", "580.95.05", gpu.vbios]
    assert done.stdout.strip().split(", ") == expected


def test_a_timestamp_has_the_programs_form(driver_local: LocalDriver) -> None:
    done = smi(driver_local, "--query-gpu=timestamp", "--format=csv,noheader", "-i", "0")
    assert re.fullmatch(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}\n", done.stdout)


def test_compute_apps(driver_local: LocalDriver) -> None:
    first, second = driver_local.hold(0, 1000), driver_local.hold(6, 2000)
    driver_local.hold(3, 500, "--kind", "G")  # graphics alone is no compute application
    done = smi(driver_local, "--query-compute-apps=gpu_uuid,gpu_bus_id,pid,name,used_memory", "--format=csv")
    gpus = driver_local.gpus.current.gpus
    assert done.stdout.splitlines() == [
        "gpu_uuid, gpu_bus_id, pid, process_name, used_gpu_memory [MiB]",
        f"{gpus[0].uuid}, 00000000:01:00.0, {first.pid}, {sys.executable}, 1000 MiB",
        f"{gpus[6].uuid}, 00000000:C1:00.0, {second.pid}, {sys.executable}, 2000 MiB",
    ]


def test_no_compute_apps_leave_the_header_alone(driver_local: LocalDriver) -> None:
    assert smi(driver_local, "--query-compute-apps=pid", "--format=csv").stdout == "pid\n"
    assert smi(driver_local, "--query-compute-apps=pid", "--format=csv,noheader").stdout == ""


def test_a_name_with_commas_is_not_quoted(driver_local: LocalDriver) -> None:
    driver_local.gpus.add_process(0, Process(3_900_001, 5, name="chrome --type=gpu, --flag=a,b"))
    done = smi(driver_local, "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits")
    assert done.stdout == "3900001, chrome --type=gpu, --flag=a,b, 5\n"


def test_gpus_are_listed(driver_local: LocalDriver) -> None:
    gpus = driver_local.gpus.current.gpus
    done = smi(driver_local, "-L")
    assert done.stdout.splitlines() == [f"GPU {i}: {NAME} (UUID: {gpu.uuid})" for i, gpu in enumerate(gpus)]


def test_mig_devices_are_listed(driver_local: LocalDriver) -> None:
    driver_local.gpus.preset("mig")
    mig = driver_local.gpus.current.gpus[0].mig
    assert mig is not None
    lines = smi(driver_local, "-L").stdout.splitlines()
    assert lines[1] == f"  MIG 3g.20gb     Device  0: (UUID: {mig.devices[0].uuid})"
    assert len(lines) == 3 + 3 + 2


@pytest.mark.parametrize("form", ["index", "uuid", "bus", "long bus", "lower bus"])
def test_a_gpu_is_selected_by_index_uuid_or_pci_id(driver_local: LocalDriver, form: str) -> None:
    gpu = driver_local.gpus.current.gpus[5]
    bus = str(gpu.pci_bus_id)
    wanted = {"index": "5", "uuid": str(gpu.uuid), "bus": bus.upper(), "long bus": gpu.nvml_bus_id, "lower bus": bus}
    done = smi(driver_local, "-i", wanted[form], "--query-gpu=index", "--format=csv,noheader")
    assert (done.returncode, done.stdout) == (0, "5\n")


@pytest.mark.parametrize("wanted", ["8", "GPU-none", "0000:99:00.0", "0,8"])
def test_no_such_gpu_is_exit_code_6(driver_local: LocalDriver, wanted: str) -> None:
    done = smi(driver_local, "-i", wanted)
    assert (done.returncode, done.stdout) == (6, "No devices were found\n")


def test_no_gpus_at_all_is_exit_code_6(driver_local: LocalDriver) -> None:
    driver_local.gpus.preset("no_gpus")
    assert smi(driver_local).returncode == 6


def test_the_xml_document(driver_local: LocalDriver) -> None:
    both = driver_local.hold(0, 1000, "--kind", "C+G")
    shared = driver_local.hold(0, 27, "--kind", "M+C")
    done = smi(driver_local, "-q", "-x")
    assert done.returncode == 0
    assert done.stdout.startswith('<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n')
    root = ET.fromstring(done.stdout)
    assert root.tag == "nvidia_smi_log"
    assert [root.findtext(tag) for tag in ("driver_version", "cuda_version", "attached_gpus")] == [
        "580.95.05",
        "13.0",
        "8",
    ]
    gpus = root.findall("gpu")
    assert [gpu.get("id") for gpu in gpus][:2] == ["00000000:01:00.0", "00000000:21:00.0"]
    first = gpus[0]
    memory = {each.tag: each.text for each in first.find("fb_memory_usage") or []}
    assert memory == {"total": "97887 MiB", "reserved": "638 MiB", "used": "1029 MiB", "free": "96220 MiB"}
    assert first.findtext("uuid") == driver_local.gpus.current.gpus[0].uuid
    assert first.findtext("mig_mode/current_mig") == "N/A"
    assert str(first.findtext("mig_devices")).strip() == "None"
    processes = [{each.tag: each.text for each in info} for info in first.findall("processes/process_info")]
    assert processes == [
        {
            "gpu_instance_id": "N/A",
            "compute_instance_id": "N/A",
            "pid": str(process.pid),
            "type": kind,
            "process_name": sys.executable,
            "used_memory": memory,
        }
        for process, kind, memory in sorted(
            [(both, "C+G", "1000 MiB"), (shared, "M+C", "27 MiB")], key=lambda each: each[0].pid
        )
    ]
    assert gpus[1].findall("processes/process_info") == []


def test_the_xml_document_of_mig(driver_local: LocalDriver) -> None:
    driver_local.gpus.preset("mig")
    mig = driver_local.gpus.current.gpus[0].mig
    assert mig is not None
    process = driver_local.hold(str(mig.devices[1].uuid), 300)
    first, second, third = ET.fromstring(smi(driver_local, "-q", "-x").stdout).findall("gpu")
    devices = first.findall("mig_devices/mig_device")
    assert [device.findtext("index") for device in devices] == ["0", "1", "2"]
    assert devices[1].findtext("gpu_instance_id") == "7"
    assert devices[1].findtext("device_attributes/shared/multiprocessor_count") == "14"
    assert devices[1].findtext("fb_memory_usage/used") == "313 MiB"
    assert devices[1].findtext("fb_memory_usage/total") == "4864 MiB"
    assert first.findtext("processes/process_info/gpu_instance_id") == "7"
    assert first.findtext("processes/process_info/pid") == str(process.pid)
    assert len(second.findall("mig_devices/mig_device")) == 2
    assert third.findtext("mig_mode/current_mig") == "Disabled"
    assert first.findtext("utilization/gpu_util") == "N/A"


def test_markup_in_a_process_name_is_escaped(driver_local: LocalDriver) -> None:
    driver_local.gpus.add_process(0, Process(3_900_001, 5, name="a<b>&c"))
    root = ET.fromstring(smi(driver_local, "-q", "-x", "-i", "0").stdout)
    assert root.findtext("gpu/processes/process_info/process_name") == "a<b>&c"


def test_sections_can_be_chosen(driver_local: LocalDriver) -> None:
    (gpu,) = ET.fromstring(smi(driver_local, "-q", "-x", "-d", "MEMORY,PIDS", "-i", "0").stdout).findall("gpu")
    assert [each.tag for each in gpu] == ["fb_memory_usage", "bar1_memory_usage", "processes"]
    assert smi(driver_local, "-q", "-d", "NOTHING").returncode == 2


def test_the_text_report(driver_local: LocalDriver) -> None:
    driver_local.hold(0, 1000)
    text = smi(driver_local, "-q", "-i", "0").stdout
    assert "==============NVSMI LOG==============" in text
    assert "\nDriver Version                                    : 580.95.05\n" in text
    assert "\nGPU 00000000:01:00.0\n    Product Name                                  : NVIDIA RTX PRO 6000" in text
    assert "    FB Memory Usage\n        Total                                     : 97887 MiB\n" in text
    assert "        Used GPU Memory                           : 1000 MiB\n" in text
    idle = smi(driver_local, "-q", "-i", "1").stdout
    assert "    Processes                                     : None\n" in idle


def test_the_banner(driver_local: LocalDriver) -> None:
    process = driver_local.hold(0, 1000)
    lines = smi(driver_local).stdout.splitlines()
    assert lines[2] == "| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |"
    assert "|   0  NVIDIA RTX PRO 6000 Blac...    On  |   00000000:01:00.0 Off |                    0 |" in lines
    assert "| N/A   31C    P8             34W /  600W |    1002MiB /  97887MiB |      0%      Default |" in lines
    assert {len(line) for line in lines if line.startswith(("|", "+"))} == {91}
    assert re.search(rf"\| +0 +N/A +N/A +{process.pid} +C .* 1000MiB \|", smi(driver_local).stdout)
    process.kill()
    process.wait()
    driver_local.gpus.wait_for_used(0, 2)
    assert "|  No running processes found   " in smi(driver_local).stdout


def test_the_newer_banner_has_other_titles(driver_local: LocalDriver) -> None:
    driver_local.gpus.preset("new_banner")
    line = smi(driver_local).stdout.splitlines()[2]
    assert line == "| NVIDIA-SMI 610.47                 KMD Version: 610.47        CUDA UMD Version: 13.0     |"
    report = smi(driver_local, "-q").stdout
    assert "Driver Version                                    : 610.47 [Deprecated; will be removed" in report


def test_help_lists_the_fields(driver_local: LocalDriver) -> None:
    text = smi(driver_local, "--help-query-gpu").stdout
    assert text.startswith('List of valid properties to query for the switch "--query-gpu":\n\n"timestamp"\n')
    assert '"name" or "gpu_name"\n' in text
    assert '"used_gpu_memory" or "used_memory"\n' in smi(driver_local, "--help-query-compute-apps").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--query-gpu=cuda_version", "--format=csv"], 'Field "cuda_version" is not a valid field to query.'),
        (["--query-compute-apps=pid,nothing", "--format=csv"], 'Field "nothing" is not a valid field to query.'),
        (["--query-gpu=index"], "You have to specify format"),
        (["--query-gpu=index", "--format=json"], "You have to specify format"),
        (["--query-gpu=index", "--format=csv,fancy"], "not a recognized format"),
        (["--frobnicate"], "Option --frobnicate is not recognized"),
        (["-x"], "Invalid combination of input arguments"),
        (["-i"], "requires an argument"),
        (["pmon"], "Invalid combination of input arguments"),
    ],
)
def test_bad_arguments_are_exit_code_2(driver_local: LocalDriver, arguments: list[str], words: str) -> None:
    done = smi(driver_local, *arguments)
    assert done.returncode == 2
    assert words in done.stdout


@pytest.mark.parametrize(
    ("preset", "code", "words"),
    [
        ("no_driver", 9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        ("library_missing", 12, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system."),
        ("mismatch", 18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n"),
        ("no_permission", 4, "Failed to initialize NVML: Insufficient Permissions\n"),
        ("init_unknown", 255, "Failed to initialize NVML: Unknown Error\n"),
        ("lost", 15, "Unable to determine the device handle for GPU0000:61:00.0: GPU is lost.  Reboot the system"),
        ("unknown_error", 255, "Unable to determine the device handle for GPU0000:61:00.0: Unknown Error\n"),
    ],
)
def test_a_driver_in_trouble(driver_local: LocalDriver, preset: str, code: int, words: str) -> None:
    driver_local.gpus.preset(preset)
    for arguments in ([], ["--query-gpu=index", "--format=csv"], ["-q", "-x"]):
        done = smi(driver_local, *arguments)
        assert done.returncode == code
        assert done.stdout.startswith(words)


def test_the_others_can_still_be_asked_for_beside_a_lost_gpu(driver_local: LocalDriver) -> None:
    driver_local.gpus.preset("lost")
    done = smi(driver_local, "-i", "0,1,2", "--query-gpu=index", "--format=csv,noheader")
    assert (done.returncode, done.stdout) == (0, "0\n1\n2\n")
    listed = smi(driver_local, "-L")
    assert (listed.returncode, listed.stdout.count("UUID")) == (15, 7)


def test_newer_drivers_leave_a_lost_gpu_out(driver_local: LocalDriver) -> None:
    driver_local.gpus.preset("unknown_error")
    driver_local.gpus.smi(lost_gpu="skip")
    done = smi(driver_local, "--query-gpu=index", "--format=csv,noheader")
    assert (done.returncode, done.stdout) == (0, "0\n1\n2\n4\n5\n6\n7\n")
    assert done.stderr == "Unable to determine the device handle for GPU3: 0000:61:00.0: Unknown Error\n"


def test_a_gpu_that_needs_a_reset_says_so_in_its_fields(driver_local: LocalDriver) -> None:
    driver_local.gpus.preset("reset_required")
    done = smi(
        driver_local, "-i", "3", "--query-gpu=name,memory.used,gpu_recovery_action", "--format=csv,noheader,nounits"
    )
    assert done.stdout == f"{NAME}, [GPU requires reset], Reset\n"


def test_a_reset_of_a_gpu_in_use_is_refused(driver_local: LocalDriver) -> None:
    driver_local.hold(0, 10)
    done = smi(driver_local, "--gpu-reset", "-i", "0")
    assert done.returncode == 255
    assert "GPU 00000000:01:00.0: In use by another client" in done.stdout
    assert "1 device is currently being used by one or more other processes" in done.stdout


def test_a_reset_is_refused_while_a_monitor_has_nvml_open(driver_local: LocalDriver) -> None:
    monitor = subprocess.Popen(
        [sys.executable, "-c", "import pynvml as n, time; n.nvmlInit(); print('open', flush=True); time.sleep(60)"],
        env=driver_local.environ(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert monitor.stdout is not None
        assert monitor.stdout.readline() == "open\n"
        assert smi(driver_local, "-r", "-i", "0").returncode == 255
    finally:
        monitor.kill()
        monitor.communicate()
    assert smi(driver_local, "-r", "-i", "0").returncode == 0


def test_a_reset_brings_a_gpu_back(driver_local: LocalDriver) -> None:
    driver_local.gpus.preset("lost")
    driver_local.gpus.set(3, held_mib=5000)
    done = smi(driver_local, "-r", "-i", "3")
    assert (done.returncode, done.stdout) == (0, "GPU 00000000:61:00.0 was successfully reset.\nAll done.\n")
    assert smi(driver_local, "-i", "3", "--query-gpu=memory.used", "--format=csv,noheader").stdout == "2 MiB\n"


def test_a_reset_can_be_refused_though_nobody_is_seen(driver_local: LocalDriver) -> None:
    driver_local.gpus.smi(reset_fails=True)
    assert smi(driver_local, "-r", "-i", "0").returncode == 255


def test_modes_are_changed(driver_local: LocalDriver) -> None:
    assert smi(driver_local, "-pm", "1", "-i", "0").stdout.startswith("Persistence mode is already Enabled for GPU")
    done = smi(driver_local, "-pm", "0", "-i", "0")
    assert done.stdout == "Disabled persistence mode for GPU 00000000:01:00.0.\nAll done.\n"
    assert smi(driver_local, "-c", "EXCLUSIVE_PROCESS", "-i", "0").returncode == 0
    done = smi(driver_local, "--query-gpu=persistence_mode,compute_mode", "--format=csv,noheader", "-i", "0")
    assert done.stdout == "Disabled, Exclusive_Process\n"


def test_other_users_may_read_but_not_change(driver_local: LocalDriver) -> None:
    program = [sys.executable, str(driver_local.bin / "nvidia-smi")]
    other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *program]
    assert driver_local.run(*other, "-L").returncode == 0
    reset = driver_local.run(*other, "-r", "-i", "0")
    assert (reset.returncode, "Insufficient Permissions" in reset.stdout) == (4, True)
    mode = driver_local.run(*other, "-pm", "0", "-i", "0")
    assert (mode.returncode, "Insufficient Permissions" in mode.stdout) == (4, True)


def test_a_mig_parent_is_unreadable_for_other_users(driver_local: LocalDriver) -> None:
    driver_local.gpus.preset("mig")
    query = ["--query-gpu=memory.used,memory.total", "--format=csv,noheader", "-i", "0"]
    assert smi(driver_local, *query).stdout == "41 MiB, 40960 MiB\n"
    other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable]
    done = driver_local.run(*other, str(driver_local.bin / "nvidia-smi"), *query)
    assert done.stdout == "[Insufficient Permissions], [Insufficient Permissions]\n"


def test_its_own_delay_exit_code_and_words(driver_local: LocalDriver) -> None:
    driver_local.gpus.smi(delay_s=0.3, exit_code=231, stdout="half a li", stderr="terrible\n")
    begun = time.monotonic()
    done = smi(driver_local, "-L")
    assert time.monotonic() - begun > 0.3
    assert (done.returncode, done.stdout, done.stderr) == (231, "half a li", "terrible\n")


def _deaf_to_term(pid: int) -> bool:
    blocked = re.search(r"^SigBlk:\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return blocked is not None and bool(int(blocked.group(1), 16) >> (signal.SIGTERM - 1) & 1)


def test_its_own_hang(driver_local: LocalDriver) -> None:
    driver_local.gpus.smi(hang_s="forever", ignore_term=True)
    program = [sys.executable, str(driver_local.bin / "nvidia-smi"), "-L"]
    child = subprocess.Popen(program, env=driver_local.environ(), stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while not _deaf_to_term(child.pid):
            assert child.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        child.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=0.2)
    finally:
        child.kill()
        assert child.wait() == -signal.SIGKILL


def test_it_can_go_on_in_a_loop(driver_local: LocalDriver) -> None:
    program = [sys.executable, str(driver_local.bin / "nvidia-smi")]
    child = subprocess.Popen(
        [*program, "--query-gpu=index", "--format=csv,noheader", "-i", "0", "-lms", "20"],
        env=driver_local.environ(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert [child.stdout.readline() for line in range(3)] == ["0\n"] * 3
    finally:
        child.kill()
        child.communicate()


def test_wsl_knows_no_process_memory(driver_local: LocalDriver) -> None:
    driver_local.gpus.preset("wsl")
    root = ET.fromstring(smi(driver_local, "-q", "-x").stdout)
    info = root.find("gpu/processes/process_info")
    assert info is not None
    assert (info.findtext("process_name"), info.findtext("used_memory")) == (
        "/Xwayland",
        "Not available in WDDM driver model",
    )
    assert root.findtext("gpu/minor_number") == "N/A"


def test_unified_memory_is_not_available(driver_local: LocalDriver) -> None:
    driver_local.gpus.preset("gb10")
    process = driver_local.hold(0, 104_277)
    done = smi(driver_local, "--query-gpu=memory.total,memory.used,memory.free", "--format=csv,noheader,nounits")
    assert done.stdout == "[N/A], [N/A], [N/A]\n"
    apps = smi(driver_local, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    assert apps.stdout == f"{process.pid}, 104277\n"


def test_it_is_one_file_for_the_hosts_own_interpreter(tmp_path: Path) -> None:
    program = smi_path()
    assert program.read_bytes().startswith(b"#!/usr/bin/python3 ")
    assert program.stat().st_mode & 0o111 == 0o111
    alone = tmp_path / "nvidia-smi"
    alone.write_bytes(program.read_bytes())
    with running_driver(tmp_path / "driver") as driver:
        done = driver.run(sys.executable, "-IS", str(alone), "-L")
        assert (done.returncode, done.stdout.count("UUID")) == (0, 8)


def test_a_gpu_is_asked_for_without_touching_another(driver_local: LocalDriver) -> None:
    driver_local.gpus.hang("nvmlDevice*", gpu=3)
    for wanted in ("0", str(driver_local.gpus.current.gpus[0].uuid), "0000:01:00.0"):
        done = smi(driver_local, "-i", wanted, "--query-gpu=index", "--format=csv,noheader")
        assert (done.returncode, done.stdout) == (0, "0\n")


def test_an_old_version_does_not_know_newer_fields(driver_local: LocalDriver) -> None:
    driver_local.gpus.preset("old_driver")
    done = smi(driver_local, "--query-gpu=index,memory.reserved", "--format=csv")
    assert (done.returncode, done.stdout) == (2, 'Field "memory.reserved" is not a valid field to query.\n\n')
    (memory,) = ET.fromstring(smi(driver_local, "-q", "-x", "-i", "0").stdout).findall("gpu/fb_memory_usage")
    assert [(each.tag, each.text) for each in memory] == [
        ("total", "40960 MiB"),
        ("used", "517 MiB"),
        ("free", "40443 MiB"),
    ]
