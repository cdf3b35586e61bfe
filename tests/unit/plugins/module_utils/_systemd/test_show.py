# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""systemctl show, read into units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.show import UnitStatus, parse_show


def status(**properties: str) -> UnitStatus:
    """A unit from a few properties."""
    return UnitStatus.from_properties(properties)


def test_units_are_apart_by_an_empty_line() -> None:
    text = "Id=a.service\nMainPID=1\n\nId=b.service\nMainPID=2\n"
    assert parse_show(text) == [{"Id": "a.service", "MainPID": "1"}, {"Id": "b.service", "MainPID": "2"}]
    assert parse_show("") == [] and parse_show("\n\n") == []


def test_a_value_may_have_several_lines_and_empty_ones_among_them() -> None:
    text = "Id=a.service\nStatusText=one\ntwo\n\nthree = four\nMainPID=1\n\nId=b.service\n"
    assert parse_show(text) == [
        {"Id": "a.service", "StatusText": "one\ntwo\n\nthree = four", "MainPID": "1"},
        {"Id": "b.service"},
    ]


def test_a_property_that_stands_twice_keeps_both() -> None:
    text = "ExecStartPre={ path=/a }\nExecStartPre={ path=/b }\nId=x\n"
    assert parse_show(text) == [{"ExecStartPre": "{ path=/a }\n{ path=/b }", "Id": "x"}]


@given(st.text(max_size=300))
def test_anything_is_read_without_an_error(text: str) -> None:
    for unit in parse_show(text):
        UnitStatus.from_properties(unit)


@given(
    st.dictionaries(
        st.sampled_from(["MainPID", "NRestarts", "ExecMainStatus", "ActiveEnterTimestampMonotonic"]),
        st.text(max_size=30),
    )
)
def test_odd_numbers_are_no_error(properties: dict[str, str]) -> None:
    read = UnitStatus.from_properties(properties)
    assert read.main_pid >= 0 or properties.get("MainPID", "").strip().startswith("-")


def test_running_needs_a_process() -> None:
    assert status(ActiveState="active", SubState="running", MainPID="7").running
    assert not status(ActiveState="active", SubState="running", MainPID="0").running
    assert not status(ActiveState="activating", SubState="start", MainPID="7").running
    assert not status(ActiveState="active", SubState="exited", MainPID="0").running


def test_the_guard_waiting_is_starting_and_a_pause_between_crashes_is_not() -> None:
    assert status(ActiveState="activating", SubState="start-pre").starting
    waiting = status(ActiveState="activating", SubState="auto-restart", NRestarts="1")
    assert not waiting.starting and waiting.crash_looping
    assert status(ActiveState="activating", SubState="auto-restart-queued").crash_looping
    assert status(ActiveState="failed", SubState="failed", Result="start-limit-hit").crash_looping
    assert not status(ActiveState="failed", SubState="failed", Result="exit-code").crash_looping


def exec_line(code: str, status: str, argv: str = "/g --x", ignored: str = "no") -> str:
    """One ``ExecStartPre`` as systemctl shows it."""
    times = "start_time=[Sun 2026-11-29 15:43:11 UTC] ; stop_time=[n/a]"
    return "{ path=/g ; argv[]=%s ; ignore_errors=%s ; %s ; pid=9 ; code=%s ; status=%s }" % (
        argv,
        ignored,
        times,
        code,
        status,
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", None),
        (exec_line("(null)", "0/0"), None),
        (exec_line("exited", "0"), None),
        (exec_line("exited", "75"), 75),
        (exec_line("killed", "9/KILL"), 9),
        (exec_line("exited", "0") + "\n" + exec_line("exited", "3"), 3),
        (exec_line("exited", "1", ignored="yes"), None),
        (exec_line("exited", "1", ignored="yes") + "\n" + exec_line("exited", "75"), 75),
        # What stands in the arguments is not what happened.
        (exec_line("(null)", "0/0", "/g ; code=exited ; status=3 }"), None),
    ],
)
def test_the_exit_status_of_the_command_before_the_server(line: str, expected: int | None) -> None:
    found = status(ExecStartPre=line)
    assert found.start_pre_status == expected and found.start_pre_path == (None if expected is None else "/g")


def test_times_and_codes() -> None:
    read = UnitStatus.from_properties(
        {
            "ActiveEnterTimestampMonotonic": "2500000",
            "StateChangeTimestampMonotonic": "0",
            "ExecMainCode": "2",
            "ExecMainStatus": "9",
        },
        1000.0,
    )
    assert read.active_enter == 1002.5 and read.state_change is None
    assert (read.exec_main_code, read.exec_main_status) == ("killed", 9)
    assert status(MainPID="18446744073709551615").main_pid == 0


def test_existence_and_masks() -> None:
    assert not status(LoadState="not-found").exists
    assert status(LoadState="loaded").exists
    assert status(LoadState="masked").masked and status(LoadState="masked").exists


def test_the_result_is_the_contracts() -> None:
    read = status(ActiveState="active", SubState="running", Result="success", MainPID="7", NRestarts="2")
    assert read.to_result() == {
        "active_state": "active",
        "sub_state": "running",
        "result": "success",
        "main_pid": 7,
        "restarts": 2,
        "since": None,
    }
    assert status(ActiveState="inactive", MainPID="0").to_result()["main_pid"] is None, "no process is no number"
