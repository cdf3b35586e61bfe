# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show one table for a fleet and leave a JSON report, on the controller."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import Any, Dict, List, Optional

from ansible import constants, context
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _begin, _effective, _report
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._readers import as_written, extra_variables
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._table import Column, cell_text, columns_of, render

# A log has no width; this reads well in the usual viewers.
_LOG_WIDTH = 140

_COLUMNS: Dict[str, Any] = {
    "type": "list",
    "elements": "dict",
    "options": {
        "key": {"type": "str", "required": True, "no_log": False},
        "title": {"type": "str"},
        "align": {"type": "str", "choices": ["auto", "left", "right"], "default": "auto"},
    },
}
_ROWS: Dict[str, Any] = {"type": "list", "elements": "dict"}
ARGUMENT_SPEC: Dict[str, Dict[str, Any]] = {
    "title": {"type": "str"},
    "rows": _ROWS,
    "columns": _COLUMNS,
    "before": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {"title": {"type": "str", "required": True}, "rows": {**_ROWS, "required": True}, "columns": _COLUMNS},
    },
    "report": {"type": "dict", "default": {}},
    "report_dir": {"type": "path"},
    "report_name": {"type": "str", "default": "fleet-report"},
    "attachments": {"type": "dict", "default": {}},
    "query": {"type": "str"},
    "fail_later": {"type": "bool", "default": False},
    "prove": {"type": "bool", "default": False},
    "batch": {"type": "raw"},
    "parts": {"type": "list", "elements": "str", "default": []},
}


class ActionModule(ActionBase):
    """Prints and writes; touches no host."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        """See the module's documentation."""
        result: Dict[str, Any] = super().run(tmp, task_vars)
        args = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC, required_if=[("prove", False, ("title", "rows"))])[1]
        if args["prove"]:
            result.update(self._prove(args, task_vars or {}))
            return result
        try:
            result.update(self._report(args))
        except _report.ReportError as exc:
            raise AnsibleActionFail(str(exc)) from None  # its cause is in its text already
        return result

    def _prove(self, args: Dict[str, Any], task_vars: Dict[str, Any]) -> Dict[str, Any]:
        running = _begin.parts_that_run(
            args["parts"], self._task.tags, task_vars.get("ansible_run_tags", ["all"]), task_vars.get("ansible_skip_tags", [])
        )
        try:
            _begin.check_parts(args["parts"], running)
            of_play, hostvars = _effective.of_play(task_vars), task_vars.get("hostvars") or {}
            _begin.check_names(of_play)
            hosts = [str(host) for host in task_vars.get("ansible_play_hosts_all", [])]
            _begin.check_keywords({host: as_written(host, hostvars) for host in hosts}, [*of_play, *extra_variables()])
            if "batch" in self._task.args:
                _begin.check_batch(args["batch"])
            if args["query"]:
                _begin.check_query(args["query"])
            # Nothing is made for a run that does not begin.
            if args["report_dir"]:
                _begin.check_directory(args["report_dir"], make=not self._task.check_mode)
        except _report.ReportError as exc:
            return {"failed": True, "changed": False, "msg": "Nothing was touched by this playbook, no host was asked by it. %s" % exc}
        alive = set(task_vars.get("ansible_play_hosts", []))
        left_out = [host for host in task_vars.get("ansible_play_hosts_all", []) if host not in alive]
        return {"changed": False, "parts": running, "left_out": left_out}

    def _report(self, args: Dict[str, Any]) -> Dict[str, Any]:
        document = _report.build(
            name=args["report_name"],
            title=args["title"],
            rows=args["rows"],
            report=args["report"] or {},
            playbook=playbook_name(),
            check_mode=bool(self._task.check_mode),
            now=time.time(),
        )
        before = [(other, _report.plain(other["rows"])) for other in args["before"] if other["rows"]]
        rows = document["rows"]
        table = render(_columns(args["columns"], rows), rows, _width()) if rows else ["(nothing to show)"]
        outcome: Dict[str, Any] = {"changed": False, "rows": rows, "table": table, "report_path": None}
        if before:
            outcome["before"] = [{"title": other["title"], "rows": others} for other, others in before]
        # What fails here must cost neither the table nor the file.
        failures: List[str] = []
        if args["query"]:
            try:
                _answer(args["query"], document, outcome)
            except _report.ReportError as exc:
                failures.append(str(exc))
        if "query_result" in outcome:
            _show([json.dumps(outcome["query_result"], indent=2, ensure_ascii=False)])
        else:
            for other, others in before:
                _show(["", cell_text(other["title"]), "", *render(_columns(other["columns"], others), others, _width()), ""])
            _show(["", cell_text(args["title"]), "", *table, ""])
        if args["report_dir"] and not self._task.check_mode:
            try:
                _write(args, document, outcome)
            except _report.ReportError as exc:
                failures.append(str(exc))
        if outcome["report_path"]:
            _show(["Report: %s" % path for path in [outcome["report_path"], *outcome.get("attachment_paths", [])]])
        if failures:
            _fail(outcome, " ".join(failures), args["fail_later"])
        return outcome


def _answer(query: str, document: Dict[str, Any], outcome: Dict[str, Any]) -> None:
    outcome["query_result"] = _report.ask(query, document)
    if outcome["query_result"] is False:
        raise _report.ReportError("The answer to the query %r is false." % query)


def _write(args: Dict[str, Any], document: Dict[str, Any], outcome: Dict[str, Any]) -> None:
    outcome["report_path"] = _report.write(args["report_dir"], args["report_name"], document)
    if args["attachments"]:
        outcome["attachment_paths"] = _report.attach(outcome["report_path"], args["attachments"])


def _fail(outcome: Dict[str, Any], text: str, later: bool) -> None:
    """Fail the task, or leave that to a later one of the play, which may have no host to run on any more: it is warned of here."""
    if later:
        outcome.update(failure=text, warnings=[text])
        return
    # The failed task is shown whole: it says what matters and leaves the rows to the report.
    for name in ("rows", "table", "before"):
        outcome.pop(name, None)
    outcome.update(failed=True, msg=text)


def playbook_name() -> Optional[str]:
    """The playbook of this run, as it was named on the command line without directory and extension."""
    playbooks = context.CLIARGS.get("args") or ()
    if not playbooks:
        return None
    name = os.path.basename(str(playbooks[0]))
    return name[: -len(".yml")] if name.endswith(".yml") else name


def _columns(given: Optional[List[Dict[str, Any]]], rows: List[Dict[str, Any]]) -> List[Column]:
    if not given:
        return columns_of(rows)
    return [
        Column(str(column["key"]), str(column["title"] or column["key"].replace("_", " ").upper()), column["align"])
        for column in given
    ]


def _width() -> int:
    return shutil.get_terminal_size((_LOG_WIDTH, 24)).columns if sys.stdout.isatty() else _LOG_WIDTH


def _show(lines: List[str]) -> None:
    # A callback that prints one JSON document must have standard output to itself; the rows are in its document.
    if "json" not in str(constants.config.get_config_value("DEFAULT_STDOUT_CALLBACK")):
        Display().display("\n".join(lines))
