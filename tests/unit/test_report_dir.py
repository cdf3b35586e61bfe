# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a report goes is proven before any host is asked, and one that fails in the end costs nothing else that a run has to tell."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOKS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "playbooks").glob("*.yml"))}
NEEDED = {"swap_model": ["-e", "model=m"], "deploy": ["-e", "model=m"], "borrow_gpus": ["-e", "command=true"]}
MODELS = {"m": {"path": "/models/m", "gpus": [0]}}
# Takes the place of ssh: no host is reached, and what the environment says is done to the report's directory meanwhile.
SSH = """#!/bin/sh
[ -z "$SPOIL" ] || { rmdir "$SPOIL" && echo "in the way" > "$SPOIL"; } 2>/dev/null
echo asked >> "$ASKED"
echo "no route" >&2
exit 255
"""


def ran(cwd: Path, playbook: str, *words: str, of_hosts: dict[str, Any] | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    ssh = cwd / "ssh.sh"
    ssh.write_text(SSH, encoding="utf-8")
    ssh.chmod(0o755)
    hosts = of_hosts or {"gpu01": {}, "gpu02": {}}
    variables = {"ansible_connection": "ssh", "ansible_ssh_executable": str(ssh), "vllm_models": MODELS}
    (cwd / "inventory.yml").write_text(json.dumps({"gpu_hosts": {"hosts": hosts, "vars": variables}}), encoding="utf-8")
    command = [str(Path(sys.executable).parent / "ansible-playbook"), playbook, "-i", "inventory.yml", *words]
    full = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_NOCOLOR": "1", "ASKED": str(cwd / "asked"), **env}
    return subprocess.run(command, cwd=cwd, env=full, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(("name", "check"), [*((name, ["--check"]) for name in sorted(PLAYBOOKS)), ("swap_model", [])])
def test_a_directory_that_can_not_be_is_refused_before_any_host_is_asked(tmp_path: Path, name: str, check: list[str]) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    done = ran(tmp_path, f"gpufleet.vllm.{name}", "-e", "report_dir=file/reports", *NEEDED.get(name, []), *check)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2, said
    assert f"no host was asked by it. No report can be written to {tmp_path}/file/reports" in said, said
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("name", ["fleet_status", "borrow_gpus"])
def test_a_question_that_none_can_answer_is_refused_before_any_host_is_asked(tmp_path: Path, name: str) -> None:
    done = ran(tmp_path, f"gpufleet.vllm.{name}", "-e", "query=rows[", *NEEDED.get(name, []))
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2 and "Nothing was touched" in said and "`query` is no valid JMESPath expression" in said, said
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("name", ["swap_model", "gpu_cleanup"])
def test_a_relative_directory_is_where_the_command_runs_and_keeps_its_mode(tmp_path: Path, name: str) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports").chmod(0o1777)
    before = sorted(path.name for path in (ROOT / "playbooks").iterdir())
    done = ran(tmp_path, f"gpufleet.vllm.{name}", "-e", "report_dir=reports", *NEEDED.get(name, []))
    assert done.returncode == 2 and len(list((tmp_path / "reports").glob("*.json"))) == 1, done.stdout + done.stderr
    assert stat.S_IMODE((tmp_path / "reports").stat().st_mode) == 0o1777
    assert sorted(path.name for path in (ROOT / "playbooks").iterdir()) == before, "nothing is made beside the playbook"


@pytest.mark.parametrize("name", sorted(PLAYBOOKS))
def test_a_report_that_fails_in_the_end_costs_neither_the_table_nor_what_failed_on_each_host(tmp_path: Path, name: str) -> None:
    done = ran(tmp_path, f"gpufleet.vllm.{name}", "-e", "report_dir=reports", *NEEDED.get(name, []), SPOIL=str(tmp_path / "reports"))
    table = done.stdout.partition("PLAY [Report]")[2]
    assert done.returncode == 2 and "gpu01  " in table and "gpu02  " in table, done.stdout + done.stderr
    for host in ("gpu01", "gpu02"):
        assert f"fatal: [{host}]: FAILED!" in table, done.stdout + done.stderr
    assert f"The report cannot be written to {tmp_path}/reports" in " ".join((done.stdout + done.stderr).split()), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "well", "ill"),
    [
        ("swap_model", {"swap_model_plan": {"actions": [], "ready": True}}, {"swap_model_failure": {"msg": "it broke"}}),
        ("fleet_status", {"fleet_status_result": {"services": []}}, {"fleet_status_result": {"failed": True, "msg": "it broke"}}),
        ("deploy", {"deploy_row": {"failed": False}}, {"deploy_row": {"failed": True, "detail": "it broke"}}),
    ],
)
@pytest.mark.parametrize("fails", [True, False])
def test_the_reports_failure_is_told_after_those_of_the_hosts(tmp_path: Path, name: str, well: Any, ill: Any, fails: bool) -> None:
    (tmp_path / "reports").write_text("in the way", encoding="utf-8")
    (tmp_path / "play.yml").write_text(json.dumps(PLAYBOOKS[name][-1:]), encoding="utf-8")
    hosts = {"gpu01": ill if fails else well, "gpu02": well}
    done = ran(tmp_path, "play.yml", "-e", "report_dir=reports", *NEEDED.get(name, []), of_hosts=hosts)
    assert done.returncode == 2, done.stdout + done.stderr
    own = done.stdout.find('fatal: [gpu01]: FAILED! => {"changed": false, "msg": "it broke')
    report = done.stdout.find('"msg": "The report cannot')
    assert report > own and (own >= 0) is fails, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(PLAYBOOKS))
def test_every_playbook_proves_it_first_and_fails_of_it_last(name: str) -> None:
    first, last = PLAYBOOKS[name][0]["tasks"][-1], PLAYBOOKS[name][-1]["tasks"]
    assert first["gpufleet.vllm.fleet_report"]["prove"] is True and "when" not in first and first["run_once"] is True
    told = last[0]
    assert told["gpufleet.vllm.fleet_report"]["fail_later"] is True
    assert told["register"] + ".failure" in last[-1]["ansible.builtin.fail"]["msg"] and last[-1]["run_once"] is True
