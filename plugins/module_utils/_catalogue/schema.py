# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an entry of the model catalogue may say: one table, from which checks and messages follow."""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from . import values

# What a value is held against. Returns the value in its canonical form; raises ValueError with what it has to be.
Reader = Callable[[Any], Any]


class Field(NamedTuple):
    """One key of an entry: how its value is read, and the option of vllm_service it becomes (None: none)."""

    read: Reader
    option: Optional[str]


FIELDS: Dict[str, Field] = {
    # Where the model is, and where it comes from.
    "path": Field(values.absolute_path, "model"),
    "repo": Field(values.repository, None),
    "revision": Field(values.text, None),
    "source": Field(values.source, None),
    # What is served, where.
    "served_name": Field(values.one_word, "served_name"),
    "gpus": Field(values.gpus, "gpus"),
    "port": Field(values.port, "port"),
    "host": Field(values.one_word, "host"),
    "args": Field(values.engine_arguments, "args"),
    "env": Field(values.variables, "env"),
    "secrets": Field(values.secrets, "secrets"),
    # How the service is run.
    "executable": Field(values.absolute_path, "executable"),
    "user": Field(values.one_word, "user"),
    "group": Field(values.one_word, "group"),
    "unit_options": Field(values.sections, "unit_options"),
    "guard": Field(values.guard, "guard"),
    "drain_timeout": Field(values.whole_number(0), "drain_timeout"),
    "stop_timeout": Field(values.whole_number(1), "stop_timeout"),
    "ready_timeout": Field(values.whole_number(1), "ready_timeout"),
    "steady_time": Field(values.whole_number(0, 600), "steady_time"),
    "smoke": Field(values.boolean, "smoke"),
    "overlap": Field(values.choice("auto", "never"), "overlap"),
    "warm_cache": Field(values.boolean, "warm_cache"),
    "preflight": Field(values.choice("enforce", "warn", "skip"), "preflight"),
    "model_facts_path": Field(values.absolute_path, "model_facts_path"),
}

# Keys that people reasonably try, and where what they want is said instead.
ELSEWHERE: Dict[str, str] = {
    "name": "the key of the entry is its name",
    "model": "the directory goes in `path`, a repository in `repo`",
    "state": "the playbook decides it",
    "enabled": "the playbook decides it",
    "replace": "the playbook decides it",
    "rollback": "the playbook decides it",
    "tensor_parallel_size": "it is an engine argument: put it under `args`",
    "max_model_len": "it is an engine argument: put it under `args`",
    "gpu_memory_utilization": "it is an engine argument: put it under `args`",
    "api_key": "put VLLM_API_KEY under `secrets`",
}

# Engine arguments that have a key of their own in the entry.
OWN_ARGUMENTS: Tuple[Tuple[str, str], ...] = (
    ("model", "`path` or `repo`"),
    ("served_model_name", "`served_name`"),
    ("host", "`host`"),
    ("port", "`port`"),
    ("api_key", "`secrets`, as VLLM_API_KEY"),
)
