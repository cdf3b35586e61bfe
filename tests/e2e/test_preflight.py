# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What cannot work is refused before the model that serves is touched; and the plan, as somebody reads it for the first time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from e2e.adhoc import facts, module
from e2e.playbook import playbook
from e2e.programs import Programs

from lab import Host, Lab

OLD, UNIT = "minimax-m2.5", "vllm-minimax-m2.5.service"
TOP = "/srv/models"
STATE = (
    f"systemctl show -p InvocationID,ActiveState,SubState,MainPID,NRestarts {UNIT}; ls /etc/systemd/system/vllm-*; "
    "find /etc/vllm /var/lib/gpufleet /run/gpufleet -printf '%p %m %s %T@\\n' | sort"
)
TP8: dict[str, Any] = {"model": "/models/MiniMax-M2.5", "args": {"tensor_parallel_size": 8}}


def small(model: str = "/models/Qwen3-0.6B", **more: Any) -> dict[str, Any]:
    """A service on the old one's GPUs that would work."""
    return {"model": model, "gpus": ["0"], "args": {"max_model_len": 4096, **more.pop("args", {})}, **more}


def copied(host: Host, name: str) -> str:
    """A model of the host's own, which can be damaged. Its weights take no room."""
    host.run(f"mkdir -p {TOP} && cp -r --sparse=always /models/Qwen3-0.6B {TOP}/{name} && chmod -R u+w,go+rX {TOP}")
    return f"{TOP}/{name}"


def truncated(host: Host) -> dict[str, Any]:
    path = copied(host, "truncated")
    host.run(f"truncate -s -1 {path}/model.safetensors")
    return small(path)


def unreadable(host: Host) -> dict[str, Any]:
    path = copied(host, "unreadable")
    host.run(f"chmod 600 {path}/model.safetensors")
    return small(path)


def shut_away(host: Host) -> dict[str, Any]:
    path = copied(host, "away")
    host.run(f"mkdir -p /home/ada && mv {path} /home/ada/model && ln -s /home/ada/model {path} && chmod 755 /home/ada")
    return small(path)


def unconfigured(host: Host) -> dict[str, Any]:
    path = copied(host, "unconfigured")
    host.run(f"rm {path}/config.json")
    return small(path)


def moved_environment(host: Host) -> dict[str, Any]:
    host.run("mkdir -p /opt/moved/bin && printf '#!/opt/gone/bin/python3\\n' > /opt/moved/bin/vllm && chmod 755 /opt/moved/bin/vllm")
    return small(executable="/opt/moved/bin/vllm")


def newer_torch(host: Host) -> dict[str, Any]:
    host.run("sed -i \"s/'13.0'/'14.0'/\" /opt/vllm/lib/python3*/site-packages/torch/version.py")
    return small()


def without_fabric_manager(host: Host) -> dict[str, Any]:
    host.run("touch /dev/nvidia-nvswitch0 && printf '[Service]\\nExecStart=/bin/false\\n' "
             "> /run/systemd/system/nvidia-fabricmanager.service && systemctl daemon-reload")
    return small()


def busy(host: Host) -> dict[str, Any]:
    Programs(host).service("training", gpus=(5,), mib=60000, name="python3 train.py")
    return {**TP8, "args": {"tensor_parallel_size": 8, "enable_expert_parallel": True}}


def too_large(host: Host) -> dict[str, Any]:
    return {"model": "/models/Kimi-K2.5-INT4", "gpus": ["0", "1"], "args": {"tensor_parallel_size": 2}}


# What is asked for -> (which check fails, what it has to say).
FAULTS: dict[str, tuple[Callable[[Host], dict[str, Any]], str, tuple[str, ...]]] = {
    "eight ranks": (lambda host: TP8, "quant_block_experts", ("1536 / 8 = 192", "128", "1, 2 or 4", "enable_expert_parallel")),
    "truncated": (truncated, "weights", ("model.safetensors", "is truncated")),
    "unreadable": (unreadable, "model_access", ("model.safetensors", "chmod o+rX")),
    "shut away": (shut_away, "model_access", ("/home/ada/model", "ProtectHome")),
    "no configuration": (unconfigured, "model", ("config.json",)),
    "no model": (lambda host: small("/models/gone"), "model", ("/models/gone does not exist",)),
    "unknown argument": (lambda host: small(args={"max_modle_len": 1}), "arguments", ("max_modle_len", "the nearest is max_model_len")),
    "removed argument": (lambda host: small(args={"swap_space": 4}), "arguments", ("swap_space was removed", "Leave it out")),
    "no executable": (lambda host: small(executable="/opt/gone/bin/vllm"), "executable", ("/opt/gone/bin/vllm does not exist",)),
    "a moved environment": (moved_environment, "executable", ("/opt/gone/bin/python3",)),
    "newer torch": (newer_torch, "cuda", ("CUDA 14.0", "CUDA 13.0", "Install a driver")),
    "no fabric manager": (without_fabric_manager, "fabric_manager", ("NVSwitch", "systemctl enable --now")),
    "a busy GPU": (busy, "memory", ("GPU 5", "60,0", "training.service")),
    "too large": (too_large, "memory_plan", ("weights", "MiB")),
}


@pytest.fixture(scope="module")
def serving(lab: Lab) -> Iterator[Host]:
    """gpu01, which serves the old model on its first four GPUs."""
    host = lab.hosts["gpu01"]
    host.reset()
    playbook("swap_model", "-e", f"model={OLD}", "--limit", "localhost,gpu01").expect()
    yield host
    host.reset()


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_work_is_refused_while_the_old_model_serves(serving: Host, fault: str) -> None:
    prepare, check, said = FAULTS[fault]
    asked = prepare(serving)
    before = serving.run(STATE).stdout
    try:
        done = module(serving, "vllm_service", name="new", replace="conflicting", **asked)
        alone = module(serving, "vllm_preflight", "--check", **asked)
    finally:
        serving.run("rm -f /dev/nvidia-nvswitch0; sed -i \"s/'14.0'/'13.0'/\" /opt/vllm/lib/python3*/site-packages/torch/version.py; "
                    "systemctl stop training 2>/dev/null; true")
    assert done["failed"] and "nothing was touched" in done["msg"], done["shown"]
    assert serving.run(STATE).stdout == before
    assert "ActiveState=active" in before
    failed = [each for each in done["preflight"]["checks"] if each["status"] == "fail"]
    assert [each["id"] for each in failed] == [check], failed
    for text in said:
        assert text in f"{failed[0]['detail']} {failed[0]['fix']}", failed
    assert failed[0]["detail"].rstrip(".") in done["msg"] and failed[0]["fix"] in done["msg"]
    # The module alone says the same, and its task does not fail for it.
    assert not alone["failed"] and alone["changed"] is False and alone["ok"] is False
    assert [each["id"] for each in alone["checks"] if each["status"] == "fail"] == [check]


def test_what_is_only_warned_of_goes_on(serving: Host) -> None:
    path = copied(serving, "warned")
    serving.run(f"chmod 600 {path}/model.safetensors")
    done = module(serving, "vllm_service", "--check", name="new", replace="conflicting", preflight="warn", **small(path))
    assert not done["failed"] and done["preflight"]["ok"] is False
    assert "model_access" in done["shown"] and [each["action"] for each in done["actions"] if each["action"] == "start"] == ["start"]
    skipped = module(serving, "vllm_service", "--check", name="new", replace="conflicting", preflight="skip", **small(path))
    assert not skipped["failed"] and "preflight" not in skipped


def test_a_host_is_checked_and_another_machine_planned_for(serving: Host) -> None:
    before = serving.run(STATE).stdout
    found = module(serving, "vllm_preflight", model="/models/MiniMax-M2.5", gpus=["0", "1", "2", "3"], args={"tensor_parallel_size": 4})
    assert found["ok"] and not found["changed"], found["shown"]
    checks = {each["id"]: each["status"] for each in found["checks"]}
    assert {checks[name] for name in ("gpus", "weights", "quant_block_experts", "arguments", "cuda", "model_access", "port", "memory")} == {
        "pass"}, checks
    assert 53000 < found["plan"]["weights_mib_per_gpu"] < 58000 and found["plan"]["kv_tokens"] > 0
    assert found["suggest"]["tensor_parallel_size"] == [1, 2, 4]

    given = facts(serving)
    elsewhere = module(serving, "vllm_preflight", gpu_facts=given, **TP8)
    assert [each["id"] for each in elsewhere["checks"] if each["status"] == "fail"] == ["quant_block_experts"]
    assert {each["status"] for each in elsewhere["checks"] if each["id"] in ("executable", "port", "disk")} == {"skip"}
    # The facts say what is free there, and the model that serves holds most of it.
    assert {each["status"] for each in elsewhere["checks"] if each["id"] == "memory"} == {"warn"}
    larger = module(serving, "vllm_preflight", gpu_facts={"count": 8, "gpu_mib": 143771, "name": "NVIDIA H200"},
                    model="/models/Kimi-K2.5-INT4", args={"tensor_parallel_size": 8, "max_model_len": 131072})
    assert larger["ok"] and larger["verdict"] == "fits", larger["shown"]
    wrong = module(serving, "vllm_preflight", gpu_facts={"count": "many"}, **TP8)
    assert wrong["failed"] and "gpu_facts.count" in wrong["msg"]
    assert serving.run(STATE).stdout == before


def test_the_plan_of_one_host_is_a_table_that_a_stranger_reads(serving: Host) -> None:
    done = playbook("swap_model", "-e", "model=kimi-k2.5-int4", "--check", "--limit", "localhost,gpu01").expect()
    text = " ".join(done.out.split())
    assert "Preflight: kimi-k2.5-int4 (/models/Kimi-K2.5-INT4)" in text
    (row,) = [line for line in done.out.splitlines() if line.startswith("gpu01") and "GiB" in line]
    assert "0-7" in row and "TP 8" in row and "x 131,072" in row, row
    assert row.split()[-1] in ("fits", "tight")


def test_the_plan_of_a_fleet_says_each_thing_once(lab: Lab, serving: Host) -> None:
    done = playbook("swap_model", "-e", "model=minimax-m2.5-tp8", "--check").expect(rc=2)
    rows = [line for line in done.out.splitlines() if line.startswith("gpu0") and "GiB" in line]
    assert len(rows) == 3 and all(row.split()[-1] == "REFUSED" for row in rows), done.out
    findings = [line for line in done.out.splitlines() if "quant_block_experts" in line and line.startswith("all 3")]
    assert len(findings) == 1 and "FAIL" in findings[0], done.out
    assert "tensor_parallel_size 1, 2 or 4 would work" in " ".join(done.out.split())


def test_the_report_carries_all_of_it(serving: Host, tmp_path: Any) -> None:
    done = playbook("swap_model", "-e", "model=minimax-m2.5-tp8", "--limit", "localhost,gpu01", reports=tmp_path).expect(rc=2)
    assert done.report is not None
    found = done.report["hosts"]["gpu01"]["preflight"]
    assert found["plan"]["weights_mib_per_gpu"] and found["suggest"]["tensor_parallel_size"] == [1, 2, 4]
    assert [each["id"] for each in found["checks"] if each["status"] == "fail"] == ["quant_block_experts"]
    json.dumps(found, allow_nan=False)
