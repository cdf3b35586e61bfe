# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tarball: what is in it, and that it works where nothing else of the project is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tarball
import tree
from demo.proofs import ask
from e2e.playbook import Ran
from release import contents
from release.installed import Installed

from lab import Lab

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PLAYBOOKS = sorted(path.stem for path in (ROOT / "playbooks").glob("*.yml"))
MODULES = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("*.py"))

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection's tarball."""
    return tarball.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def run(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """run("ansible-playbook", ...) in an empty directory, where only the installed tarball is known."""
    return Installed(built, tmp_path_factory.mktemp("installed") / "home").run


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """The inventory of the README's first screen."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"```yaml\n(.*?)```", readme, re.DOTALL)
    assert block, "the README has no inventory"
    path = tmp_path / "inventory.yml"
    path.write_text(block.group(1), encoding="utf-8")
    return path


def test_it_holds_what_users_need_and_nothing_else(built: Path) -> None:
    assert contents.problems(built, ROOT, tree.tracked_files()) == []


def test_a_clone_installs_as_the_tarball_does(built: Path, tmp_path: Path) -> None:
    with tree.copy("clone") as clone:
        place = Installed(clone, tmp_path / "home").collections / "ansible_collections" / "gpufleet" / "vllm"
    found = {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    held = {name: data for name, (_mode, data) in contents.files(built).items()}
    for own in contents.OWN:  # their order is the file system's
        assert found.pop(own) and held.pop(own)
    assert found == held


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_each_playbook_is_found_by_its_full_name(run: Run, inventory: Path, playbook: str) -> None:
    done = run("ansible-playbook", "gpufleet.vllm." + playbook, "-i", str(inventory), "--syntax-check")
    assert "playbook: " in done.stdout


@pytest.mark.parametrize(
    ("directory", "playbook"),
    [
        (ROOT, "playbooks/swap_model.yml"),
        (ROOT, "gpufleet.vllm.swap_model"),
        (Path("/"), str(ROOT / "playbooks" / "swap_model.yml")),
    ],
)
def test_a_checkout_works_in_place(inventory: Path, tmp_path: Path, directory: Path, playbook: str) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    env.update(ANSIBLE_HOME=str(tmp_path))  # no collections of this machine's user
    done = subprocess.run(
        [str(BIN / "ansible-playbook"), playbook, "-i", str(inventory), "-e", "model=unknown"],
        cwd=directory, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    # The collection's own action plugin has answered: every name was resolved.
    assert "The model 'unknown' is not in the catalogue" in done.stdout + done.stderr, done.stdout + done.stderr


def test_each_module_and_role_is_documented(run: Run) -> None:
    docs = json.loads(run("ansible-doc", "--json", "-t", "module", *("gpufleet.vllm." + name for name in MODULES)).stdout)
    assert sorted(docs) == ["gpufleet.vllm." + name for name in MODULES]
    assert all(doc["doc"] and doc["return"] and doc["examples"] for doc in docs.values())
    roles = json.loads(run("ansible-doc", "--json", "-t", "role", "-l", "gpufleet.vllm").stdout)
    assert sorted(roles) == sorted("gpufleet.vllm." + path.name for path in (ROOT / "roles").iterdir())


def test_a_wrong_model_is_refused_before_any_host_is_asked(run: Run, inventory: Path) -> None:
    # The README's hosts do not exist: had one been asked, it would be unreachable.
    done = run("ansible-playbook", "gpufleet.vllm.swap_model", "-i", str(inventory), "-e", "model=minimax", rc=2)
    assert "Nothing was touched by this playbook. " in done.stdout + done.stderr
    assert "did you mean 'minimax-m2.5'?" in done.stdout + done.stderr
    assert "unreachable=0" in done.stdout
    assert "gpu01.example.com" not in done.stdout.split("PLAY RECAP")[1]


def test_no_host_is_refused(run: Run, inventory: Path) -> None:
    done = run(
        "ansible-playbook", "gpufleet.vllm.swap_model", "-i", str(inventory), "-e", "model=minimax-m2.5 target=web", rc=2
    )
    assert "No host matches the target 'web'" in done.stdout + done.stderr


def test_the_example_inventory_is_sound(run: Run, tmp_path: Path) -> None:
    check = tmp_path / "check.yml"
    check.write_text(
        "- hosts: gpu_hosts\n  gather_facts: false\n  tasks:\n"
        "    - gpufleet.vllm.vllm_catalogue:\n        model: '{{ item }}'\n        hosts: '{{ ansible_play_hosts_all }}'\n"
        "      run_once: true\n      loop: '{{ vllm_models | list }}'\n",
        encoding="utf-8",
    )
    done = run("ansible-playbook", "-i", str(ROOT / "inventories" / "example"), str(check))
    assert "failed=0" in done.stdout


def test_the_installed_tarball_swaps_a_lab_host(run: Run, lab: Lab, tmp_path: Path) -> None:
    lab.reset(["gpu01"])
    host = lab.hosts["gpu01"]
    words = ("gpufleet.vllm.swap_model", "-i", str(ROOT / "inventories" / "lab"), "-e", "target=gpu01 model=qwen3-0.6b")
    plan = run("ansible-playbook", *words, "--check", "--diff")
    assert Ran(0, plan.stdout, None).changed == {"gpu01": 1}
    assert not host.exists("/etc/systemd/system/vllm-qwen3-0.6b.service"), "check mode wrote a unit"
    run("ansible-playbook", *words, "-e", "report_dir=%s" % tmp_path)
    assert ask(host, "qwen3-0.6b", port=8001)
    (report,) = tmp_path.glob("*.json")
    assert json.loads(report.read_text(encoding="utf-8"))["playbook"] == "gpufleet.vllm.swap_model"
    again = run("ansible-playbook", *words)
    assert Ran(0, again.stdout, None).changed == {"gpu01": 0}
