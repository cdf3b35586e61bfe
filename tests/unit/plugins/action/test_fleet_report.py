# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet's table and report: what is printed, what is written, what fails."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, List

import pytest
from ansible import constants
from ansible.errors import AnsibleActionFail, AnsibleError

from ansible_collections.gpufleet.vllm.plugins.action import fleet_report

RunAction = Callable[..., Dict[str, Any]]
ROWS: List[Dict[str, Any]] = [
    {"host": "gpu01", "used_mib": 1024, "ready": True},
    {"host": "gpu02", "used_mib": None, "ready": False},
]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    """What goes to Ansible's display."""
    texts: List[str] = []

    class FakeDisplay:
        def display(self, text: str) -> None:
            texts.append(text)

    monkeypatch.setattr(fleet_report, "Display", FakeDisplay)
    return texts


def report(run_action: RunAction, check_mode: bool = False, **args: Any) -> Dict[str, Any]:
    return run_action(fleet_report.ActionModule, {"title": "The fleet", "rows": ROWS, **args}, {}, check_mode)


def test_the_table_is_printed_and_returned(run_action: RunAction, printed: List[str]) -> None:
    result = report(run_action)
    assert result["table"] == [
        "HOST   USED MIB  READY",
        "-----  --------  -----",
        "gpu01      1024  yes",
        "gpu02         -  no",
    ]
    assert "\n".join(result["table"]) in printed[0]
    assert "The fleet" in printed[0]
    assert result["changed"] is False
    assert result["report_path"] is None
    assert result["rows"] == ROWS


def test_columns_choose_order_title_and_alignment(run_action: RunAction, printed: List[str]) -> None:
    columns = [{"key": "used_mib", "title": "MiB", "align": "left"}, {"key": "host", "align": "right"}]
    assert report(run_action, columns=columns)["table"][2] == "1024  gpu01"


def test_no_rows_are_said(run_action: RunAction, printed: List[str]) -> None:
    assert report(run_action, rows=[])["table"] == ["(nothing to show)"]


def test_the_report_is_one_json_file(run_action: RunAction, printed: List[str], tmp_path: Path) -> None:
    directory = tmp_path / "new" / "reports"
    result = report(run_action, report_dir=str(directory), report_name="swap", report={"model": "m"})
    assert [str(path) for path in directory.iterdir()] == [result["report_path"]]
    assert re.fullmatch(r"swap-\d{8}T\d{6}Z\.json", Path(result["report_path"]).name)
    document = json.loads(Path(result["report_path"]).read_text(encoding="utf-8"))
    assert document["schema_version"] == 1
    assert document["rows"] == ROWS
    assert document["model"] == "m"
    assert document["check_mode"] is False
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", document["time"])
    assert any(result["report_path"] in text for text in printed)


def test_check_mode_prints_and_writes_nothing(run_action: RunAction, printed: List[str], tmp_path: Path) -> None:
    result = report(run_action, check_mode=True, report_dir=str(tmp_path / "reports"))
    assert printed
    assert result["report_path"] is None
    assert not (tmp_path / "reports").exists()


def test_an_empty_report_dir_is_none(run_action: RunAction, printed: List[str]) -> None:
    assert report(run_action, report_dir="")["report_path"] is None


def test_a_report_never_overwrites_another(
    run_action: RunAction, printed: List[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_report, "time", SimpleNamespace(time=lambda: 1796000000.0))
    paths = [report(run_action, report_dir=str(tmp_path))["report_path"] for run in range(3)]
    assert len({*paths}) == 3
    assert sorted(str(path) for path in tmp_path.iterdir()) == sorted(paths)


def test_a_directory_that_cannot_be_made_is_one_message(
    run_action: RunAction, printed: List[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    result = report(run_action, report_dir=str(tmp_path / "file" / "reports"))
    assert result["failed"] and re.search("cannot be written .* Give another .report_dir", result["msg"])
    assert "gpu01" in printed[0], "what is known is told all the same"
    assert "rows" not in result and "table" not in result, "the failed task is shown whole"


def test_a_failure_can_be_left_to_a_later_task(run_action: RunAction, printed: List[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    result = report(run_action, report_dir=str(tmp_path / "file"), query="length(rows) == `0`", fail_later=True)
    assert not result.get("failed") and result["report_path"] is None and result["rows"] == ROWS
    assert result["warnings"] == [result["failure"]], "the later task may have no host left to run on"
    assert re.fullmatch("The answer to the query .* is false. The report cannot be written .*", result["failure"])
    assert "failure" not in report(run_action, report_dir=str(tmp_path), fail_later=True)


@pytest.mark.parametrize("name", ["../escape", "", "a b", ".hidden"])
def test_a_report_name_that_is_no_file_name_is_refused(
    run_action: RunAction, printed: List[str], tmp_path: Path, name: str
) -> None:
    assert "report_name" in report(run_action, report_dir=str(tmp_path), report_name=name)["msg"]
    assert list(tmp_path.iterdir()) == []


def test_the_callers_keys_must_not_hide_the_envelope(run_action: RunAction, printed: List[str]) -> None:
    with pytest.raises(AnsibleActionFail, match="must not hold rows"):
        report(run_action, report={"rows": []})


def test_not_a_number_becomes_null(run_action: RunAction, printed: List[str], tmp_path: Path) -> None:
    result = report(run_action, rows=[{"x": float("nan"), "y": float("inf")}], report_dir=str(tmp_path))
    assert json.loads(Path(result["report_path"]).read_text(encoding="utf-8"))["rows"] == [{"x": None, "y": None}]


def test_a_query_replaces_the_table(run_action: RunAction, printed: List[str]) -> None:
    result = report(run_action, query="rows[?ready].host")
    assert result["query_result"] == ["gpu01"]
    assert [json.loads(text) for text in printed] == [["gpu01"]]


def test_a_query_that_is_false_fails_after_the_report_is_written(
    run_action: RunAction, printed: List[str], tmp_path: Path
) -> None:
    result = report(run_action, query="length(rows[?!ready]) == `0`", report_dir=str(tmp_path))
    assert result["failed"]
    assert "is false" in result["msg"]
    assert Path(result["report_path"]).exists()


@pytest.mark.parametrize(("query", "answer"), [("length(rows) == `2`", True), ("nothing", None), ("`0`", 0), ("`[]`", [])])
def test_only_false_fails(run_action: RunAction, printed: List[str], query: str, answer: Any) -> None:
    result = report(run_action, query=query)
    assert not result.get("failed")
    assert result["query_result"] == answer


@pytest.mark.parametrize("query", ["rows[", "length(schema_version)"])
def test_a_query_that_cannot_work_costs_neither_the_table_nor_the_report(
    run_action: RunAction, printed: List[str], tmp_path: Path, query: str
) -> None:
    result = report(run_action, query=query, report_dir=str(tmp_path))
    assert result["failed"] and "does not work" in result["msg"]
    assert "gpu01" in printed[0] and Path(result["report_path"]).exists()


def test_a_missing_library_is_named(
    run_action: RunAction, printed: List[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jmespath", None)
    assert "pip install jmespath" in report(run_action, query="rows")["msg"]


def test_a_json_callback_keeps_standard_output_to_itself(
    run_action: RunAction, printed: List[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants.config, "get_config_value", lambda *args, **kwargs: "ansible.posix.json")
    assert report(run_action)["table"]
    assert printed == []


def test_a_row_that_is_no_dictionary_is_refused(run_action: RunAction, printed: List[str]) -> None:
    with pytest.raises(AnsibleError, match="rows"):
        report(run_action, rows=["gpu01"])


def test_attachments_are_written_beside_the_report(run_action: RunAction, printed: List[str], tmp_path: Path) -> None:
    result = report(run_action, report_dir=str(tmp_path), attachments={"md": "# text\n", "html": "<p>é"})
    stem = result["report_path"][: -len(".json")]
    assert result["attachment_paths"] == [stem + ".md", stem + ".html"]
    assert (Path(stem + ".html")).read_text(encoding="utf-8") == "<p>é"
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".html", ".json", ".md"]
    assert "Report: %s.html" % stem in printed[-1]
    again = report(run_action, report_dir=str(tmp_path), attachments={"md": "other"})
    assert again["attachment_paths"] != result["attachment_paths"], "the first one is still what it was"
    assert Path(stem + ".md").read_text(encoding="utf-8") == "# text\n"


@pytest.mark.parametrize("name", ["../x", "json", "", "a.b"])
def test_an_attachment_is_an_extension_and_no_path(run_action: RunAction, printed: List[str], tmp_path: Path, name: str) -> None:
    assert "file's extension" in report(run_action, report_dir=str(tmp_path), attachments={name: "x"})["msg"]


def test_without_a_report_there_are_no_attachments(run_action: RunAction, printed: List[str], tmp_path: Path) -> None:
    assert "attachment_paths" not in report(run_action, attachments={"md": "x"})
    assert "attachment_paths" not in report(run_action, check_mode=True, report_dir=str(tmp_path), attachments={"md": "x"})
    assert list(tmp_path.iterdir()) == []


def test_other_tables_come_before_it_and_only_those_with_rows(run_action: RunAction, printed: List[str], tmp_path: Path) -> None:
    others = [
        {"title": "What to know of", "rows": [{"host": "gpu02", "detail": "tight"}], "columns": [{"key": "detail", "title": "WHAT"}]},
        {"title": "What fails", "rows": []},
    ]
    result = report(run_action, before=others, report_dir=str(tmp_path))
    text = "\n".join(printed)
    assert text.index("What to know of\n\nWHAT\n-----\ntight") < text.index("The fleet\n\nHOST") and "What fails" not in text
    assert result["before"] == [{"title": "What to know of", "rows": [{"host": "gpu02", "detail": "tight"}]}]
    assert result["rows"] == ROWS and "before" not in json.loads(Path(result["report_path"]).read_text(encoding="utf-8"))


def test_a_question_has_the_output_to_itself(run_action: RunAction, printed: List[str]) -> None:
    report(run_action, before=[{"title": "What to know of", "rows": ROWS}], query="length(rows)")
    assert printed == ["2"]


@pytest.mark.parametrize("given", [{"title": "x"}, {"rows": []}, {}])
def test_a_table_takes_a_title_and_rows(run_action: RunAction, printed: List[str], given: Dict[str, Any]) -> None:
    with pytest.raises(AnsibleError, match="prove is False but"):
        run_action(fleet_report.ActionModule, given)


def prove(run_action: RunAction, check_mode: bool = False, **args: Any) -> Dict[str, Any]:
    return run_action(fleet_report.ActionModule, {"prove": True, **args}, {}, check_mode)


def test_a_directory_for_the_report_is_made_and_nothing_is_shown(run_action: RunAction, printed: List[str], tmp_path: Path) -> None:
    assert prove(run_action, report_dir=str(tmp_path / "new" / "reports")) == {"changed": False, "parts": [], "left_out": []}
    assert (tmp_path / "new" / "reports").is_dir() and printed == []
    assert prove(run_action, check_mode=True, report_dir=str(tmp_path / "other" / "reports"))["parts"] == []
    assert not (tmp_path / "other").exists(), "only looked at"
    assert "failed" not in prove(run_action, report_dir="")


@pytest.mark.parametrize("check_mode", [False, True])
def test_all_that_stands_against_a_report_is_told_before_a_run_begins(run_action: RunAction, tmp_path: Path, check_mode: bool) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    told = prove(run_action, check_mode, report_dir=str(tmp_path / "file" / "reports"))
    assert told["failed"] and told["msg"].startswith("Nothing was touched by this playbook, no host was asked by it.")
    assert f"{tmp_path}/file/reports ({tmp_path}/file is no directory). Give another `report_dir`" in told["msg"]
    told = prove(run_action, check_mode, report_dir=str(tmp_path / "new"), query="rows[")
    assert told["failed"] and "`query` is no valid JMESPath expression" in told["msg"]
    assert not (tmp_path / "new").exists(), "nothing is made for a run that does not begin"
    assert "failed" not in prove(run_action, check_mode, query="rows")


def test_hosts_that_had_failed_before_are_told(run_action: RunAction) -> None:
    task_vars = {"ansible_play_hosts_all": ["localhost", "a", "b"], "ansible_play_hosts": ["localhost", "b"]}
    assert run_action(fleet_report.ActionModule, {"prove": True}, task_vars)["left_out"] == ["a"]


def test_what_the_play_is_given_by_a_name_that_nothing_has_is_refused(run_action: RunAction) -> None:
    everybody = {"gpu_reclaim_gpu": [0]}
    own = {"inventory_hostname": "localhost", "hostvars": {"localhost": everybody}, **everybody}
    # What the inventory says is for the roles to judge.
    assert not run_action(fleet_report.ActionModule, {"prove": True}, own).get("failed")
    found = run_action(fleet_report.ActionModule, {"prove": True}, {**own, "gpu_reclaim_mn_age": 5})
    assert found["failed"] and "did you mean gpu_reclaim_min_age" in found["msg"]


def test_a_batch_that_ansible_cannot_use_is_refused_before_the_first_host(run_action: RunAction, tmp_path: Path) -> None:
    told = prove(run_action, batch="all", report_dir=str(tmp_path / "new"))
    assert told["failed"] and "no host was asked by it. batch is 'all'. It takes a number of hosts from 1 on" in told["msg"]
    assert prove(run_action, batch=None)["failed"] and not (tmp_path / "new").exists()
    assert "failed" not in prove(run_action, batch=[1, "25%"]) and "failed" not in prove(run_action)
