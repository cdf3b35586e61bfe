# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A request for a clean-up is judged before any host is touched."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._cleanup import (
    fault_of_query,
    faults_of_fleet,
    faults_of_names,
    faults_of_variables,
)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"scope": "all", "gpus": [0, 1], "min_age": "3600", "select": "vllm && used_mib > `1`"},
        {"scope": "services", "services": "vllm-kimi", "gpus": "0,1"},
        {"gpus": ["GPU-8f0d6b1c", "MIG-0123abcd", "00000000:21:00.0", "all"]},
        {"clean_shm": "yes", "timeout": 300, "result": {"freed": False}},
    ],
)
def test_what_can_be_carried_out_has_no_fault(variables: Dict[str, Any]) -> None:
    assert faults_of_variables({"gpu_reclaim_" + name: value for name, value in variables.items()}) == []


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"scope": "nonsense"}, "scope must be one of orphans, services, all, it is 'nonsense'"),
        ({"reset": "always"}, "gpu_reclaim_reset must be one of never, if_needed, it is 'always'"),
        ({"timeout": "abc"}, "gpu_reclaim_timeout must be a number of seconds, it is 'abc'"),
        ({"max_used_mib": "1 GiB"}, "gpu_reclaim_max_used_mib must be a whole number, it is '1 GiB'"),
        ({"clean_shm": "maybe"}, "gpu_reclaim_clean_shm must be true or false, it is 'maybe'"),
        ({"grace": -3}, "grace must not be negative, it is -3"),
        ({"timeout": 0.5}, "timeout (0.5 s) must be longer than settle (1 s)"),
        ({"scope": "services"}, "scope: services stops the units that `services` names, and it names none"),
        ({"services": ["vllm-a"]}, "`services` is only used with scope: services"),
        ({"scope": "services", "services": ["vllm-*"]}, "'vllm-*' in `services` is no unit name"),
        ({"select": "used_mib >"}, "`select` is no valid JMESPath expression"),
        ({"select": ""}, "`select` must be a JMESPath expression"),
        ({"gpus": [0, "banana"]}, "'banana' in gpus is no GPU"),
        ({"gpus": ["all", "-1"]}, "'-1' in gpus is no GPU"),
        ({"max_used_mib": True}, "gpu_reclaim_max_used_mib must be a whole number, it is True"),
        ({"gpus": []}, "`gpus` names no GPU. Give indices, UUIDs or PCI ids, or say all"),
        ({"gpus": ""}, "`gpus` names no GPU"),
        ({"protect": ["users:alice"]}, "'users:alice' in `protect` has no known prefix"),
        ({"select": "usr != 'alice'"}, "asks for usr, which no process has"),
        ({"scop": "all"}, "there is no variable gpu_reclaim_scop; did you mean gpu_reclaim_scope"),
        ({"candidates": []}, "there is no variable gpu_reclaim_candidates"),
    ],
)
def test_each_fault_is_said_in_one_line(variables: Dict[str, Any], said: str) -> None:
    (fault,) = faults_of_variables({"gpu_reclaim_" + name: value for name, value in variables.items()})
    assert said in fault and "\n" not in fault and "<class" not in fault


def test_all_faults_at_once() -> None:
    faults = faults_of_variables({"gpu_reclaim_grace": -1, "gpu_reclaim_settle": -1, "gpu_reclaim_gpus": ["x"], "gpu_reclaim_nope": 1})
    assert len(faults) == 4


def test_a_fault_of_some_hosts_names_them_and_one_of_all_does_not() -> None:
    good, bad = {"gpu_reclaim_grace": 5}, {"gpu_reclaim_grace": -1}
    assert faults_of_fleet({"gpu01": bad, "gpu02": bad}) == ["grace must not be negative, it is -1"]
    assert faults_of_fleet({"gpu01": good, "gpu02": bad}) == ["grace must not be negative, it is -1 (on gpu02)"]
    many = {"gpu%02d" % number: bad for number in range(1, 9)}
    assert faults_of_fleet({**many, "gpu09": good}) == ["grace must not be negative, it is -1 (on gpu01, gpu02, gpu03 and 5 more)"]


def test_slips_on_the_command_line() -> None:
    assert faults_of_names(["target", "scope", "report_dir", "query", "site", "ansible_user", "gpu_reclaim_grace"]) == []
    assert faults_of_names(["scop", "reportdir", "targets"]) == [
        "there is no variable scop; did you mean scope", "there is no variable reportdir; did you mean report_dir",
        "there is no variable targets; did you mean target",
        "if something else reads it, add -e gpufleet_other_names=scop,reportdir,targets",
    ]
    assert [fault.split(":")[0] for fault in faults_of_names(["gpu_reclaim_scope", "gpu_reclaim_accept"])] == [
        "gpu_reclaim_scope has no place here", "gpu_reclaim_accept has no place here",
    ]


def test_query() -> None:
    assert fault_of_query("") == fault_of_query(None) == fault_of_query("rows[?ok]") == []
    assert "`query` is no valid JMESPath expression" in fault_of_query("[")[0]
