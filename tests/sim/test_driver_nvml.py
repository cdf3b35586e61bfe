# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The library satisfies the real pynvml: identities, memory, readings, refusals, and how it behaves in a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.driver import codes
from lab.driver.build import build_library, exported
from lab.driver.testing import LocalDriver, running_driver

Nvml = Callable[[str], Any]

MIB = 1024 * 1024


def test_the_system_tells_its_versions(driver_nvml: Nvml) -> None:
    out = driver_nvml(
        "out = [n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetNVMLVersion(),"
        " n.nvmlSystemGetCudaDriverVersion(), n.nvmlSystemGetCudaDriverVersion_v2(), n.nvmlDeviceGetCount()]"
    )
    assert out == ["580.95.05", "13.580.95.05", 13000, 13000, 8]


def test_a_gpu_tells_who_it_is(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    out = driver_nvml(
        """
h, pci = gpu(1), n.nvmlDeviceGetPciInfo(gpu(1))
out = dict(name=n.nvmlDeviceGetName(h), uuid=n.nvmlDeviceGetUUID(h), index=n.nvmlDeviceGetIndex(h),
    minor=n.nvmlDeviceGetMinorNumber(h), serial=n.nvmlDeviceGetSerial(h), brand=n.nvmlDeviceGetBrand(h),
    bus=pci.busId, legacy=pci.busIdLegacy, numbers=[pci.domain, pci.bus, pci.device, pci.pciDeviceId],
    architecture=n.nvmlDeviceGetArchitecture(h), capability=n.nvmlDeviceGetCudaComputeCapability(h),
    cores=n.nvmlDeviceGetNumGpuCores(h), vbios=n.nvmlDeviceGetVbiosVersion(h))
"""
    )
    gpu = driver_local.gpus.current.gpus[1]
    assert out == {
        "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "uuid": gpu.uuid,
        "index": 1,
        "minor": 1,
        "serial": gpu.serial,
        "brand": 13,
        "bus": "00000000:21:00.0",
        "legacy": "0000:21:00.0",
        "numbers": [0, 0x21, 0, 0x2BB510DE],
        "architecture": 10,
        "capability": [12, 0],
        "cores": 24064,
        "vbios": "98.02.81.00.07",
    }


def test_handles_by_uuid_pci_id_and_serial_are_the_same_gpu(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    gpu = driver_local.gpus.current.gpus[5]
    out = driver_nvml(
        f"""
out = [n.nvmlDeviceGetIndex(h) for h in (
    n.nvmlDeviceGetHandleByUUID("{gpu.uuid}"), n.nvmlDeviceGetHandleByPciBusId("{gpu.pci_bus_id}"),
    n.nvmlDeviceGetHandleByPciBusId("{gpu.nvml_bus_id}"), n.nvmlDeviceGetHandleBySerial("{gpu.serial}"))]
"""
    )
    assert out == [5, 5, 5, 5]


def test_handles_of_nothing_are_refused(driver_nvml: Nvml) -> None:
    out = driver_nvml(
        """
out = [code(n.nvmlDeviceGetHandleByIndex, 8), code(n.nvmlDeviceGetHandleByUUID, "GPU-none"),
    code(n.nvmlDeviceGetHandleByUUID, "0"), code(n.nvmlDeviceGetHandleByPciBusId, "0000:99:00.0"),
    code(n.nvmlDeviceGetHandleBySerial, "1"), code(n.nvmlDeviceGetName, n.c_nvmlDevice_t())]
"""
    )
    assert out == [2, 6, 6, 6, 6, 2]


def test_the_first_memory_form_counts_the_drivers_reserve_as_used(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.hold(0, 1000)
    first, second = driver_nvml(
        """
a, b = n.nvmlDeviceGetMemoryInfo(gpu(0)), n.nvmlDeviceGetMemoryInfo(gpu(0), n.nvmlMemory_v2)
out = [[a.total, a.free, a.used], [b.total, b.reserved, b.free, b.used]]
"""
    )
    assert first == [97887 * MIB, (97887 - 638 - 1002) * MIB, (1002 + 638) * MIB]
    assert second == [97887 * MIB, 638 * MIB, (97887 - 638 - 1002) * MIB, 1002 * MIB]
    assert second[0] == sum(second[1:])


def test_the_second_memory_form_checks_its_version_word(driver_nvml: Nvml) -> None:
    out = driver_nvml("out = [code(n.nvmlDeviceGetMemoryInfo, gpu(0), v) for v in (1, 0x02000020, n.nvmlMemory_v2)]")
    assert out == [25, 25, 0]


def test_readings_follow_the_scenario(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.set(
        2, utilization_percent=97, memory_utilization_percent=41, temperature_c=66, power_mw=512_345, fan_percent=30
    )
    out = driver_nvml(
        """
h = gpu(2); u = n.nvmlDeviceGetUtilizationRates(h); bar = n.nvmlDeviceGetBAR1MemoryInfo(h)
out = [u.gpu, u.memory, n.nvmlDeviceGetTemperature(h, 0), n.nvmlDeviceGetTemperatureV(h, 0),
    n.nvmlDeviceGetPowerUsage(h), n.nvmlDeviceGetFanSpeed(h),
    n.nvmlDeviceGetEnforcedPowerLimit(h), n.nvmlDeviceGetPowerManagementLimit(h), n.nvmlDeviceGetPerformanceState(h),
    n.nvmlDeviceGetComputeMode(h), n.nvmlDeviceGetPersistenceMode(h), n.nvmlDeviceGetEccMode(h),
    n.nvmlDeviceGetVirtualizationMode(h), n.nvmlDeviceGetDisplayActive(h), n.nvmlDeviceGetClockInfo(h, 1),
    n.nvmlDeviceGetClockInfo(h, 2), bar.bar1Total == bar.bar1Free + bar.bar1Used, code(n.nvmlDeviceGetMigMode, h)]
"""
    )
    assert out == [97, 41, 66, 66, 512_345, 30, 600_000, 600_000, 8, 0, 1, [1, 1], 0, 0, 180, 405, True, 3]


def test_health_readings_follow_the_scenario(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.set(0, remapped_rows=[1, 2, 1, 0], retired_pages=3, retired_pages_pending=True, recovery_action=1)
    out = driver_nvml(
        """
h = gpu(0); values = n.nvmlDeviceGetFieldValues(h, [144, 230, 226, 9999])
out = [n.nvmlDeviceGetRemappedRows(h), len(n.nvmlDeviceGetRetiredPages(h, 1)), n.nvmlDeviceGetRetiredPages(h, 0),
    n.nvmlDeviceGetRetiredPagesPendingStatus(h), [(v.nvmlReturn, v.value.uiVal) for v in values]]
"""
    )
    assert out == [[1, 2, 1, 0], 3, [], 1, [[0, 1], [0, 1], [0, 1], [3, 0]]]


def test_the_modes_can_be_changed_by_root_only(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.fail("nvmlDeviceSetComputeMode", 4, unprivileged=True)
    out = driver_nvml(
        """
h = gpu(0); n.nvmlDeviceSetPersistenceMode(h, 0); n.nvmlDeviceSetComputeMode(h, 3)
out = [n.nvmlDeviceGetPersistenceMode(h), n.nvmlDeviceGetComputeMode(h)]
import os; os.setuid(65534); n.nvmlShutdown(); n.nvmlInit(); h = gpu(0)
out += [code(n.nvmlDeviceSetPersistenceMode, h, 1), code(n.nvmlDeviceSetComputeMode, h, 0)]
"""
    )
    assert out == [0, 3, 4, 4]


def test_every_return_code_has_its_text(driver_nvml: Nvml) -> None:
    out = driver_nvml(f"out = [n.nvmlErrorString(each) for each in {sorted(codes.TEXTS)}] + [n.nvmlErrorString(12345)]")
    assert out == [codes.text_of(each) for each in sorted(codes.TEXTS)] + ["Unknown Error"]


def test_nothing_works_before_init_and_after_shutdown(driver_nvml: Nvml) -> None:
    out = driver_nvml(
        """
n.nvmlInit(); n.nvmlShutdown()          # opened twice, closed once: still open
out = [code(n.nvmlDeviceGetCount)]
h = gpu(0); n.nvmlShutdown()
out += [code(n.nvmlDeviceGetCount), code(n.nvmlDeviceGetName, h), code(n.nvmlShutdown)]
n.nvmlInit(); out.append(n.nvmlDeviceGetCount())
"""
    )
    assert out == [0, 1, 1, 1, 8]


def test_no_daemon_means_that_no_driver_is_loaded(tmp_path: Path) -> None:
    with running_driver(tmp_path) as driver:
        driver.stop()
        done = driver.python("import pynvml as n\ntry: n.nvmlInit()\nexcept n.NVMLError as e: print(e.value)")
        assert done.stdout.split() == [str(codes.DRIVER_NOT_LOADED)]
        smi = driver.run("nvidia-smi")
        assert (smi.returncode, "couldn't communicate with the NVIDIA driver" in smi.stdout) == (9, True)


def test_a_driver_that_goes_away_leaves_errors_not_hangs(tmp_path: Path) -> None:
    with running_driver(tmp_path) as driver:
        code = """
import pynvml as n, sys
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); print("open", flush=True); sys.stdin.readline()
for _ in range(2):
    try: n.nvmlDeviceGetMemoryInfo(h)
    except n.NVMLError as error: print(error.value)
"""
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            env=driver.environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        driver.stop()
        out, _err = child.communicate("\n", timeout=10)
        assert out.split() == ["999", "999"]


def test_a_gpu_whose_node_can_not_be_opened_is_not_shown(tmp_path: Path) -> None:
    with running_driver(tmp_path) as driver:
        (driver.dev / "nvidia1").unlink()
        done = driver.python(
            "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(1);"
            "print(n.nvmlDeviceGetCount(), n.nvmlDeviceGetMinorNumber(h), n.nvmlDeviceGetIndex(h))"
        )
        assert done.stdout.split() == ["7", "2", "1"]
        assert driver.run("nvidia-smi", "-L").stdout.count("GPU-") == 7


def test_without_the_control_node_there_is_no_driver(tmp_path: Path) -> None:
    with running_driver(tmp_path) as driver:
        (driver.dev / "nvidiactl").unlink()
        done = driver.python("import pynvml as n\ntry: n.nvmlInit()\nexcept n.NVMLError as e: print(e.value)")
        assert done.stdout.split() == ["9"]
        assert driver.run("nvidia-smi").returncode == 9


def test_an_open_library_holds_the_device_nodes(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    out = driver_nvml(
        """
import os
def held(): return sorted(os.path.basename(os.readlink("/proc/self/fd/" + f)) for f in os.listdir("/proc/self/fd")
                          if os.path.exists("/proc/self/fd/" + f) and "nvidia" in os.readlink("/proc/self/fd/" + f))
out = [held()]; n.nvmlShutdown(); out.append(held())
"""
    )
    assert out == [sorted(["nvidiactl", *(f"nvidia{index}" for index in range(8))]), []]


def test_a_forked_child_may_go_on_calling(driver_nvml: Nvml) -> None:
    out = driver_nvml(
        """
import os
h = gpu(0); reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, str(sum(n.nvmlDeviceGetMemoryInfo(h).total for _ in range(200))).encode()); os._exit(0)
mine = sum(n.nvmlDeviceGetMemoryInfo(h).total for _ in range(200))
out = [mine == int(os.read(reader, 100)), os.wait()[1]]
"""
    )
    assert out == [True, 0]


def test_threads_may_call_at_once(driver_nvml: Nvml) -> None:
    out = driver_nvml(
        """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    out = sorted(set(pool.map(lambda i: (i % 8, n.nvmlDeviceGetIndex(gpu(i % 8))), range(400))))
"""
    )
    assert out == [[index, index] for index in range(8)]


def test_a_call_takes_well_under_a_millisecond(driver_nvml: Nvml) -> None:
    out = driver_nvml(
        """
import time
h, spans = gpu(0), []
for _ in range(500):
    begun = time.perf_counter(); n.nvmlDeviceGetMemoryInfo(h); spans.append(time.perf_counter() - begun)
out = sorted(spans)[50]  # what it costs when nobody else wants the processor
"""
    )
    assert out < 0.0003


def test_calls_are_counted(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.reset_calls()
    driver_nvml("[n.nvmlDeviceGetMemoryInfo(gpu(0)) for _ in range(3)]")
    assert driver_local.gpus.calls() == {
        "nvmlInitWithFlags": 1,
        "nvmlDeviceGetHandleByIndex_v2": 3,
        "nvmlDeviceGetMemoryInfo": 3,
    }


def test_a_name_that_is_not_utf8_comes_as_its_bytes(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.preset("bad_name")
    out = driver_nvml(
        """
import ctypes
name = ctypes.create_string_buffer(96)
n._nvmlGetFunctionPointer("nvmlDeviceGetName")(gpu(0), name, 96)
out = list(name.value)
"""
    )
    assert bytes(out) == b"NVIDIA \xff\xfe RTX"
    smi = driver_local.run("nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "-i", "0")
    assert smi.stdout == "NVIDIA \udcff\udcfe RTX\n"


def test_a_buffer_that_is_too_small_is_refused(driver_nvml: Nvml) -> None:
    out = driver_nvml(
        """
import ctypes
name = ctypes.create_string_buffer(96)
out = [n._nvmlGetFunctionPointer("nvmlDeviceGetName")(gpu(0), name, size) for size in (44, 45)]
"""
    )
    assert out == [codes.INSUFFICIENT_SIZE, codes.SUCCESS]


def test_the_library_needs_no_newer_libc_than_old_hosts_have(tmp_path: Path) -> None:
    library = build_library(tmp_path)
    table = subprocess.run(["objdump", "-T", str(library)], capture_output=True, text=True, check=True).stdout
    needed = {word.strip("()") for row in table.splitlines() for word in row.split() if "GLIBC_" in word}
    assert needed
    for version in needed:
        assert tuple(int(part) for part in version.removeprefix("GLIBC_").split(".")) <= (2, 31), version


def test_the_library_is_named_as_the_real_one_and_exports_nothing_else(tmp_path: Path) -> None:
    library = build_library(tmp_path)
    head = subprocess.run(["objdump", "-p", str(library)], capture_output=True, text=True, check=True).stdout
    assert "SONAME               libnvidia-ml.so.1" in head
    assert len(exported()) > 60
    assert all(name.startswith("nvml") for name in exported())
