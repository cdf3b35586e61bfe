# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines that look like one cause and are another: frames of compiled code, other ports, what was got over, other processes."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._diagnosis.classify import DiagnosisContext, classify

ENGINE = "(EngineCore_DP0 pid=7) "
FRAMES = ["Traceback (most recent call last):", '  File "/opt/vllm/bin/vllm", line 8, in <module>', "    sys.exit(main())"]
INFO = ["INFO 11-29 15:44:01 [api_server.py:1] vLLM API server version 0.32.0", "INFO 11-29 15:44:02 [core.py:2] Initializing an engine"]
ELSEWHERE = '  File "/var/lib/vllm/m/cache/vllm/torch_compile_cache/1f/rank_0_0/%s/cab.py", line 9, in call'


@pytest.mark.parametrize("path", ["inductor_cache/ab", "No such file or directory", "corrupt"])
def test_where_a_frame_stands_is_no_statement(path: str) -> None:
    lines = [*INFO, FRAMES[0], ELSEWHERE % path, "    extern_kernels.mm(buf0, buf1, out=buf2)", "KeyError: 'x'"]
    found = classify(lines, DiagnosisContext(exit_code="exited", exit_status=1))
    assert found.kind == "unknown" and "KeyError: 'x'" in found.summary, found


@pytest.mark.parametrize("line", [
    "FileNotFoundError: [Errno 2] No such file or directory: '/v/cache/vllm/torch_compile_cache/1f/rank_0_0/vllm_compile_cache.py'",
    "ImportError: /v/cache/torchinductor/ab/cab.so: invalid ELF header",
    "OSError: /root/.triton/cache/6MZQ/cuda_utils.so: file too short",
    "RuntimeError: Failed to load compiled graph",
])
def test_a_damaged_file_of_a_cache_is_named(line: str) -> None:
    assert classify([*INFO, *FRAMES, line], DiagnosisContext(exit_code="exited", exit_status=1)).kind == "compile_cache"


@pytest.mark.parametrize(("line", "said"), [
    ("OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use", "port 8000"),
    ("OSError: [Errno 98] error while attempting to bind on address ('::', 8001, 0, 0): address already in use", "port 8001, which"),
    ("[W1129 15:44:21.123 socket.cpp:436] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
     "port 29500, which"),
    ("OSError: [Errno 98] Address already in use", "port 8000"),
    ("zmq.error.ZMQError: Address already in use", "a port that the server needs"),
    (ENGINE + "OSError: [Errno 98] Address already in use", "a port that the server needs"),
    ("zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:5600')", "port 5600, which"),
])
def test_the_port_is_the_one_that_the_line_names(line: str, said: str) -> None:
    found = classify([*INFO, *FRAMES, line], DiagnosisContext(exit_code="exited", exit_status=1, port=8000))
    assert found.kind == "port_in_use" and said in found.summary, found
    assert "8000" not in found.advice or said == "port 8000"


def test_main_memory_that_was_missing_counts_only_where_it_ended_the_server() -> None:
    lines = [*INFO, "mmap: Cannot allocate memory, trying smaller pages", *FRAMES, "ValueError: no such layer"]
    assert "no such layer" in classify(lines, DiagnosisContext(exit_code="exited", exit_status=1)).summary
    lines = [*INFO, *FRAMES, "OSError: [Errno 12] Cannot allocate memory"]
    assert classify(lines, DiagnosisContext(exit_code="exited", exit_status=1)).kind == "host_oom"


def test_a_server_of_one_process_says_itself_how_far_it_had_come() -> None:
    lines = ["Model loading took 5.0 GiB memory and 3 seconds", *FRAMES]
    lines.append("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    for who in ("", ENGINE, "(VllmWorker rank=0 pid=8) "):
        assert classify([who + line for line in lines], DiagnosisContext(exit_code="exited", exit_status=1)).kind == "oom_warmup", who


def test_the_servers_own_processes_are_no_strangers_on_its_gpu() -> None:
    line = "(Worker_TP0 pid=7) torch.OutOfMemoryError: CUDA out of memory. Process 8 has 9.0 GiB memory in use. " + (
        "Process 9 has 1.5 GiB memory in use."
    )
    found = classify(["(Worker_TP1 pid=8) hello", line], DiagnosisContext(exit_code="exited", exit_status=1))
    assert "process 9 held 1.5 GiB" in found.summary and "process 8" not in found.summary


@pytest.mark.parametrize("line", [
    "Read-only file system (os error 30)",
    "FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp', '/usr/tmp', '/']",
    "OSError: [Errno 30] Read-only file system: '/data/x'",
    "PermissionError: [Errno 13] Permission denied: '/v/cache/triton/6MZQ'",
])
def test_a_cache_that_could_not_be_written_is_no_cause_where_it_was_got_over(line: str) -> None:
    lines = [*INFO, "cache not used: " + line, *FRAMES, "ValueError: no such layer"]
    assert "no such layer" in classify(lines, DiagnosisContext(exit_code="exited", exit_status=1)).summary
    alone = classify([*INFO, line], DiagnosisContext(exit_code="exited", exit_status=1))
    assert ("ReadWritePaths" in alone.advice) is ("Permission" not in line) and "  " not in alone.summary, alone
