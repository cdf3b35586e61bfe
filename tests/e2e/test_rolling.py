# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A swap that rolls over a fleet with the user's tasks around each host, and what makes it cost less time without a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.playbook import Ran, playbook

from lab import Host, Lab

OLD, NEW, BESIDE = "minimax-m2.5", "kimi-k2.5-int4", "qwen3-0.6b"
OLD_UNIT = f"vllm-{OLD}.service"
# Several swaps of three hosts in a row, each with its load.
pytestmark = pytest.mark.timeout(900)
HOOK = """
- name: Note it
  ansible.builtin.lineinfile:
    path: {log}
    line: "{stage} {{{{ inventory_hostname }}}} {{{{ swap_hook.old }}}} {{{{ swap_hook.serves }}}} {{{{ swap_hook.result }}}}"
    create: true
    mode: "0644"
  delegate_to: localhost
{more}"""


def swap(model: str, *arguments: str, **more: object) -> Ran:
    return playbook("swap_model", "-e", f"model={model}", *arguments, **more)  # type: ignore[arg-type]


def hooks(directory: Path, more: str = "") -> list[str]:
    """The arguments for two hooks that write down what they find; ``more`` are tasks for the one before."""
    arguments = []
    for stage in ("before", "after"):
        text = HOOK.format(log=directory / "log", stage=stage, more=more if stage == "before" else "")
        (directory / f"{stage}.yml").write_text(text)
        arguments += ["-e", f"{stage}_host={directory / stage}.yml"]
    return arguments


def noted(directory: Path) -> list[str]:
    log = directory / "log"
    return log.read_text().splitlines() if log.exists() else []


def invocation(host: Host) -> str:
    return host.systemctl_show(OLD_UNIT, ("InvocationID",))["InvocationID"]


@pytest.fixture
def serving(lab: Lab) -> Iterator[dict[str, Host]]:
    """Three hosts that serve the old model."""
    lab.reset()
    swap(OLD, "-e", "batch=3").expect()
    yield lab.hosts


def test_hooks_run_around_each_host_also_after_a_roll_back_and_the_rest_is_untouched(serving: dict[str, Host], tmp_path: Path) -> None:
    serving["gpu02"].vllm.behave(NEW, oom_warmup=True)
    before = invocation(serving["gpu03"])
    ran = swap(NEW, *hooks(tmp_path), reports=tmp_path / "reports").expect(2)
    assert noted(tmp_path) == [
        f"before gpu01 {OLD} {OLD} planned", f"after gpu01 {OLD} {NEW} swapped",
        f"before gpu02 {OLD} {OLD} planned", f"after gpu02 {OLD} {OLD} rolled back",
    ], ran.out  # fmt: skip
    assert invocation(serving["gpu03"]) == before
    assert ran.report is not None
    rows = {row["host"]: row for row in ran.report["rows"]}
    assert [rows[name]["result"] for name in serving] == ["swapped", "rolled back", "untouched"]
    assert rows["gpu01"]["phases_s"]["load"] > 0 and rows["gpu01"]["downtime_s"] > 0
    # The model was read ahead while the old one served.
    steps = [step["action"] for step in ran.report["hosts"]["gpu01"]["actions"]]
    assert steps.index("warm") < steps.index("stop"), steps
    assert "warm" in rows["gpu01"]["phases_s"]
    # What served is put back by a swap that works; hooks don't run where nothing is to be done.
    serving["gpu02"].vllm.behave(NEW, oom_warmup=None)
    (tmp_path / "log").unlink()
    swap(NEW, *hooks(tmp_path)).expect()
    assert [line.split()[1] for line in noted(tmp_path)] == ["gpu02", "gpu02", "gpu03", "gpu03"]


def test_a_hook_that_fails_leaves_its_host_alone_and_stops_the_rest(serving: dict[str, Host], tmp_path: Path) -> None:
    more = "- name: The balancer says no\n  ansible.builtin.fail:\n    msg: The balancer says no.\n"
    before = {name: invocation(host) for name, host in serving.items()}
    ran = swap(NEW, *hooks(tmp_path, more), reports=tmp_path / "reports").expect(2)
    assert {name: invocation(host) for name, host in serving.items()} == before
    assert noted(tmp_path) == [f"before gpu01 {OLD} {OLD} planned"]
    assert ran.report is not None
    first = ran.report["rows"][0]
    assert (first["result"], first["after"]) == ("untouched", OLD)
    assert first["detail"].startswith("before_host failed: The balancer says no. TAKEN OUT: "), first
    assert "counts as taken out until after_host has succeeded" in ran.out
    # Nor does a path that leads nowhere, or to something else than tasks, or to tasks that can't be loaded, touch anybody.
    (tmp_path / "text.yml").write_text("no: list\n")
    (tmp_path / "slip.yml").write_text("- name: Tell the balancer\n  ansible.builtin.urii:\n    url: http://lb.example.com/\n")
    for name, said in (("nowhere", "there is no file"), ("text", "holds no list of tasks"), ("slip", "task 'Tell the balancer': couldn't")):
        refused = swap(NEW, "-e", f"after_host={tmp_path / name}.yml").expect(2)
        assert said in " ".join(refused.out.split()) and "PLAY [Plan" not in refused.out, refused.out
    assert {name: invocation(host) for name, host in serving.items()} == before


def test_what_can_run_beside_serves_until_the_new_model_does(serving: dict[str, Host], tmp_path: Path) -> None:
    host = serving["gpu01"]
    arguments = ["-e", "target=gpu01", "-e", f'{{"vllm_swap_replace": ["{OLD_UNIT}"]}}']
    plan = swap(BESIDE, *arguments, "--check").expect().out
    shown = " ".join(plan.split())
    assert shown.index(f"start vllm-{BESIDE}.service") < shown.index(f"stop {OLD_UNIT}"), plan
    host.vllm.behave(BESIDE, oom_warmup=True)
    before = invocation(host)
    failed = swap(BESIDE, *arguments).expect(2)
    assert invocation(host) == before and f"{OLD_UNIT} serves {OLD}." in failed.out, failed.out
    host.vllm.behave(BESIDE, oom_warmup=None)
    ran = swap(BESIDE, *arguments, reports=tmp_path).expect()
    assert ran.report is not None
    row = ran.report["rows"][0]
    assert (row["before"], row["after"], row["result"], row["downtime_s"]) == (OLD, BESIDE, "swapped", 0.0)
    old = host.systemctl_show(OLD_UNIT, ("ActiveState", "UnitFileState", "ActiveExitTimestampMonotonic"))
    new = host.systemctl_show(f"vllm-{BESIDE}.service", ("ExecMainStartTimestampMonotonic",))
    assert old["ActiveState"] == "inactive"
    assert int(old["ActiveExitTimestampMonotonic"]) > int(new["ExecMainStartTimestampMonotonic"])
    assert swap(BESIDE, *arguments).expect().changed == {"gpu01": 0}
