# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the stand-in loads: its processes, memory and log lines, and every way in which a load fails."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from sim.standin_fixtures import (
    MINIMAX,
    SMALL,
    Bench,
    Running,
    eventually,
    make_model,
)

from lab.standin.behaviours import Misused, check

TOTAL_MIB = 97887 - 638  # of the default GPU, as CUDA counts
FAILED = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


def _fails(running: Running, cause: str, who: str = r"\(Worker_TP\d+(_EP\d+)? pid=\d+\)") -> None:
    """It ends with 1, the last line is the general one, and the cause stands before it in a line of who."""
    assert running.ends() == 1, running.log
    lines = [line.strip() for line in running.log.splitlines() if line.strip()]
    assert lines[-1] == FAILED
    causes = [index for index, line in enumerate(lines) if cause in line]
    assert causes, running.log
    assert re.match(who + r" ERROR \d\d-\d\d \d\d:\d\d:\d\d \[\w+\.py:\d+\] ", lines[causes[0]]), lines[causes[0]]
    assert not running.tree()


# --- a good load


def test_one_gpu_is_held_by_the_engine_itself(bench: Bench) -> None:
    running = bench.serve("small", "--served-model-name", "tiny").ready()
    (engine,) = running.pids("VLLM::EngineCore")
    assert not running.pids("VLLM::Worker")
    assert list(bench.listed()) == [engine]
    assert "/dev/nvidia0" in {os.path.realpath(link) for link in Path(f"/proc/{engine}/fd").iterdir()} or any(
        os.readlink(link).endswith("nvidia0") for link in Path(f"/proc/{engine}/fd").iterdir()
    )
    assert bench.used_mib()[0] == pytest.approx(0.92 * TOTAL_MIB, abs=64)
    assert bench.used_mib()[1:] == [2] * 7


def test_the_tree_and_its_titles(bench: Bench) -> None:
    running = bench.serve("minimax", "-tp", "8", "--enable-expert-parallel").ready()
    tree = running.tree()
    assert tree[running.pid].split()[1:3] == [str(bench.program), "serve"]
    (engine,) = running.pids("VLLM::EngineCore")
    workers = [pid for rank in range(8) for pid in running.pids(f"VLLM::Worker_TP{rank}_EP{rank}")]
    assert len(workers) == 8
    (tracker,) = [pid for pid, command in tree.items() if "multiprocessing.resource_tracker" in command]
    assert len(tree) == 11
    assert _parent(engine) == running.pid and _parent(tracker) == running.pid
    assert {_parent(worker) for worker in workers} == {engine}
    assert Path(f"/proc/{engine}/comm").read_text().strip() == "VLLM::EngineCor"
    assert Path(f"/proc/{workers[0]}/comm").read_text().strip() == "VLLM::Worker_TP"
    assert set(bench.listed()) == set(workers)
    for used in bench.used_mib():
        assert used == pytest.approx(0.92 * TOTAL_MIB, abs=64)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_titles_with_pipeline_and_data_parallel(bench: Bench) -> None:
    running = bench.serve("minimax", "-tp", "2", "-pp", "2").ready()
    names = sorted(command for command in running.tree().values() if "Worker" in command)
    assert names == [f"VLLM::Worker_PP{pipeline}_TP{tensor}" for pipeline in (0, 1) for tensor in (0, 1)]
    running.signal()
    running.ends()
    running = bench.serve("minimax", "-tp", "2", "-dp", "2", "--enable-expert-parallel").ready()
    names = sorted(command for command in running.tree().values() if command.startswith("VLLM"))
    assert names == ["VLLM::EngineCore_DP0", "VLLM::EngineCore_DP1"] + [
        f"VLLM::Worker_DP{data}_TP{tensor}_EP{2 * data + tensor}" for data in (0, 1) for tensor in (0, 1)
    ]
    assert [used > 80_000 for used in bench.used_mib()] == [True] * 4 + [False] * 4


def test_eight_workers_are_up_quickly_and_use_no_cpu_when_idle(bench: Bench) -> None:
    started = time.monotonic()
    running = bench.serve("minimax", "-tp", "8", "--enable-expert-parallel", STANDIN_LOAD_SECONDS="0.3").ready()
    assert time.monotonic() - started < 1.5
    before = {pid: _cpu_ticks(pid) for pid in running.tree()}
    time.sleep(1)
    assert {pid: _cpu_ticks(pid) for pid in running.tree()} == before


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_log_lines(bench: Bench) -> None:
    running = bench.serve("minimax", "-tp", "4", "--max-model-len", "131072", "--served-model-name", "m").ready()
    stamp = r"\d\d-\d\d \d\d:\d\d:\d\d"
    for pattern in (
        rf"\(APIServer pid={running.pid}\) INFO {stamp} \[startup\.py:\d+\] vLLM server version 0\.33\.0, serving model /",
        rf"\(Worker_TP0 pid=\d+\) INFO {stamp} \[\w+\.py:\d+\] Starting to load model /",
        r"Loading safetensors checkpoint shards:   0% Completed \| 0/125 \[00:00<\?, \?it/s\]",
        r"Loading safetensors checkpoint shards:  40% Completed \| 50/125 \[",
        r"Loading safetensors checkpoint shards: 100% Completed \| 125/125 \[",
        r"\(Worker_TP0 pid=\d+\) INFO .* Loading weights took \d+\.\d\d seconds",
        r"\(Worker_TP0 pid=\d+\) INFO .* Model loading took 53\.55 GiB memory and \d+\.\d{6} seconds",
        r"\(Worker_TP0 pid=\d+\) INFO .* torch\.compile took \d+\.\d\d s in total",
        r"\(Worker_TP0 pid=\d+\) INFO .* Available KV cache memory: \d+\.\d+ GiB",
        r"\(EngineCore pid=\d+\) INFO .* GPU KV cache size: [\d,]+ tokens, "
        r"Maximum concurrency for 131,072 tokens per request: \d+\.\d\dx",
        r"\(Worker_TP0 pid=\d+\) INFO .* Graph capturing finished in \d+ secs, took \d+\.\d\d GiB",
        r"\(EngineCore pid=\d+\) INFO .* init engine \(profile, create kv cache, warmup model\) took \d+\.\d\d s",
        rf"\(APIServer pid={running.pid}\) INFO .* Starting vLLM server on http://0\.0\.0\.0:{running.port}",
        r"INFO:     Application startup complete\.",
    ):
        assert any(re.fullmatch(pattern + ".*", line) for line in running.lines("")), f"{pattern}\n{running.log}"


def test_log_level(bench: Bench) -> None:
    assert ") INFO " not in bench.serve("small", VLLM_LOGGING_LEVEL="WARNING").ready().log


@pytest.mark.parametrize(
    ("model", "words", "bytes_per_token"),
    [
        ("minimax", ("-tp", "4"), 2 * 62 * 2 * 128 * 2),
        ("minimax", ("-tp", "4", "--kv-cache-dtype", "fp8"), 2 * 62 * 2 * 128),
        ("kimi", ("-tp", "8", "--enable-expert-parallel"), 61 * (512 + 64) * 2),  # latent attention: on every rank
        ("small", ("-tp", "1"), 2 * 28 * 8 * 128 * 2),
        ("small", ("-tp", "16", "-pp", "1"), None),
    ],
)
def test_kv_cache_size(bench: Bench, model: str, words: tuple[str, ...], bytes_per_token: int | None) -> None:
    if bytes_per_token is None:
        assert "World size (16) is larger than the number of available GPUs (8)" in _log_of_failed(bench, model, words)
        return
    running = bench.serve(model, *words, "--max-model-len", "16384", "--enforce-eager").ready()
    available = float(running.lines("Available KV cache memory")[0].split()[-2]) * 2**30
    tokens = int(re.search(r"size: ([\d,]+) tokens", running.log)[1].replace(",", ""))  # type: ignore[index]
    assert tokens == pytest.approx(available / bytes_per_token, rel=0.01)


def _log_of_failed(bench: Bench, model: str, words: tuple[str, ...], **env: str | None) -> str:
    running = bench.serve(model, *words, **env)
    assert running.ends() == 1, running.log
    return running.log


def test_memory_grows_while_weights_load(bench: Bench) -> None:
    # Long enough for four looks on any machine; the load ends with this test.
    running = bench.serve("minimax", "-tp", "4", STANDIN_LOAD_SECONDS="60")
    seen: set[int] = set()
    while running.process.poll() is None and len(seen) < 4:
        used = bench.used_mib()[3]
        if 1_000 < used < 55_000:
            seen.add(used)
    assert len(seen) == 4, running.log
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", running.port), 2).close()


def test_a_port_on_which_somebody_listens(bench: Bench) -> None:
    first = bench.serve("small", CUDA_VISIBLE_DEVICES="0").ready()
    second = bench.start("serve", str(bench.models / "small"), "--port", str(first.port), port=0)
    assert second.ends() == 1
    assert second.log.splitlines()[-1] == "OSError: [Errno 98] Address already in use"
    assert "Initializing a V1 LLM engine" not in second.log
    assert first.process.poll() is None


def test_a_port_that_another_server_wants_too_while_both_load(bench: Bench) -> None:
    first = bench.serve("small", STANDIN_LOAD_SECONDS="1", CUDA_VISIBLE_DEVICES="0")
    eventually(lambda: first.lines("Resolved architecture"))
    words = ("serve", str(bench.models / "small"), "--port", str(first.port))
    second = bench.start(*words, env=bench.environ(CUDA_VISIBLE_DEVICES="1"), port=0)
    # Both are bound, none listens: with SO_REUSEADDR that works. The first that is ready wins.
    second.port = first.port
    second.ready()
    assert first.ends() == 1
    assert first.log.splitlines()[-1] == "OSError: [Errno 98] Address already in use"
    assert not first.tree()


def test_worker_mib(bench: Bench) -> None:
    bench.standin.behave("big", worker_mib=96801)
    bench.serve("minimax", "-tp", "4", "--served-model-name", "big").ready()
    assert bench.used_mib()[:4] == [96803] * 4  # with the driver's own 2 MiB


# --- which GPUs


@pytest.mark.parametrize("chosen", ["2,5", "uuid"])
def test_visible_devices(bench: Bench, chosen: str) -> None:
    if chosen == "uuid":
        query = bench.driver.run("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader").stdout.splitlines()
        chosen = f"{query[2]},{query[5]}"
    bench.serve("small", "-tp", "2", CUDA_VISIBLE_DEVICES=chosen, CUDA_DEVICE_ORDER="PCI_BUS_ID").ready()
    assert [index for index, used in enumerate(bench.used_mib()) if used > 1000] == [2, 5]


def test_more_ranks_than_visible_devices(bench: Bench) -> None:
    log = _log_of_failed(bench, "small", ("-tp", "4"), CUDA_VISIBLE_DEVICES="0,1,77,2")
    assert "World size (4) is larger than the number of available GPUs (2) in this node." in log


# --- vLLM's memory checks


def test_not_enough_free_memory(bench: Bench) -> None:
    bench.driver.hold(2, 60_000)
    running = bench.serve("minimax", "-tp", "4", VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS="1", STANDIN_LOAD_SECONDS="0.1")
    # As in vLLM, the title names the rank only after this check.
    _fails(running, "Free memory on device cuda:2 (", r"\(Worker pid=\d+\)")
    (line, *_rest) = running.lines("Free memory on device")
    free = (TOTAL_MIB - 60_000 - 512 - 2) / 1024
    assert (
        f"ValueError: Free memory on device cuda:2 ({round(free, 2)}/{round(TOTAL_MIB / 1024, 2)} GiB) on startup is "
        in line
    )
    assert (
        f"less than desired GPU memory utilization (0.92, {round(0.92 * TOTAL_MIB / 1024, 2)} GiB). Decrease GPU memory "
        "utilization or reduce GPU memory used by other processes."
    ) in line


def test_memory_that_comes_back_while_profiling(bench: Bench) -> None:
    other = bench.driver.hold(0, 70_000)
    running = bench.serve("small", "--gpu-memory-utilization", "0.2", STANDIN_LOAD_SECONDS="2")
    eventually(lambda: running.lines("Starting to load model"))
    os.killpg(other.pid, signal.SIGKILL)
    _fails(running, "AssertionError: Error in memory profiling. Initial free memory ", r"\(EngineCore pid=\d+\)")
    assert "while vLLM is profiling during initialization" in running.log


def test_two_that_start_together_take_each_other_s_memory_for_their_own(bench: Bench) -> None:
    words = ("--gpu-memory-utilization", "0.4", "--max-model-len", "1024")
    alone = bench.serve("small", *words).ready()
    alone.signal()
    alone.ends()
    eventually(lambda: bench.used_mib()[0] < 100)

    def available(running: Running) -> float:
        return float(running.lines("Available KV cache memory")[0].split()[-2])

    pair = [bench.serve("small", *words, STANDIN_LOAD_SECONDS="1.5") for _each in range(2)]
    eventually(lambda: all(each.lines("Available KV cache memory") for each in pair))
    assert min(map(available, pair)) < available(alone) - 1


def test_kv_cache_too_small_for_the_length(bench: Bench) -> None:
    running = bench.serve("minimax", "-tp", "4", "--gpu-memory-utilization", "0.65", "--max-num-seqs", "64")
    _fails(running, "To serve at least one request with the model's max seq len (196608), (", r"\(EngineCore pid=\d+\)")
    assert "estimated maximum model length is" in running.log


def test_no_room_for_any_kv_cache(bench: Bench) -> None:
    running = bench.serve("minimax", "-tp", "4", "--gpu-memory-utilization", "0.55")
    _fails(running, "ValueError: No available memory for the cache blocks.", r"\(EngineCore pid=\d+\)")


def test_length_is_fitted_when_asked_for(bench: Bench) -> None:
    running = bench.serve(
        "minimax", "-tp", "4", "--gpu-memory-utilization", "0.65", "--max-num-seqs", "64", "--max-model-len", "auto"
    )
    running.ready()
    length = running.request("GET", "/v1/models")[1]["data"][0]["max_model_len"]
    assert 1000 < length < 196608


def test_weights_that_do_not_fit(bench: Bench) -> None:
    running = bench.serve("minimax", "-tp", "2", VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS="1")
    _fails(running, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ", r"\(Worker_TP\d pid=\d+\)")
    assert "Failed to load model - not enough GPU memory." in running.log


def test_sampler_warm_up_that_does_not_fit(bench: Bench) -> None:
    words = ("-tp", "4", "--gpu-memory-utilization", "0.95")
    running = bench.serve("minimax", *words)
    _fails(running, "CUDA out of memory occurred when warming up sampler with 1024 dummy requests.")
    bench.serve("minimax", *words, "--max-num-seqs", "256").ready()


def test_kv_cache_memory_bytes(bench: Bench) -> None:
    running = bench.serve("small", "--kv-cache-memory-bytes", "8G").ready()
    assert "reserved 8.0 GiB memory for KV Cache" in running.log
    assert bench.used_mib()[0] < 13_000


# --- the model


def test_fp8_blocks(bench: Bench) -> None:
    text = (
        "ValueError: The output_size of gate's and up's weight = 192 is not divisible by weight quantization "
        "block_n = 128."
    )
    _fails(bench.serve("minimax", "-tp", "8"), text)
    bench.serve("minimax", "-tp", "8", "--enable-expert-parallel").ready()


def test_fp8_blocks_of_dense_layers(bench: Bench, tmp_path: Path) -> None:
    config: dict[str, Any] = SMALL | {"quantization_config": MINIMAX["quantization_config"], "intermediate_size": 3328}
    make_model(tmp_path / "dense", config, 1_000_000_000, 1)
    running = bench.start("serve", str(tmp_path / "dense"), "-tp", "4")
    _fails(
        running, "ValueError: Weight output_partition_size = 832 is not divisible by weight quantization block_n = 128."
    )


@pytest.mark.parametrize(
    ("change", "words", "cause"),
    [
        (
            {"num_attention_heads": 52},
            ("-tp", "8"),
            "Total number of attention heads (52) must be divisible by tensor parallel size (8).",
        ),
        (
            {},
            ("--max-model-len", "99999"),
            "User-specified max_model_len (99999) is greater than the derived max_model_len",
        ),
        ({}, ("--gpu-memory-utilization", "1.5"), "1 validation error for CacheConfig\ngpu_memory_utilization\n"),
        ({}, ("--max-num-seqs", "0"), "1 validation error for SchedulerConfig\nmax_num_seqs\n"),
    ],
)
def test_configurations_that_are_refused_before_any_process(
    bench: Bench, tmp_path: Path, change: dict[str, Any], words: tuple[str, ...], cause: str
) -> None:
    make_model(tmp_path / "changed", SMALL | change, 1_000_000_000, 1)
    running = bench.start("serve", str(tmp_path / "changed"), *words)
    assert running.ends() == 1
    assert cause in running.log
    assert "Initializing a V1 LLM engine" not in running.log


def test_longer_than_the_model_if_allowed(bench: Bench) -> None:
    bench.serve("small", "--max-model-len", "50000", VLLM_ALLOW_LONG_MAX_MODEL_LEN="1").ready()


def test_group_quantisation_and_kv_heads(bench: Bench, tmp_path: Path) -> None:
    gptq = {"quant_method": "gptq", "group_size": 128}
    make_model(tmp_path / "gptq", SMALL | {"intermediate_size": 3200, "quantization_config": gptq}, 10**9, 1)
    _fails(
        bench.start("serve", str(tmp_path / "gptq"), "-tp", "2"),
        "The input size is not aligned with the quantized weight shape.",
    )
    make_model(tmp_path / "heads", SMALL | {"num_attention_heads": 24, "num_key_value_heads": 6}, 10**9, 1)
    _fails(bench.start("serve", str(tmp_path / "heads"), "-tp", "4"), "AssertionError")


def test_models_that_are_not_there(bench: Bench, tmp_path: Path) -> None:
    def log(name: str, **env: str | None) -> str:
        running = bench.start("serve", name, env=bench.environ(**env))
        assert running.ends() == 1
        return running.log

    assert "Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/none'." in log("/models/none")
    assert "Cannot find an appropriate cached snapshot folder" in log("org/name", HF_HUB_OFFLINE="1")
    assert "We couldn't connect to" in log("org/name")
    (tmp_path / "empty").mkdir()
    assert "Invalid repository ID or local directory specified: '" in log(str(tmp_path / "empty"))
    (tmp_path / "weightless").mkdir()
    (tmp_path / "weightless" / "config.json").write_text(json.dumps(SMALL))
    assert "RuntimeError: Cannot find any model weights with " in log(str(tmp_path / "weightless"))
    (tmp_path / "empty" / "config.json").write_text("{")
    assert "is not a valid JSON file" in log(str(tmp_path / "empty"))


# --- surroundings


def test_ninja(bench: Bench, tmp_path: Path) -> None:
    bench.standin.behave(needs_ninja=True)
    running = bench.serve("minimax", "-tp", "4", PATH="/nowhere")
    _fails(running, "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ninja").symlink_to(shutil.which("true") or "/bin/true")
    bench.serve("minimax", "-tp", "4", PATH=str(tmp_path / "bin")).ready()


def test_home_and_caches(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    running = bench.serve("small", VLLM_CACHE_ROOT=str(tmp_path / "file" / "cache"))
    _fails(running, "NotADirectoryError: [Errno 20] Not a directory", r"\(EngineCore pid=\d+\)")
    bench.serve("small", HOME=str(tmp_path / "home"), VLLM_CACHE_ROOT=None).ready()
    assert (tmp_path / "home" / ".cache" / "vllm" / "torch_compile_cache").is_dir()


def test_needs_home(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    bench.standin.behave(needs_home=False)
    bench.serve("small", VLLM_CACHE_ROOT=str(tmp_path / "file" / "cache")).ready()


def test_compile_cache_is_used_again_and_can_be_poisoned(bench: Bench) -> None:
    for text in ("Cache the graph of compile range", "Directly load the compiled graph(s)"):
        running = bench.serve("small").ready()
        assert text in running.log
        running.signal()
        running.ends()
    bench.standin.behave(poison_cache=True)
    running = bench.serve("small").ready()
    running.signal()
    running.ends()
    bench.standin.clear()
    _fails(bench.serve("small"), "Expected tensors only, but got: <class 'int'>", r"\(EngineCore pid=\d+\)")
    shutil.rmtree(bench.home / "cache")
    bench.serve("small").ready()


# --- made to fail


def test_oom_load(bench: Bench) -> None:
    bench.standin.behave(oom_load=True)
    _fails(bench.serve("minimax", "-tp", "4"), "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ")


def test_oom_warmup(bench: Bench) -> None:
    bench.standin.behave(oom_warmup=True)
    running = bench.serve("minimax", "-tp", "4", "--max-num-seqs", "300")
    _fails(
        running,
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 300 dummy requests. Please try lowering "
        "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine.",
    )


def test_fp8_block(bench: Bench) -> None:
    bench.standin.behave(fp8_block=True)
    _fails(bench.serve("minimax", "-tp", "4"), "weight = 384 is not divisible by weight quantization block_n = 128.")


@pytest.mark.parametrize("phase", ["device", "weights", "profile", "kv_cache", "warmup", "graphs"])
def test_die_at_load_in_any_phase(bench: Bench, phase: str) -> None:
    death = {"phase": phase, "lines": ["first the one", "then the other"], "error": "RuntimeError: Error 802"}
    bench.standin.behave(die_at_load=death)
    who = r"\(Worker pid=\d+\)" if phase == "device" else r"\(Worker_TP\d+ pid=\d+\)"
    running = bench.serve("minimax", "-tp", "4")
    _fails(running, "first the one", who)
    assert len(running.lines("then the other")) == 4
    assert running.lines("RuntimeError: Error 802")


def test_die_at_load_of_engine_and_api_server(bench: Bench) -> None:
    bench.standin.behave(die_at_load={"process": "engine", "phase": "weights", "error": "KeyError: 'x'"})
    _fails(bench.serve("minimax", "-tp", "4"), "KeyError: 'x'", r"\(EngineCore pid=\d+\)")
    death = {
        "process": "api",
        "phase": "config",
        "lines": ["raw text"],
        "raw": True,
        "error": "OSError: gated",
        "exit_code": 7,
    }
    bench.standin.behave(die_at_load=death)
    running = bench.serve("minimax", "-tp", "4")
    assert running.ends() == 7
    assert running.lines("raw text") == ["raw text"]
    assert running.log.splitlines()[-1] == "OSError: gated"


def test_die_at_load_of_one_rank_by_a_signal(bench: Bench) -> None:
    bench.standin.behave(die_at_load={"phase": "profile", "rank": 2, "signal": 9})
    running = bench.serve("minimax", "-tp", "4")
    assert running.ends() == 1
    assert running.lines("Worker proc VllmWorker-2 died unexpectedly (exit code: -9), shutting down executor.")
    assert running.log.splitlines()[-1] == FAILED


@pytest.mark.parametrize("phase", ["config", "device", "profile", "graphs"])
def test_the_api_server_can_be_killed_at_any_moment_of_the_load(bench: Bench, phase: str) -> None:
    bench.standin.behave(die_at_load={"process": "api", "phase": phase, "signal": 9})
    running = bench.serve("minimax", "-tp", "4")
    assert running.ends() == -9


@pytest.mark.parametrize(
    "death", [{"process": "api", "phase": "profile"}, {"process": "engine", "phase": "config"}, {"phase": "config"}], ids=str
)
def test_a_death_that_would_never_come_is_refused(death: dict[str, str]) -> None:
    with pytest.raises(Misused, match="die_at_load can't be"):
        check("die_at_load", death, "here")


def test_crash_at_nth_start(bench: Bench) -> None:
    bench.standin.behave(crash_at_nth_start=[1, 3])
    codes = []
    for _start in range(4):
        running = bench.serve("small", STANDIN_STATE_DIR=str(bench.directory / "state"))
        if running.process.poll() is None:
            try:
                running.ready()
            except AssertionError:
                codes.append(running.ends())
                continue
        running.signal()
        codes.append(running.ends())
    assert codes == [1, 0, 1, 0]
    assert (bench.directory / "state" / "standin-starts.json").is_file()


def test_never_ready(bench: Bench) -> None:
    bench.standin.behave(never_ready=True)
    running = bench.serve("small")
    eventually(lambda: running.lines("100% Completed"))
    time.sleep(0.5)
    assert running.process.poll() is None
    assert not running.lines("Loading weights took")
    assert bench.used_mib()[0] > 1000


def test_load_seconds(bench: Bench) -> None:
    bench.standin.behave("slow", load_seconds=1.5)
    started = time.monotonic()
    bench.serve("small", "--served-model-name", "slow").ready()
    assert 1.4 < time.monotonic() - started < 4


# --- what isn't understood


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ('{"*": {"loud": true}}', "no behaviour is called 'loud'; there are: "),
        ('{"*": {"load_seconds": "long"}}', "load_seconds can't be 'long'"),
        ('{"*": {"die_at_load": {"phase": "nap"}}}', "die_at_load can't be"),
        ("[]", "not an object of models"),
        ("{", "Expecting property name"),
    ],
)
def test_a_scenario_that_is_not_understood(bench: Bench, scenario: str, message: str) -> None:
    bench.standin.path.parent.mkdir(exist_ok=True)
    bench.standin.path.write_text(scenario)
    running = bench.serve("small")
    assert running.ends() == 3
    assert running.log.startswith("vllm stand-in: ") and message in running.log


def test_a_variable_that_is_not_understood(bench: Bench) -> None:
    running = bench.serve("small", STANDIN_LOUD="1")
    assert running.ends() == 3
    assert "environment variable STANDIN_LOUD: no behaviour is called 'loud'" in running.log


def test_a_scenario_that_becomes_wrong_ends_the_server_and_its_engines(bench: Bench) -> None:
    running = bench.serve("small").ready()
    bench.standin.path.parent.mkdir(exist_ok=True)
    bench.standin.path.write_text('{"*": {"loud": true}}')
    with pytest.raises(OSError):
        running.request("GET", "/health")
    assert running.ends() == 3
    eventually(lambda: not running.tree())
