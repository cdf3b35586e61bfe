# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that before_host took out of the load balancer is taken back, whatever became of the run that took it out."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from e2e.live import LiveSwap
from e2e.playbook import Ran, playbook

from lab import Host

OLD, NEW = "minimax-m2.5", "kimi-k2.5-int4"
NOTE = "/var/lib/gpufleet/taken-out.json"
JOB = "gpufleet-change.service"
ONE = ("-e", "target=gpu01")
pytestmark = pytest.mark.timeout(600)
HOOK = """
- name: Note it
  ansible.builtin.lineinfile:
    path: {log}
    line: "{stage} {{{{ swap_hook.old }}}} {{{{ swap_hook.serves }}}} {{{{ swap_hook.result }}}}"
    create: true
    mode: "0644"
  delegate_to: localhost
"""
NO = "- name: The balancer says no\n  ansible.builtin.fail:\n    msg: The balancer says no.\n"


def hooks(directory: Path) -> list[str]:
    """The arguments for two hooks that write down what they find."""
    arguments = []
    for stage in ("before", "after"):
        (directory / f"{stage}.yml").write_text(HOOK.format(log=directory / "log", stage=stage))
        arguments += ["-e", f"{stage}_host={directory / stage}.yml"]
    return arguments


def noted(directory: Path) -> list[str]:
    """What the hooks have written since they were last asked."""
    log = directory / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return lines


def swap(model: str, *arguments: str, reports: Path | None = None) -> Ran:
    return playbook("swap_model", "-e", f"model={model}", *ONE, *arguments, reports=reports)


def row(ran: Ran) -> dict[str, object]:
    assert ran.report is not None
    found: dict[str, object] = ran.report["rows"][0]
    return found


def test_a_host_whose_controller_died_is_taken_back_by_the_same_command(host: Host, tmp_path: Path) -> None:
    swap(OLD).expect()
    assert not host.exists(NOTE), "without hooks nothing is written down"
    host.vllm.behave(NEW, load_seconds=5)
    with LiveSwap(tmp_path / "live", NEW, *ONE, *hooks(tmp_path)) as killed:
        killed.wait_for("loading")
        killed.kill()
    end = time.monotonic() + 60
    while host.systemctl_show(JOB, ("ActiveState",))["ActiveState"] != "inactive":
        assert time.monotonic() < end, "the job has not ended"
        time.sleep(0.5)
    assert noted(tmp_path) == [f"before {OLD} {OLD} planned"]
    note = json.loads(host.read(NOTE))
    assert (note["model"], note["after_host"]) == (NEW, str(tmp_path / "after.yml"))
    # Without the tasks that take it back it is told, with what to run; the fleet's status tells it as well.
    ran = swap(NEW, reports=tmp_path / "reports").expect()
    assert row(ran)["result"] == "ok, unchanged" and ran.changed == {"gpu01": 0}
    assert str(row(ran)["detail"]).startswith("TAKEN OUT: before_host was begun at %s, for a swap to %s" % (note["since"], NEW))
    assert f"-e model={NEW} -e target=gpu01 -e after_host={tmp_path / 'after.yml'}" in str(row(ran)["detail"])
    status = playbook("fleet_status", *ONE, "-e", "fail_on_drift=true").expect(2)
    assert "taken out" in status.out and note["since"] in status.out, status.out
    checked = swap(NEW, *hooks(tmp_path), "--check").expect()
    assert "would take back" in checked.out and "take it back" in checked.out, checked.out
    assert noted(tmp_path) == [] and host.exists(NOTE)
    ran = swap(NEW, *hooks(tmp_path), reports=tmp_path / "reports").expect()
    assert noted(tmp_path) == [f"after {NEW} {NEW} ok, unchanged"], ran.out
    assert row(ran)["result"] == "taken back" and ran.changed["gpu01"] > 0 and not host.exists(NOTE)
    ran = swap(NEW, *hooks(tmp_path), reports=tmp_path / "reports").expect()
    assert noted(tmp_path) == [] and row(ran)["result"] == "ok, unchanged" and row(ran)["detail"] is None and ran.changed == {"gpu01": 0}


def test_a_host_that_was_refused_in_the_last_moment_is_taken_back(host: Host, tmp_path: Path) -> None:
    """What it served it serves: nothing was stopped."""
    swap(OLD).expect()
    change = "/var/lib/gpufleet/change"
    host.run(f"mkdir -p {change} && mount --bind {change} {change} && mount -o remount,ro,bind {change}")
    try:
        ran = swap(NEW, *hooks(tmp_path), reports=tmp_path / "reports").expect(2)
    finally:
        host.run(["umount", change])
    assert noted(tmp_path) == [f"before {OLD} {OLD} planned", f"after {OLD} {OLD} refused"], ran.out
    told = row(ran)
    assert (told["before"], told["after"], told["result"]) == (OLD, OLD, "refused") and not host.exists(NOTE), told
    assert "Read-only file system. Nothing was touched." in str(told["detail"]) and "TAKEN OUT" not in str(told["detail"])


def test_hooks_that_another_playbook_sets_run_and_the_host_is_taken_back(host: Host, tmp_path: Path) -> None:
    swap(OLD).expect()
    stages = dict(zip(("before_host", "after_host"), (each.partition("=")[2] for each in hooks(tmp_path)[1::2]), strict=True))
    site = tmp_path / "site.yml"
    given = {"model": NEW, "target": "gpu01", "vllm_swap_plan_only": True, **stages}
    site.write_text(json.dumps([{"name": "Swap", "import_playbook": "gpufleet.vllm.swap_model", "vars": given}]), encoding="utf-8")
    ran = playbook(str(site), reports=tmp_path / "reports").expect()
    assert row(ran)["result"] == "would swap" and noted(tmp_path) == [], row(ran)
    site.write_text(site.read_text(encoding="utf-8").replace('"vllm_swap_plan_only": true, ', ""), encoding="utf-8")
    ran = playbook(str(site), reports=tmp_path / "reports").expect()
    assert noted(tmp_path) == [f"before {OLD} {OLD} planned", f"after {OLD} {NEW} swapped"], ran.out
    assert row(ran)["result"] == "swapped" and not host.exists(NOTE)


def test_an_after_host_that_failed_runs_again_and_one_that_succeeded_does_not(host: Host, tmp_path: Path) -> None:
    swap(OLD).expect()
    good = hooks(tmp_path)
    (tmp_path / "no.yml").write_text(NO)
    bad = [*good[:2], "-e", f"after_host={tmp_path / 'no.yml'}"]
    ran = swap(NEW, *bad, reports=tmp_path / "reports").expect(2)
    assert row(ran)["result"] == "swapped" and host.exists(NOTE)
    assert str(row(ran)["detail"]).startswith("after_host failed: The balancer says no. TAKEN OUT: "), row(ran)
    assert "counts as taken out until after_host has succeeded" in ran.out, ran.out
    swap(NEW, *bad).expect(2)
    noted(tmp_path)
    ran = swap(NEW, *good, reports=tmp_path / "reports").expect()
    assert noted(tmp_path) == [f"after {NEW} {NEW} ok, unchanged"] and row(ran)["result"] == "taken back" and not host.exists(NOTE)
    # A roll-back that serves again is taken back by the run itself.
    host.vllm.behave(OLD, oom_warmup=True)
    assert swap(OLD).expect(2).changed == {"gpu01": 1}, "what was changed and put back was changed"
    ran = swap(OLD, *good).expect(2)
    assert noted(tmp_path) == [f"before {NEW} {NEW} planned", f"after {NEW} {NEW} rolled back"], ran.out
    assert not host.exists(NOTE)


def test_a_host_that_serves_nothing_stays_out_until_a_swap_succeeds(host: Host, tmp_path: Path) -> None:
    swap(OLD).expect()
    for model in (OLD, NEW):
        host.vllm.behave(model, oom_warmup=True)
    ran = swap(NEW, *hooks(tmp_path), reports=tmp_path / "reports").expect(2)
    assert row(ran)["result"] == "FAILED" and row(ran)["downtime_s"] == "down"
    detail = str(row(ran)["detail"])
    assert detail.startswith("PUTTING BACK WHAT WAS THERE BEFORE FAILED"), detail
    assert f"journalctl -u vllm-{OLD}.service" in detail and f"run again with model={OLD}" in detail, detail
    assert noted(tmp_path) == [f"before {OLD} {OLD} planned"] and host.exists(NOTE)
    for model in (OLD, NEW):
        host.vllm.behave(model, oom_warmup=None)
    ran = swap(OLD, *hooks(tmp_path), reports=tmp_path / "reports").expect()
    assert noted(tmp_path)[-1].startswith("after ") and not host.exists(NOTE), ran.out


def test_a_server_that_serves_although_its_swap_failed_is_taken_back(host: Host, tmp_path: Path) -> None:
    """What starts at boot can't be written; the new server answers all the same."""
    swap(OLD).expect()
    wants = "/etc/systemd/system/multi-user.target.wants"
    host.run(["mount", "--bind", wants, wants])
    host.run(["mount", "-o", "remount,ro,bind", wants])
    try:
        ran = swap(NEW, *hooks(tmp_path), reports=tmp_path / "reports").expect(2)
    finally:
        host.run(["umount", wants])
    assert (row(ran)["result"], row(ran)["after"]) == ("FAILED", NEW), row(ran)
    assert noted(tmp_path) == [f"before {OLD} {OLD} planned", f"after {OLD} {NEW} FAILED"] and not host.exists(NOTE)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_hook_that_cannot_be_loaded_when_its_hosts_turn_has_come_fails_the_run(host: Host, tmp_path: Path, when: str) -> None:
    swap(OLD).expect()
    given = hooks(tmp_path)
    # Which file it is depends on the host: nothing can be said of it before.
    (tmp_path / f"{when}.yml").write_text("- ansible.builtin.include_tasks: '{{ inventory_hostname }}.yml'\n")
    (tmp_path / "gpu01.yml").write_text("- ansible.builtin.import_tasks: nowhere.yml\n")
    failed = swap(NEW, *given)
    assert failed.rc == 2 and f"{when}_host could not be loaded" in failed.out, failed.out
    assert host.exists(NOTE)
    # Nothing of it depends on the host: it is found before any is touched.
    (tmp_path / f"{when}.yml").write_text("- ansible.builtin.import_tasks: nowhere.yml\n")
    refused = swap(NEW, *given)
    assert refused.rc == 2 and "Nothing was touched" in refused.out and "Ansible can't load its tasks" in refused.out, refused.out
    (tmp_path / f"{when}.yml").write_text(HOOK.format(log=tmp_path / "log", stage=when))
    swap(NEW, *given).expect()
    assert not host.exists(NOTE)


def test_neither_does_a_failure_before_it_hide_one_that_could_not_be_loaded(host: Host, tmp_path: Path) -> None:
    swap(OLD).expect()
    given = hooks(tmp_path)
    (tmp_path / "after.yml").write_text("- ansible.builtin.include_tasks: '{{ inventory_hostname }}.yml'\n")
    (tmp_path / "gpu01.yml").write_text("- ansible.builtin.import_tasks: nowhere.yml\n")
    host.vllm.behave(NEW, oom_warmup=True)
    failed = swap(NEW, *given)
    assert failed.rc == 2 and "after_host could not be loaded" in failed.out, failed.out
    assert host.exists(NOTE)
    assert host.systemctl_show(f"vllm-{OLD}.service", ("ActiveState",))["ActiveState"] == "active"
