# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A secret stands in one file that root alone may read, whatever was done with it and however that ended."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from e2e.adhoc import module
from e2e.direct import SMALL, UNIT
from e2e.playbook import playbook

from lab import Host, Lab

KEY, OTHER = "sk-tell-nobody-7341", "hf-tell-nobody-7342"
SECRETS = {"VLLM_API_KEY": KEY, "MY_TOKEN": f'a "{OTHER}" %n $HOME \\'}
NOBODY = "setpriv --reuid nobody --regid nogroup --clear-groups"
PLACES = "/etc /run /var /tmp /usr/local /opt/vllm/bin /home /srv /dev/shm"


@pytest.fixture(params=["gpu01", "gpu03"], ids=["bookworm", "trixie"])
def machine(lab: Lab, request: pytest.FixtureRequest) -> Host:
    """A clean host with each systemd."""
    chosen = lab.hosts[request.param]
    chosen.reset()
    chosen.vllm.behave("*", load_seconds=0.3)
    return chosen


def expect_hidden(host: Host, *shown: str) -> None:
    """No secret anywhere but in its file: not in what was shown, nor on the host."""
    for secret in (KEY, OTHER):
        for text in shown:
            assert secret not in text
        told = (
            "ps axww -o args",
            "systemctl show '*' --all",
            "systemctl cat 'vllm-*' 'gpufleet-*' 2>/dev/null; true",
            "journalctl --no-pager --all",
        )
        for command in told:
            assert secret not in host.run(command).stdout, command
        # The bytes of the file are the secret's in quotes; what anybody else may read must not even hold a part.
        search = f"grep -rlsF {shlex.quote(secret)} {PLACES}"
        readable = host.run(f"{NOBODY} {search}; true").stdout.split()
        assert readable == [], f"everybody may read {readable}"
        anywhere = host.run(f"{search} | grep -v '^/var/log/journal'; true").stdout.split()
        assert set(anywhere) <= {"/etc/vllm/small.env"}, anywhere


def test_nothing_tells_a_secret_whatever_happens(machine: Host) -> None:
    def service(*words: str, **more: Any) -> dict[str, Any]:
        return module(machine, "vllm_service", "-vvv", "--diff", *words, **{**SMALL, "secrets": SECRETS, **more})

    planned = service("--check")
    done = service()
    assert not done["failed"] and done["ready"], done["shown"]
    expect_hidden(machine, planned["shown"], done["shown"])
    mode = machine.run(["stat", "-c", "%a %U:%G", "/etc/vllm/small.env"]).stdout.strip()
    assert mode == "600 root:root"

    machine.vllm.behave("small", die_at_load={"phase": "config", "process": "api"})
    failed = service(secrets={**SECRETS, "VLLM_API_KEY": KEY + "-new"}, env={"A": "b"})
    assert failed["failed"] and failed["diagnosis"], failed["shown"]
    expect_hidden(machine, failed["shown"])

    machine.vllm.behave("small", die_at_load=None)
    gone = service(state="absent")
    assert not gone["failed"] and not machine.exists("/etc/vllm/small.env")
    expect_hidden(machine, gone["shown"])
    assert machine.systemctl_show(UNIT, ["ActiveState"])["ActiveState"] == "inactive"


def test_a_swap_and_its_report_tell_no_secret(machine: Host, tmp_path: Path) -> None:
    entry = {"path": SMALL["model"], "gpus": [4], "port": 8001, "args": SMALL["args"], "secrets": SECRETS}
    given = tmp_path / "models.json"
    given.write_text(json.dumps({"vllm_models": {"small": entry}, "model": "small", "target": machine.name}))
    for words in (["--check"], []):
        ran = playbook("swap_model", "-e", f"@{given}", "--diff", "-vvv", *words, reports=tmp_path / "reports").expect()
        expect_hidden(machine, ran.out, json.dumps(ran.report))
