# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in's command line: vLLM's flags, messages and exit codes, and its --config file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sim.standin_fixtures import Bench, free_port

from lab.standin.arguments import flag_table


def _run(bench: Bench, *words: str, **env: str | None) -> tuple[int, str]:
    running = bench.start(*words, env=bench.environ(**env), port=0)
    return running.ends(), running.log


def test_version(bench: Bench) -> None:
    assert _run(bench, "--version") == (0, flag_table()["version"] + "\n")
    assert _run(bench, "--version", STANDIN_VERSION="0.21.0") == (0, "0.21.0\n")


def test_help_names_every_flag(bench: Bench) -> None:
    code, text = _run(bench, "serve", "--help=all")
    assert code == 0
    visible = [entry["flags"][0] for entry in flag_table()["flags"]]
    assert len(visible) > 300
    assert not [flag for flag in visible if flag not in text]


def test_help_finds_a_flag_or_a_group(bench: Bench) -> None:
    assert "--tensor-parallel-size" in _run(bench, "serve", "--help=tensor_parallel")[1]
    assert "--gpu-memory-utilization" in _run(bench, "serve", "--help=CacheConfig")[1]
    code, text = _run(bench, "serve", "--help")
    assert code == 0 and "--tensor-parallel-size" not in text and "ParallelConfig" in text


@pytest.mark.parametrize(
    "flag",
    [
        "--swap-space",
        "--task",
        "--max-seq-len-to-capture",
        "--num-scheduler-steps",
        "--guided-decoding-backend",
        "--foo",
    ],
)
def test_unknown_and_removed_flags_are_refused(bench: Bench, flag: str) -> None:
    code, text = _run(bench, "serve", "/models/x", flag, "4")
    assert code == 2
    assert text.startswith("usage: vllm ")
    assert f"vllm: error: unrecognized arguments: {flag} 4" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tensor-parallel-size", "four"), "argument --tensor-parallel-size/-tp: invalid int value: 'four'"),
        (("--dtype", "int3"), "argument --dtype: invalid choice: 'int3' (choose from"),
        (("--max-model-len", "8x"), "argument --max-model-len: invalid human_readable_int_or_auto value: '8x'"),
        (("--compilation-config", '{"speed": 9}'), "1 validation error for CompilationConfig\nspeed"),
        (("--port",), "argument --port: expected one argument"),
    ],
)
def test_a_bad_value_is_refused(bench: Bench, words: tuple[str, ...], message: str) -> None:
    code, text = _run(bench, "serve", "/models/x", *words)
    assert code == 2
    assert text.startswith("usage: vllm serve [model_tag] [options]\nvllm serve: error: ")
    assert message in text


def _non_default(bench: Bench, *words: str) -> str:
    """What the server says that it was given; the model isn't there, so it ends."""
    running = bench.start("serve", *words, port=0)
    assert running.ends() == 1
    (line,) = running.lines("non-default args: ")
    return line.partition("non-default args: ")[2]


def _config(bench: Bench, text: str, name: str = "config.yaml") -> str:
    path = bench.directory / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_config_file(bench: Bench) -> None:
    port = free_port()
    path = _config(
        bench,
        f"port: {port}\n"
        "tensor_parallel_size: 4\n"
        "max-model-len: 131k\n"
        "gpu_memory_utilization: 0.9\n"
        "enable-expert-parallel: true\n"
        "served-model-name: [one, two]\n"
        "compilation_config: {mode: 3}\n"
        "host: null\n",
    )
    given = _non_default(bench, "/nowhere", "--config", path, "-tp", "2", "--max-num-seqs", "7")
    assert "'tensor_parallel_size': 2" in given  # the command line wins
    for text in (
        f"'port': {port}",
        "'max_model_len': 131000",
        "'gpu_memory_utilization': 0.9",
        "'enable_expert_parallel': True",
        "'served_model_name': ['one', 'two']",
        "'compilation_config': {'mode': 3}",
        "'max_num_seqs': 7",
    ):
        assert text in given
    assert "'host'" not in given


def test_config_file_false_is_dropped_and_no_key_works(bench: Bench) -> None:
    dropped = _config(bench, f"port: {free_port()}\nenable-prefix-caching: false\nenable_chunked_prefill: false\n")
    assert "prefix_caching" not in _non_default(bench, "/nowhere", "--config", dropped)
    kept = _config(bench, f"port: {free_port()}\nno-enable-prefix-caching: true\n")
    assert "'enable_prefix_caching': False" in _non_default(bench, "/nowhere", "--config", kept)


def test_config_file_names_the_model(bench: Bench) -> None:
    path = _config(bench, f"model: /nowhere\nport: {free_port()}\n")
    assert "/nowhere" in _non_default(bench, "--config", path)
    code, text = _run(bench, "serve", "--config", _config(bench, "port: 1234\n"))
    assert code == 1 and "ValueError: No model specified!" in text


def test_config_file_with_an_unknown_key(bench: Bench) -> None:
    code, text = _run(bench, "serve", "/nowhere", "--config", _config(bench, "swap_space: 4\n"))
    assert code == 2
    assert "vllm: error: unrecognized arguments: --swap-space 4" in text


def test_one_config_file_of_the_right_kind(bench: Bench) -> None:
    path = _config(bench, "port: 1234\n")
    assert "More than one config file" in _run(bench, "serve", "/x", "--config", path, "--config", path)[1]
    code, text = _run(bench, "serve", "/x", "--config", str(bench.directory / "none.yaml"))
    assert code == 1 and "FileNotFoundError" in text
    code, text = _run(bench, "serve", "/x", "--config", _config(bench, "{}", "config.json"))
    assert code == 1 and "Config file must be of a yaml/yml type. json supplied" in text


def test_spellings(bench: Bench) -> None:
    given = _non_default(
        bench,
        "/nowhere",
        "--max_num_seqs=9",
        "--enable_expert_parallel",
        "--speculative-config.method",
        "mtp",
        "--speculative-config.num_speculative_tokens=3",
        "-O3",
        "--port",
        str(free_port()),
        "--disable-log-requests",
    )
    assert "'max_num_seqs': 9" in given
    assert "'enable_expert_parallel': True" in given
    assert "'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 3}" in given
    assert "'optimization_level': '3'" in given


def test_secrets_are_not_logged(bench: Bench) -> None:
    given = _non_default(bench, "/nowhere", "--api-key", "hush-hush", "--port", str(free_port()))
    assert "hush-hush" not in given and "'api_key': '***'" in given


def test_without_a_driver_not_even_the_version_is_told(bench: Bench, tmp_path: Path) -> None:
    code, text = _run(bench, "--version", NVIDIA_SIM_SOCKET=str(tmp_path / "none.sock"))
    assert code == 1
    assert "RuntimeError: Failed to infer device type" in text


def test_the_table_is_whole() -> None:
    table = flag_table()
    assert json.dumps(table)
    flags = [flag for entry in table["flags"] for flag in (*entry["flags"], *entry.get("negative", ()))]
    assert len(flags) == len(set(flags))
    by_dest = {entry["dest"]: entry for entry in table["flags"]}
    assert by_dest["gpu_memory_utilization"]["default"] == 0.92
    assert by_dest["shutdown_timeout"]["default"] == 0
    assert "--no-enable-prefix-caching" in by_dest["enable_prefix_caching"]["negative"]
