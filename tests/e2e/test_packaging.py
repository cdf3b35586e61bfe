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
import tarfile
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tarball
import yaml
from e2e.playbook import Ran

from lab import Lab

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PLAYBOOKS = sorted(path.stem for path in (ROOT / "playbooks").glob("*.yml"))
MODULES = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("*.py"))

# Everything that may be in the tarball, by where it is. A new kind of file needs a line here.
ALLOWED = (
    r"(MANIFEST|FILES)\.json",
    r"README\.md|LICENSE|CHANGELOG\.rst|requirements\.txt|bindep\.txt",
    r"meta/(runtime|execution-environment)\.yml",
    r"changelogs/(config|changelog)\.yaml|changelogs/fragments/[\w.-]+\.yml",
    r"docs/(?!design\.md|dependencies\.md|_static)[\w./-]+\.(md|rst|json|yml|svg)",
    r"examples/ci/[\w-]+\.yml",
    r"inventories/example/[\w./-]+\.yml",
    r"playbooks/\w+\.yml",
    r"plugins/(action|doc_fragments|filter|modules|module_utils|plugin_utils)/[\w/]+\.(py|yml)",
    r"plugins/module_utils/[\w/]+\.json",
    r"roles/\w+/(README\.md|(defaults|meta|tasks|handlers|vars)/\w+\.yml|(templates|files)/[\w.-]+)",
)
NEEDED = {
    "README.md", "LICENSE", "requirements.txt", "bindep.txt", "meta/runtime.yml", "meta/execution-environment.yml",
    "docs/index.md", "docs/errors.md", "docs/schemas/swap-model.schema.json", "examples/ci/github-actions.yml",
    "playbooks/swap_model.yml", "playbooks/gpu_cleanup.yml",
    "inventories/example/hosts.yml", "inventories/example/group_vars/gpu_hosts.yml",
    "roles/vllm_swap/README.md", "roles/vllm_service/README.md", "roles/gpu_reclaim/README.md",
    *("plugins/modules/%s.py" % module for module in MODULES),
}  # fmt: skip
# What one file, and the whole, may weigh. Nothing in here is large; something large got in by mistake.
FILE_KIB = 120
TARBALL_KIB = 700

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection's tarball."""
    return tarball.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def contents(built: Path) -> dict[str, tarfile.TarInfo]:
    """What is in the tarball, directories left out."""
    with tarfile.open(built) as archive:
        return {member.name: member for member in archive.getmembers() if not member.isdir()}


@pytest.fixture(scope="session")
def run(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """run("ansible-playbook", ...) in an empty directory, where only the installed tarball is known."""
    home = tmp_path_factory.mktemp("installed")
    env = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "PYTHONPATH"))}
    env.update(
        ANSIBLE_COLLECTIONS_PATH=str(home / "collections"),
        ANSIBLE_CONFIG=str(home / "ansible.cfg"),
        ANSIBLE_HOME=str(home / "ansible"),
        ANSIBLE_NOCOLOR="1",
    )
    (home / "ansible.cfg").write_text("[defaults]\n", encoding="utf-8")
    (home / "cwd").mkdir()

    def run_command(program: str, *arguments: str, rc: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(BIN / program), *arguments],
            cwd=home / "cwd", env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == rc, "%s %s\n%s%s" % (program, " ".join(arguments), done.stdout, done.stderr)
        assert "[DEPRECATION" not in done.stdout + done.stderr, done.stderr
        return done

    run_command("ansible-galaxy", "collection", "install", "--offline", str(built), "-p", str(home / "collections"))
    return run_command


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """The inventory of the README's first screen."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"```yaml\n(.*?)```", readme, re.DOTALL)
    assert block, "the README has no inventory"
    path = tmp_path / "inventory.yml"
    path.write_text(block.group(1), encoding="utf-8")
    return path


def unexpected(names: Sequence[str]) -> list[str]:
    return [name for name in names if not any(re.fullmatch(pattern, name) for pattern in ALLOWED)]


def test_it_holds_what_users_need_and_nothing_else(contents: dict[str, tarfile.TarInfo]) -> None:
    assert unexpected(list(contents)) == []
    assert NEEDED - set(contents) == set()


def test_the_rule_refuses_what_only_a_checkout_needs() -> None:
    own = ["tests/unit/test_x.py", "Makefile", ".ci/run", "collections/x", "docs/design.md", "docs/dependencies.md",
           "docs/conf.py", "docs/_static/pages.css", "playbooks/collections/x.yml",
           "inventories/lab/hosts", "pyproject.toml", ".git/config", "plugins/modules/__pycache__/x.pyc", "build/x.tar.gz",
           "requirements-dev.txt", "requirements-test.txt", "requirements-newest.txt", "ansible.cfg", "CONTRIBUTING.md",
           "plugins/modules/notes.txt"]  # fmt: skip
    assert unexpected(own) == own


def test_every_file_is_a_plain_tracked_one(contents: dict[str, tarfile.TarInfo]) -> None:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = set(done.stdout.split("\0"))
    for name, member in contents.items():
        assert member.isfile(), "%s is a link or a device" % name
        assert name in tracked | {"MANIFEST.json", "FILES.json"}, "%s is not tracked" % name


def test_it_is_small(built: Path, contents: dict[str, tarfile.TarInfo]) -> None:
    assert {name: member.size for name, member in contents.items() if member.size > FILE_KIB * 1024} == {}
    assert 20 * 1024 < built.stat().st_size < TARBALL_KIB * 1024


def test_it_says_what_it_is(built: Path) -> None:
    with tarfile.open(built) as archive:
        manifest = archive.extractfile("MANIFEST.json")
        assert manifest is not None
        info = json.load(manifest)["collection_info"]
    galaxy = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))
    assert (info["namespace"], info["name"], info["version"]) == ("gpufleet", "vllm", galaxy["version"])
    assert info["license"] == ["GPL-3.0-or-later"]
    assert built.name == "gpufleet-vllm-%s.tar.gz" % galaxy["version"]


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
    assert "Nothing was touched. " in done.stdout + done.stderr
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
    body = json.dumps({"model": "qwen3-0.6b", "prompt": "Hello", "max_tokens": 1}).encode()
    request = urllib.request.Request(
        "http://%s:8001/v1/completions" % host.address, data=body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as response:
        assert json.load(response)["model"] == "qwen3-0.6b"
    (report,) = tmp_path.glob("*.json")
    assert json.loads(report.read_text(encoding="utf-8"))["playbook"] == "gpufleet.vllm.swap_model"
    again = run("ansible-playbook", *words)
    assert Ran(0, again.stdout, None).changed == {"gpu01": 0}
