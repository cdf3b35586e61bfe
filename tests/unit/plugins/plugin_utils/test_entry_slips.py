# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of a model's entry on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible import context
from ansible.module_utils.common.collections import ImmutableDict

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._entry_slips import entry_slips
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._readers import Readers


@pytest.fixture(autouse=True)
def swap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The playbook runs alone."""
    monkeypatch.setattr(context, "CLIARGS", ImmutableDict(args=("gpufleet.vllm.swap_model",)))


def test_what_only_an_entry_can_say_is_a_slip() -> None:
    assert entry_slips(["port", "max_model_len", "site", "model"], {"vllm_models": {"m": {"port": 8000}}}, Readers()) == [
        "`port` was set on the command line, where this playbook does not read it: put it in the model's entry in `vllm_models`; if "
        "something else reads it, add -e gpufleet_other_names=port.",
        "`max_model_len` was set on the command line, where this playbook does not read it: put it under `args` of the model's entry in "
        "`vllm_models`; if something else reads it, add -e gpufleet_other_names=max_model_len.",
    ]


@pytest.mark.parametrize(
    "variables",
    [
        {"vllm_models": {"m": {"gpus": "{{ gpus | default([0]) }}"}}},
        {"chosen": ["{{ gpus }}"], "vllm_models": "{{ base | combine({'m': {'gpus': chosen}}) }}"},
        {"entry": "{% if gpus is defined %}x{% endif %}"},
        {"gpufleet_other_names": "port, gpus"},
        {"gpufleet_other_names": ["gpus"]},
    ],
)
def test_what_the_inventory_is_written_in_terms_of_is_none(variables: Any) -> None:
    assert entry_slips(["gpus"], variables, Readers()) == []


def test_another_name_and_ansibles_own_variables_do_not_count() -> None:
    assert len(entry_slips(["gpus"], {"entry": "{{ gpus_of_host }}"}, Readers())) == 1
    assert len(entry_slips(["gpus"], {"hostvars": {"a": {"x": "{{ gpus }}"}}}, Readers())) == 1


def test_what_is_anybodys_word_is_none() -> None:
    assert entry_slips(["env", "host", "user", "group"], {}, Readers()) == [] and len(entry_slips(["port"], {}, Readers())) == 1


@pytest.mark.parametrize("name", ["before_host", "after_host"])
def test_what_a_hook_of_the_host_reads_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    hook = tmp_path / "hook.yml"
    hook.write_text("- ansible.builtin.uri:\n    url: http://balancer/{{ inventory_hostname }}:{{ port }}\n", encoding="utf-8")
    assert entry_slips(["port"], {name: str(hook)}, Readers()) == []
    assert len(entry_slips(["gpus"], {name: str(hook)}, Readers())) == 1
    assert len(entry_slips(["port"], {name: ""}, Readers())) == 1
    monkeypatch.setattr(context, "CLIARGS", ImmutableDict(args=("gpufleet.vllm.deploy",)))
    assert len(entry_slips(["port"], {name: str(hook)}, Readers())) == 1


def test_what_another_playbook_of_the_run_reads_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site.yml"
    site.write_text("- import_playbook: gpufleet.vllm.borrow_gpus\n- import_playbook: gpufleet.vllm.swap_model\n", encoding="utf-8")
    monkeypatch.setattr(context, "CLIARGS", ImmutableDict(args=(str(site),)))
    assert entry_slips(["gpus"], {}, Readers()) == [] and len(entry_slips(["port"], {}, Readers())) == 1
