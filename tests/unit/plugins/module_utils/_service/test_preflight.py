# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vllm_preflight's core: every way in which a host and a request can be, and every way in which a request can be wrong."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.runner import Completed, Runner
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, GpuProcess, Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.asked import Places
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.report import PLAN_NAMES, Report
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.parameters import to_request
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ports import Paths, Ports
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.preflight import preflight
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.run import run
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._preflight.checkpoints import minimax, write
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._preflight.environment import make
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import (
    FakeClock,
    FakeReader,
    World,
    gpu,
)

GPUS = {"count": 8, "gpu_mib": 97887, "name": "NVIDIA RTX PRO 6000"}


def free_port() -> int:
    """A port that nobody has: the check looks at this very machine."""
    with socket.socket(socket.AF_INET6) as listener:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::", 0))
        return int(listener.getsockname()[1])


class NoCommand(Runner):
    """Nothing is run."""

    def run(self, argv: Any, timeout: float = 30.0, stdin: Any = None, env: Any = None) -> Completed:
        return Completed(tuple(argv), 127, "", "not here")


class Units(World):
    """A systemd that takes every unit."""

    def verify(self, text: str, unit: str, drop_ins: Any = None) -> list[str]:
        return []


class Driver(FakeReader):
    """A driver with a version."""

    def snapshot(self, gpus: Any = None, processes: bool = True) -> Snapshot:
        return replace(super().snapshot(gpus, processes), driver_version="580.95.05", cuda_version="13.0")


class Broken(FakeReader):
    """A driver that can't be read."""

    def snapshot(self, gpus: Any = None, processes: bool = True) -> Snapshot:
        return Snapshot(False, "driver_hung", "no answer within 60 s")


class Host:
    """A host with a model, an environment and eight GPUs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        config, shards = minimax()
        self.model = write(root / "models/m", shards, config)
        self.executable = make(root / "venv")
        for directory, names, files in os.walk(root):
            for name in [".", *names]:
                (Path(directory) / name).chmod(0o755)
            for name in files:
                path = Path(directory) / name
                path.chmod(path.stat().st_mode | 0o444)
        self.gpus: list[Gpu] = [gpu(index) for index in range(8)]
        self.world = Units()
        self.reader: Any = Driver(lambda: self.gpus)

    def ports(self) -> Ports:
        root = str(self.root)
        paths = Paths(units=root + "/units", config=root + "/etc", guard=root + "/guard.pyz", home=root + "/home",
                      records=root + "/records", run=root + "/run")
        return Ports(runner=NoCommand(), clock=FakeClock(), systemd=self.world, open_reader=lambda: self.reader,  # type: ignore[arg-type]
                     server=self.world.server, paths=paths, places=Places(records=root + "/records"))  # type: ignore[arg-type]

    def check(self, **params: Any) -> Report:
        given: dict[str, Any] = {
            "model": str(self.model), "gpus": ["all"], "executable": str(self.executable), "user": "root", "group": "root",
            "replace": "conflicting", "port": free_port(), "unit_options": {"Service": {"PrivateTmp": False, "ProtectHome": False}},
        }
        return preflight({**given, **params}, self.ports(), remember=False)


@pytest.fixture
def host() -> Iterator[Host]:
    root = Path(tempfile.mkdtemp(prefix="gpufleet-test-"))
    yield Host(root)
    shutil.rmtree(root)


def by_id(report: Report) -> dict[str, str]:
    return {check.id: check.status for check in report.checks}


def test_a_good_request_passes_and_has_its_figures(host: Host) -> None:
    report = host.check(gpus=["0", "1", "2", "3"], args={"tensor_parallel_size": 4, "max-model-len": 2048, "max_num_seqs": 16})
    assert report.ok, report.failed
    found = report.to_result()
    assert set(found) == {"ok", "checks", "plan", "suggest", "verdict", "about"}
    assert set(PLAN_NAMES) == set(found["plan"])
    assert found["verdict"] == "fits" and None not in found["plan"].values()
    assert found["about"]["max_model_len"] == 2048 and found["about"]["free_mib_per_gpu"] == 97887
    wanted = {"gpus", "model", "weights", "executable", "vllm_version", "arguments", "cuda", "user", "model_access", "executable_access",
              "disk", "shm", "host_memory", "memory_plan", "port", "memory"}
    assert wanted <= set(by_id(report))
    assert all(check.detail and (check.fix or check.status in ("pass", "skip")) for check in report.checks)


def test_the_founding_case(host: Host) -> None:
    report = host.check(args={"tensor_parallel_size": 8})
    (failed,) = report.failed
    assert failed.id == "quant_block_experts" and "1536 / 8 = 192" in failed.detail and "128" in failed.detail
    assert "1, 2 or 4" in str(failed.fix) and "enable_expert_parallel: true, tensor_parallel_size 8 works" in str(failed.fix)
    assert report.to_result()["suggest"]["tensor_parallel_size"] == [1, 2, 4]
    assert host.check(args={"tensor_parallel_size": 4}, gpus=["0", "1", "2", "3"]).ok
    assert host.check(args={"tensor_parallel_size": 8, "enable_expert_parallel": True}).ok


def test_a_machine_that_is_not_there_is_planned_for(host: Host) -> None:
    report = host.check(args={"tensor_parallel_size": 4}, gpus=["0", "1", "2", "3"], gpu_facts=GPUS, executable="/nowhere")
    assert report.ok and report.plan["weights_mib_per_gpu"] is not None
    skipped = {check.id: check.detail for check in report.checks if check.status == "skip"}
    assert {"executable", "arguments", "cuda", "disk", "port", "memory", "user", "model_access"} <= set(skipped)
    assert all("not there" in detail for detail in skipped.values())


def test_what_is_said_of_another_machine_is_used(host: Host) -> None:
    ask: dict[str, Any] = {"args": {"tensor_parallel_size": 4}, "gpus": ["0", "1", "2", "3"]}
    full = {"gpus": [{"index": number, "total_mib": 81559, "free_mib": 80000, "used_mib": 1559} for number in range(4)]}
    report = host.check(**ask, gpu_facts=full)
    assert by_id(report)["memory"] == "pass" and report.about["free_mib_per_gpu"] == 80000
    full["gpus"][2].update(free_mib=11559, used_mib=70000)
    report = host.check(**ask, gpu_facts=full)
    memory = [check for check in report.checks if check.id == "memory"]
    assert [check.status for check in memory] == ["warn"] and "GPU 2" in memory[0].detail and "11,559" in memory[0].detail
    assert report.about["free_mib_per_gpu"] == 11559
    assert [check.id for check in host.check(**ask, gpu_facts=full, replace="none").failed] == ["memory"]
    assert by_id(host.check(**ask, gpu_facts=GPUS))["memory"] == "skip"


def test_the_version_that_the_figures_hold_for_is_said(host: Host) -> None:
    ask: dict[str, Any] = {"args": {"tensor_parallel_size": 4}, "gpus": ["0", "1", "2", "3"]}

    def of(**params: Any) -> tuple[Any, Any, Any]:
        report = host.check(**ask, **params)
        return report.about["vllm_version"], report.about["vllm_version_from"], report.plan["free_mib_needed"]

    assert of()[:2] == ("0.33.0", "installed")
    assert of(gpu_facts=GPUS)[:2] == (None, "assumed")
    old = of(gpu_facts={**GPUS, "vllm_version": "0.10.1"})
    assert old[:2] == ("0.10.1", "given") and old[2] != of(gpu_facts=GPUS)[2]
    assert of(gpu_facts={"ansible_facts": {"gpu_memory": {"gpus": [{"total_mib": 97887}] * 4}}, "vllm_version": "0.10.1"})[:2] == old[:2]
    (said,) = [check for check in host.check(**ask, gpu_facts=GPUS).checks if check.id == "vllm_version"]
    assert said.status == "skip" and "recent vLLM" in said.detail and "vllm_version" in str(said.fix)


def test_a_length_beyond_the_models_own_fails_and_is_not_suggested(host: Host) -> None:
    ask: dict[str, Any] = {"gpus": ["0", "1", "2", "3"], "gpu_facts": GPUS}
    args = {"tensor_parallel_size": 4, "max_model_len": 400000, "max_num_seqs": 16}
    report = host.check(**ask, args=args)
    assert [check.id for check in report.failed] == ["max_model_len"] and report.suggest["max_model_len"] == 4096
    allowed = host.check(**ask, args=args, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
    assert allowed.ok and by_id(allowed)["max_model_len"] == "warn"


def test_arguments_are_read_once_for_checks_and_figures(host: Host) -> None:
    report = host.check(args={"tp": 8}, gpu_facts=GPUS)
    assert report.about["tensor_parallel_size"] == 8
    assert [check.id for check in report.failed] == ["quant_block_experts"] and by_id(report)["arguments"] in ("warn", "skip")
    huge = host.check(args={"tensor_parallel_size": 10**30, "max_model_len": [1]}, gpu_facts=GPUS)
    assert {check.id for check in huge.failed} == {"parallel", "argument_values"} and huge.plan == {}
    assert huge.about["tensor_parallel_size"] is None


def test_what_overrides_change_is_not_certain(host: Host) -> None:
    report = host.check(args={"tensor_parallel_size": 8, "hf_overrides": {"moe_intermediate_size": 1024}}, gpu_facts=GPUS)
    assert report.ok and by_id(report)["hf_overrides"] == "warn" and by_id(report)["quant_block_experts"] == "warn"


def test_pointers_of_git_lfs_say_how_to_fetch(host: Host) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    (host.model / "model-00002-of-00002.safetensors").write_bytes(pointer)
    (weights,) = [check for check in host.check(gpu_facts=GPUS).failed if check.id == "weights"]
    assert "git lfs pull" in str(weights.fix)
    (host.model / "config.json").write_bytes(pointer)
    (model,) = [check for check in host.check(gpu_facts=GPUS).failed if check.id == "model"]
    assert "git-lfs pointer" in model.detail and "git lfs pull" in str(model.fix)


def test_a_gpu_that_is_named_twice_is_told(host: Host) -> None:
    for more in ({}, {"gpu_facts": GPUS}):
        assert by_id(host.check(gpus=["0", "0"], **more))["gpus_twice"] == "warn"
        assert "gpus_twice" not in by_id(host.check(gpus=["0", "1"], **more))


@pytest.mark.parametrize("check_mode", [True, False])
def test_a_refusal_is_not_buried_beneath_what_would_have_been_done(host: Host, check_mode: bool) -> None:
    def asked(size: int) -> Any:
        return to_request({
            "name": "m", "model": str(host.model), "gpus": ["all"], "executable": str(host.executable), "user": "root", "group": "root",
            "args": {"tensor_parallel_size": size, "max_num_seqs": 8}, "port": free_port(), "state": "started",
            "unit_options": {"Service": {"PrivateTmp": False, "ProtectHome": False}}, "smoke": False,
        })

    ports = host.ports()
    ports = replace(ports, paths=replace(ports.paths, run=str(host.root)))
    with pytest.raises(GpuFleetError) as caught:
        run(asked(8), ports, check_mode)
    told = caught.value.result
    assert "nothing was touched" in caught.value.msg and told["actions"] == [] and told["files"] == [] and not told["changed"]
    assert told["preflight"]["checks"] and told["unit"] == "vllm-m.service" and not host.root.joinpath("units").exists()
    if check_mode:
        assert run(asked(4), ports, True).to_result()["actions"]


def test_each_thing_that_is_wrong_is_found(host: Host) -> None:
    (host.model / "model-00002-of-00002.safetensors").write_bytes(b"")
    report = host.check(executable="/nowhere/vllm", args={"max_modle_len": 5})
    assert {check.id for check in report.failed} == {"executable", "weights"}
    report = host.check(args={"max_modle_len": 5, "swap_space": 4})
    assert {check.id for check in report.failed} == {"arguments", "weights"}
    shutil.rmtree(host.model)
    assert [check.id for check in host.check().failed] == ["model"]


def test_memory_that_somebody_holds_is_found(host: Host) -> None:
    stranger = GpuProcess(4711, "C", 90000, name="python3", user="ada")
    host.gpus[2] = gpu(2, used=90000, processes=(stranger,))
    report = host.check(gpus=["0", "1", "2", "3"], args={"tensor_parallel_size": 4})
    (failed,) = report.failed
    assert failed.id == "memory" and "GPU 2" in failed.detail and "ada" in failed.detail


@pytest.mark.parametrize(("gpus", "said"), [(["9"], "GPU '9'"), (["all", "1"], "mixes")])
def test_gpus_that_are_not_there_are_a_failed_check(host: Host, gpus: list[str], said: str) -> None:
    report = host.check(gpus=gpus)
    assert "gpus" in {check.id for check in report.failed} and any(said in check.detail for check in report.failed)
    assert by_id(report)["port"] == "skip" and by_id(report)["arguments"] == "pass"


def test_a_driver_without_an_answer_is_a_failed_check(host: Host) -> None:
    host.reader = Broken(list)
    report = host.check()
    assert [check.id for check in report.failed] == ["gpus"] and "driver_hung" in report.failed[0].detail
    assert by_id(report)["memory"] == "skip"


def test_nothing_is_written(host: Host) -> None:
    before = sorted(str(path) for path in host.root.rglob("*"))
    host.check(args={"tensor_parallel_size": 8})
    assert sorted(str(path) for path in host.root.rglob("*")) == before


@pytest.mark.parametrize(("params", "said"), [
    ({"model": ""}, "`model` is empty"),
    ({"model": None}, "`model` is empty"),
    ({"model": 5}, "`model` is empty"),
    ({"args": {"model": "x"}}, "Use model"),
    ({"args": {"gpu_memory_utilization": 92}}, "gpu_memory_utilization"),
    ({"args": {"-x": 1}}, "no name of an engine argument"),
    ({"port": 99999}, "`port` is 99999"),
    ({"replace": 5}, "`replace` is 5"),
    ({"env": {"A": []}}, "`env.A` is a list"),
    ({"gpu_facts": {}}, "gpu_facts names no GPUs"),
    ({"gpu_facts": GPUS, "gpus": ["8"]}, "GPU '8'"),
    ({"user": "a b"}, "no name of an account"),
    ({"executable": "relative"}, "executable"),
])
def test_what_says_nothing_is_refused_with_its_place(host: Host, params: dict[str, Any], said: str) -> None:
    with pytest.raises(GpuFleetError) as caught:
        host.check(**params)
    assert said in caught.value.msg


_VALUE = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from(["8", "4", "auto", "-1", "1e9"])
_JSON = st.recursive(_VALUE, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
                     max_leaves=6)
_ARGS = st.dictionaries(
    st.sampled_from(["tensor_parallel_size", "pipeline-parallel-size", "data_parallel_size", "max_model_len", "max_num_seqs",
                     "gpu_memory_utilization", "kv_cache_dtype", "enable_expert_parallel", "cpu_offload_gb", "quantization", "load_format",
                     "decode_context_parallel_size", "hf_overrides", "speculative_config", "block_size", "x.y", "nonsense"]),
    _JSON, max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=80)
@given(args=_ARGS | _JSON, facts=st.just(GPUS) | st.none() | _JSON, gpus=st.sampled_from([["all"], ["0"], ["0", "1"], [""], ["x"]]))
def test_no_request_breaks_it(host: Host, args: Any, facts: Any, gpus: list[str]) -> None:
    try:
        report = host.check(args=args, gpu_facts=facts, gpus=gpus)
    except GpuFleetError as exc:
        assert exc.msg
        return
    found = report.to_result()
    assert found["checks"] and all(check["status"] in ("pass", "warn", "fail", "skip") and check["detail"] for check in found["checks"])
    for value in found["plan"].values():
        assert value is None or 0 <= value < 1e15
