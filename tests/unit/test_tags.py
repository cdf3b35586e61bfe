# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of a playbook that are run alone: nothing is told of a part that was not, and no run that found nothing out ends with 0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLEET = {"gpu_hosts": {"hosts": {"gpu01": {"ansible_host": "127.0.0.1", "ansible_port": 1}},
                       "vars": {"vllm_models": {"m": {"path": "/models/m", "gpus": [0]}}}}}  # fmt: skip
PARTS = {"fleet_status": "status", "gpu_cleanup": "cleanup", "benchmark": "benchmark", "deploy": "deploy", "borrow_gpus": "borrow"}
PART_OF = {**PARTS, "swap_model": "swap"}


def ran(tmp_path: Path, playbook: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    inventory = tmp_path / "inventory.yml"
    inventory.write_text(json.dumps(FLEET), encoding="utf-8")
    command = [str(Path(sys.executable).parent / "ansible-playbook"), playbook, "-i", str(inventory), *arguments]
    env = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["--tags", "report"], False), (["--tags", "always"], False), (["--skip-tags", "swap"], False), (["--tags", "swap,report"], True),
     ([], True)],
)
def test_what_was_done_is_told_only_where_something_could_be_done(tmp_path: Path, arguments: list[str], told: bool) -> None:
    done = ran(tmp_path, "playbooks/swap_model.yml", "-e", "model=m", *arguments)
    assert "Plan: m on 1 host" in done.stdout, done.stdout + done.stderr
    assert ("Done: m" in done.stdout) is told, done.stdout + done.stderr
    # Nobody answers there, which the plan has found: that fails the run, whichever parts it has.
    assert done.returncode == 2 and "This run touched nothing on it" in done.stdout + done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("playbook", "arguments"),
    [
        *((playbook, ["--tags", "report"]) for playbook in PARTS),
        *((playbook, ["--skip-tags", part]) for playbook, part in PARTS.items()),
        ("fleet_status", ["--tags", "always"]),
        ("fleet_status", ["--tags", "stauts", "-e", "fail_on_drift=true"]),
        # It has a plan without its part, but a slip asks for none.
        ("swap_model", ["--tags", "swpa"]),
    ],
)
def test_a_run_that_looks_at_nothing_is_refused(tmp_path: Path, playbook: str, arguments: list[str]) -> None:
    more = {"deploy": ["-e", "model=m"], "swap_model": ["-e", "model=m"], "borrow_gpus": ["-e", "command=true"]}.get(playbook, [])
    done = ran(tmp_path, f"playbooks/{playbook}.yml", *more, *arguments)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2 and "Nothing was touched" in said and f"add `--tags {PART_OF[playbook]}`" in said, said
    assert "gpu01" not in done.stdout, done.stdout


def test_tags_of_whoever_imports_a_playbook_choose_its_parts(tmp_path: Path) -> None:
    site = tmp_path / "site.yml"
    site.write_text(json.dumps([{"import_playbook": str(ROOT / "playbooks" / "fleet_status.yml"), "tags": ["fleet"]}]), encoding="utf-8")
    done = ran(tmp_path, str(site), "--tags", "fleet")
    assert "Fleet: gpu_hosts" in done.stdout and "Nothing was touched" not in done.stdout + done.stderr, done.stdout + done.stderr


def test_tags_of_whoever_imports_a_swap_and_no_others_choose_its_parts(tmp_path: Path) -> None:
    site = tmp_path / "site.yml"
    site.write_text(json.dumps([{"import_playbook": str(ROOT / "playbooks" / "swap_model.yml"), "tags": ["fleet"]}]), encoding="utf-8")
    plan = ran(tmp_path, str(site), "-e", "model=m", "--tags", "fleet", "--skip-tags", "swap")
    assert "Plan: m on 1 host" in plan.stdout and "Nothing was touched" not in plan.stdout + plan.stderr, plan.stdout + plan.stderr
    slip = ran(tmp_path, str(site), "-e", "model=m", "--tags", "swpa")
    assert slip.returncode == 2 and "Nothing was touched" in slip.stdout + slip.stderr, slip.stdout + slip.stderr
