# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is said of a guard that refused, where its own words are gone: read at night, it has to be enough."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.gpufleet.vllm.plugins.module_utils._diagnosis.guard import guard_diagnosis
from ansible_collections.gpufleet.vllm.plugins.module_utils._guard import exit_codes
from ansible_collections.gpufleet.vllm.plugins.modules import vllm_service

ROOT = Path(__file__).resolve().parents[5]
CODES = [code for code in exit_codes.NAMES if code != exit_codes.PASS]


def words(code: int) -> str:
    """Summary and advice of a guard that left nothing but this status."""
    found = guard_diagnosis([], code)
    assert found is not None
    return "%s. %s" % (found.summary, found.advice)


@pytest.mark.parametrize("code", CODES)
def test_what_an_advice_names_exists(code: int) -> None:
    text = words(code)
    options = yaml.safe_load(vllm_service.DOCUMENTATION)["options"]
    for name in re.findall(r"gpufleet\.vllm\.(\w+)", text):
        assert (ROOT / "playbooks" / (name + ".yml")).is_file() or (ROOT / "plugins/modules" / (name + ".py")).is_file()
    assert set(re.findall(r"\bguard\.(\w+)", text)) <= set(options["guard"]["suboptions"])


def test_memory_that_did_not_come_free_says_where_who_and_what_next() -> None:
    text = words(exit_codes.MEMORY)
    assert "one of the service's GPUs" in text and "within guard.timeout" in text  # what, where, and by when
    assert "`held by` in the unit's journal" in text  # who
    assert "playbook gpufleet.vllm.gpu_cleanup" in text and "start the service again" in text  # next
