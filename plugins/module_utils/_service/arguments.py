# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of ``vllm_service`` as Ansible checks them: by the module on the host, or on the controller beforehand."""

from __future__ import annotations

from typing import Any, Dict, Mapping

ARGUMENT_SPEC: Dict[str, Dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "deployment": {"type": "dict", "no_log": True},
    "state": {"type": "str", "choices": ["started", "stopped", "restarted", "present", "absent"], "default": "started"},
    "enabled": {"type": "bool"},
    "model": {"type": "str"},
    "served_name": {"type": "str"},
    "gpus": {"type": "list", "elements": "str", "default": ["all"]},
    "host": {"type": "str", "default": "0.0.0.0"},
    "port": {"type": "int", "default": 8000},
    "args": {"type": "dict", "default": {}},
    "env": {"type": "dict", "default": {}},
    "secrets": {"type": "dict", "default": {}, "no_log": True},
    "executable": {"type": "path", "default": "/opt/vllm/bin/vllm"},
    "user": {"type": "str", "default": "vllm"},
    "group": {"type": "str", "default": "vllm"},
    "unit_options": {"type": "dict", "default": {}},
    "guard": {
        "type": "dict",
        "default": {},
        "options": {
            "enabled": {"type": "bool", "default": True},
            "timeout": {"type": "int", "default": 300},
            "margin_mib": {"type": "int", "default": 0},
        },
    },
    "replace": {"type": "raw", "default": "none"},
    "drain_timeout": {"type": "int", "default": 0},
    "stop_timeout": {"type": "int", "default": 60},
    "ready_timeout": {"type": "int", "default": 1800},
    "steady_time": {"type": "int", "default": 0},
    "smoke": {"type": "bool", "default": True},
    "rollback": {"type": "bool", "default": True},
    "overlap": {"type": "str", "choices": ["auto", "never"], "default": "auto"},
    "warm_cache": {"type": "bool", "default": True},
    "wait": {"type": "bool", "default": True},
    "reconnect_timeout": {"type": "int", "default": 600},
    "preflight": {"type": "str", "choices": ["enforce", "warn", "skip"], "default": "enforce"},
    "model_facts_path": {"type": "path"},
}
REQUIRED_IF = [("state", state, ("model", "deployment"), True) for state in ("started", "restarted", "present")]
# How a change is waited for is no part of what is asked for.
_NOT_ASKED = ("wait", "reconnect_timeout", "deployment")


def asked(params: Mapping[str, Any]) -> Dict[str, Any]:
    """Of a task's checked parameters those that say what is to be."""
    return {name: value for name, value in params.items() if name in ARGUMENT_SPEC and name not in _NOT_ASKED}
