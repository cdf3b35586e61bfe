# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""deploy.yml on a host that has nothing, and two versions of vLLM side by side: a swap takes the version along, a roll-back brings it back.

The packages come from the tests' own index, the model from the tests' own hub, by the real uv and the real huggingface_hub. What serves
is the stand-in, by way of packages that call themselves vllm.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from e2e.adhoc import module
from e2e.playbook import Ran, playbook
from hub.server import Hub, Model
from packages.index import Index, wheel

from lab import Host
from lab.models import header, qwen3

# Five playbooks one after the other.
pytestmark = pytest.mark.timeout(1500)
HUB_LIBRARY = "huggingface_hub==2.4.0"
REPO = "tests/tiny"
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32, "hidden_size": 128, "intermediate_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 512, "max_position_embeddings": 512,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip
SERVES = """
import sys


def main():
    if "--version" in sys.argv:
        print("%(version)s")
        return 0
    from lab.standin.main import main as serve
    return serve()
"""
# It installs and says its version, and then can't serve: what no check beforehand sees.
FAILS = """
import sys


def main():
    if "--version" in sys.argv:
        print("0.33.9")
        return 0
    print("RuntimeError: this build is broken", file=sys.stderr)
    return 1
"""


@dataclass(frozen=True)
class Outside:
    """What the host fetches from."""

    index: Index
    hub: Hub


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that asks hubs, with all that it needs, and three builds of vLLM."""
    directory = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--python-version=3.11", "--dest", str(directory)]
    subprocess.run([*command, HUB_LIBRARY], check=True, timeout=300)
    beside = {"standin.pth": "/opt/vllm/lib/python3.11/site-packages\n"}
    for version in ("0.32.0", "0.33.0"):
        wheel(directory, "vllm", version, body=SERVES % {"version": version}, requires=[HUB_LIBRARY], more=beside)
    wheel(directory, "vllm", "0.33.9", body=FAILS, requires=[HUB_LIBRARY], more=beside)
    return directory


@pytest.fixture
def outside(host: Host, wheels: Path) -> Iterator[Outside]:
    """An index and a hub on the lab's network."""
    address = host.address.rsplit(".", 1)[0] + ".1"
    tensors = list(qwen3(CONFIG))
    weights = header(tensors) + bytes(sum(each.size for each in tensors))
    with Index(wheels, address) as index, Hub(address, content_host=address) as hub:
        hub.models[REPO] = Model({"config.json": json.dumps(CONFIG).encode(), "model.safetensors": weights})
        uv = Path(sys.executable).parent / "uv"
        with uv.open("rb") as program:
            copy = host.ssh_command("cat > /usr/local/bin/uv && chmod 755 /usr/local/bin/uv")
            subprocess.run(copy, stdin=program, check=True, timeout=120)
        yield Outside(index, hub)


def catalogue(outside: Outside) -> dict[str, Any]:
    """Three entries: one model, by three installations."""
    entry = {"path": "/srv/models/tiny", "repo": REPO, "revision": outside.hub.models[REPO].head, "gpus": [4], "port": 8001,
             "args": {"max_model_len": 512}, "ready_timeout": 120}  # fmt: skip
    return {
        "old": {**entry, "executable": "/opt/vllm-a/bin/vllm"},
        "new": {**entry, "executable": "/opt/vllm-b/bin/vllm"},
        "broken": {**entry, "executable": "/opt/vllm-c/bin/vllm"},
    }


def run(name: str, model: str, outside: Outside, *arguments: str, **more: Any) -> Ran:
    """A playbook for one model on gpu01, with the variables that an inventory would have."""
    variables = {
        "vllm_models": catalogue(outside), "vllm_install_path": "/opt/vllm-a", "vllm_install_version": "0.32.0",
        "vllm_install_python": "/usr/bin/python3", "vllm_install_requirements": [], "vllm_install_space_mib": 100,
        "vllm_install_index_url": outside.index.url, "vllm_install_manage_packages": False, "vllm_model_endpoint": outside.hub.url,
        "vllm_model_min_free_mib": 10,
    }  # fmt: skip
    return playbook(name, "-l", "gpu01,localhost", "-e", f"model={model}", "-e", json.dumps(variables), *arguments, **more)


def serves_with(host: Host, model: str) -> str:
    """The installation that the model's service runs from."""
    pid = host.systemctl_show(f"vllm-{model}.service", ("MainPID",))["MainPID"]
    words = host.run(f"tr '\\0' '\\n' < /proc/{pid}/cmdline").stdout.split()
    host.run("python3 -c \"import urllib.request as u; assert u.urlopen('http://127.0.0.1:8001/health', timeout=10).status == 200\"")
    return next(word for word in words if word.endswith("/bin/vllm"))


def installed(host: Host, outside: Outside, path: str, version: str) -> dict[str, Any]:
    """One run of the module for another installation."""
    return module(host, "vllm_environment", path=path, version=version, python="/usr/bin/python3", requirements=[], space_mib=100,
                  index_url=outside.index.url)  # fmt: skip


def test_from_nothing_to_serving_and_a_version_on_and_back(host: Host, outside: Outside, tmp_path: Path) -> None:
    files = "find /opt /srv /etc/vllm /var/lib/vllm 2>/dev/null | grep -v '^/opt/vllm/' | sort; cat /etc/passwd"
    before = host.run(files).stdout
    checked = run("deploy", "old", outside, "--check", "--diff").expect()
    assert checked.changed["gpu01"] > 0 and "would deploy" in checked.out
    assert host.run(files).stdout == before and outside.index.requests == [] and outside.hub.requests == []

    done = run("deploy", "old", outside, reports=tmp_path, timeout=900).expect()
    assert done.report is not None and done.report["rows"][0]["result"] == "deployed"
    detail = done.report["rows"][0]["detail"]
    assert "write /etc/vllm/old.yaml" in detail and "start vllm-old.service" in detail and "'action'" not in done.out, detail
    assert serves_with(host, "old") == "/opt/vllm-a/bin/vllm"
    assert host.run("readlink -f /opt/vllm-a").stdout.strip().startswith("/opt/vllm-a.versions/0.32.0-")
    assert sorted(host.run("ls -A /srv/models/tiny /srv/models").stdout.split()) == sorted(
        "/srv/models: tiny /srv/models/tiny: .gpufleet-model.json config.json model.safetensors".split()
    )
    asked = (len(outside.index.requests), len(outside.hub.requests))
    again = run("deploy", "old", outside).expect()
    assert again.changed["gpu01"] == 0 and "unchanged" in again.out
    assert (len(outside.index.requests), len(outside.hub.requests)) == asked

    other = {"old": {**catalogue(outside)["old"], "args": {"max_model_len": 256}}}
    told = run("deploy", "old", outside, "--check", "-e", json.dumps({"vllm_models": other})).expect()
    assert "would restart" in told.out and "RESTART vllm-old.service (its declaration changes)" in " ".join(told.out.split()), told.out

    refused = installed(host, outside, "/opt/vllm-a", "0.33.0")
    assert refused["failed"] and "vllm-old.service" in refused["msg"] and "/opt/vllm-a-0.33.0/bin/vllm" in refused["msg"]
    assert serves_with(host, "old") == "/opt/vllm-a/bin/vllm"

    assert installed(host, outside, "/opt/vllm-b", "0.33.0")["changed"]
    assert installed(host, outside, "/opt/vllm-c", "0.33.9")["changed"]
    run("swap_model", "new", outside).expect()
    assert serves_with(host, "new") == "/opt/vllm-b/bin/vllm"
    failed = run("swap_model", "broken", outside)
    assert failed.rc != 0 and "rolled back" in failed.out, failed.out
    assert serves_with(host, "new") == "/opt/vllm-b/bin/vllm"
    run("swap_model", "old", outside).expect()
    assert serves_with(host, "old") == "/opt/vllm-a/bin/vllm"


def test_a_model_that_cannot_be_had_is_told_and_deploys_nothing(host: Host, outside: Outside) -> None:
    outside.hub.granted = False
    failed = run("deploy", "old", outside, timeout=900)
    assert failed.rc != 0 and "is gated" in failed.out
    assert host.run("ls -A /srv/models", check=False).stdout == ""
    assert not host.exists("/etc/systemd/system/vllm-old.service")
    lost = run("deploy", "old", outside, "-e", "ansible_port=9")
    assert lost.rc != 0 and "unreachable" in lost.out and "The host did not answer" in lost.out
