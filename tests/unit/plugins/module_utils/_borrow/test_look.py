# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands against borrowing, which GPUs are meant, and that what the command is given besides is nobody's to read."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._borrow import look as look_module
from ansible_collections.gpufleet.vllm.plugins.module_utils._borrow.look import look
from ansible_collections.gpufleet.vllm.plugins.module_utils._borrow.request import to_borrow
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, MigDevice
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._borrow.place import OLD, Death, Place
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import (
    gpu,
    managed,
    snapshot,
    status,
)


def test_a_unit_that_systemd_would_stop_along_is_named_and_nothing_is_stopped(place: Place) -> None:
    place.along = ("gateway.service", "idle.service")
    place.units.units["gateway.service"] = status("gateway.service", "active")
    place.units.log.clear()
    with pytest.raises(GpuFleetError, match=r"would stop gateway\.service along with it.*Wants=.*Nothing was touched"):
        place.asks()
    assert place.units.log == [] and place.serving() == [OLD]


ENV = {"HF_TOKEN": "hf_$ecret\"`", "NCCL_DEBUG": "INFO"}


def test_variables_are_on_no_command_line_and_in_no_file_that_stays(place: Place) -> None:
    done = place.asks(env=ENV)
    words = " ".join(place.program.starts[0])
    assert done["outcome"] == "succeeded" and "hf_" not in words and "NCCL_DEBUG" not in words
    assert place.given == [('HF_TOKEN="hf_\\$ecret\\"\\`"\nNCCL_DEBUG="INFO"\n', 0o600)] and place.hidden() == []


def test_they_are_gone_also_where_the_job_dies(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real = place.runner.run

    def run(argv: Any, *more: Any, **others: Any) -> Any:
        done = real(argv, *more, **others)
        if argv[0] == "systemd-run":
            place.dead = True
            raise Death
        return done

    monkeypatch.setattr(place.runner, "run", run)
    with pytest.raises(Death):
        place.asks(env=ENV)
    assert len(place.hidden()) == 1
    place.revive(False)
    place.live()
    assert place.hidden() == [] and place.result()["outcome"] == "succeeded"


def device(number: int) -> MigDevice:
    return MigDevice(number, "MIG-a%d" % number, "m", number + 1, 0, "ok", None, 20000, 15000, 5000)


DIVIDED = Gpu(0, "GPU-a", "00000000:01:00.0", "H100", memory_type="mig", total_mib=80000, used_mib=30000, free_mib=50000,
              mig_devices=(device(0), device(1)))  # fmt: skip
EMPTY = Gpu(0, "GPU-a", "00000000:01:00.0", "H100", memory_type="mig", total_mib=80000, used_mib=0, free_mib=80000)


def looked(place: Place, monkeypatch: pytest.MonkeyPatch, gpus: Any, selection: list[str]) -> look_module.BorrowLook:
    service = managed("kimi", (0,), gpu_uuids=("MIG-a0",))
    monkeypatch.setattr(look_module, "find_managed", lambda _directory: [service])
    monkeypatch.setattr(look_module, "stale_reason", lambda *_arguments: None)
    place.units.units[service.unit] = status(service.unit, "active")

    class Driver:
        def snapshot(self, *_arguments: Any, **_more: Any) -> Any:
            return snapshot(gpus)

    return look(to_borrow({"command": "x", "gpus": selection}), place.ports(), Driver())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("selection", "instances", "lent"),
    [(["all"], "MIG-a0,MIG-a1", True), (["0"], "MIG-a0,MIG-a1", True),
     (["0", "MIG-a1"], "MIG-a0,MIG-a1", True), (["MIG-a1"], "MIG-a1", False)],
)  # fmt: skip
def test_a_divided_gpu_means_its_instances(
    place: Place, monkeypatch: pytest.MonkeyPatch, selection: list[str], instances: str, lent: bool
) -> None:
    found = looked(place, monkeypatch, [DIVIDED], selection)
    told = found.environment()
    assert (told["CUDA_VISIBLE_DEVICES"], told["GPUFLEET_GPU_UUIDS"], told["GPUFLEET_GPU_INDICES"]) == (instances, instances, "0")
    assert told["GPUFLEET_GPU_COUNT"] == str(len(instances.split(","))) and bool(found.lenders) == lent
    assert [limit.mig for limit in look_module.limits_of(found.gpus, 1024, frozenset())] == instances.split(",")


@pytest.mark.parametrize(("gpus", "said"), [([DIVIDED, gpu(1)], "one after the other"), ([EMPTY], "divided by MIG, and has no instance")])
def test_what_cuda_cannot_show_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch, gpus: Any, said: str) -> None:
    with pytest.raises(GpuFleetError, match=said):
        looked(place, monkeypatch, gpus, ["all"])
