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

from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _report
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
_ROWS: Dict[str, Any] = {"type": "list", "elements": "dict", "required": True}
ARGUMENT_SPEC: Dict[str, Dict[str, Any]] = {
    "title": {"type": "str", "required": True},
    "rows": _ROWS,
    "columns": _COLUMNS,
    "before": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {"title": {"type": "str", "required": True}, "rows": _ROWS, "columns": _COLUMNS},
    },
    "report": {"type": "dict", "default": {}},
    "report_dir": {"type": "path"},
    "report_name": {"type": "str", "default": "fleet-report"},
    "attachments": {"type": "dict", "default": {}},
    "query": {"type": "str"},
}


class ActionModule(ActionBase):
    """Prints and writes; touches no host."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        """See the module's documentation."""
        result: Dict[str, Any] = super().run(tmp, task_vars)
        args = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)[1]
        try:
            result.update(self._report(args))
        except _report.ReportError as exc:
            raise AnsibleActionFail(str(exc)) from None  # its cause is in its text already
        return result

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
        # The file first: a query that fails the task must not cost the report.
        if args["report_dir"] and not self._task.check_mode:
            outcome["report_path"] = _report.write(args["report_dir"], args["report_name"], document)
            if args["attachments"]:
                outcome["attachment_paths"] = _report.attach(outcome["report_path"], args["attachments"])
        if args["query"]:
            answer = _report.ask(args["query"], document)
            outcome["query_result"] = answer
            _show([json.dumps(answer, indent=2, ensure_ascii=False)])
            if answer is False:
                # The failed task is shown whole: it says what matters and leaves the rows to the report.
                del outcome["rows"], outcome["table"]
                outcome.update(failed=True, msg="The answer to the query %r is false." % args["query"])
        else:
            for other, others in before:
                _show(["", cell_text(other["title"]), "", *render(_columns(other["columns"], others), others, _width()), ""])
            _show(["", cell_text(args["title"]), "", *table, ""])
        if outcome["report_path"]:
            _show(["Report: %s" % path for path in [outcome["report_path"], *outcome.get("attachment_paths", [])]])
        return outcome


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
