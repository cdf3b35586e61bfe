# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job of a change may be killed, or stopped, at any moment: something serves, and the same command completes the change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.changes import (
    NEW,
    NEW_UNIT,
    OLD_UNIT,
    RECORD,
    UNIT,
    at_stage,
    begin,
    boot_state,
    completes,
    ended,
    inside,
    loading,
    prepared,
    service,
    serving,
    stage,
)

from lab import Host, Lab


@pytest.fixture(params=["gpu01", "gpu03"], ids=["bookworm", "trixie"])
def host(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Host]:
    """A host of each distribution that serves the old one; the new one takes its time to load."""
    yield prepared(lab.hosts[request.param], 2.0)


KILL = f"systemctl kill --signal=KILL {UNIT}"


def test_it_may_be_killed_before_it_has_done_anything(host: Host) -> None:
    running = begin(host, **NEW)
    inside(host, f"{at_stage('begun')} && {KILL}")
    goes_on(host, ended(running))


@pytest.mark.parametrize("when", ["staging", "stopping", "committing"])
def test_it_may_be_killed_in_every_stage(host: Host, when: str) -> None:
    if when == "staging":  # systemd has to read its unit again then, which is where this stage can be held
        before = service(host, **{**NEW, "state": "present", "guard": {"timeout": 200}})
        assert not before["failed"], before
    with stage(host, when):
        running = begin(host, **NEW)
        inside(host, at_stage(when))
        host.enter(KILL)
        inside(host, f"grep -q '\"attempts\": 2' {RECORD}")
    goes_on(host, ended(running))


def test_it_may_be_killed_while_the_new_server_loads(host: Host) -> None:
    running = begin(host, **NEW)
    with loading(host):
        host.enter(KILL)
        inside(host, f"grep -q '\"attempts\": 2' {RECORD}")
    done = ended(running)
    goes_on(host, done)
    assert done["status"]["restarts"] == 0


def goes_on(host: Host, done: dict[str, object]) -> None:
    """Killed once, the change is what was asked for, and is told as if nothing had been."""
    assert not done["failed"] and done["ready"] and done["changed"], done
    replaced, actions = done["replaced"], done["actions"]
    assert isinstance(replaced, list) and [entry["name"] for entry in replaced] == ["old"], done
    assert isinstance(actions, list) and "start" in [entry["action"] for entry in actions], done
    completes(host)


def test_killed_again_and_again_it_goes_back(host: Host) -> None:
    running = begin(host, **NEW)
    with loading(host):
        for attempts in (2, 3):
            host.enter(KILL)
            inside(host, f"grep -q '\"attempts\": {attempts}' {RECORD}")
    done = ended(running)
    assert done["failed"] and done["rolled_back"] and "killed" in done["msg"], done
    assert serving(host) == "old" and boot_state(host, OLD_UNIT) == "enabled"
    assert not host.exists(f"/etc/systemd/system/{NEW_UNIT}")
    completes(host)


def test_stopping_it_undoes_the_change_before_the_command_returns(host: Host) -> None:
    running = begin(host, **NEW)
    inside(host, f"{at_stage('starting')} && systemctl is-active -q {NEW_UNIT} && systemctl stop {UNIT}")
    assert serving(host, 1) == "old", "stop returned before the old one served"
    done = ended(running)
    assert done["failed"] and done["rolled_back"] and "asked to end" in done["msg"], done
    assert not host.exists(f"/etc/systemd/system/{NEW_UNIT}")
    completes(host)


def test_the_module_may_die_between_the_record_and_the_start_of_the_job(host: Host) -> None:
    # a condition that does not hold: the record is made, and nothing comes of the start
    drop_in = f"/run/systemd/system/{UNIT}.d"
    host.write(f"{drop_in}/never.conf", "[Unit]\nConditionPathExists=/nowhere\n")
    host.enter(["systemctl", "daemon-reload"])
    refused = service(host, **NEW)
    assert refused["failed"] and UNIT in refused["msg"], refused
    host.enter(f"rm -r {drop_in} && systemctl daemon-reload")
    assert host.exists(RECORD) and serving(host) == "old"
    planned = service(host, check=True, **NEW)
    assert [entry["action"] for entry in planned["actions"]] == ["follow"], planned
    done = service(host, **NEW)
    assert not done["failed"] and done["job"]["attached"] and done["changed"], done
    completes(host)


def test_the_unit_is_one_that_systemd_takes_without_a_word(host: Host) -> None:
    assert host.enter(f"systemd-analyze verify --man=no /etc/systemd/system/{UNIT} 2>&1").stdout == ""
    assert boot_state(host, UNIT) == "enabled"
    host.reboot()
    assert host.systemctl_show(UNIT, ["ActiveState", "ConditionResult"]) == {"ActiveState": "inactive", "ConditionResult": "no"}
