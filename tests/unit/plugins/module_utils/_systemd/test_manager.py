# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The systemd port: what it calls, and what it makes of the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Optional

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.cgroup import cgroup_pids
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.enabled import enabled_state
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.journal import Journal, parse_journal
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.manager import Systemd

from .scripted import ScriptedRunner

VERSION = {"systemctl --version": (0, "systemd 252 (252.39-1)\n+PAM +AUDIT\n", "")}


def test_a_failed_call_says_command_status_and_words() -> None:
    runner = ScriptedRunner({"systemctl start": (5, "", "Failed to start x.service: Unit x.service not found.\n")})
    with pytest.raises(GpuFleetError) as failed:
        Systemd(runner).start("x.service")
    assert "systemctl start --no-block -- x.service" in failed.value.msg and "not found" in failed.value.msg
    assert failed.value.result["rc"] == 5 and "not found" in failed.value.result["stderr"]
    assert failed.value.result["cmd"] == ["systemctl", "start", "--no-block", "--", "x.service"]


@pytest.mark.parametrize(("state", "thawed"), [("frozen", True), ("freezing", True), ("running", False), ("", False)])
def test_a_frozen_unit_is_thawed_before_it_is_stopped(state: str, thawed: bool) -> None:
    runner = ScriptedRunner({"systemctl show": (0, state + "\n", ""), "systemctl thaw": (0, "", ""), "systemctl stop": (0, "", "")})
    Systemd(runner).stop("x.service")
    assert runner.calls[1:] == [("systemctl", "thaw", "--", "x.service")][: int(thawed)] + [
        ("systemctl", "stop", "--no-block", "--", "x.service")
    ]


@pytest.mark.parametrize(
    ("version", "option"),
    [("247 (247.3-7)", "--kill-who=all"), ("252 (252.39-1)", "--kill-whom=all"), ("257", "--kill-whom=all")],
)
def test_kill_speaks_each_versions_language(version: str, option: str) -> None:
    runner = ScriptedRunner({"systemctl --version": (0, "systemd %s\n" % version, ""), "systemctl kill": (0, "", "")})
    Systemd(runner).kill("x.service")
    assert runner.calls[-1] == ("systemctl", "kill", option, "--signal=SIGKILL", "--", "x.service")


@pytest.mark.parametrize(
    "words", ["Failed to kill unit x.service: No main process to kill", "Unit x.service not loaded."]
)
def test_killing_what_is_not_there_is_done(words: str) -> None:
    Systemd(ScriptedRunner({**VERSION, "systemctl kill": (1, "", words)})).kill("x.service", whom="main")
    Systemd(ScriptedRunner({"systemctl reset-failed": (1, "", "Failed: Unit x.service not loaded.")})).reset_failed(
        "x.service"
    )
    with pytest.raises(GpuFleetError):
        Systemd(ScriptedRunner({**VERSION, "systemctl kill": (1, "", "Access denied")})).kill("x.service")


def test_what_a_stop_takes_along_is_followed_through_targets() -> None:
    shown = {
        "-- a.service": "RequiredBy=b.target\nBoundBy=c.service\nConsistsOf=\n",
        "-- b.target c.service": "RequiredBy=\nConsistsOf=d.service\n\nRequiredBy=a.service\nBoundBy=\n",
        "-- d.service": "RequiredBy=\n",
    }
    calls = {"systemctl show --property=RequiredBy,RequisiteOf,BoundBy,ConsistsOf,PropagatesStopTo " + key: (0, text, "")
             for key, text in shown.items()}
    assert Systemd(ScriptedRunner(calls)).stopped_with("a.service") == ["c.service", "d.service"]


def test_several_units_in_one_call() -> None:
    runner = ScriptedRunner(
        {"systemctl show": (0, "Id=a.service\nActiveState=active\n\nId=b.service\nActiveState=inactive\n", "")}
    )
    found = Systemd(runner).statuses(["a.service", "b.service"])
    assert [found[name].active_state for name in ("a.service", "b.service")] == ["active", "inactive"]
    assert len(runner.calls) == 1
    assert Systemd(runner).statuses([]) == {} and len(runner.calls) == 1


def test_an_answer_for_another_number_of_units_is_an_error() -> None:
    runner = ScriptedRunner({"systemctl show": (0, "Id=a.service\n", "")})
    with pytest.raises(GpuFleetError, match="answered for 1 units where 2"):
        Systemd(runner).statuses(["a.service", "b.service"])


def test_why_units_cannot_be_managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not running as PID 1" in (Systemd(ScriptedRunner(VERSION), root=str(tmp_path)).available() or "")
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "become: true" in (Systemd(ScriptedRunner(VERSION), root=str(tmp_path)).available() or "")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert Systemd(ScriptedRunner(VERSION), root=str(tmp_path)).available() is None
    old = ScriptedRunner({"systemctl --version": (0, "systemd 246 (246.1)\n", "")})
    assert "246 is too old" in (Systemd(old, root=str(tmp_path)).available() or "")
    none = ScriptedRunner({"systemctl --version": (127, "", "no such file")})
    assert "can't be used" in (Systemd(none, root=str(tmp_path)).available() or "")


def test_verify_reports_lines_and_never_takes_silence_for_cleanliness() -> None:
    runner = ScriptedRunner(
        {
            **VERSION,
            "systemd-analyze": (
                0,
                "",
                "x.service: Unknown key 'Foo' in section [Service], ignoring.\nother.service: bad\n",
            ),
        }
    )
    assert Systemd(runner).verify("[Service]\n", "x.service") == [
        "x.service: Unknown key 'Foo' in section [Service], ignoring."
    ]
    assert Systemd(ScriptedRunner({**VERSION, "systemd-analyze": (0, "", "")})).verify("", "x.service") == []
    for answer in ((127, "", "not found"), (1, "", "")):
        with pytest.raises(GpuFleetError, match="could not be verified"):
            Systemd(ScriptedRunner({**VERSION, "systemd-analyze": answer})).verify("", "x.service")


@pytest.mark.parametrize("mount", ["sys/fs/cgroup", "sys/fs/cgroup/systemd", "sys/fs/cgroup/unified"])
def test_pids_of_a_cgroup_in_each_form(tmp_path: Path, mount: str) -> None:
    group = tmp_path / mount / "system.slice/vllm-x.service"
    (group / "below").mkdir(parents=True)
    (group / "cgroup.procs").write_text("12\n7\n", encoding="ascii")
    (group / "below/cgroup.procs").write_text("30\n0\n", encoding="ascii")
    root = str(tmp_path)
    assert cgroup_pids("vllm-x.service", "/system.slice/vllm-x.service", "system.slice", root) == [7, 12, 30]
    # An inactive unit has no ControlGroup property any more.
    assert cgroup_pids("vllm-x.service", "", "system.slice", root) == [7, 12, 30]
    assert cgroup_pids("vllm-y.service", "", "", root) == []
    # A unit that its manager does not know is nowhere, and a user's is below that user's manager.
    assert cgroup_pids("vllm-x.service", "", "", root) == []
    assert cgroup_pids("vllm-x.service", "", "system.slice", root, uid=1000) == []


@pytest.mark.parametrize(
    ("uid", "unit_slice", "place"),
    [
        (None, "system-a.slice", "system.slice/system-a.slice"),
        (None, "-.slice", ""),
        (1000, "app.slice", "user.slice/user-1000.slice/user@1000.service/app.slice"),
        (1000, "-.slice", "user.slice/user-1000.slice/user@1000.service"),
    ],
)
def test_where_the_processes_of_a_unit_that_is_down_would_be(
    tmp_path: Path, uid: Optional[int], unit_slice: str, place: str
) -> None:
    group = tmp_path / "sys/fs/cgroup" / place / "a@1.service"
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text("7\n", encoding="ascii")
    shown = {"systemctl show": (0, "Id=a@1.service\nActiveState=inactive\nControlGroup=\nSlice=%s\n" % unit_slice, "")}
    assert Systemd(ScriptedRunner(shown), root=str(tmp_path), uid=uid).cgroup_pids("a@1.service") == [7]
    assert Systemd(ScriptedRunner(shown), root=str(tmp_path), uid=7).cgroup_pids("a@1.service") == []


def entry(**fields: object) -> str:
    """One line of journalctl -o json."""
    return json.dumps(
        {"__REALTIME_TIMESTAMP": "1764430000123456", "_PID": "42", "SYSLOG_IDENTIFIER": "vllm-x", **fields}
    )


def test_the_journal_is_read_in_all_its_forms() -> None:
    text = "\n".join(
        [
            entry(MESSAGE="plain"),
            entry(MESSAGE=[104, 105, 255]),
            entry(MESSAGE=None),
            entry(MESSAGE=["one", "two"]),
            entry(MESSAGE="first\nsecond"),
            entry(MESSAGE="by systemd", SYSLOG_IDENTIFIER="systemd", _PID="1"),
            '{"MESSAGE": "cut of',
            "[1]",
        ]
    )
    lines = parse_journal(text)
    assert [line.text for line in lines] == ["plain", "hi\ufffd", "", "one", "two", "first", "second", "by systemd"]
    assert lines[0].time == pytest.approx(1764430000.123456) and lines[0].pid == 42
    assert lines[-1].from_manager and not lines[0].from_manager


def test_only_one_invocation_is_asked_for() -> None:
    runner = ScriptedRunner({"journalctl --sync": (1, "", "no"), "journalctl --no-pager": (0, entry(MESSAGE="x"), "")})
    assert len(Journal(runner).lines("vllm-x.service", "abc", limit=10)) == 1
    asked = runner.calls[-1]
    assert (
        "_SYSTEMD_INVOCATION_ID=abc" in asked
        and "INVOCATION_ID=abc" in asked
        and "--lines=10" in asked
        and "+" in asked
    )
    broken = ScriptedRunner({"journalctl --sync": (0, "", ""), "journalctl --no-pager": (1, "", "no journal")})
    with pytest.raises(GpuFleetError, match="no journal"):
        Journal(broken).lines("vllm-x.service")


def test_a_remembered_state_is_put_right_from_the_disk(tmp_path: Path) -> None:
    wants = tmp_path / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    root = str(tmp_path)
    assert enabled_state("vllm-x.service", "enabled", root) == "disabled"
    (wants / "vllm-x.service").symlink_to("/etc/systemd/system/vllm-x.service")
    assert enabled_state("vllm-x.service", "disabled", root) == "enabled"
    assert enabled_state("vllm-y.service", "disabled", root) == "disabled"
    for told in ("masked", "static", "", "linked", "generated"):
        assert enabled_state("vllm-x.service", told, root) == told


def test_enabling_touches_files_alone() -> None:
    runner = ScriptedRunner({"systemctl --root=/": (0, "", "")})
    Systemd(runner).enable("x.service")
    Systemd(runner).disable("x.service")
    assert [call[1:4] for call in runner.calls] == [
        ("--root=/", "--quiet", "enable"),
        ("--root=/", "--quiet", "disable"),
    ]
