# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The task's result, made of what the module said when it began a change and of what the change's job said at its end."""

from __future__ import annotations

from typing import Any, Dict, Mapping

# What this run of the module knows, and the job does not.
_OF_THE_RUN = ("invocation", "ansible_facts", "deprecations", "job", "taken_out")


def merged(begun: Mapping[str, Any], done: Mapping[str, Any], diff: bool, failed_with: Mapping[str, Any]) -> Dict[str, Any]:
    """The job's result as the task's: what the module returns when it waits itself, ``failed_with`` what any failure has."""
    result: Dict[str, Any] = {key: begun[key] for key in begun if key in _OF_THE_RUN or key.startswith("_ansible")}
    result.update(done)
    if not diff:
        result.pop("diff", None)
    if result.get("failed"):
        result = {**failed_with, **result}
    warnings = list(begun.get("warnings") or [])
    known = {_text(warning) for warning in warnings}
    warnings += [warning for warning in done.get("warnings") or [] if _text(warning) not in known]
    result.pop("warnings", None)
    return dict(result, warnings=warnings) if warnings else result


def as_asked(begun: Mapping[str, Any]) -> Dict[str, Any]:
    """The module's result, with the arguments as the task has them."""
    result = dict(begun)
    invocation = result.get("invocation")
    if isinstance(invocation, Mapping) and isinstance(invocation.get("module_args"), Mapping):
        result["invocation"] = dict(invocation, module_args=dict(invocation["module_args"], wait=True))
    return result


def _text(warning: Any) -> str:
    return str(getattr(getattr(warning, "event", None), "msg", None) or warning)
