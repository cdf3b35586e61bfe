# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Several playbooks in one run: each tells of what it has done itself, not of what one before it has left on the hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from e2e.playbook import Ran, playbook
from report_schemas import faults

from lab import Host, Lab

OLD, NEW, SMALL = "minimax-m2.5", "kimi-k2.5-int4", "qwen3-0.6b"
pytestmark = pytest.mark.timeout(600)


def site(directory: Path, *imports: tuple[str, dict[str, Any]]) -> tuple[Ran, list[dict[str, dict[str, Any]]]]:
    """Run them in one run; the rows by host of the report of each."""
    plays = []
    for number, (name, variables) in enumerate(imports):
        given = {**variables, "report_dir": str(directory / str(number))}
        plays.append({"name": name, "ansible.builtin.import_playbook": f"gpufleet.vllm.{name}", "vars": given})
    path = directory / "site.yml"
    path.write_text(json.dumps(plays), encoding="utf-8")
    ran = playbook(str(path))
    found = []
    for number in range(len(imports)):
        for file in (directory / str(number)).glob("*.json"):
            report = json.loads(file.read_text(encoding="utf-8"))
            assert faults(report) == []
            found.append({row["host"]: row for row in report["rows"]})
    return ran, found


def test_a_swap_tells_nothing_of_the_one_before_it(host: Host, tmp_path: Path) -> None:
    hook = tmp_path / "hook.yml"
    hook.write_text("- name: Be done with this host\n  ansible.builtin.meta: end_host\n", encoding="utf-8")
    good = tmp_path / "good.yml"
    good.write_text("- name: Nothing\n  ansible.builtin.debug:\n", encoding="utf-8")
    one = {"target": "gpu01", "after_host": str(good)}
    ran, rows = site(
        tmp_path, ("swap_model", {**one, "model": OLD}), ("swap_model", {**one, "model": OLD}),
        ("swap_model", {**one, "model": NEW, "before_host": str(hook)}),
    )  # fmt: skip
    assert ran.rc == 2, ran.out
    assert [each["gpu01"]["result"] for each in rows[:2]] == ["started", "ok, unchanged"]
    assert rows[1]["gpu01"]["total_s"] is None or rows[1]["gpu01"]["total_s"] != rows[0]["gpu01"]["total_s"]
    # What the first one took back does not hide that this one left the host out.
    third = rows[2]["gpu01"]
    assert third["result"] != "taken back" and "TAKEN OUT" in third["detail"] and third["after"] == OLD, third
    assert host.exists("/var/lib/gpufleet/taken-out.json")


def test_a_deployment_tells_nothing_of_the_one_before_it(lab: Lab, tmp_path: Path) -> None:
    lab.reset()
    lab.hosts["gpu01"].vllm.behave(NEW, oom_warmup=True)
    both = {"target": "gpu01,gpu02", "batch": 1}
    ran, rows = site(tmp_path, ("deploy", {**both, "model": SMALL}), ("deploy", {**both, "model": NEW}))
    assert ran.rc == 2, ran.out
    assert {row["result"] for row in rows[0].values()} == {"deployed"}
    assert (rows[1]["gpu01"]["result"], rows[1]["gpu01"]["ready"]) == ("failed", None), rows[1]
    assert rows[1]["gpu02"]["result"] == "not begun" and rows[1]["gpu02"]["ready"] is None, rows[1]


def test_a_name_that_nothing_has_is_refused_where_an_import_says_it(lab: Lab, tmp_path: Path) -> None:
    for name, variables in (("gpu_cleanup", {"gpu_reclaim_gpu": [0]}), ("borrow_gpus", {"command": "true", "gpu_borrow_usr": "nobody"})):
        ran, rows = site(tmp_path, (name, variables))
        assert ran.rc == 2 and rows == [] and f"did you mean {[*variables][-1][:-1]}" in " ".join(ran.out.split()), ran.out
    assert set(lab.hosts) >= {"gpu01"}
