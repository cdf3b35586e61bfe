# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guard as ExecStartPre of real units, as an ordinary user inside the sandbox that services get."""

from __future__ import annotations

import json
import time

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._guard import exit_codes
from lab import Host

from .guarded import GUARD, Guarded
from .programs import Programs

ENOUGH = 90057  # of 97,887 MiB at 0.92


@pytest.fixture
def guarded(host: Host) -> Guarded:
    """A unit to guard on a fresh host."""
    return Guarded(host)


def test_an_idle_host_is_not_kept_waiting(guarded: Guarded) -> None:
    guarded.install("--port", "8000")
    guarded.start()
    assert (guarded.state, guarded.status, guarded.said()) == ("active", exit_codes.PASS, "")


def test_it_waits_says_for_what_and_goes_on_at_once(guarded: Guarded) -> None:
    holder = Programs(guarded.host).service("vllm-old", gpus=(2,), mib=92967, name="VLLM::Worker_TP2", properties=())
    guarded.host.gpu.set(2, release_delay_s=1.5)
    guarded.install("--timeout", "60", "--settle", "1")
    guarded.start(wait=False)
    end = time.monotonic() + 10
    while "held by" not in guarded.said():
        assert time.monotonic() < end, guarded.said()
        time.sleep(0.1)
    guarded.host.run("systemctl kill -s KILL vllm-old")
    guarded.wait_for("active")
    said = guarded.said()
    assert f"vllm-guarded.service waits: GPU 2: 4280 MiB free, {ENOUGH} needed" in said
    assert f"held by pid {holder.pid} /usr/bin/python3" in said and "(user root, unit vllm-old.service) [GPU 2: 92967 MiB]" in said
    assert "the memory is free after" in said
    released = max(release.freed_at for release in guarded.host.gpu.releases() if release.gpu == 2)
    # a machine that runs many tests at once can lose a moment between the two
    assert -0.05 < guarded.started_at() - released < 1.0, f"{guarded.started_at() - released:.3f} s after the release"


def test_other_gpus_than_its_own_do_not_matter(guarded: Guarded) -> None:
    Programs(guarded.host).service("neighbour", gpus=(4,), mib=90000)
    guarded.host.gpu.hang("nvmlDeviceGetMemoryInfo*", gpu=7)
    guarded.install("--timeout", "20")
    guarded.start()
    assert (guarded.state, guarded.status) == ("active", exit_codes.PASS)
    guarded.host.gpu.clear_failures()


def test_memory_that_does_not_come(guarded: Guarded) -> None:
    holder = Programs(guarded.host).service("hog", gpus=(1,), mib=50000)
    guarded.install("--timeout", "2")
    guarded.start()
    assert (guarded.state, guarded.status) == ("failed", exit_codes.MEMORY)
    last = guarded.said().splitlines()[-1]
    assert "did not come free within 2 s: GPU 1: 47247 MiB free" in last and f"held by pid {holder.pid}" in guarded.said()


def test_memory_that_nobody_holds_is_said_to_be_so(guarded: Guarded) -> None:
    guarded.host.gpu.set(0, held_mib=30000)
    guarded.install("--timeout", "1")
    guarded.start()
    assert guarded.status == exit_codes.MEMORY
    assert "held by nobody that the driver lists [GPU 0: 30002 MiB]" in guarded.said()


def test_what_can_never_pass_does_not_wait(guarded: Guarded) -> None:
    started = time.monotonic()
    guarded.install("--timeout", "100", "--margin-mib", "20000")
    guarded.start()
    assert (guarded.state, guarded.status) == ("failed", exit_codes.NEVER)
    assert "can never have" in guarded.said()
    guarded.install("--timeout", "100", gpus="0,11")
    guarded.start()
    assert guarded.status == exit_codes.ABSENT and "GPU '11' is not on this host" in guarded.said()
    assert time.monotonic() - started < 30


def test_a_driver_that_cannot_be_read(guarded: Guarded) -> None:
    guarded.host.gpu.preset("mismatch")
    guarded.install("--timeout", "100")
    guarded.start()
    assert guarded.status == exit_codes.DRIVER and "driver_library_mismatch" in guarded.said()
    guarded.host.gpu.preset("lost")
    guarded.start()
    assert guarded.status == exit_codes.DRIVER and "GPU 3: GPU is lost" in guarded.said()


def test_a_driver_that_hangs_is_not_waited_for_without_end(guarded: Guarded) -> None:
    guarded.host.gpu.hang("nvmlDeviceGetMemoryInfo*", ignore_term=True)
    guarded.install("--timeout", "2", "--call-timeout", "1")
    guarded.start()
    assert guarded.status == exit_codes.DRIVER and "driver_hung" in guarded.said()
    guarded.host.gpu.clear_failures()


def test_a_driver_that_loads_after_boot_is_waited_for(guarded: Guarded) -> None:
    guarded.host.gpu.fail("nvmlInit*", 9)
    guarded.install("--timeout", "60")
    guarded.start(wait=False)
    end = time.monotonic() + 10
    while "no_driver" not in guarded.said():
        assert time.monotonic() < end
        time.sleep(0.1)
    assert guarded.state == "activating"
    guarded.host.gpu.clear_failures()
    guarded.wait_for("active")


def test_a_port_that_is_taken(guarded: Guarded) -> None:
    guarded.host.run("systemd-run --quiet --unit=squatter python3 -m http.server 8000")
    end = time.monotonic() + 10
    while ":8000" not in guarded.host.run("ss -ltn").stdout:
        assert time.monotonic() < end
    guarded.install("--port", "8000", "--timeout", "2")
    guarded.start()
    assert guarded.status == exit_codes.PORT and "port 8000 on 0.0.0.0 is in use" in guarded.said()


@pytest.mark.parametrize("kind", ["unified"])
def test_what_an_earlier_run_left_in_the_cgroup(guarded: Guarded, kind: str) -> None:
    # the main process ends, a child of it stays behind in the unit's cgroup
    server = "/bin/sh -c '/usr/bin/sleep 1000 & exec /usr/bin/sleep 0.2'"
    guarded.install("--timeout", "2", server=server, extra="KillMode=process")
    guarded.start()
    guarded.wait_for("inactive")
    guarded.start()
    assert guarded.status == exit_codes.CGROUP
    assert "processes of an earlier run are still in the unit's cgroup" in guarded.said() and "/usr/bin/sleep 1000" in guarded.said()


def test_memory_goes_to_one_unit_at_a_time(guarded: Guarded) -> None:
    """The sandbox of the guard is the server's: see test_start_order.py for units as they are deployed."""
    guarded.install("--port", "8000", "--lock-dir", "/run/gpufleet/locks", extra="RuntimeDirectory=gpufleet/locks/%n")
    guarded.start()
    assert (guarded.state, guarded.status, guarded.said()) == ("active", exit_codes.PASS, "")
    claim = json.loads(guarded.host.run(f"cat /run/gpufleet/locks/{guarded.unit}/claim").stdout)
    assert claim["ticket"] == 1 and claim["passed"] is not None and len(claim["gpus"]) == 4


def test_without_any_package_and_on_debian_13(trixie_host: Host) -> None:
    trixie_host.run("rm -rf /usr/local/lib/python3*/dist-packages/pynvml* /usr/local/lib/python3*/dist-packages/nvidia_ml_py*")
    guarded = Guarded(trixie_host).install("--timeout", "20", "--port", "8000")
    guarded.start()
    assert (guarded.state, guarded.status, guarded.said()) == ("active", exit_codes.PASS, "")
    for backend in ("nvml", "nvidia_smi"):
        guarded.host.run(["systemctl", "stop", guarded.unit])
        guarded.install("--timeout", "20", "--backend", backend)
        guarded.start()
        assert (guarded.state, guarded.status) == ("active", exit_codes.PASS)


def test_it_needs_little(guarded: Guarded) -> None:
    guarded.install("--timeout", "20")
    argv = f"{GUARD} --unit x.service --gpus 0,1,2,3 --utilization 0.92"
    code = (
        "import resource, subprocess, sys, time\n"
        "took = []\n"
        "for _ in range(7):\n"
        "    started = time.monotonic()\n"
        "    subprocess.run(['/usr/bin/python3', *sys.argv[1].split()], check=True)\n"
        "    took.append(time.monotonic() - started)\n"
        "print(min(took), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)\n"
    )
    seconds, mib = (float(word) for word in guarded.host.run(["python3", "-c", code, argv]).stdout.split())
    assert mib < 40 and seconds < 0.5, f"{seconds:.3f} s, {mib:.0f} MiB"
