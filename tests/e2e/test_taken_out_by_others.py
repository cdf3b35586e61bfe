# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two runs with hooks at one host, and hooks that do not come to their end: no server is stopped under a balancer that sends it
requests, and no host stays out of it without a word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.live import LiveSwap
from e2e.test_taken_out import NEW, NOTE, OLD, ONE, hooks, noted, row, swap

from lab import Host, Lab

pytestmark = pytest.mark.timeout(600)
WAIT = "- name: Drain\n  ansible.builtin.wait_for:\n    path: {path}\n    timeout: 120\n  delegate_to: localhost\n"
SHOW = """
- name: See what stands on the host
  ansible.builtin.slurp:
    src: /var/lib/gpufleet/taken-out.json
  register: stands
- name: Keep it
  ansible.builtin.copy:
    dest: {path}
    content: "{{{{ stands.content | b64decode }}}}"
    mode: "0644"
  delegate_to: localhost
"""
ANOTHERS = """
- name: Another run takes it out
  ansible.builtin.copy:
    dest: /var/lib/gpufleet/taken-out.json
    content: '{"id": "of-another-run", "model": "x", "since": null, "before_host": null, "after_host": "/srv/in.yml"}'
    mode: "0644"
  become: true
"""
NOBODY = """
- name: Tell a balancer that is down
  ansible.builtin.command: "true"
  changed_when: false
  delegate_to: lb1
  when: inventory_hostname == "gpu01"
  vars:
    ansible_host: 127.0.0.1
    ansible_port: 1
"""


@pytest.fixture
def serving(host: Host) -> Iterator[Host]:
    swap(OLD).expect()
    yield host


def add(directory: Path, stage: str, text: str) -> None:
    """One more task at the end of a hook."""
    with (directory / f"{stage}.yml").open("a") as handle:
        handle.write(text)


def test_a_host_that_is_taken_back_while_it_is_drained_is_not_swapped(serving: Host, tmp_path: Path) -> None:
    given, before = hooks(tmp_path), serving.systemctl_show(f"vllm-{OLD}.service", ("InvocationID",))
    add(tmp_path, "before", WAIT.format(path=tmp_path / "drained"))
    with LiveSwap(tmp_path / "live", NEW, *ONE, *given) as drains:
        drains.wait_for("TASK [Drain]")
        told = swap(OLD, reports=tmp_path / "reports").expect()
        assert "unless that swap is still under way" in str(row(told)["detail"])
        ran = swap(OLD, *given[2:], reports=tmp_path / "reports").expect()
        assert row(ran)["result"] == "taken back" and not serving.exists(NOTE)
        (tmp_path / "drained").touch()
        assert drains.end() == 2, drains.out
        said = " ".join(drains.out.split())
    assert "While before_host ran, another run has taken this host back" in said and "No service was changed" in said, drains.out
    assert "counts as taken out" not in said, "it is back"
    assert serving.systemctl_show(f"vllm-{OLD}.service", ("InvocationID",)) == before and not serving.exists(NOTE)
    assert noted(tmp_path) == [f"before {OLD} {OLD} planned", f"after {OLD} {OLD} ok, unchanged"]


def test_a_host_that_another_run_takes_out_while_it_is_taken_back_stays_out(serving: Host, tmp_path: Path) -> None:
    given = hooks(tmp_path)
    add(tmp_path, "after", ANOTHERS)
    ran = swap(NEW, *given, reports=tmp_path / "reports").expect(2)
    assert row(ran)["result"] == "swapped" and str(row(ran)["detail"]).startswith("after_host failed: after_host has run, but another run")
    assert json.loads(serving.read(NOTE))["id"] == "of-another-run"


def test_what_an_earlier_run_wrote_down_is_written_anew_with_since_when(serving: Host, tmp_path: Path) -> None:
    given, since = hooks(tmp_path), "2026-11-29T15:44:01Z"
    serving.write(NOTE, json.dumps({"since": since, "model": NEW, "before_host": None, "after_host": "/srv/in.yml"}))
    add(tmp_path, "before", SHOW.format(path=tmp_path / "stood"))
    swap(NEW, *given).expect()
    stood = json.loads((tmp_path / "stood").read_text())
    assert (stood["since"], stood["after_host"]) == (since, str(tmp_path / "after.yml")) and len(stood["id"]) == 16
    assert not serving.exists(NOTE)


def test_a_hook_that_ends_its_hosts_play_is_a_failure_that_says_that_the_host_is_out(serving: Host, tmp_path: Path) -> None:
    given = hooks(tmp_path)
    add(tmp_path, "before", "- name: Not now\n  ansible.builtin.meta: end_host\n")
    ran = swap(NEW, *given, reports=tmp_path / "reports").expect(2)
    detail = str(row(ran)["detail"])
    assert row(ran)["result"] == "untouched" and row(ran)["after"] == OLD and serving.exists(NOTE)
    assert detail.startswith("before_host was begun and did not come to its end") and "TAKEN OUT" in detail, detail
    assert "The host counts as taken out" in ran.out


def test_a_balancer_that_cannot_be_reached_leaves_its_host_as_it_is_and_is_told(lab: Lab, serving: Host, tmp_path: Path) -> None:
    lab.hosts["gpu02"].reset()
    swap(OLD, "-e", "target=gpu02").expect()
    given = hooks(tmp_path)
    add(tmp_path, "before", NOBODY)
    ran = swap(NEW, "-e", "target=gpu01,gpu02", "-e", "batch=2", *given, reports=tmp_path / "reports").expect(4)
    assert ran.report is not None
    first, second = ran.report["rows"]
    assert (first["result"], first["after"], second["result"]) == ("untouched", OLD, "swapped"), ran.report["rows"]
    assert first["detail"].startswith("before_host was begun and did not come to its end") and "TAKEN OUT" in first["detail"]
    assert serving.exists(NOTE) and not lab.hosts["gpu02"].exists(NOTE)
