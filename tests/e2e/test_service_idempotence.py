# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Varied declarations of one service: what check mode says is what is done, and a second run finds nothing to do.

The second run writes the same declaration in other words wherever there are any, since people, templates and ``-e`` do.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from e2e.direct import SMALL, service, thrice

from lab import Host, Lab

HARD = {"PERCENT": "50%n %% %H", "DOLLAR": "$HOME ${A} $$", "QUOTES": "a\"b'c", "BACKSLASH": "\\n \\x41 ends\\", "JSON": '{"a": [1, "b"]}',
        "SPACES": "  a  b ", "TAB": "a\tb", "UNICODE": "ü 日本 😀", "EMPTY": "", "LEADING": "-@:+!x", "LONE": ";",
        "LONG": "x" * 20_000}  # fmt: skip
ARGS = SMALL["args"]
EVERYTHING = "/srv/it's 50% \"off\" $x"
SECRET = {"VLLM_API_KEY": "sk-Tell nobody \"7341\" $x %n", "OTHER_TOKEN": "hf-Tell\\nobody-7342"}


def args(**more: Any) -> dict[str, Any]:
    return {"args": {**ARGS, **more}}


def dashed(**more: Any) -> dict[str, Any]:
    return {"args": {name.replace("_", "-"): value for name, value in {**ARGS, **more}.items()}}


# What is declared, and the same in other words. UUID4 and PCI4 stand for those of GPU 4, UUID and PCI for other forms of them.
DECLARATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing but what is needed": ({}, {"state": "started", "smoke": True, "replace": "none"}),
    "numbers": (args(max_num_seqs=64, gpu_memory_utilization=0.9), dashed(max_num_seqs="64", gpu_memory_utilization="0.90")),
    "switches": (args(enforce_eager=True, enable_prefix_caching=False), dashed(enforce_eager="yes", no_enable_prefix_caching="on")),
    "a JSON dict": (
        args(override_generation_config={"temperature": 0.5, "top_k": 3}),
        args(override_generation_config='{"top_k": 3, "temperature": 0.5}'),
    ),
    "dotted": (args(**{"override_generation_config.top_k": 3}), args(override_generation_config={"top_k": 3})),
    "a list": (args(allowed_origins=["http://a b", "*"]), dashed(allowed_origins='["http://a b", "*"]')),
    "negative": (args(seed=-1), args(seed="-1")),
    "null and empty": (args(quantization=None), {}),
    "hard environment": ({"env": HARD}, {"env": dict(reversed(HARD.items()))}),
    "numbers in the environment": ({"env": {"A": 1, "B": True, "C": 1.5}}, {"env": {"C": "1.5", "B": "1", "A": "1"}}),
    "secrets": ({"secrets": SECRET}, {"secrets": dict(reversed(SECRET.items()))}),
    "a drop-in": (
        {"unit_options": {"Service": {"Nice": 5, "Environment": ["A=1", "B=2"]}, "Unit": {"Wants": "network-online.target"}}},
        {"unit_options": {"Unit": {"Wants": "network-online.target"}, "Service": {"Environment": ["A=1", "B=2"], "Nice": "5"}}},
    ),
    "IPv6": ({"host": "::1"}, {"host": "::1"}),
    "every address": ({"host": "::"}, {"host": "::"}),
    "a host name": ({"host": "localhost"}, {"host": "localhost"}),
    "dots and upper case": ({"name": "MiniMax-M2.5_X"}, {"name": "MiniMax-M2.5_X", "served_name": "MiniMax-M2.5_X"}),
    "a name beyond ASCII": (
        {"name": "Modell ü 模型", "served_name": "a b;%n $x"},
        {"served_name": "a b;%n $x", "name": "Modell ü 模型"},
    ),
    "a GPU by UUID": ({"gpus": ["UUID4"]}, {"gpus": ["UUID"]}),
    "a GPU by PCI id": (
        {"gpus": ["PCI4", "5"], **args(tensor_parallel_size=2)},
        {"gpus": ["5", "PCI"], **args(tensor_parallel_size="2")},
    ),
    "all GPUs": (
        {"gpus": ["all"], **args(tensor_parallel_size=8)},
        {"gpus": [str(index) for index in range(8)], **args(tensor_parallel_size=8)},
    ),
    "no guard": ({"guard": {"enabled": False}}, {"guard": {"enabled": False, "timeout": 300}}),
    "a patient guard": ({"guard": {"timeout": 600, "margin_mib": 100}}, {"guard": {"margin_mib": 100, "timeout": 600.0}}),
    "another account": ({"user": "svc-llm", "group": "svc"}, {"user": "svc-llm", "group": "svc"}),
    "at boot": ({"enabled": True}, {}),
    "not at boot": ({"enabled": False}, {}),
    "a long drain": (args(shutdown_timeout=120), dashed(shutdown_timeout="120")),
    "a path with everything": ({"model": EVERYTHING, "served_name": "small"}, {"model": EVERYTHING}),
}  # fmt: skip


@pytest.fixture(scope="module", params=["gpu01", "gpu03"], ids=["bookworm", "trixie"])
def machine(lab: Lab, request: pytest.FixtureRequest) -> Host:
    """A host with each systemd, clean once."""
    chosen = lab.hosts[request.param]
    chosen.reset()
    chosen.vllm.behave("*", load_seconds=0.1)
    chosen.run(["cp", "-r", "/models/Qwen3-0.6B", EVERYTHING])
    return chosen


def _meant(host: Host, declared: dict[str, Any]) -> dict[str, Any]:
    gpu = host.gpu.current.gpus[4]
    uuid, slot = str(gpu.uuid), str(gpu.pci_bus_id)
    ids = {"UUID4": uuid, "UUID": uuid[:12].lower(), "PCI4": slot, "PCI": slot[-len("0000:00:00.0"):].lower()}
    return {**declared, "gpus": [ids.get(each, each) for each in declared.get("gpus", ["4"])]}


@pytest.mark.parametrize("which", DECLARATIONS, ids=[name.replace(" ", "-") for name in DECLARATIONS])
def test_a_second_run_finds_nothing_to_do(machine: Host, which: str) -> None:
    first, second = (_meant(machine, declared) for declared in DECLARATIONS[which])
    seen = thrice(machine, unit=service(machine, check=True, **first)["unit"], **first)
    planned, done, again = seen["planned"], seen["done"], seen["again"]
    try:
        assert not done["failed"] and done["ready"], done
        assert seen["still"] == seen["before"], "check mode changed something"
        for part in ("changed", "actions", "files", "diff"):
            assert planned[part] == done[part], f"check mode said otherwise: {part}"
        assert done["changed"] and seen["reloads"] == [1, 0]
        assert not again["changed"] and seen["end"] == seen["after"], again["actions"]
        for value in first.get("secrets", {}).values():
            assert value not in json.dumps(seen, ensure_ascii=False) and json.dumps(value)[1:-1] not in json.dumps(seen)
        reworded = thrice(machine, unit=done["unit"], **second)
        assert not reworded["done"]["failed"] and reworded["done"]["actions"] == [], reworded["done"]
        assert reworded["end"] == seen["after"] and reworded["reloads"] == [0, 0]
    finally:
        gone = service(machine, state="absent", name=first.get("name", "small"))
        assert not gone["failed"], gone
