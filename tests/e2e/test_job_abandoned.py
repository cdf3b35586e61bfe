# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A change whose job ended for good before it did: it is in nobody's way, and everybody is told that nobody carries it out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.adhoc import module
from e2e.changes import NEW, NEW_UNIT, RECORD, kill_for_good, loading, prepared, service
from e2e.playbook import playbook

from lab import Host, Lab

MODEL = "qwen3-0.6b"


@pytest.fixture(params=["gpu01", "gpu03"], ids=["bookworm", "trixie"])
def host(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Host]:
    """A host on which a change was begun, and its job killed for good while the new server loaded."""
    one = prepared(lab.hosts[request.param], 0.5)
    one.vllm.behave(MODEL, load_seconds=0.2)
    begun = service(one, wait=False, **NEW)
    assert not begun["failed"], begun
    with loading(one):
        kill_for_good(one)
    yield one


def test_another_swap_brings_it_to_its_end_first(host: Host, tmp_path: Path) -> None:
    planned = playbook("swap_model", "-e", f"model={MODEL}", "-e", f"target={host.name}", "--check").expect()
    assert "first bring to its end: vllm_service started new" in " ".join(planned.out.split()), planned.out
    assert host.exists(RECORD), "check mode touches nothing"
    done = playbook("swap_model", "-e", f"model={MODEL}", "-e", f"target={host.name}", reports=tmp_path).expect()
    assert done.report is not None and [row["result"] for row in done.report["rows"]] == ["swapped"], done.out
    assert not host.exists(RECORD) and host.enter(["systemctl", "is-active", NEW_UNIT], check=False).stdout.strip() != "active"


def test_the_same_again_completes_it_and_says_what_it_took(host: Host) -> None:
    planned = service(host, check=True, **NEW)
    assert [each["action"] for each in planned["actions"]] == ["follow"], planned
    assert "nobody carries it out any more" in planned["actions"][0]["reason"] and planned["timings"]["load"] is None
    done = service(host, **NEW)
    timings = done["timings"]
    assert not done["failed"] and done["ready"] and timings["load"] > 0 and timings["downtime"] >= timings["load"], done
    assert timings["preflight"] < timings["total"] - timings["load"] and timings["settle"] >= 0.5, timings


def test_the_status_names_the_command_that_completes_it(host: Host) -> None:
    told = module(host, "vllm_status", models={})["under_way"]
    assert told["abandoned"] and told["complete_with"].split()[1] == "resume", told
    host.enter(told["complete_with"])
    host.enter(f"while test -e {RECORD}; do sleep 0.1; done", timeout=60)
    done = service(host, **NEW)
    assert not done["failed"] and not done["changed"] and done["ready"], done
