# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts a playbook is for is said as Ansible's own plays have it: a pattern, or a list of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .test_report_dir import NEEDED, PLAYBOOKS, ran


@pytest.mark.parametrize("name", sorted(PLAYBOOKS))
@pytest.mark.parametrize(("target", "asked"), [(["gpu01", "*3"], ["gpu01", "gpu03"]), (["gpu_hosts", "!gpu02"], ["gpu01", "gpu03"])])
def test_a_list_of_patterns_is_a_target(tmp_path: Path, name: str, target: list[str], asked: list[str]) -> None:
    words = ["-e", json.dumps({"target": target}), *NEEDED.get(name, []), *([] if name == "fleet_status" else ["--check"])]
    done = ran(tmp_path, f"gpufleet.vllm.{name}", *words, of_hosts={f"gpu0{number}": {} for number in (1, 2, 3)})
    recap = done.stdout.partition("PLAY RECAP")[2]
    assert done.returncode in (2, 4) and "unhashable" not in done.stdout + done.stderr, done.stdout + done.stderr
    assert [host for host in ("gpu01", "gpu02", "gpu03") if host in recap] == asked, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(PLAYBOOKS))
def test_a_list_that_matches_nothing_is_told_as_it_was_given(tmp_path: Path, name: str) -> None:
    done = ran(tmp_path, f"gpufleet.vllm.{name}", "-e", json.dumps({"target": ["nobody", "gpu09"]}), *NEEDED.get(name, []))
    assert done.returncode == 2 and "the target 'nobody, gpu09'" in " ".join(done.stdout.split()), done.stdout + done.stderr
    assert not (tmp_path / "asked").exists()
