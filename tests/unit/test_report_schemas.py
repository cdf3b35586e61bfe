# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The published schemas of the reports: whole, for every playbook, and the form that the tables really have."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from report_schemas import SCHEMAS, faults, schemas

from ansible_collections.gpufleet.vllm.plugins.filter.swap_rows import swap_rows
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._borrow import rows_of as borrow_rows
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._cleanup_rows import rows_of as cleanup_rows
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._filter_benchmark_rows import benchmark_rows
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._report import ENVELOPE, build
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._status import rows_of as status_rows

from .conftest import ROOT

# What each playbook gives its report, as far as it can be made here. The end-to-end tests hold every real report against its schema.
SERVED = {"actions": [{"action": "start", "target": "vllm-x.service", "reason": "it does not run"}], "changed": True, "ready": True,
          "served_models": ["x"], "serving_before": ["w"], "replaced": [{"unit": "vllm-w.service", "name": "w", "result": "stopped"}],
          "timings": {"load": 12.5, "downtime": 14.0, "total": 20.0}, "diagnosis": None, "rolled_back": False}  # fmt: skip
FREED = {"freed": True, "changed": True, "freed_mib": 100, "held": [], "left_alone": [], "gpus_before": [], "timings": {"total": 1.0}}
LOOKED_AT = {"gpus": [{"index": 0, "used_mib": 90000, "total_mib": 97887, "state": "ok"}], "driver": {"available": True},
             "services": [{"name": "x", "model": "/models/X", "state": "serves", "gpus": [0], "since": 1.0, "port": 8000, "drift": [],
                           "requests_running": 2, "requests_waiting": 1, "version": "0.33.0"}]}  # fmt: skip
REPORTS: dict[str, Callable[[], tuple[list[dict[str, Any]], dict[str, Any]]]] = {
    "swap-model": lambda: (swap_rows({"gpu01": SERVED, "gpu02": {}}, "x"), {"model": "x", "hosts": {"gpu01": SERVED, "gpu02": {}}}),
    "gpu-cleanup": lambda: (cleanup_rows({"gpu01": FREED, "gpu02": {}}), {"scope": "orphans", "hosts": {"gpu01": FREED}}),
    "benchmark": lambda: (benchmark_rows({"gpu01": {}}), {"slow": [], "hosts": {"gpu01": {}}}),
    "fleet-status": lambda: (status_rows({"gpu01": LOOKED_AT, "gpu02": {}}, 9.0), {"findings": [], "hosts": {"gpu01": LOOKED_AT}}),
    "borrow-gpus": lambda: (borrow_rows({"gpu01": {}}), {"command": ["true"], "hosts": {"gpu01": {}}}),
}


def document(name: str) -> dict[str, Any]:
    rows, more = REPORTS[name]()
    return build(name=name, title="t", rows=rows, report=more, playbook="p", check_mode=False, now=1796000000.0)


@pytest.mark.parametrize("name", sorted(schemas()))
def test_a_schema_is_one(name: str) -> None:
    schema = schemas()[name]
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert (SCHEMAS / (name + ".schema.json")).is_file()
    assert set(ENVELOPE) <= set(schema["required"])
    assert all(each.get("description") for each in schema["$defs"]["row"]["properties"].values())


def test_every_word_for_what_a_swap_came_to_is_in_its_schema() -> None:
    source = ast.parse((ROOT / "plugins" / "filter" / "swap_rows.py").read_text(encoding="utf-8"))
    given = [value for each in ast.walk(source) if isinstance(each, ast.Dict) for value in values_of(each)]
    given += [
        each.value for each in ast.walk(source)
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Subscript) and ast.unparse(each.targets[0].slice) == "'result'"
    ]
    words = {each.value for value in given for each in ast.walk(value) if isinstance(each, ast.Constant)}
    assert {"swapped", "would swap", "would update"} <= words
    assert words - set(schemas()["swap-model"]["$defs"]["row"]["properties"]["result"]["enum"]) == set()


def values_of(each: ast.Dict) -> list[ast.expr]:
    """What a dictionary in the source may have under ``result``, without the conditions that choose."""
    found = [value for key, value in zip(each.keys, each.values, strict=True) if isinstance(key, ast.Constant) and key.value == "result"]
    return [part for value in found for part in ([value.body, value.orelse] if isinstance(value, ast.IfExp) else [value])]


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_a_schema_of_today_takes_a_key_of_tomorrow_and_the_tests_do_not(name: str) -> None:
    more = copy.deepcopy(document(name))
    more["added"] = {"since": 1}
    more["rows"][0]["added"] = None
    for host in more["hosts"].values():
        host["added"] = 1
    assert [error.message for error in Draft202012Validator(schemas()[name]).iter_errors(more)] == []
    assert [line for line in faults(more) if "'added'" in line]
    assert any(line.startswith("$.rows[0]: ") for line in faults(more))


def test_no_published_schema_is_closed_anywhere() -> None:
    assert [path.name for path in SCHEMAS.glob("*.json") if '"additionalProperties": false' in path.read_text(encoding="utf-8")] == []


def test_every_playbook_that_leaves_a_report_has_a_schema_that_the_pages_name() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "playbooks").glob("*.yml"))
    names = set(re.findall(r"report_name: ([\w-]+)", text))
    assert sorted(names - set(schemas())) == [], "docs/schemas/<report_name>.schema.json says what a report holds"
    page = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")
    assert [name for name in sorted(names) if "schemas/%s.schema.json" % name not in page] == []


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_the_rows_are_as_the_schema_says(name: str) -> None:
    assert faults(document(name)) == []


def test_the_row_of_a_deploy_has_the_keys_of_its_schema() -> None:
    text = (ROOT / "playbooks" / "deploy.yml").read_text(encoding="utf-8")
    row = text.split("deploy_row:\n")[1].split("      vars:")[0]
    assert set(re.findall(r"^          (\w+):", row, re.M)) == set(schemas()["deploy"]["$defs"]["row"]["properties"])


def test_the_words_of_a_swap_are_those_of_its_page() -> None:
    words = schemas()["swap-model"]["$defs"]["row"]["properties"]["result"]["enum"]
    page = (ROOT / "docs" / "swap.md").read_text(encoding="utf-8")
    assert [word for word in words if "`%s`" % word not in page] == []


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_what_does_not_fit_is_found(name: str) -> None:
    good = document(name)
    for key in good:
        bad = copy.deepcopy(good)
        del bad[key]
        assert faults(bad), key
    for key in good["rows"][0]:
        bad = copy.deepcopy(good)
        del bad["rows"][0][key]
        assert any(line.startswith("$.rows[0]: ") for line in faults(bad)), key
    assert faults({**good, "more": 1}) and faults({**good, "schema_version": 2}) and faults({**good, "check_mode": True})
    assert "docs/schemas has no schema for the report 'nothing'" in faults({**good, "name": "nothing"})[0]
