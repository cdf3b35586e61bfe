# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values as examples give them, held against what modules and roles say that they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

# What a specification for people has beside one for programs.
_TAKEN = ("type", "elements", "choices", "options")


def wrong_values(given: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is no value of its option, in sentences. A template may stand for any, and what has no option is left to others."""
    literal = {name: value for name, value in given.items() if name in options and "{{" not in str(value) and value is not None}
    found: list[str] = list(ArgumentSpecValidator(_spec(options)).validate(literal).error_messages)
    return found


def _spec(options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, option in options.items():
        made[name] = {key: value for key, value in option.items() if key in _TAKEN}
        if "options" in made[name]:
            made[name]["options"] = _spec(made[name]["options"])
    return made
