# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A GPU is reset only when nobody holds it, and persistence mode is put back whatever happens."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, Sequence

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.runner import Completed, Runner
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim import reset as subject
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.reset import blockers, reset_gpus
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._reclaim.world import gpu


class Smi(Runner):
    """Answers by the last word that matters; keeps what was asked."""

    def __init__(self, **answers: Completed) -> None:
        self.answers = answers
        self.calls: List[List[str]] = []

    def run(self, argv: Sequence[str], timeout: float = 30.0, stdin: Any = None, env: Any = None) -> Completed:
        self.calls.append(list(argv[3:]))
        kind = {"--gpu-reset": "reset", "-pm": "off" if argv[-1] == "0" else "on"}.get(argv[3], "query")
        return self.answers.get(kind, Completed(tuple(argv), 0, "Enabled\n", ""))


def failed(text: str, rc: int = 255) -> Completed:
    """A command that did not work."""
    return Completed((), rc, "", text)


@pytest.fixture(autouse=True)
def holders(monkeypatch: pytest.MonkeyPatch) -> Dict[int, FrozenSet[str]]:
    """Who has which nodes open."""
    found: Dict[int, FrozenSet[str]] = {}
    monkeypatch.setattr(subject, "device_holders", lambda root: found)
    return found


def test_a_free_gpu_is_reset_with_persistence_put_back() -> None:
    smi = Smi()
    (result,) = reset_gpus([gpu(3)], smi)
    assert result.to_result() == {"gpu": 3, "done": True, "detail": None}
    assert [call[0] for call in smi.calls] == ["--query-gpu=persistence_mode", "-pm", "--gpu-reset", "-pm"]
    assert [call[1] for call in smi.calls if call[0] == "-pm"] == ["0", "1"]


def test_persistence_that_is_off_stays_off() -> None:
    smi = Smi(query=Completed((), 0, "Disabled\n", ""))
    assert reset_gpus([gpu(3)], smi)[0].done
    assert [call[0] for call in smi.calls] == ["--query-gpu=persistence_mode", "--gpu-reset"]


def test_a_gpu_in_use_is_not_reset_and_its_holders_are_named(holders: Dict[int, FrozenSet[str]]) -> None:
    holders[1] = frozenset({"nvidia3", "nvidiactl"})
    smi = Smi()
    (result,) = reset_gpus([gpu(3)], smi)
    assert not result.done and smi.calls == []
    assert result.detail is not None and "in use by" in result.detail and "(pid 1)" in result.detail


def test_holders_of_other_gpus_and_of_no_gpu_do_not_block(holders: Dict[int, FrozenSet[str]]) -> None:
    holders[1] = frozenset({"nvidia30", "nvidia4"})
    holders[2] = frozenset({"nvidiactl", "nvidia-uvm"})
    assert blockers(gpu(3)) == []


def test_the_node_is_found_by_its_minor_number_not_by_the_index(holders: Dict[int, FrozenSet[str]]) -> None:
    holders[1] = frozenset({"nvidia6"})
    assert blockers(gpu(3, minor=6)) and not blockers(gpu(6, minor=3))


def test_a_refused_reset_says_why_and_puts_persistence_back() -> None:
    smi = Smi(reset=failed("GPU 00000000:04:00.0 is currently in use by one or more other processes."))
    (result,) = reset_gpus([gpu(3)], smi)
    assert not result.done and result.detail is not None and "currently in use by one or more" in result.detail
    assert smi.calls[-1] == ["-pm", "1"]


def test_persistence_that_cannot_be_turned_off_stops_the_reset() -> None:
    smi = Smi(off=failed("Insufficient Permissions", 4))
    (result,) = reset_gpus([gpu(3)], smi)
    assert not result.done and "--gpu-reset" not in [call[0] for call in smi.calls]


def test_persistence_that_cannot_be_put_back_is_said() -> None:
    (result,) = reset_gpus([gpu(3)], Smi(on=failed("Unknown Error")))
    assert result.done and result.detail is not None and "persistence mode could not be turned on again" in result.detail


def test_a_reset_that_hangs_is_a_failed_one() -> None:
    hung = Completed((), None, "", "", timed_out=True, abandoned=True)
    (result,) = reset_gpus([gpu(3)], Smi(reset=hung))
    assert not result.done and result.detail == "reset failed: nvidia-smi ran past its time"
