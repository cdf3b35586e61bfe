# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host fails with at the end of a clean-up: its own reason first, and never that something was accepted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
KIMI = {"pid": 7, "name": "VLLM::EngineCor", "unit": "vllm-kimi.service", "reason": "it belongs to it", "used_mib": 90000}
HELD = {"gpu": 0, "used_mib": 90000, "limit_mib": 1024, "state": "ok", "holders": [KIMI]}
ACCEPTED = "Accepted: GPU memory is still held after 0.1 s. GPU 0: 90000 MiB used, held by VLLM::EngineCor."
DIRTY = "GPU memory is still held after 2.1 s. Next: widen the scope (scope: all)."
SLIP = {"pid": None, "name": "nope.service", "reason": "there is no such unit on this host"}


def result(msg: str, verdict: str, *slips: dict[str, Any]) -> dict[str, Any]:
    return {"freed": False, "changed": False, "freed_mib": 0, "gpus_before": [{"index": 0}], "held": [{**HELD, "verdict": verdict}],
            "left_alone": list(slips), "timings": {"total": 0.1}, "msg": msg}  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "status", "begins"),
    [
        (result(ACCEPTED, "in_use", SLIP), 2, "there is no unit nope.service on this host: correct gpu_reclaim_services; GPU 0"),
        (result(DIRTY, "dirty", SLIP), 2, DIRTY),
        (result(ACCEPTED, "in_use"), 0, ""),
        ({}, 2, "The clean-up did not run on this host."),
    ],
)
def test_it_is_the_hosts_own_reason(tmp_path: Path, outcome: dict[str, Any], status: int, begins: str) -> None:
    inventory = {"gpu_hosts": {"hosts": {"gpu01": {"ansible_connection": "local", "gpu_reclaim_result": outcome}}}}
    path = tmp_path / "inventory.json"
    path.write_text(json.dumps(inventory), encoding="utf-8")
    # From the table on: what the host came to stands in the inventory here.
    report = tmp_path / "report.yml"
    report.write_text(yaml.safe_dump(yaml.safe_load((ROOT / "playbooks" / "gpu_cleanup.yml").read_text(encoding="utf-8"))[-1:]))
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(path), str(report)]
    env = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path, env=env)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == status, said
    assert "Action failed: %s" % begins in said if begins else "Action failed" not in said, said
