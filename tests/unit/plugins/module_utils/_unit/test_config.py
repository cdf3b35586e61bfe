# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Engine arguments: one form, and what vLLM makes of the file and the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.config import (
    HEADER,
    command_line,
    normalise_args,
    render_config,
)

from .texts import TEXTS

# Names that stand in no table: their values must arrive as they are, whatever they look like.
UNKNOWN = st.sampled_from(["alpha", "beta_gamma", "delta-epsilon", "zeta", "no", "on", "y"])
SCALARS = st.one_of(
    st.booleans(), st.integers(-(10**15), 10**15), st.floats(allow_nan=False, allow_infinity=False), TEXTS
)
JSON = st.recursive(
    st.one_of(st.none(), SCALARS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)
ARGS = st.dictionaries(
    UNKNOWN,
    st.one_of(SCALARS, st.lists(st.integers(0, 99), max_size=3), st.dictionaries(TEXTS, JSON, max_size=4)),
    max_size=5,
)


def words_of(args: dict[str, Any], **own: Any) -> list[str]:
    """The words that vLLM's parser sees: the file's as its reader makes them (false is lost), then the command line's."""
    words = []
    for key, value in yaml.safe_load(render_config(args, **own)).items():
        assert isinstance(key, str)
        if isinstance(value, bool):
            words += ["--" + key] if value else []
        elif isinstance(value, list):
            words += ["--" + key, *map(str, value)] if value else []
        else:
            words += ["--" + key, json.dumps(value) if isinstance(value, dict) else str(value)]
    return words + command_line(args)


def expected(args: dict[str, Any]) -> dict[str, Any]:
    """The same arguments by flag, values as the words should be."""
    found: dict[str, Any] = {}
    for name, value in args.items():
        flag = name.replace("_", "-")
        if value is True:
            found[flag] = []
        elif value is False:
            found["no-" + flag] = []
        elif isinstance(value, list):
            if value:
                found[flag] = [str(item) for item in value]
        elif isinstance(value, dict):
            found[flag] = value
        else:
            found[flag] = [str(value)]
    return found


def grouped(words: list[str]) -> dict[str, Any]:
    """Words back into values by flag, as an argument parser would."""
    found: dict[str, Any] = {}
    flag = ""
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word[2:].partition("=")
            found[flag] = [value] if equals else []
        else:
            assert not word.startswith("-"), "it would be taken for a flag"
            found[flag].append(word)
    return found


@given(ARGS)
def test_every_value_reaches_vllm(args: dict[str, Any]) -> None:
    got = grouped(words_of(args))
    for flag, value in expected(args).items():
        if isinstance(value, dict):
            assert json.loads(got[flag][0]) == value
        elif value and value[0].lstrip().startswith("{") and json_object(value[0]) is not None:
            assert json.loads(got[flag][0]) == json_object(value[0])  # the same object, written in our own way
        else:
            assert got[flag] == value
    assert set(got) == set(expected(args))


def json_object(text: str) -> Any:
    """The object that a text is, or None."""
    try:
        return json.loads(text)
    except ValueError:
        return None


@given(ARGS)
def test_normalising_is_done_once_and_order_does_not_matter(args: dict[str, Any]) -> None:
    once = normalise_args(args)
    assert normalise_args(once) == once
    backwards = dict(reversed(list(args.items())))
    assert render_config(backwards) == render_config(args) == render_config(once)
    assert command_line(backwards) == command_line(args)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"gpu_memory_utilization": 0.9}, {"gpu-memory-utilization": "0.90"}),
        ({"gpu_memory_utilization": 1}, {"gpu_memory_utilization": "1.0"}),
        ({"tensor_parallel_size": 4}, {"tensor-parallel-size": "4"}),
        ({"tensor_parallel_size": 4}, {"Tensor_Parallel_Size": 4.0}),
        ({"max_model_len": 131072}, {"max_model_len": "131072"}),
        ({"enable_prefix_caching": True}, {"enable-prefix-caching": "yes"}),
        ({"enable_prefix_caching": False}, {"no_enable_prefix_caching": "true"}),
        ({"enforce_eager": True}, {"enforce_eager": "True"}),
        ({"speculative_config": {"method": "mtp", "n": 3}}, {"speculative_config": '{"n": 3, "method":"mtp"}'}),
        (
            {"compilation_config": {"level": 3, "a": {"b": "x"}}},
            {"compilation-config.level": "3", "compilation_config.a.b": "x"},
        ),
        ({"cudagraph_capture_sizes": [1, 2]}, {"cudagraph_capture_sizes": ["1", "2"]}),
        ({"seed": None, "max_num_seqs": 8, "lora_modules": []}, {"max_num_seqs": 8}),
    ],
)
def test_two_ways_to_say_the_same_give_the_same_file(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert normalise_args(one) == normalise_args(other)
    assert render_config(one) == render_config(other)
    assert command_line(one) == command_line(other)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        # A revision that looks like a number stays what it is.
        ({"revision": "0.90"}, ["--revision", "0.90"]),
        ({"revision": "1e5"}, ["--revision", "1e5"]),
        ({"revision": "007"}, ["--revision", "007"]),
        ({"dtype": "no"}, ["--dtype", "no"]),
        ({"max_model_len": "128k"}, ["--max-model-len", "128k"]),
        ({"chat_template": "2024-01-01"}, ["--chat-template", "2024-01-01"]),
        # Lost in the file, so said on the command line; off anyway, so not said at all.
        ({"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
        ({"enforce_eager": False}, []),
        ({"some_new_flag": False}, ["--no-some-new-flag"]),
        # Taken for flags when they stand alone.
        ({"seed": -1}, ["--seed=-1"]),
        ({"x": "-0.5"}, ["--x=-0.5"]),
        ({"x": "--y"}, ["--x=--y"]),
        ({"middleware": ["a.B", "c.D"]}, ["--middleware=a.B", "--middleware=c.D"]),
        # JSON in one word, and dicts in lists as JSON, not as Python.
        ({"allowed_origins": ["*"]}, ["--allowed-origins", '["*"]']),
        ({"lora_modules": [{"name": "a", "path": "/b"}]}, ["--lora-modules", '{"name": "a", "path": "/b"}']),
        ({"x": 1e-05}, ["--x", "1e-05"]),
        ({"x": {"y": 1e-05}}, ["--x", '{"y": 1e-05}']),
    ],
)
def test_words(args: dict[str, Any], words: list[str]) -> None:
    assert words_of(args) == words


def test_the_file_reads_well() -> None:
    text = render_config({"tensor_parallel_size": 4, "dtype": "auto"}, "0.0.0.0", 8000, "minimax")
    assert (
        text
        == HEADER
        + 'dtype: "auto"\nhost: "0.0.0.0"\nport: 8000\nserved-model-name: ["minimax"]\ntensor-parallel-size: 4\n'
    )
    assert yaml.safe_load(render_config({})) == {}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"model": "x"}, "Use model"),
        ({"host": "x"}, "Use host"),
        ({"port": 1}, "Use port"),
        ({"served-model-name": "x"}, "Use served_name"),
        ({"api_key": "x"}, "under secrets as VLLM_API_KEY"),
        ({"hf-token": "x"}, "under secrets as HF_TOKEN"),
        ({"config": "x"}, "under args"),
        ({"uds": "x"}, "listens on host and port"),
        ({"tensor_parallel_size": 1, "tensor-parallel-size": 1}, "are the same argument"),
        ({"enable_prefix_caching": True, "no-enable-prefix-caching": False}, "are the same argument"),
        ({"compilation_config": 3, "compilation_config.level": 3}, "whole and in parts"),
        ({"a.b": 1, "a": {"b": 2}}, "given twice"),
        ({"enforce_eager": "perhaps"}, "neither true nor false"),
        ({"x": "a\nb"}, "line break"),
        ({"x": ["a\0"]}, r"args\.x\[0\]: a NUL"),
        ({"x": {"y": "a\r"}}, r"args\.x\.y: a line break"),
        ({"x": float("nan")}, "no number that can be written"),
        ({"x": {"y": float("inf")}}, "no number that can be written"),
        ({"gpu_memory_utilization": "nan"}, "no number that can be written"),
        ({"x": ["-a"]}, "can't begin with '-'"),
        ({"x": b"bytes"}, "a bytes can't be an argument"),
        ({"--x": 1}, "without the leading hyphens"),
        ({"a b": 1}, "no name of an engine argument"),
        ({3: 1}, "no name of an engine argument"),
        (["x"], "a dictionary"),
    ],
)
def test_what_is_refused_and_how(args: Any, message: str) -> None:
    with pytest.raises(GpuFleetError, match=message):
        normalise_args(args)


def test_no_secret_stands_in_a_refusal() -> None:
    with pytest.raises(GpuFleetError) as refused:
        normalise_args({"api_key": "s3cret"})
    assert "s3cret" not in refused.value.msg
