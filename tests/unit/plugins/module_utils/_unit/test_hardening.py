# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the sandbox must not hide: every path that the declaration names."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.config import normalise_args
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.hardening import hardening
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.spec import ServiceSpec

HIDDEN = {"ProtectHome": "yes", "PrivateTmp": "yes"}
HOME = {"ProtectHome": "read-only", "PrivateTmp": "yes"}
TMP = {"ProtectHome": "yes", "PrivateTmp": "no"}


def spec(**more: Any) -> ServiceSpec:
    return ServiceSpec(**{"name": "one", "model": "/models/one", "served_name": "one", "gpus": (0,), **more})


def shown(lines: list[str]) -> dict[str, str]:
    return {name: value for name, _equals, value in (line.partition("=") for line in lines) if name in HIDDEN}


@pytest.mark.parametrize(("args", "expected"), [
    ({"chat_template": "/home/ops/t.jinja"}, HOME),
    ({"tokenizer": "/home/ops/tok"}, HOME),
    ({"tokenizer": "//home/ops/tok"}, HOME),
    ({"tokenizer": "/data/../home/ops/tok"}, HOME),
    ({"ssl-certfile": "/root/c.pem"}, HOME),
    ({"allowed_local_media_path": "/home"}, HOME),
    ({"allowed_local_media_path": "/run/user/1000/media"}, HOME),
    ({"speculative_config": {"model": "/home/ops/draft", "num_speculative_tokens": 3}}, HOME),
    ({"speculative_config.model": "/home/ops/draft"}, HOME),
    ({"speculative_config": '{"model": "/home/ops/draft"}'}, HOME),
    ({"lora_modules": ["a=/models/a", "b=/home/ops/b"]}, HOME),
    ({"lora_modules": [{"name": "b", "path": "/home/ops/b"}]}, HOME),
    ({"tool_parser_plugin": "file:///home/ops/p.py"}, HOME),
    ({"chat_template": "/tmp/t.jinja"}, TMP),
    ({"chat_template": "/var/tmp/t.jinja"}, TMP),
    ({"chat_template": "/tmp"}, HIDDEN),
    ({"chat_template": "/homes/ops/t.jinja"}, HIDDEN),
    ({"chat_template": "/data/home/t.jinja"}, HIDDEN),
    ({"chat_template": "{{ 'see /home/ops/x' }} and /tmp/x"}, HIDDEN),
    ({"otlp_traces_endpoint": "http://host/home/ops/x"}, HIDDEN),
    ({"download_dir": "/data/models", "max_num_seqs": 8, "enforce_eager": True}, HIDDEN),
    ({}, HIDDEN),
])
def test_a_path_among_the_arguments_is_not_hidden(args: dict[str, Any], expected: dict[str, str]) -> None:
    lines = hardening(spec(args=args))
    assert shown(lines) == expected
    assert hardening(spec(args=normalise_args(normalise_args(args)))) == lines, "declared in its one form it says the same"
    assert hardening(spec(args=dict(reversed(list(args.items()))))) == lines


@pytest.mark.parametrize(("env", "expected"), [
    ({"VLLM_LOGGING_CONFIG_PATH": "/home/ops/log.json"}, HOME),
    ({"PYTHONPATH": "/srv/lib:/home/ops/lib"}, HOME),
    ({"VLLM_LOGGING_CONFIG_PATH": "/tmp/log.json"}, TMP),
    ({"NCCL_DEBUG": "INFO"}, HIDDEN),
])
def test_nor_is_one_in_the_environment(env: dict[str, str], expected: dict[str, str]) -> None:
    assert shown(hardening(spec(env=env))) == expected


@pytest.mark.parametrize(("more", "expected"), [
    ({"model": "/home/ops/m"}, HOME), ({"model": "/tmp/m"}, TMP), ({"model": "home/tmp"}, HIDDEN),
    ({"executable": "/root/v/bin/vllm"}, HOME),
])
def test_nor_are_the_model_and_the_program(more: dict[str, Any], expected: dict[str, str]) -> None:
    assert shown(hardening(spec(**more))) == expected


def test_the_hosts_temporary_directories_can_be_written_to_where_they_are_not_the_services_own() -> None:
    lines = hardening(spec(args={"chat_template": "/tmp/t.jinja"}, env={"HF_HOME": "/tmp/hf"}))
    assert [line for line in lines if line.startswith("ReadWritePaths")] == [
        "ReadWritePaths=-/tmp", "ReadWritePaths=-/tmp/hf", "ReadWritePaths=-/var/tmp",
    ]
    assert not any(line.startswith("ReadWritePaths") for line in hardening(spec(args={"chat_template": "/home/ops/t.jinja"})))
