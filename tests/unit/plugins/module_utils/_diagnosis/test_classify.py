# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Journals of failed servers, each with the kind that its file name says.

Those of the CPU build (``VllmWorker``, ``/models/tiny`` and the like) are a real vLLM 0.32's, with paths changed; the
others are put together from vLLM's own texts in its own order.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._diagnosis.classify import DiagnosisContext, classify
from ansible_collections.gpufleet.vllm.plugins.module_utils._diagnosis.rules import KINDS, LAST_RULES, RULES, SIDE_RULES

JOURNALS = sorted((Path(__file__).parents[3] / "fixtures" / "journals").glob("*.log"))

# What a person must be told, by file: a part of the summary, of the first line of evidence, of the advice.
SAID = {
    "memory_not_free__at_start": ("cuda:3 had 0.92 of 94.97 GiB free", "Worker_TP3", "gpu_reclaim"),
    "memory_not_free__guard": ("1086 MiB free, 90057 needed", "did not come free within 300 s", "gpu_cleanup"),
    "memory_not_free__rose_while_profiling": (
        "82.94 GiB free, then 90.17",
        "Error in memory profiling",
        "nothing else",
    ),
    "oom_load__weights": ("weights do not fit", "Tried to allocate 1.50 GiB", "tensor_parallel_size"),
    "oom_warmup__sampler": ("sampler with 1024 sequences", "warming up sampler", "about 0.8 GiB per pass"),
    "oom_warmup__graphs": ("after the weights were loaded", "Tried to allocate 2.00 GiB", "max_num_seqs"),
    "kv_cache_too_small__one_request": ("max_model_len 8000000 needs 7.63 GiB", "EngineCore", "1048448 or less"),
    "kv_cache_too_small__old_text": ("holds 50944 tokens", "max seq len (131072)", "50944 or less"),
    "bad_argument__unknown_flag": ("--bogus-flag", "unrecognized arguments", "--help=all"),
    "bad_argument__nested_key": ("SpeculativeConfig", "validation error", "args"),
    "bad_argument__max_model_len": ("999999 is more than the model's own 32768", "User-specified", "32768 or less"),
    "tp_heads__three": ("4 attention heads can't be split over tensor_parallel_size 3", "must be divisible", "divides"),
    "quant_block__experts": ("192 per GPU", "Worker_TP0", "enable_expert_parallel"),
    "port_in_use__bind": ("port 8000", "Errno 98", ":8000"),
    "port_in_use__guard": ("nginx", "nginx", "another port"),
    "model_missing__no_config": ("isn't there", "Invalid repository ID", "path"),
    "model_missing__truncated": ("damaged or not complete", "SafetensorError", "Fetch the model again"),
    "model_missing__permission": ("may not read", "Permission denied", "read access"),
    "model_gated__restricted": ("can't be read with this token", "gated", "HF_TOKEN"),
    "driver__too_old": ("too old", "found version 12080", "Update the driver"),
    "driver__fabric_manager": ("fabric manager", "Error 802", "nvidia-fabricmanager"),
    "driver__guard": ("driver_library_mismatch", "can't be read", "reboot"),
    "host_oom__killed": ("main memory", "OOM killer", "memory"),
    "compile_cache__poisoned": ("could not be used", "Expected tensors only", "cache/"),
    "timeout__still_loading": ("72% Completed", "Loading safetensors", "ready_timeout"),
    "unknown__named": ("KeyError", "KeyError", "journalctl"),
    "unknown__ninja": ("compiles kernels", "'ninja'", "Install ninja"),
    "unknown__no_c_compiler": ("compiles kernels", "Failed to find C compiler", "gcc"),
    "unknown__no_cxx_compiler": ("compiles kernels", "InvalidCxxCompiler", "g++"),
    "unknown__no_python_headers": ("headers of Python", "Python.h", "python3-dev"),
    "unknown__illegal_access_in_a_graph": ("illegal memory access", "illegal memory access", "journalctl"),
    "unknown__nccl_in_a_graph": ("NCCL", "unhandled cuda error", "NCCL_DEBUG"),
    "unknown__sizes_in_a_graph": ("The size of tensor a", "must match", "journalctl"),
    "unknown__inductor_of_no_cache": ("BackendCompilerFailed", "BackendCompilerFailed", "journalctl"),
    "unknown__cache_of_another_user": ("may not use /var/lib/vllm/minimax-m2.5/cache/vllm/torch_comp", "Errno 13", "another user"),
    "unknown__read_only": ("may not write to /data/vllm/torch_compile_cache/1f0c2b", "Errno 30", "unit_options.Service.ReadWritePaths"),
    "unknown__memory_lock_got_over": ("KeyError", "KeyError", "journalctl"),
    "port_in_use__rendezvous": ("port 29500, which the server needs beside", "EADDRINUSE", "sport = :29500"),
    "port_in_use__events": ("port 5557", "ZMQError", "kv_events_config"),
    "host_oom__nccl_segment": ("/dev/shm", "failed to extend", "Enlarge /dev/shm"),
    "host_oom__python_segment": ("/dev/shm", "psm_9f2c1a7b", "clean_shm"),
    "bad_argument__custom_code": ("code of its own", "trust_remote_code", "args.trust_remote_code: true"),
    "bad_argument__custom_config": ("code of its own", "trust_remote_code", "args.trust_remote_code: true"),
    "bad_argument__quantization_of_newer_gpus": ("quantisation fp8", "fp8", "capability 89 (89 means 8.9), and the GPU has 80"),
    "bad_argument__bfloat16": ("bfloat16", "Tesla T4", "args.dtype: half"),
    "bad_argument__lora_rank": ("rank 64, and max_lora_rank is 16", "LoRA rank 64", "max_lora_rank to 64"),
    "model_missing__no_tokenizer": ("no tokenizer that could be loaded in /models/MiniMax-M2.5", "Can't load", "args.tokenizer"),
    "oom_load__repacking": ("weights do not fit", "Tried to allocate 1.50 GiB", "tensor_parallel_size"),
    "oom_load__beside_a_loaded_one": ("fit into the GPUs' memory; process 7777 held 70.0 GiB of it", "Worker_TP1", "free what else"),
    "unknown__worker_told_before_it_died": ("Available memory on node 0", "Available memory on node 0", "journalctl"),
    "unknown__missing_library": ("libnuma.so.1 is missing", "libnuma.so.1", "libnuma.so.1"),
    "unknown__no_executable": ("can't be executed", "Failed to locate executable", "executable"),
}


def context(path: Path, text: str) -> DiagnosisContext:
    """What systemd would know beside this journal."""
    guard = re.search(r"Control process exited, code=exited, status=(\d+)", text)
    main = re.search(r"Main process exited, code=exited, status=(\d+)", text)
    timed_out = path.stem.startswith("timeout")
    return DiagnosisContext(
        unit="vllm-x.service",
        result="success" if timed_out else "exit-code",
        exit_code=None if timed_out or guard else "exited",
        exit_status=0 if timed_out or guard else int(main.group(1)) if main else 1,
        start_pre_status=int(guard.group(1)) if guard else None,
        timed_out=timed_out,
        port=8000,
        vocab_size=200064,
    )


@pytest.mark.parametrize("path", JOURNALS, ids=[path.stem for path in JOURNALS])
def test_each_journal_is_understood(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = classify(text.splitlines(), context(path, text))
    assert found.kind == path.stem.partition("__")[0], found
    assert 1 <= len(found.evidence) <= 3 and found.summary and found.advice
    for line in found.evidence:
        assert line.rstrip("…") in text, "evidence is what the journal says"
        assert "Engine core initialization failed" not in line
    if path.stem in SAID:
        summary, evidence, advice = SAID[path.stem]
        assert summary in found.summary, found
        assert evidence in found.evidence[0], found
        assert advice in found.advice, found
    assert "{" not in found.summary and "{" not in found.advice


@pytest.mark.parametrize("path", JOURNALS, ids=[path.stem for path in JOURNALS])
def test_colours_and_other_processes_change_nothing(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    plain = classify(text.splitlines(), context(path, text))
    coloured = ["\x1b[1;36m" + line[:12] + "\x1b[0;0m" + line[12:] for line in text.splitlines()]
    noise = ["(Worker_TP9 pid=1) INFO 11-29 15:44:21 [a.py:1] something about out of memory and Address already in use"]
    found = classify(noise + coloured, context(path, text))
    assert (found.kind, found.advice) == (plain.kind, plain.advice)


def test_there_is_a_journal_for_every_kind() -> None:
    covered = {path.stem.partition("__")[0] for path in JOURNALS}
    assert covered == set(KINDS) - {"crash_loop"}, "crash_loop is a journal that names nothing, below"
    assert set(SAID) <= {path.stem for path in JOURNALS}


def test_every_rule_has_a_kind_of_the_contract() -> None:
    assert {rule.kind for rule in RULES} <= set(KINDS) | {"oom"}
    assert {rule.kind for rule in SIDE_RULES + LAST_RULES} == {"unknown"}


def test_holders_stand_in_the_evidence() -> None:
    text = next(path for path in JOURNALS if path.stem == "memory_not_free__guard").read_text(encoding="utf-8")
    found = classify(text.splitlines(), DiagnosisContext(start_pre_status=75))
    assert any("pid 4311" in line and "vllm-old.service" in line and "96801 MiB" in line for line in found.evidence)
    assert len(set(found.evidence)) == len(found.evidence)


def test_a_guard_that_passed_is_no_cause() -> None:
    lines = [
        "gpu-guard: waiting for port 8000 to be released",
        "gpu-guard: the memory is free after 2.0 s",
        "ValueError: something",
    ]
    found = classify(lines, DiagnosisContext(exit_code="exited", exit_status=1))
    assert found.kind == "unknown" and "something" in found.summary


def test_another_command_before_the_server_is_not_the_guard() -> None:
    found = classify(["chown: invalid user"], DiagnosisContext(start_pre_status=1))
    assert found.kind == "unknown" and found.evidence == ("chown: invalid user",)


@pytest.mark.parametrize("status", [1, 75])
def test_another_command_before_the_server_is_named_with_where_it_stands(status: int) -> None:
    """As one of a drop-in, whatever status of the guard's it ends with."""
    found = classify(["false: no"], DiagnosisContext("vllm-b.service", start_pre_status=status, start_pre_path="/bin/false"))
    who = "/bin/false, which the unit runs before the server,"
    assert found.summary == f"{who} ended with exit status {status}: the server was never begun"
    assert "`systemctl cat vllm-b.service`" in (found.advice or "") and found.evidence == ("false: no",)
    guard = classify([], DiagnosisContext(start_pre_status=75, start_pre_path="/usr/local/lib/gpufleet/gpu-guard.pyz"))
    assert guard.kind == "memory_not_free"


@pytest.mark.parametrize(
    ("lines", "known", "kind"),
    [
        ([], DiagnosisContext(result="oom-kill"), "host_oom"),
        (["hello"], DiagnosisContext(exit_code="exited", exit_status=2), "bad_argument"),
        (["hello"], DiagnosisContext(restarts=3, exit_code="exited", exit_status=1), "crash_loop"),
        (["hello"], DiagnosisContext(result="start-limit-hit"), "crash_loop"),
        (["hello"], DiagnosisContext(timed_out=True), "timeout"),
        ([], DiagnosisContext(timed_out=True), "timeout"),
        (["hello"], DiagnosisContext(result="timeout"), "timeout"),
        (["hello"], DiagnosisContext(exit_code="killed", exit_status=9), "unknown"),
        ([], DiagnosisContext(), "unknown"),
    ],
)
def test_what_only_systemd_knows(lines: list[str], known: DiagnosisContext, kind: str) -> None:
    found = classify(lines, known)
    assert found.kind == kind
    assert set(found.evidence) <= set(lines)
    assert set(found.to_result()) == {"kind", "summary", "evidence", "advice"}


@given(st.lists(st.text(max_size=80), max_size=12), st.integers(0, 255), st.sampled_from([None, "exited", "killed"]))
def test_anything_is_read_without_an_error(lines: list[str], number: int, code: str | None) -> None:
    found = classify(lines, DiagnosisContext(exit_status=number, exit_code=code, start_pre_status=number or None))
    assert found.kind in KINDS and len(found.evidence) <= 3


@pytest.mark.parametrize("path", JOURNALS, ids=[path.stem for path in JOURNALS])
def test_many_lines_of_many_processes_around_it_change_nothing(path: Path) -> None:
    """Eight workers that go on writing while one of them says what is wrong."""
    text = path.read_text(encoding="utf-8")
    plain = classify(text.splitlines(), context(path, text))
    chatter = [
        "(Worker_TP%d pid=%d) INFO 11-29 15:44:21 [weight_utils.py:512] read /models/m/model-%05d-of-09999.safetensors" % (n % 8, n % 8, n)
        for n in range(3000)
    ]
    mixed = []
    for number, line in enumerate(text.splitlines()):
        mixed += [*chatter[number * 5 : number * 5 + 5], line]
    found = classify(mixed + chatter[-1000:], context(path, text))
    if plain.kind != "timeout":  # there the last line is the news
        assert (found.kind, found.summary) == (plain.kind, plain.summary)


@pytest.mark.parametrize(
    "text",
    [
        "a", "Error ", "heads ", "/triton/", "(Error ", "Failed to load ", "\x1b[1m", "Model architectures ", "\ufffd", "/cache/triton/",
        "No such file ", "Permission denied ", "Permission denied /", "/torchinductor", "quantization method ", "/dev/shm/", "1.1.1.1:",
    ],
)
def test_a_line_without_end_is_read_in_no_time(text: str) -> None:
    begun = time.monotonic()
    line = "(EngineCore pid=1) ERROR 11-29 15:44:21 [core.py:708] ValueError: %s" % (text * 200_000)
    found = classify([line, "torch.OutOfMemoryError: CUDA out of memory."], DiagnosisContext(exit_code="exited", exit_status=1))
    assert found.kind == "oom_load", found
    assert time.monotonic() - begun < 2.0


ENGINE = "(EngineCore_DP0 pid=7) "
FAILED = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): %s"
FRAMES = ["Traceback (most recent call last):", '  File "/opt/vllm/bin/vllm", line 8, in <module>', "    sys.exit(main())"]
INFO = ["INFO 11-29 15:44:01 [api_server.py:1] vLLM API server version 0.32.0", "INFO 11-29 15:44:02 [core.py:2] Initializing an engine"]


@pytest.mark.parametrize("mention", [
    "WARNING 11-29 15:44:03 [x.py:1] retrying after torch.OutOfMemoryError: CUDA out of memory was handled",
    "WARNING: retrying after torch.OutOfMemoryError: CUDA out of memory was handled",
    "WARNING:root:retrying after torch.OutOfMemoryError was handled",
    "WARNING retrying after torch.OutOfMemoryError was handled",
    "retrying with less, torch.OutOfMemoryError was handled",
])
@pytest.mark.parametrize("who", ["", ENGINE])
def test_what_was_got_over_is_no_cause(mention: str, who: str) -> None:
    lines = [who + line for line in [*INFO, mention, *FRAMES, "ValueError: no such layer"]]
    found = classify(lines, DiagnosisContext(exit_code="exited", exit_status=1))
    assert found.kind == "unknown" and "ValueError: no such layer" in found.summary, found


def test_out_of_memory_that_ended_it_is_the_cause_although_another_exception_follows() -> None:
    lines = [*INFO, *FRAMES, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", *FRAMES, "ValueError: no such layer"]
    assert classify(lines, DiagnosisContext(exit_code="exited", exit_status=1)).kind == "oom_load"
    assert classify([*INFO, "CUDA out of memory, giving up"], DiagnosisContext(exit_code="exited", exit_status=1)).kind == "oom_load"


@pytest.mark.parametrize(("line", "kind", "summary", "advice"), [
    ("OSError: [Errno 28] No space left on device: '/v/torch_compile_cache/x'", "unknown", "a file system is full", "df -h"),
    ("OSError: [Errno 28] No space left on device", "unknown", "a file system is full", "df -i"),
    ("torch.AcceleratorError: CUDA error: unspecified launch failure", "driver", "unspecified launch failure", "Xid"),
    ("RuntimeError: CUDA error: unspecified launch failure", "driver", "while it computed: unspecified launch failure", "Xid"),
    ("RuntimeError: cudaErrorLaunchTimeout", "driver", "while it computed: cudaErrorLaunchTimeout", "Xid"),
    (FAILED % "{'EngineCore_DP0': -11}", "unknown", "machine code", "coredumpctl"),
    ("Fatal Python error: Segmentation fault", "unknown", "machine code", "coredumpctl"),
])
def test_what_ended_it_is_said_with_its_line(line: str, kind: str, summary: str, advice: str) -> None:
    found = classify([*INFO, *FRAMES, line], DiagnosisContext(exit_code="exited", exit_status=1))
    assert found.kind == kind and summary in found.summary and advice in found.advice, found
    assert line in found.evidence[0]


@pytest.mark.parametrize("last", [[], [FAILED % "{}"], ["KeyError: 'x'"]])
@pytest.mark.parametrize("known", [
    DiagnosisContext(exit_code="exited", exit_status=0), DiagnosisContext(exit_code="exited", exit_status=1),
    DiagnosisContext(exit_code="exited", exit_status=2), DiagnosisContext(timed_out=True), DiagnosisContext(restarts=3),
])
def test_no_evidence_begins_with_a_bare_frame(last: list[str], known: DiagnosisContext) -> None:
    found = classify([*INFO, *FRAMES, *last], known)
    assert found.evidence and not found.evidence[0].lstrip().startswith(("File", "Traceback")), found
    assert not any("Traceback" in line for line in found.evidence)
    assert "KeyError: 'x'" not in last or known.exit_status == 2 or found.evidence[0] == "KeyError: 'x'"
    if last == [FAILED % "{}"] and not known.timed_out:
        assert any("Engine core initialization failed" in line for line in found.evidence)
