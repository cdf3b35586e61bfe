# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a stand-in ends: vLLM's signals and exit codes, and every way in which a stop goes wrong."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sim.standin_fixtures import (
    Bench,
    Running,
    eventually,
)


def _slow(bench: Bench) -> None:
    bench.standin.behave(throttle={"tokens_per_s": 20})


def _minimax(bench: Bench, *words: str, **env: str | None) -> Running:
    return bench.serve("minimax", "-tp", "4", "--served-model-name", "m", *words, **env)


def _answer(running: Running, tokens: int) -> tuple[int, str]:
    """(status, reason to finish) of a completion; status 0 when the connection breaks."""
    try:
        status, answer = running.complete("m", max_tokens=tokens)
    except (OSError, http.client.HTTPException):
        return 0, "broken"
    return status, answer["choices"][0]["finish_reason"]


# --- as vLLM does it


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_when_ready(bench: Bench, number: int) -> None:
    running = _minimax(bench).ready()
    started = time.monotonic()
    running.signal(number)
    assert running.ends() == 0
    assert time.monotonic() - started < 1.5
    eventually(lambda: not running.tree())
    eventually(lambda: bench.used_mib() == [2] * 8)
    assert running.lines("[shutdown] API server: stopping engine client mode=abort timeout=0s")


def test_sigterm_aborts_what_runs(bench: Bench) -> None:
    _slow(bench)
    running = _minimax(bench).ready()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(_answer, running, 500)
        eventually(lambda: running.request("GET", "/load")[1]["server_load"] == 1)
        running.signal()
        assert running.ends(3) == 0
        # vLLM answers 200 with what it has if the engine gets to say so before it is killed.
        assert waiting.result() in ((200, "abort"), (0, "broken"))


def test_shutdown_timeout_drains(bench: Bench) -> None:
    _slow(bench)
    running = _minimax(bench, "--shutdown-timeout", "10").ready()
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(_answer, running, 30)
        eventually(lambda: running.request("GET", "/load")[1]["server_load"] == 1)
        running.signal()
        eventually(lambda: running.lines("draining in-flight requests count=1 timeout=10s"))
        assert running.request("GET", "/health")[0] == 200
        status, answer = running.complete("m")
        assert status == 500 and answer["error"]["message"] == "cannot schedule new futures after shutdown"
        assert waiting.result() == (200, "length")
        assert running.ends(3) == 0
    eventually(lambda: not running.tree())


def test_shutdown_timeout_ends(bench: Bench) -> None:
    _slow(bench)
    running = _minimax(bench, "--shutdown-timeout", "1").ready()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(_answer, running, 500)
        eventually(lambda: running.request("GET", "/load")[1]["server_load"] == 1)
        started = time.monotonic()
        running.signal()
        assert running.ends(5) == 0
        assert 0.9 < time.monotonic() - started < 3
        assert waiting.result()[0] == 0
    assert running.lines("[shutdown] Process manager: force killing remaining process EngineCore pid ")
    eventually(lambda: not running.tree())


def test_workers_get_time_to_leave_when_it_is_given(bench: Bench) -> None:
    running = _minimax(bench, VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS="5").ready()
    running.signal()
    assert running.ends() == 0
    assert running.lines("using 5.0s cleanup grace after immediate request abort")
    assert running.lines("[shutdown] Executor: all workers exited gracefully")
    assert not running.lines("force killing")


def test_sigterm_while_loading(bench: Bench) -> None:
    running = _minimax(bench, STANDIN_LOAD_SECONDS="0.6")
    eventually(lambda: running.lines("Starting to load model"))
    running.signal()
    assert running.ends(10) == -signal.SIGINT
    assert running.log.splitlines()[-1] == "KeyboardInterrupt: terminated"
    eventually(lambda: not running.tree())


def test_sigterm_while_loading_kills_after_five_seconds(bench: Bench) -> None:
    running = _minimax(bench, STANDIN_LOAD_SECONDS="60")
    eventually(lambda: running.lines("Starting to load model"))
    started = time.monotonic()
    running.signal()
    assert running.ends(10) == -signal.SIGINT
    assert 4.5 < time.monotonic() - started < 8
    eventually(lambda: not running.tree())


def test_sigterm_while_importing(bench: Bench) -> None:
    running = _minimax(bench, STANDIN_IMPORT_SECONDS="5")
    time.sleep(0.5)
    running.signal()
    assert running.ends(2) == -signal.SIGTERM
    assert running.log == ""


def test_workers_leave_on_sigterm_and_break_a_drain(bench: Bench) -> None:
    """What KillMode=control-group does: everybody gets the signal."""
    _slow(bench)
    running = _minimax(bench, "--shutdown-timeout", "20").ready()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(_answer, running, 100)
        eventually(lambda: running.request("GET", "/load")[1]["server_load"] == 1)
        for pid in running.tree():
            with contextlib.suppress(ProcessLookupError):  # the first signals have their effect already
                os.kill(pid, signal.SIGTERM)
        status, _reason = waiting.result()
        assert status != 200
    running.ends(10)


def test_a_killed_api_server_leaves_engine_and_workers(bench: Bench) -> None:
    running = _minimax(bench).ready()
    running.signal(signal.SIGKILL)
    assert running.ends() == -signal.SIGKILL
    time.sleep(1)
    assert len(running.pids("VLLM::EngineCore")) == 1 and len(running.pids("VLLM::Worker")) == 4
    assert len(bench.listed()) == 4 and min(bench.used_mib()[:4]) > 80_000
    with pytest.raises(ConnectionRefusedError):
        running.request("GET", "/health")
    again = bench.start(
        "serve",
        str(bench.models / "small"),
        "--port",
        str(running.port),
        port=0,
        env=bench.environ(CUDA_VISIBLE_DEVICES="7"),
    )
    again.port = running.port
    again.ready()  # the port is free
    os.kill(running.pids("VLLM::EngineCore")[0], signal.SIGTERM)
    eventually(lambda: not running.tree())


def test_workers_watch_the_engine(bench: Bench) -> None:
    running = _minimax(bench).ready()
    running.signal(signal.SIGKILL)
    running.ends()
    os.kill(running.pids("VLLM::EngineCore")[0], signal.SIGKILL)
    eventually(lambda: not running.pids("VLLM::Worker"), 3)
    assert running.lines("Parent process exited, terminating worker queues")
    eventually(lambda: bench.used_mib() == [2] * 8)


def test_memory_returns_late_when_the_driver_says_so(bench: Bench) -> None:
    bench.driver.gpus.set(0, release_delay_s=1.0)
    running = _minimax(bench).ready()
    running.signal()
    running.ends()
    eventually(lambda: not running.tree())
    used = bench.used_mib()
    assert used[0] > 80_000 and used[1] == 2
    eventually(lambda: bench.used_mib()[0] == 2)


# --- as it shouldn't be


def test_ignore_sigterm(bench: Bench) -> None:
    bench.standin.behave("m", ignore_sigterm=True)
    running = _minimax(bench).ready()
    running.signal()
    running.signal(signal.SIGINT)
    time.sleep(0.5)
    assert running.complete("m")[0] == 200
    bench.standin.clear("m")  # while it runs
    running.signal()
    assert running.ends() == 0


def test_ignore_sigterm_while_loading(bench: Bench) -> None:
    bench.standin.behave(ignore_sigterm=True)
    running = _minimax(bench, STANDIN_LOAD_SECONDS="1")
    eventually(lambda: running.lines("Starting to load model"))
    running.signal()
    running.ready()


def test_slow_stop(bench: Bench) -> None:
    bench.standin.behave(slow_stop=1.5)
    running = _minimax(bench).ready()
    started = time.monotonic()
    running.signal()
    time.sleep(0.5)
    assert running.request("GET", "/health")[0] == 200
    assert running.ends() == 0
    assert time.monotonic() - started > 1.4


def test_workers_ignore_sigterm(bench: Bench) -> None:
    bench.standin.behave(workers_ignore_sigterm=True)
    running = _minimax(bench).ready()
    deaf = running.pids("VLLM::")
    for pid in deaf:
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.5)
    assert running.pids("VLLM::") == deaf
    assert running.complete("m")[0] == 200
    running.signal()
    assert running.ends() == 0  # by SIGKILL
    eventually(lambda: not running.tree())


@pytest.mark.parametrize("model", ["minimax", "small"])
def test_orphan_workers(bench: Bench, model: str) -> None:
    words = ("-tp", "4") if model == "minimax" else ()
    title = "VLLM::Worker" if model == "minimax" else "VLLM::EngineCore"
    running = bench.serve(model, *words, STANDIN_ORPHAN_WORKERS="1", STANDIN_WORKER_MIB="96801").ready()
    workers = running.pids(title)
    running.signal()
    assert running.ends() == 0
    assert running.pids("VLLM::") == workers == sorted(bench.listed())
    assert set(bench.listed().values()) == {96801}
    for pid in workers:
        assert os.getsid(pid) == pid
        assert _parent(pid) not in (running.pid, *workers)
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGHUP)
    time.sleep(0.3)
    assert running.pids("VLLM::") == workers
    with pytest.raises(ConnectionRefusedError):
        running.request("GET", "/health")
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: bench.used_mib() == [2] * 8)
    eventually(lambda: not running.tree())


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _cgroups(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def test_orphans_leave_their_cgroup(bench: Bench) -> None:
    if os.geteuid() != 0:
        pytest.skip("moving processes between cgroups needs root")
    bench.standin.behave(orphan_workers=True, escape_cgroup=True)
    running = _minimax(bench).ready()
    workers = running.pids("VLLM::Worker")
    assert {_cgroups(pid) for pid in workers} == {_cgroups(running.pid)}
    running.signal()
    running.ends()
    try:
        assert all("/standin-escaped" in _cgroups(pid) for pid in workers), running.log
    finally:
        running.clean_up()
        for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"):
            left = Path(root, "standin-escaped")
            if left.is_dir():
                eventually(lambda left=left: _removed(left))  # type: ignore[misc]


def _removed(directory: Path) -> bool:
    try:
        directory.rmdir()
    except OSError:
        return not directory.exists()
    return True


def test_the_reply_of_a_drained_stream_is_whole(bench: Bench) -> None:
    _slow(bench)
    running = _minimax(bench, "--shutdown-timeout", "10").ready()
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=20)
    body = json.dumps({"model": "m", "prompt": "x", "max_tokens": 20, "stream": True})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    first = response.readline()
    assert first.startswith(b"data: ")
    running.signal()
    rest = response.read()
    assert rest.rstrip().endswith(b"data: [DONE]")
    assert rest.count(b'"text"') == 19
    connection.close()
    assert running.ends() == 0
