# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What pipelines take from here: the examples for CI systems, what an execution environment needs, and the tags of every play."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from pages.commands import commands, problems

from .conftest import ROOT, Collection

EXAMPLES = ROOT / "examples" / "ci"
# A line of bindep.txt: a package, and where it is wanted.
_BINDEP = re.compile(r"[a-z0-9][a-z0-9.+-]*( \[[a-z: !]+\])?")


def github() -> dict[str, Any]:
    """The example for GitHub Actions. Its key `on` is quoted, since YAML takes it for true."""
    content: dict[str, Any] = yaml.safe_load((EXAMPLES / "github-actions.yml").read_text(encoding="utf-8"))
    return content


def gitlab() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text(encoding="utf-8"))
    return content


def scripts() -> dict[str, str]:
    """What each step of each example runs."""
    found = {}
    for name, job in github()["jobs"].items():
        for step in job["steps"]:
            if "run" in step:
                found["github %s: %s" % (name, step["name"])] = step["run"]
    content = gitlab()
    found["gitlab before"] = "\n".join(content["default"]["before_script"])
    for name, job in content.items():
        if isinstance(job, dict) and "script" in job:
            found["gitlab %s" % name] = "\n".join(job["script"])
    return found


@pytest.mark.parametrize("step", sorted(scripts()))
def test_a_step_is_a_script_whose_commands_are_there(step: str, tmp_path: Path) -> None:
    text = scripts()[step]
    path = tmp_path / "step.sh"
    path.write_text("#!/usr/bin/env bash\n" + text + "\n", encoding="utf-8")
    shellcheck = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([str(shellcheck), str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    # A variable of the pipeline stands for a word; its own files are not ours to know.
    lines = [re.sub(r"[<>]+ ?\S+", "", line) for line in re.sub(r"\$\w+", "word", text).splitlines()]
    assert [problem for line in lines for words in commands(line) if words for problem in problems(words)] == []


def test_the_example_for_github_has_the_form_of_a_workflow() -> None:
    content = github()
    assert set(content) <= {"name", "on", "permissions", "concurrency", "env", "jobs", "defaults"}
    assert set(content["on"]) == {"pull_request", "push"} and content["concurrency"]["cancel-in-progress"] is False
    for job in content["jobs"].values():
        assert job["runs-on"] and job["steps"]
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step
            assert set(step) <= {"name", "uses", "run", "with", "env", "if", "id"}, step
            assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])
            # What a stranger may write into a title or a branch must not become part of a script.
            assert "${{" not in step.get("run", ""), step["name"]


def test_no_plan_takes_the_place_of_a_swap_that_waits_on_github() -> None:
    """GitHub keeps one run of a group waiting, and a newer one of the same group replaces it."""
    content = github()
    assert content["on"]["push"] == {"branches": ["main"]}
    # That of a pull request is refs/pull/N/merge.
    assert content["concurrency"]["group"] == "fleet-${{ github.ref }}"


def test_no_job_for_github_runs_for_a_fork() -> None:
    condition = "github.event_name == 'push' || github.event.pull_request.head.repo.full_name == github.repository"
    assert [name for name, job in github()["jobs"].items() if job.get("if") != condition] == []


def test_the_example_for_gitlab_has_the_form_of_a_pipeline() -> None:
    content = gitlab()
    jobs = {name: job for name, job in content.items() if name not in ("stages", "variables", "default")}
    assert {job["stage"] for job in jobs.values()} == set(content["stages"])
    for name, job in jobs.items():
        assert set(job) <= {"stage", "script", "resource_group", "timeout", "rules", "artifacts"}, name
    assert all(jobs[name]["resource_group"] == "fleet" for name in ("swap", "measure"))


def test_no_job_for_gitlab_begins_where_the_protected_variables_are_not() -> None:
    """Each begins with chmod of the key, whose variable is empty on a branch that is not protected. The default branch is."""
    text = (EXAMPLES / "gitlab-ci.yml").read_text(encoding="utf-8")
    assert "chmod 600 \"$FLEET_SSH_KEY\"" in gitlab()["default"]["before_script"]
    assert "FLEET_SSH_KEY" in text.split("stages:")[0] and "protected" in text.split("stages:")[0]
    jobs = {name: job for name, job in gitlab().items() if isinstance(job, dict) and "script" in job}
    has_key = ("$FLEET_SSH_KEY", "$CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH")
    assert [name for name, job in jobs.items() if [rule.get("if") in has_key for rule in job.get("rules", [])] != [True]] == []


@pytest.mark.parametrize("of", ["github", "gitlab"])
def test_nothing_is_changed_by_somebodys_proposal(of: str) -> None:
    """Whatever runs without --check is only run for the main branch."""
    if of == "github":
        steps = [(step.get("run", ""), step.get("if", "")) for job in github()["jobs"].values() for step in job["steps"]]
        changing = [condition for run, condition in steps if "ansible-playbook" in run and "--check" not in run]
        assert changing == ["github.ref == 'refs/heads/main'"] * 2
    else:
        jobs = [job for job in gitlab().values() if isinstance(job, dict) and "script" in job]
        changing = [str(job.get("rules")) for job in jobs if "--check" not in str(job["script"])]
        assert changing == ["[{'if': '$CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH'}]"] * 2


INVENTORY = """
gpu_hosts:
  hosts: {gpu01.example.com: {}}
  vars: {vllm_models: {x: {path: /models/X, gpus: [0]}}}
"""


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("gpufleet.vllm.swap_model", "-e", "model=y"), 2, "Nothing was touched"),
        (("gpufleet.vllm.gpu_cleanup", "-e", "target=web"), 2, "Nothing was touched"),
        (("gpufleet.vllm.swap",), 1, "could not be found"),
        (("gpufleet.vllm.swap_model", "-e", "@nowhere.yml"), 1, "nowhere.yml"),
        (("gpufleet.vllm.fleet_status", "-e", "target=web"), 2, "No host was asked"),
        (("gpufleet.vllm.fleet_status", "-e", "fail_on_drift=perhaps"), 2, "No host was asked"),
        (("gpufleet.vllm.fleet_status", "-e", "models=x"), 2, "No host was asked"),
        (("broken.yml",), 4, "YAML parsing failed"),
        (("gpufleet.vllm.fleet_status", "-e", "@broken.yml"), 4, "YAML parsing failed"),
        (("gpufleet.vllm.fleet_status", "-e", '{"a":'), 4, "parsing failed"),
        (("gpufleet.vllm.swap_model", "--chekc"), 2, "unrecognized arguments"),
    ],
)
def test_the_exit_status_is_what_the_page_says(tmp_path: Path, words: tuple[str, ...], status: int, said: str) -> None:
    (tmp_path / "inventory.yml").write_text(INVENTORY, encoding="utf-8")
    (tmp_path / "broken.yml").write_text("- hosts: all\n  tasks: [\n", encoding="utf-8")
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(tmp_path)}
    done = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-playbook"), *words, "-i", "inventory.yml"],
        cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, said in done.stdout + done.stderr) == (status, True), done.stdout + done.stderr
    assert "gpu01.example.com" not in done.stdout.partition("PLAY RECAP")[2]
    assert re.search(r"^\| (\d or )?%d( or \d)? \|" % status, (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize(
    ("broken", "status"),
    [("inventory.yml", 2), ("group_vars/gpu_hosts.yml", 2), ("host_vars/gpu01.example.com.yml", 2), ("group_vars/all.yml", 4)],
)
@pytest.mark.parametrize("playbook", ["fleet_status", "swap_model"])
def test_a_file_of_the_inventory_that_cannot_be_parsed_ends_as_the_page_says(
    tmp_path: Path, playbook: str, broken: str, status: int
) -> None:
    (tmp_path / "inventory.yml").write_text(INVENTORY, encoding="utf-8")
    (tmp_path / broken).parent.mkdir(exist_ok=True)
    (tmp_path / broken).write_text("a: [\n", encoding="utf-8")
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(tmp_path)}
    done = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-playbook"), f"gpufleet.vllm.{playbook}", "-i", "inventory.yml", "-e", "model=x"],
        cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == status and "YAML parsing failed" in done.stdout + done.stderr, done.stdout + done.stderr
    assert "gpu01.example.com" not in done.stdout.partition("PLAY RECAP")[2]


def test_an_execution_environment_finds_what_it_needs(collection: Collection) -> None:
    needs = collection.yaml("meta/execution-environment.yml")
    assert needs == {"version": 1, "dependencies": {"python": "requirements.txt", "system": "bindep.txt"}}
    python = [Requirement(line) for line in (ROOT / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert {each.name for each in python} == {"jmespath", "requests"}
    system = [line for line in (ROOT / "bindep.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert system and [line for line in system if not _BINDEP.fullmatch(line)] == []


@pytest.mark.parametrize("path", [str(p.relative_to(ROOT)) for p in Collection().files("playbooks/*.yml")])
def test_every_play_has_tags(collection: Collection, path: str) -> None:
    plays = collection.yaml(path)
    assert [play["name"] for play in plays if not play.get("tags")] == []
    assert plays[0]["tags"] == ["always"], "the check of the request is never left out"
    told = [task for task in plays[-1]["tasks"] if "gpufleet.vllm.fleet_report" in task]
    assert told and all(task.get("tags") == ["report"] for task in told), "the last play shows what was done"
    verdicts = [task for task in plays[-1]["tasks"] if "ansible.builtin.fail" in task]
    assert plays[-1]["tasks"][-2:] == verdicts, "first what failed on each host, then the report"
    assert [task for task in verdicts if "report" in [*plays[-1]["tags"], *task.get("tags", [])]] == [], (
        "a run without a report ends as it does with one"
    )
