# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module around the reading: its options, what it returns, and how it fails."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Sequence

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from facts_contract import CONTRACT, CONTRACT_GPU, CONTRACT_PROCESS, REASONS, held_facts

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu import reader as gpu_reader
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.reader import GpuReader
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, GpuProcess, MigDevice, Snapshot
from ansible_collections.gpufleet.vllm.plugins.modules import gpu_memory_facts

PROCESS = GpuProcess(4711, "C", 90051, "VLLM::Worker_TP", "VLLM::Worker_TP0", "vllm", 1.5, "vllm-a.service", start_ticks=7, uid=5)
SNAPSHOT = Snapshot(True, backend="nvml", count=1, gpus=(Gpu(0, "GPU-0", None, "A", processes=(PROCESS,)),))


class Child:
    """Stands in for the process that reads."""

    started: List[Child] = []

    def __init__(self) -> None:
        self.closed = False
        self.started.append(self)

    def close(self) -> None:
        """It has been ended."""
        self.closed = True


class Fake(GpuReader):
    """A reader that answers with one thing and remembers how it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.opened: List[Any] = []
        self.asked: List[Any] = []
        self.closed = False

    def open(self, *arguments: Any, child: Optional[Child]) -> Fake:
        """Stands in for open_reader()."""
        self.child = child
        self.opened.append(arguments)
        return self

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        self.asked.append((gpus, processes))
        if isinstance(self.answer, Exception):
            raise self.answer
        answer: Snapshot = self.answer
        return answer

    def close(self) -> None:
        self.closed = True


def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], answer: Any, **arguments: Any) -> "tuple[Dict[str, Any], Fake]":
    """Run the module; its result, and the reader that it used."""
    reader = Fake(answer)
    monkeypatch.setattr(gpu_reader, "open_reader", reader.open)
    monkeypatch.setattr(gpu_memory_facts, "start_child", Child)
    with patch_module_args(arguments), pytest.raises(SystemExit):
        gpu_memory_facts.main()
    result: Dict[str, Any] = json.loads(capfd.readouterr().out)
    result.pop("invocation", None)
    return result, reader


def test_it_returns_facts_and_nothing_else(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    result, reader = run(monkeypatch, capfd, SNAPSHOT)
    assert result == {"changed": False, "ansible_facts": {"gpu_memory": SNAPSHOT.to_dict()}}
    assert (reader.opened, reader.asked, reader.closed) == ([("auto", 60.0)], [([], True)], True)


def test_its_options_reach_the_reader(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    _result, reader = run(monkeypatch, capfd, SNAPSHOT, gpus=[0, "GPU-1"], processes=False, backend="nvidia_smi", timeout=5)
    assert (reader.opened, reader.asked) == ([("nvidia_smi", 5.0)], [(["0", "GPU-1"], False)])


def test_check_mode_reads_as_always(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    result, _reader = run(monkeypatch, capfd, SNAPSHOT, _ansible_check_mode=True)
    assert result["ansible_facts"]["gpu_memory"]["available"]


def test_a_host_without_a_driver_is_no_failure(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    result, _reader = run(monkeypatch, capfd, Snapshot(False, reason="no_driver", reason_detail="none", count=0))
    assert "failed" not in result and result["ansible_facts"]["gpu_memory"]["reason"] == "no_driver"


def test_a_gpu_that_is_not_there_is_a_failure(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    result, reader = run(monkeypatch, capfd, GpuFleetError("GPU '9' is not on this host."), gpus=["9"])
    assert result["failed"] and result["msg"] == "GPU '9' is not on this host." and "ansible_facts" not in result
    assert reader.closed


def test_the_child_is_started_where_it_is_needed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Before the reader that takes it over, and ended also when there is no reader in the end."""
    _result, reader = run(monkeypatch, capfd, SNAPSHOT, backend="nvml")
    assert reader.child is Child.started[-1]
    _result, reader = run(monkeypatch, capfd, SNAPSHOT, backend="nvidia_smi")
    assert reader.child is None
    run(monkeypatch, capfd, GpuFleetError("no such time-out"), backend="nvml")
    assert Child.started[-1].closed


@pytest.mark.parametrize("timeout", ["0", "-1", "1e9", "inf", "nan"])
def test_a_time_out_that_cannot_be_kept_is_refused(capfd: pytest.CaptureFixture[str], timeout: str) -> None:
    """By the reader itself, before it opens anything."""
    with patch_module_args({"timeout": timeout}), pytest.raises(SystemExit):
        gpu_memory_facts.main()
    result = json.loads(capfd.readouterr().out)
    assert result["failed"] and "timeout must be over 0 and at most 86400 seconds" in result["msg"], result


def documented(returned: Dict[str, Any]) -> Dict[str, Any]:
    """The keys that RETURN documents, nested as the result is."""
    return {key: documented(value["contains"]) if "contains" in value else None for key, value in returned.items()}


def test_everything_that_is_returned_is_documented() -> None:
    device = MigDevice(0, "MIG-0", "A MIG 1g", 7, 0)
    snapshot = Snapshot(True, gpus=(Gpu(0, "GPU-0", None, "A", processes=(PROCESS,), mig_devices=(device,)),)).to_dict()
    found = documented(yaml.safe_load(gpu_memory_facts.RETURN))["ansible_facts"]["gpu_memory"]
    assert set(found) == set(snapshot)
    (gpu,) = snapshot["gpus"]
    assert set(found["gpus"]) == set(gpu) and set(found["gpus"]["processes"]) == set(gpu["processes"][0])
    assert set(found["gpus"]["mig_devices"]) == set(gpu["mig_devices"][0])


LOST = Gpu(3, None, None, None, state="lost", error="GPU is lost", processes=(GpuProcess(77, "C+G", None, state="gone"),))


@pytest.mark.parametrize("snapshot", [
    SNAPSHOT,
    Snapshot(True, count=0, backend="nvml"),
    *[Snapshot(False, reason=reason, reason_detail="so", count=0 if reason == "no_driver" else None) for reason in sorted(REASONS)],
    Snapshot(True, gpus=(LOST,)),
], ids=lambda snapshot: snapshot.reason or "%d GPUs" % len(snapshot.gpus))
def test_what_comes_out_is_the_contracts_key_by_key(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], snapshot: Snapshot
) -> None:
    result, _reader = run(monkeypatch, capfd, snapshot)
    assert set(result) == {"changed", "ansible_facts"} and set(result["ansible_facts"]) == {"gpu_memory"}
    held_facts(result["ansible_facts"]["gpu_memory"])


def test_the_documentation_has_the_contracts_types_and_samples_of_them() -> None:
    def walk(returned: Dict[str, Any], contract: Dict[str, Any]) -> None:
        for key, kinds in contract.items():
            entry = returned[key]
            python = {"str": str, "int": int, "float": float, "bool": bool, "list": list}[entry["type"]]
            assert python in kinds or (python, key) == (float, "start_time"), key
            assert "contains" in entry or "sample" in entry, "%s has no sample" % key
            assert entry.get("sample") is None or type(entry["sample"]) in kinds, key

    memory = yaml.safe_load(gpu_memory_facts.RETURN)["ansible_facts"]["contains"]["gpu_memory"]["contains"]
    walk(memory, CONTRACT)
    walk(memory["gpus"]["contains"], CONTRACT_GPU)
    walk(memory["gpus"]["contains"]["processes"]["contains"], CONTRACT_PROCESS)
