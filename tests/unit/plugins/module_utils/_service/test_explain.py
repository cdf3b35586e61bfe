# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is added to a journal's word by those who know more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, List

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, GpuProcess
from ansible_collections.gpufleet.vllm.plugins.module_utils._server.ready import ReadyState
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.explain import explain
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ready import NotReady
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.spec import ServiceSpec
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import FakeReader, gpu, status

UNIT = "vllm-kimi.service"
NOT_FREE = (
    "(Worker_TP3 pid=5) ERROR 11-29 15:44:21 [multiproc_executor.py:708] ValueError: Free memory on device cuda:3 (0.92/94.97 GiB) on "
    "startup is less than desired GPU memory utilization (0.92, 87.37 GiB). Decrease GPU memory utilization or reduce GPU memory used."
)


OOM = (
    "(Worker_TP3 pid=5) ERROR 11-29 15:44:21 [multiproc_executor.py:953] torch.OutOfMemoryError: CUDA out of memory. "
    "GPU 3 has a total capacity of 94.97 GiB of which 1.12 GiB is free. Process 4711 has 70.0 GiB memory in use."
)


def told(lines: List[str], gpus: List[Gpu], exit_status: int = 1, invocations: Any = None, unwell: ReadyState | None = None) -> Any:
    spec = ServiceSpec(name="kimi", model="org/kimi", served_name="kimi", gpus=tuple(each.index for each in gpus))
    look: Any = SimpleNamespace(spec=spec, gpus=tuple(gpus), view=SimpleNamespace(unit=UNIT))

    def journal(unit: str, invocation: str) -> Any:
        (invocations if invocations is not None else []).append((unit, invocation))
        return [SimpleNamespace(text=line) for line in lines]

    ports: Any = SimpleNamespace(journal=SimpleNamespace(lines=journal), open_reader=lambda: FakeReader(lambda: gpus))
    seen = status(UNIT, "failed", exec_main_code="exited", exec_main_status=exit_status, invocation_id="abc", result="exit-code")
    if unwell is not None:
        return explain(NotReady("it failed", status(UNIT, "active", invocation_id="abc"), True, unwell), look, ports)
    return explain(NotReady("it failed", seen, False), look, ports)


def holder(pid: int, used: int | None, unit: str) -> GpuProcess:
    return GpuProcess(pid, "C", used, name="python3", user="alice", unit=unit)


def test_who_holds_the_memory_is_named() -> None:
    gpus = [gpu(0), gpu(3, 96801, [holder(4711, 96801, "train.service"), holder(7, 12, UNIT)])]
    found = told([NOT_FREE], gpus)
    assert found.kind == "memory_not_free"
    assert found.advice.startswith("Pid 4711, python3, user alice, train.service holds 96,801 MiB on GPU 3. Find who")
    assert "pid 7" not in found.advice


@pytest.mark.parametrize(("before", "kind"), [
    ([], "oom_load"), (["(Worker_TP3 pid=5) INFO 11-29 15:44:20 [gpu_model_runner.py:4012] Model loading took 7 GiB"], "oom_warmup"),
])  # fmt: skip
def test_who_shared_the_gpu_is_named_where_memory_ran_out(before: List[str], kind: str) -> None:
    strangers = [holder(4711, 71680, "train.service"), holder(12, 60, "display.service"), holder(13, None, "jupyter.service")]
    found = told([*before, OOM], [gpu(3, 71680, [*strangers, holder(7, 9000, UNIT)])])
    assert found.kind == kind and "process 4711 held 70.0 GiB" in found.summary
    assert found.advice.startswith("Pid 4711, python3, user alice, train.service holds 71,680 MiB on GPU 3; pid 13, "), found
    assert "pid 12" not in found.advice and "pid 7," not in found.advice


def test_a_crowd_is_not_listed() -> None:
    found = told([NOT_FREE], [gpu(3, 96801, [holder(pid, 100, "train.service") for pid in range(100, 140)])])
    assert "and 36 more" in found.advice and len(found.advice) < 600


def test_nobody_to_name_adds_nothing() -> None:
    assert told([NOT_FREE], [gpu(3, 96801)]).advice == told([NOT_FREE], []).advice


@pytest.mark.parametrize(("flag", "said"), [
    ("--task", "Use runner"),
    ("--swap-space", "no swap space"),
    ("--disable-log-requests", "enable_log_requests"),
    ("--no-disable-log-requests", "enable_log_requests"),
    ("--max-seq-len-to-capture", "max_cudagraph_capture_size"),
    ("--num-scheduler-steps", "multi-step scheduling is gone"),
    ("--guided-decoding-backend", "structured_outputs_config"),
])  # fmt: skip
def test_a_removed_flag_comes_with_what_replaces_it(flag: str, said: str) -> None:
    found = told(["usage: vllm [-h]", "vllm: error: unrecognized arguments: %s=4" % flag], [], exit_status=2)
    assert found.kind == "bad_argument" and said in found.advice and flag in found.advice, found


def test_only_this_start_is_read() -> None:
    asked: List[Any] = []
    told(["x"], [], invocations=asked)
    assert asked == [(UNIT, "abc")]


LOADED = "(APIServer pid=4) INFO 11-29 15:44:21 [api_server.py:1] Starting vLLM server on http://0.0.0.0:8000"


def test_a_server_that_serves_another_name_is_not_told_to_take_more_time() -> None:
    found = told([LOADED], [], unwell=ReadyState(False, "models", "http://x serves other, not kimi", ("other",)))
    assert found.kind == "unknown" and "serves other, not kimi" in found.summary and found.evidence
    assert "served_name" in found.advice and "ready_timeout" not in found.advice


def test_a_server_whose_completions_fail_says_so_in_the_summary() -> None:
    answer = ReadyState(False, "completion", "HTTP 500: it broke", ("kimi",))
    silent = told([LOADED], [], unwell=answer)
    assert silent.kind == "unknown" and "HTTP 500: it broke" in silent.summary and "ready_timeout" not in silent.advice
    spoken = told([LOADED, "KeyError: 'x'"], [], unwell=answer)
    assert "HTTP 500: it broke" in spoken.summary and "KeyError: 'x'" in spoken.summary
    assert told([NOT_FREE], [gpu(3, 96801)], unwell=answer).kind == "memory_not_free", "the journal knows better"
