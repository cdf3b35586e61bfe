# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real vLLM, from an empty host to a swap that fails: what docs/real-vllm.md says was seen here.

The tests follow each other on one host, since each load of the server costs half a minute.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from e2e.adhoc import module
from e2e.playbook import Ran
from real.machine import Real, group, unit, until
from real.wheels import VERSION

pytestmark = pytest.mark.timeout(2400)
# One level: for each one vLLM's load generator starts anew, and imports torch.
LOAD = {"concurrency": [4], "input_tokens": 64, "output_tokens": 32, "requests": 16, "warmup": 2}
# The server's own processes, and Python's that looks after shared memory.
ALL = {"api", "engine", "worker", "tracker"}


def row(ran: Ran) -> dict[str, Any]:
    """The host's line of the report."""
    assert ran.report is not None, ran.out
    found: dict[str, Any] = ran.report["rows"][0]
    return found


def test_from_nothing_to_serving(real: Real, tmp_path: Path) -> None:
    host = real.host
    assert not host.exists("/opt/vllm"), "the stand-in has no part in this"
    done = real.run("deploy", "llama", reports=tmp_path).expect()
    assert (row(done)["result"], row(done)["vllm"]) == ("deployed", VERSION), row(done)
    assert "built without CUDA" in done.out, "who meant to use the GPUs hears of it"
    tree = host.run("readlink -f /opt/vllm").stdout.strip()
    assert tree.startswith(f"/opt/vllm.versions/{VERSION}-")
    assert real.completes("llama").startswith("vllm-0.32.0")

    processes = real.processes("llama")
    assert set(processes) == ALL
    owners = host.run(["ps", "-o", "user=", *(f"-p{pid}" for pid in processes.values())]).stdout.split()
    assert owners == ["vllm"] * len(ALL)
    exposure = host.run(["systemd-analyze", "security", "--no-pager", unit("llama")]).stdout.splitlines()[-1]
    assert float(exposure.split(":")[1].split()[0]) <= 2.4, exposure
    shown = real.shown("llama")
    assert (shown["ActiveState"], shown["NRestarts"], int(shown["MainPID"])) == ("active", "0", processes["api"])
    # It computes on the processor, and nobody is to believe otherwise.
    facts = module(host, "gpu_memory_facts")["ansible_facts"]["gpu_memory"]
    assert facts["gpus"][0]["used_mib"] < 100 and facts["gpus"][0]["processes"] == []

    asked = (len(real.index.requests), len(real.hub.requests))
    again = real.run("deploy", "llama").expect()
    assert again.changed == {host.name: 0}
    assert (len(real.index.requests), len(real.hub.requests)) == asked
    assert real.processes("llama") == processes


def test_a_benchmark_is_made_once_and_a_throttled_server_fails_it(real: Real, tmp_path: Path) -> None:
    before = real.processes("llama")
    told = ["-e", json.dumps({"profile": LOAD})]
    first = real.run("benchmark", "llama", *told, reports=tmp_path).expect()
    assert first.changed == {real.host.name: 1} and row(first)["result"] == "measured"
    assert first.report is not None
    result = first.report["hosts"][real.host.name]["result"]
    parts = {part["name"]: part["value"] for part in result["parts"]}
    assert (result["tool"], parts["vllm_version"]) == ("vllm_bench", VERSION), result
    assert [(level["completed"], level["failed"]) for level in result["levels"]] == [(16, 0)]
    (baseline,) = tmp_path.glob("*.json")

    again = real.run("benchmark", "llama", *told, reports=tmp_path / "again").expect()
    assert again.changed == {real.host.name: 0} and row(again)["result"] == "stands"
    assert again.report is not None and again.report["hosts"][real.host.name]["result"] == result

    forced = ["-e", "vllm_benchmark_force=true", "-e", f"baseline={baseline}", "-e", "vllm_benchmark_max_regression=100"]
    with real.throttled("llama"):
        slow = real.run("benchmark", "llama", *told, *forced, reports=tmp_path / "slow").expect(2)
    assert row(slow)["result"] == "REGRESSION" and not row(slow)["ok"], row(slow)
    assert "percent worse than" in slow.out and slow.recap[real.host.name]["failed"] == 1
    assert real.processes("llama") == before, "and nothing of it was restarted"


def test_a_swap_and_one_that_fails(real: Real, tmp_path: Path) -> None:
    host = real.host
    wanted = real.catalogue()["qwen3"]
    fetched = module(host, "vllm_model_files", path=wanted["path"], repo=wanted["repo"], revision=wanted["revision"],
                     endpoint=real.hub.url, python="/opt/vllm/bin/python", min_free_mib=10)  # fmt: skip
    assert fetched["changed"], fetched
    swapped = real.run("swap_model", "qwen3", reports=tmp_path).expect()
    assert row(swapped)["result"] == "swapped", row(swapped)
    real.completes("qwen3")
    assert real.shown("llama")["ActiveState"] == "inactive" and not real.processes("llama")
    assert host.run("systemctl is-enabled vllm-llama.service vllm-qwen3.service", check=False).stdout.split() == ["disabled", "enabled"]

    refused = real.run("swap_model", "llama-short", reports=tmp_path / "refused").expect(2)
    assert row(refused)["result"] == "refused" and "needs 1 MiB of KV cache" in refused.out, row(refused)
    before = real.processes("qwen3")
    assert set(before) == ALL

    failed = real.run("swap_model", "llama-starved", reports=tmp_path / "failed").expect(2)
    assert "rolled back" in row(failed)["result"], row(failed)
    assert failed.report is not None
    diagnosis = failed.report["hosts"][host.name]["diagnosis"]
    assert diagnosis["kind"] == "kv_cache_too_small", diagnosis
    real.completes("qwen3")
    assert not host.exists(f"/etc/systemd/system/{unit('llama-starved')}")
    assert real.run("swap_model", "qwen3").expect().changed == {host.name: 0}


def test_a_server_whose_engine_dies_ends_with_0_and_is_started_again(real: Real) -> None:
    before = real.processes("qwen3")
    real.host.run(["kill", "-KILL", str(before["engine"])])
    until(lambda: real.shown("qwen3")["NRestarts"] == "1", 180, "systemd starts it again")
    journal = real.host.journal(unit("qwen3"), "--output=cat")
    assert "Deactivated successfully" in journal.rsplit("Scheduled restart job", 1)[0].rsplit("Stopp", 1)[0], "its exit status was 0"
    assert not any(real.alive(pid) for pid in before.values()), "and nothing of it was left"


def test_stopping_one_that_is_still_importing_is_no_failure(real: Real) -> None:
    until(lambda: "api" in real.processes("qwen3"), 120, "its next start")
    time.sleep(2)
    assert not real.answers()
    real.host.run(["systemctl", "stop", unit("qwen3")], timeout=90)
    shown = real.shown("qwen3")
    assert (shown["ActiveState"], shown["Result"]) == ("inactive", "success")
    assert (shown["ExecMainCode"], shown["ExecMainStatus"]) in (("1", "143"), ("2", "15")), "ended by SIGTERM, one way or the other"


def test_what_a_killed_api_server_leaves_behind_its_unit_ends(real: Real) -> None:
    real.started("qwen3")
    before = real.processes("qwen3")
    # Without KillMode=mixed: what the API server leaves when nobody ends it.
    with real.drop_in("qwen3", "[Service]\nKillMode=process\nRestart=no\n"):
        real.host.run(["kill", "-KILL", str(before["api"])])
        until(lambda: real.shown("qwen3")["ActiveState"] == "failed", 30, "the unit has failed")
        time.sleep(8)
        left = {name for name in ("engine", "worker") if real.alive(before[name])}
        assert not real.answers(), "its port is free"
        real.host.run(["sh", "-c", f"test ! -e {group('qwen3')} || echo 1 > {group('qwen3')}/cgroup.kill"])
    assert left == {"engine", "worker"}, "they outlive the API server"
    # With it, as declared.
    real.started("qwen3")
    before = real.processes("qwen3")
    with real.drop_in("qwen3", "[Service]\nRestart=no\n"):
        real.host.run(["kill", "-KILL", str(before["api"])])
        until(lambda: real.shown("qwen3")["ActiveState"] == "failed", 30, "the unit has failed")
        assert not any(real.alive(pid) for pid in before.values())


def test_a_flag_that_it_does_not_know_ends_it_for_good(real: Real) -> None:
    path = f"/etc/vllm/{'qwen3'}.yaml"
    declared = real.host.read(path)
    real.host.write(path, declared + "no-such-flag: 1\n")
    real.host.run(["systemctl", "reset-failed", unit("qwen3")])
    real.host.run(["systemctl", "start", unit("qwen3")], timeout=120)
    until(lambda: real.shown("qwen3")["ActiveState"] == "failed", 300, "the unit has failed")
    shown = real.shown("qwen3")
    assert (shown["ExecMainStatus"], shown["NRestarts"]) == ("2", "0"), "RestartPreventExitStatus=2 holds"
    # The declaration is brought back, and with it the service.
    mended = real.run("swap_model", "qwen3").expect()
    assert mended.changed == {real.host.name: 1} and real.host.read(path) == declared
    began = time.monotonic()
    real.host.run(["systemctl", "stop", unit("qwen3")], timeout=90)
    assert time.monotonic() - began < 10
    shown = real.shown("qwen3")
    assert (shown["ActiveState"], shown["Result"], shown["ExecMainStatus"]) == ("inactive", "success", "0")
