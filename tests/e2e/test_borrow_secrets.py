# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a borrowed command is given besides reaches it as it was written; a secret reaches nobody else, whoever dies meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e.changes import RECORD, UNIT, at_stage, inside, prepared, serving
from e2e.playbook import ROOT, Ran, playbook

from lab import Host, Lab

TOKEN, KEY = "hf_tell-nobody-7341", "nccl_tell-nobody-7342"
SECRETS = {"HF_TOKEN": TOKEN, "NCCL_KEY": f'{KEY} "q" \'s\' $HOME ${{PATH}} `id` %n %% \\ # ; ü€'}
ENV = {
    "PLAIN": "info", "QUOTES": "a \"b\" 'c'", "DOLLAR": "$HOME ${PATH} $$ `id` $(id)", "PERCENT": "5% %n %%", "BACKSLASH": "a\\nb\\",
    "SPACES": "  two  spaces  ", "TAB": "a\tb", "UNICODE": "grün € 模型", "HASH": "# ; = a=b", "NUMBER": 8, "SWITCH": True, "EMPTY": "",
}  # fmt: skip
NOBODY = "setpriv --reuid nobody --regid nogroup --clear-groups"
PLACES = "/etc /run /var /tmp /usr/local /root /home /srv /dev/shm"
# The environment as the command has it, in a form that hides nothing.
SHOWS = ["/usr/bin/python3", "-c", "import json, os, sys; print(json.dumps({n: os.environ.get(n) for n in sys.argv[1:]}))", *ENV]
# Proves that it knows them without saying them, waits to be looked at, and then says one.
SPEAKS = (
    'printf "%s|%s" "$HF_TOKEN" "$NCCL_KEY" | sha256sum; touch /run/borrow-begun; '
    'while [ ! -e /run/borrow-go ]; do sleep 0.1; done; echo "token=$HF_TOKEN"'
)


@pytest.fixture
def host(lab: Lab) -> Host:
    """A host that serves on GPU 4."""
    return prepared(lab.hosts["gpu01"], 1.0)


def borrow(host: Host, given: Path, *words: str, reports: Path | None = None, **told: Any) -> Ran:
    """The playbook, with its variables in a file as secrets have to be given."""
    given.write_text(json.dumps({"gpus": [4], "target": host.name, "gpu_borrow_grace": 2, **told}), encoding="utf-8")
    return playbook("borrow_gpus", "-e", f"@{given}", *words, reports=reports)


def test_variables_arrive_as_they_were_written(host: Host, tmp_path: Path) -> None:
    done = borrow(host, tmp_path / "given.json", command=SHOWS, gpu_borrow_env=ENV, reports=tmp_path).expect()
    assert done.report is not None
    found = json.loads(done.report["hosts"][host.name]["output"])
    assert found == {**ENV, "NUMBER": "8", "SWITCH": "1"}
    refused = borrow(host, tmp_path / "given.json", command=SHOWS, gpu_borrow_env={"LINES": "a\nb"}).expect(2)
    assert "a line break can't stand in a value" in refused.out and "Nothing was touched" in refused.out
    assert serving(host) == "old" and host.enter("ls /run/gpufleet/gpufleet-borrow-* 2>/dev/null; true").stdout == ""


def holders(host: Host, secret: str) -> set[str]:
    """The files of the host that tell it, what the command itself has written into the journal left out."""
    search = f"grep -rlsF {shlex.quote(secret)} {PLACES}"
    readable = host.run(f"{NOBODY} {search}; true").stdout.split()
    assert readable == [], f"everybody may read {readable}"
    return set(host.run(f"{search} | grep -v '^/var/log/journal' | grep -v '^/run/log/journal'; true").stdout.split())


def expect_told_by_nothing(host: Host, secret: str) -> None:
    """No process, unit or log of the host, but the command's own words in the journal."""
    own = f"token={TOKEN}"
    for command in (
        "ps axww -o args", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '", "systemctl show '*' --all",
        "systemctl cat 'gpufleet-*' 2>/dev/null", f"journalctl --no-pager --all -o cat | grep -vxF {own}",
    ):  # fmt: skip
        assert secret not in host.run(command + "; true").stdout, command


def begun(given: Path, **told: Any) -> subprocess.Popen[str]:
    """The playbook with all that Ansible can say, on its way."""
    given.write_text(json.dumps({"gpus": [4], "gpu_borrow_grace": 2, **told}), encoding="utf-8")
    words = [str(Path(sys.executable).parent / "ansible-playbook"), "playbooks/borrow_gpus.yml", "-i", "inventories/lab", "-e", f"@{given}"]
    return subprocess.Popen([*words, "-vvv", "--diff"], cwd=ROOT, env={**os.environ, "ANSIBLE_NOCOLOR": "1"}, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)  # fmt: skip


def test_a_secret_is_told_by_nothing_also_where_the_job_dies(host: Host, tmp_path: Path) -> None:
    told: dict[str, Any] = {"command": SPEAKS, "gpu_borrow_secrets": SECRETS, "gpu_borrow_env": {"PLAIN": "x"}}
    planned = borrow(host, tmp_path / "given.json", "--check", "--diff", "-vvv", **told).expect()
    assert holders(host, TOKEN) == set()

    running = begun(tmp_path / "given.json", target=host.name, report_dir=str(tmp_path / "reports"), **told)
    try:
        inside(host, f"{at_stage('borrowing')} && test -e /run/borrow-begun", 240)
    except AssertionError:
        running.kill()
        raise AssertionError(running.communicate()[0][-3000:]) from None
    (kept,) = holders(host, TOKEN)
    assert re.fullmatch(r"/run/gpufleet/gpufleet-borrow-[0-9a-f]+\.secrets", kept) and holders(host, KEY) == {kept}
    assert host.run(["stat", "-c", "%a %U:%G", kept]).stdout.strip() == "600 root:root"
    for secret in (TOKEN, KEY):
        expect_told_by_nothing(host, secret)
    host.enter(f"systemctl kill --signal=KILL {UNIT}")
    inside(host, f"grep -q '\"attempts\": 2' {RECORD}")
    host.enter("touch /run/borrow-go")
    shown = running.communicate(timeout=240)[0]
    assert running.returncode == 0 and serving(host) == "old", shown[-3000:]

    (path,) = (tmp_path / "reports").glob("*.json")
    report = json.loads(path.read_text(encoding="utf-8"))
    known = hashlib.sha256(f"{TOKEN}|{SECRETS['NCCL_KEY']}".encode()).hexdigest()
    assert report["hosts"][host.name]["output"] == f"{known}  -\ntoken=********\n"
    for secret in (TOKEN, KEY):
        assert holders(host, secret) == set()
        expect_told_by_nothing(host, secret)
        for text in (planned.out, shown, path.read_text(encoding="utf-8")):
            assert secret not in text
