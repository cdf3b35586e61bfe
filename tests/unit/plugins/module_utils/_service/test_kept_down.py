# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A service that is put back and does not come: who is on its GPUs, and what to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, List

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, GpuProcess
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.kept_down import why_down
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ready import NotReady
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import (
    FakeReader,
    gpu,
    managed,
    status,
)

SERVICE = managed("old", gpus=(0, 1))


def told(gpus: List[Gpu], state: str = "activating", start_pre: int | None = 75, reader: Any = None) -> str:
    seen = status(SERVICE.unit, state, start_pre_status=start_pre)
    ports: Any = SimpleNamespace(open_reader=reader or (lambda: FakeReader(lambda: gpus)))
    return why_down(NotReady("%s crashed (its guard ended with exit status 75)" % SERVICE.unit, seen, False), SERVICE, ports)


def holder(pid: int, used: int | None, unit: str) -> GpuProcess:
    return GpuProcess(pid, "C", used, name="bench", user="alice", unit=unit)


def test_who_holds_the_gpus_is_named_with_what_to_do() -> None:
    strangers = [holder(7, 60, "display.service"), holder(1382, 70000, "holder.service"), holder(9, 500, SERVICE.unit)]
    assert told([gpu(0, 70560, strangers), gpu(2, 5000, [holder(8, 5000, "train.service")])]) == (
        "vllm-old.service crashed (its guard ended with exit status 75). On its GPUs: pid 1382, bench, user alice, holder.service holds "
        "70,000 MiB on GPU 0; pid 7, bench, user alice, display.service holds 60 MiB on GPU 0. systemd goes on trying to start "
        "vllm-old.service: end them, and it comes back by itself"
    )


def test_without_a_guard_an_idle_processs_memory_is_not_what_it_failed_for() -> None:
    found = told([gpu(0, 70060, [holder(7, 60, "display.service"), holder(8, None, "jupyter.service")])], "failed", None)
    assert "pid 7" not in found and "pid 8" in found and found.endswith("End them, then start it: `systemctl start vllm-old.service`")


def test_a_crowd_is_counted() -> None:
    found = told([gpu(1, 9000, [holder(pid, 100, "train.service") for pid in range(20)])])
    assert "; and 16 more. systemd goes on" in found


@pytest.mark.parametrize(
    ("state", "said"), [("activating", "systemd goes on trying to start it."), ("failed", "systemd does not start it again.")]
)
def test_where_nobody_is_on_them_the_journal_says_why(state: str, said: str) -> None:
    found = told([gpu(0), gpu(1)], state)
    assert said in found and "`journalctl -u vllm-old.service`" in found and "On its GPUs" not in found


def test_a_driver_that_does_not_answer_hides_nothing_of_it() -> None:
    def broken() -> Any:
        raise GpuFleetError("nvidia-smi did not answer.")

    found = told([], reader=broken)
    assert "exit status 75" in found and "could not be read (nvidia-smi did not answer)" in found and "systemd goes on trying" in found
