# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of a model's entry on the command line."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._entry_slips import entry_slips


def test_what_only_an_entry_can_say_is_a_slip() -> None:
    assert entry_slips(["port", "max_model_len", "site", "model"], {"vllm_models": {"m": {"port": 8000}}}) == [
        "`port` was set on the command line, where nothing reads it: put it in the model's entry in `vllm_models`.",
        "`max_model_len` was set on the command line, where nothing reads it: put it under `args` of the model's entry in `vllm_models`.",
    ]


@pytest.mark.parametrize(
    "variables",
    [
        {"vllm_models": {"m": {"gpus": "{{ gpus | default([0]) }}"}}},
        {"chosen": ["{{ gpus }}"], "vllm_models": "{{ base | combine({'m': {'gpus': chosen}}) }}"},
        {"entry": "{% if gpus is defined %}x{% endif %}"},
    ],
)
def test_what_the_inventory_is_written_in_terms_of_is_none(variables: Any) -> None:
    assert entry_slips(["gpus"], variables) == []


def test_another_name_and_ansibles_own_variables_do_not_count() -> None:
    assert len(entry_slips(["gpus"], {"entry": "{{ gpus_of_host }}"})) == 1
    assert len(entry_slips(["gpus"], {"hostvars": {"a": {"x": "{{ gpus }}"}}})) == 1


def test_what_a_hook_may_read_and_what_is_anybodys_word_is_none() -> None:
    assert entry_slips(["env", "host", "user", "group"], {}) == []
    assert entry_slips(["port", "before_host"], {}) == [] and len(entry_slips(["port"], {})) == 1
