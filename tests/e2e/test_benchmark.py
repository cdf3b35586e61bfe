# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""benchmark.yml on real systemd hosts: measured once, held against a baseline, slow hosts pointed out, alone on the host."""

from __future__ import annotations

import base64
import importlib
import io
import json
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.playbook import Ran, playbook

from lab import Host, Lab

MODEL = "minimax-m2.5"
UNIT = f"vllm-{MODEL}.service"
LOAD = {"concurrency": [1, 4], "input_tokens": 16, "output_tokens": 16, "requests": 6, "warmup": 1}
# A machine that is busy with other things slows a host down by a quarter; what these tests slow down is a fifth of it.
SPEED, SLOW = 50, 10
TOLD = json.dumps({"profile": LOAD, "vllm_benchmark_tool": "builtin", "slow_percent": 60})


def library() -> str:
    """The load generator's library with what it needs, from this environment: every real installation of vLLM has it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in ("requests", "urllib3", "idna", "certifi", "charset_normalizer"):
            place = Path(str(importlib.import_module(name).__file__)).parent
            archive.add(place, name, filter=lambda entry: None if entry.name.endswith((".so", ".pyc")) else entry)
    return base64.b64encode(packed.getvalue()).decode("ascii")


def benchmark(*arguments: str, **more: Any) -> Ran:
    return playbook("benchmark", "-e", TOLD, *arguments, **more)


def row(ran: Ran, host: str) -> dict[str, Any]:
    assert ran.report is not None, ran.out
    found: dict[str, Any] = next(each for each in ran.report["rows"] if each["host"] == host)
    return found


def marks(host: Host) -> str:
    """What a check mode must not change, and a benchmark neither."""
    return str(host.run(f"find /etc/systemd/system /etc/vllm /var/lib/gpufleet /var/lib/vllm -printf '%p %m %u %s %T@\\n' | sort; "
                        f"systemctl show -p InvocationID,ActiveState {UNIT}").stdout)  # fmt: skip


@pytest.fixture(scope="module")
def serving(lab: Lab) -> Iterator[dict[str, Host]]:
    """Three hosts that serve one model at one known speed."""
    lab.reset()
    playbook("swap_model", "-e", f"model={MODEL}", "-e", "batch=3").expect()
    packed = library()
    for host in lab.hosts.values():
        host.run("base64 -d | tar xz -C /opt/vllm/lib/python3*/site-packages", input=packed)
        throttle(host, SPEED)
    yield lab.hosts


def throttle(host: Host, tokens_per_s: float) -> None:
    host.vllm.behave(throttle={"tokens_per_s": tokens_per_s, "ttft_s": 0.02})


def test_a_fleet_is_measured_once(serving: dict[str, Host], tmp_path: Path) -> None:
    before = {name: marks(host) for name, host in serving.items()}
    planned = benchmark("--check", reports=tmp_path / "check").expect()
    assert planned.report is None and "would measure" in planned.out
    assert {name: marks(host) for name, host in serving.items()} == before, "check mode touches nothing"

    first = benchmark(reports=tmp_path).expect()
    assert set(first.changed.values()) == {1}
    assert first.report is not None and first.report["slow"] == []
    for name in serving:
        found = row(first, name)
        assert (found["result"], found["ok"], found["server"]) == ("measured", True, MODEL)
        result = first.report["hosts"][name]["result"]
        assert [level["completed"] for level in result["levels"]] == [6, 6]
        # 20 ms and 16 tokens at 50 a second; what a busy machine adds only makes it less
        assert 15 < result["levels"][0]["output_throughput"] < 53
        assert result["load"]["prompts"] == "token_ids" and result["levels"][0]["input_tokens"] == 6 * 16
        assert result["levels"][0]["output_throughput_per_gpu"] == pytest.approx(result["levels"][0]["output_throughput"] / 4, abs=0.01)
        assert [gpu["index"] for gpu in result["gpus"]] == [0, 1, 2, 3]
        assert {part["name"] for part in result["parts"]} >= {"unit", "vllm_version", "model", "gpus", "driver_version", "profile", "tool"}
        status = serving[name].run(["stat", "-c", "%a %U", first.report["hosts"][name]["path"]]).stdout.split()
        assert status == ["644", "root"]
    assert {"minimax-m2.5"} == {result["result"]["service"] for result in first.report["hosts"].values()}
    deployments = {first.report["hosts"][name]["deployment"] for name in ("gpu01", "gpu02")}
    assert len(deployments) == 1, "two hosts of one kind can be held against each other"
    (page,) = tmp_path.glob("*.html")
    assert "gpu03" in page.read_text(encoding="utf-8") and len(list(tmp_path.glob("*.md"))) == 1

    again = benchmark(reports=tmp_path).expect()
    assert set(again.changed.values()) == {0}
    assert again.report is not None and row(again, "gpu01")["result"] == "stands"
    told = again.report["hosts"]["gpu01"]["result"]
    assert told == first.report["hosts"]["gpu01"]["result"] and row(again, "gpu01")["detail"].startswith(f"measured {told['measured']}")
    assert not serving["gpu01"].run("find /tmp -name 'gpufleet-benchmark-*'").stdout
    for host in serving.values():
        assert host.systemctl_show(UNIT, ("NRestarts", "ActiveState")) == {"NRestarts": "0", "ActiveState": "active"}


def test_a_throttled_server_fails_the_pipeline(serving: dict[str, Host], tmp_path: Path) -> None:
    benchmark(reports=tmp_path).expect()
    (baseline,) = tmp_path.glob("*.json")
    throttle(serving["gpu02"], SLOW)
    try:
        # The gate as it is documented: nothing that a fingerprint is made of has changed, and it measures.
        ran = benchmark("-e", f"baseline={baseline}", "-e", "vllm_benchmark_max_regression=200", reports=tmp_path / "second").expect(2)
    finally:
        throttle(serving["gpu02"], SPEED)
    assert row(ran, "gpu02")["result"] == "REGRESSION, SLOW"
    assert [row(ran, name)["ok"] for name in ("gpu01", "gpu03")] == [True, True]
    assert ran.report is not None and [each["host"] for each in ran.report["slow"]] == ["gpu02"]
    assert set(ran.changed.values()) == {1}, "each was measured anew"
    assert "percent worse than" in ran.out and ran.recap["gpu02"]["failed"] == 1 and ran.recap["gpu01"]["failed"] == 0
    assert list((tmp_path / "second").glob("*.html")), "the report comes first, the failure after it"


def test_failing_requests_fail_the_pipeline_and_are_not_kept(serving: dict[str, Host], tmp_path: Path) -> None:
    serving["gpu01"].vllm.behave(completions="error")
    try:
        stands = benchmark("--limit", "gpu01,localhost", reports=tmp_path / "stands").expect(2)
        ran = benchmark("-e", "vllm_benchmark_force=true", "--limit", "gpu01,localhost", reports=tmp_path).expect(2)
    finally:
        serving["gpu01"].vllm.behave(completions=None)
    found = row(ran, "gpu01")
    assert found["result"] in ("FAILED REQUESTS", "FAILED") and not found["ok"], found
    assert "500" in ran.out
    told = row(stands, "gpu01")
    assert told["result"] == "FAILED" and "does not answer a completion now: HTTP 500" in told["detail"], told


def test_a_server_that_is_older_than_its_files_is_not_measured(serving: dict[str, Host], tmp_path: Path) -> None:
    host, path = serving["gpu01"], f"/etc/vllm/{MODEL}.yaml"
    written = host.run(["stat", "-c", "%Y", path]).stdout.strip()
    host.run(["touch", path])
    try:
        ran = benchmark("-e", "vllm_benchmark_force=true", "--limit", "gpu01,localhost", reports=tmp_path).expect(2)
    finally:
        host.run(["touch", "-d", f"@{written}", path])
    found = row(ran, "gpu01")
    assert found["result"] == "FAILED" and f"its process is older than {path}" in found["detail"], found


def test_a_benchmark_that_is_killed_ends_the_wait_and_the_next_one_sweeps(serving: dict[str, Host], tmp_path: Path) -> None:
    host = serving["gpu01"]
    long = json.dumps({"profile": dict(LOAD, concurrency=[1], requests=400), "vllm_benchmark_force": True})
    ended: list[Ran] = []
    thread = threading.Thread(target=lambda: ended.append(benchmark("-e", long, "--limit", "gpu01,localhost", reports=tmp_path)))
    thread.start()
    try:
        pid = measuring(host, thread)
        left = host.run("until ls -d /tmp/gpufleet-benchmark-*; do sleep 0.1; done 2>/dev/null").stdout.split()
        host.run(f"kill -9 $(grep -ls '[a]sync_wrapper' /proc/[0-9]*/cmdline | cut -d/ -f3) {pid}")
        killed = time.monotonic()
    finally:
        thread.join(240)
    assert time.monotonic() - killed < 60, "whatever async says"
    found = row(ended[0].expect(2), "gpu01")
    assert found["result"] == "FAILED" and "nobody works on it any more" in found["detail"], found
    assert left and not host.run("ls ~/.ansible_async", check=False).stdout
    # One that was made just now is left alone, and a quick machine comes back before it is older.
    host.run(f"while [ $(($(date +%s) - $(stat -c %Z {left[0]}))) -le 10 ]; do sleep 0.5; done")
    after = benchmark("-e", "vllm_benchmark_force=true", "--limit", "gpu01,localhost", reports=tmp_path / "after").expect()
    assert row(after, "gpu01")["result"] == "measured"
    assert not host.run("find /tmp -name 'gpufleet-benchmark-*'").stdout


def test_a_benchmark_that_measures_on_without_its_wrapper_is_not_called_dead(serving: dict[str, Host], tmp_path: Path) -> None:
    host = serving["gpu01"]
    long = json.dumps({"profile": dict(LOAD, concurrency=[1], requests=120)})
    ended: list[Ran] = []
    thread = threading.Thread(target=lambda: ended.append(benchmark("-e", long, "--limit", "gpu01,localhost", reports=tmp_path)))
    thread.start()
    try:
        pid = measuring(host, thread)
        host.run("kill -9 $(grep -ls '[a]sync_wrapper' /proc/[0-9]*/cmdline | cut -d/ -f3)")
    finally:
        thread.join(240)
    found = row(ended[0].expect(2), "gpu01")
    assert f"still measures there: pid {pid} (vllm_benchmark of {MODEL})" in found["detail"], found
    assert "nobody works on it" not in found["detail"]
    host.run(f"while kill -0 {pid}; do sleep 0.2; done 2>/dev/null", timeout=200)
    after = benchmark("-e", long, "--limit", "gpu01,localhost", reports=tmp_path / "after").expect()
    assert row(after, "gpu01")["result"] == "stands", "what it found is kept, as was said"


def measuring(host: Host, thread: threading.Thread) -> int:
    """Wait until a benchmark has the host to itself; the process id of its module."""
    end = time.monotonic() + 120
    while not (note := host.run("cat /run/gpufleet/change.lock", check=False).stdout):
        assert thread.is_alive() and time.monotonic() < end, "the benchmark did not begin"
        time.sleep(0.2)
    return int(json.loads(note)["pid"])


def test_a_swap_and_a_benchmark_wait_for_each_other(serving: dict[str, Host], tmp_path: Path) -> None:
    host = serving["gpu01"]
    ended: list[Ran] = []
    long = json.dumps({"profile": dict(LOAD, concurrency=[1], requests=100)})
    thread = threading.Thread(target=lambda: ended.append(benchmark("-e", long, "--limit", "gpu01,localhost", reports=tmp_path)))
    thread.start()
    try:
        measuring(host, thread)
        swap = playbook("swap_model", "-e", "model=kimi-k2.5-int4", "--limit", "gpu01,localhost")
        # A clean-up that finds nothing to end has nothing to wait for.
        cleanup = playbook("gpu_cleanup", "--limit", "gpu01,localhost")
    finally:
        thread.join(240)
    assert swap.rc != 0 and f"vllm_benchmark of {MODEL}" in swap.out, swap.out
    assert cleanup.expect().changed == {"gpu01": 0}
    assert row(ended[0].expect(), "gpu01")["result"] == "measured", "and nothing of it was disturbed"
    assert host.systemctl_show(UNIT, ("ActiveState",)) == {"ActiveState": "active"}
