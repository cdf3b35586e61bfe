# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Somebody takes a GPU in the middle of a swap and stays there: the old model is back in seconds, not in minutes."""

from __future__ import annotations

from typing import Any

import pytest
from e2e.changes import NEW, OLD_UNIT, at_stage, begin, boot_state, ended, inside, prepared, serving, stage
from e2e.programs import Programs

from lab import Host, Lab

WIDE: dict[str, Any] = {**NEW, "gpus": ["4", "5"], "args": {**NEW["args"], "tensor_parallel_size": 2}}
# The memory is waited for for two minutes otherwise, and for half a minute more on the way back.
SOON_S = 40.0


@pytest.fixture(params=["gpu01", "gpu03"], ids=["bookworm", "trixie"])
def host(lab: Lab, request: pytest.FixtureRequest) -> Host:
    """A host that serves the old one on GPU 4."""
    return prepared(lab.hosts[request.param], 1.0)


def test_who_came_up_on_a_gpu_of_the_new_one_is_named_and_the_old_one_serves_soon(host: Host) -> None:
    with stage(host, "stopping"):
        running = begin(host, **WIDE)
        inside(host, at_stage("stopping"))
        stranger = Programs(host).job(gpus=(5,), mib=90000, name="train.py")
    done = ended(running)
    assert done["failed"] and done["rolled_back"], done
    assert f"since pid {stranger.pid} (train.py) lives on" in done["msg"], done["msg"]
    assert done["timings"]["downtime"] < SOON_S and done["timings"]["load"] is None, done["timings"]
    assert serving(host, 1) == "old" and boot_state(host, OLD_UNIT) == "enabled"
    assert Programs(host).alive(stranger.pid)
