# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module vllm_service does, done by the program that a host has from its last change, when that is of the same sources.

Nothing is packed and nothing but the parameters is sent, which for a fleet is most of what a look at its hosts costs the
controller. Where that cannot be, for whatever reason, the answer is None, and the module itself is sent.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Set

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.parameters import remove_values

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.arguments import ARGUMENT_SPEC, REQUIRED_IF, asked
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.program import build_program

# What Ansible obeys in a result: a host has no say in it, and this module sets none of it.
_OBEYED = ("add_group", "add_host", "ansible_facts")


def _digest() -> Optional[str]:
    try:
        return hashlib.sha256(build_program()).hexdigest()
    except GpuFleetError:
        return None  # without the sources, the module will say what it has to say of that


# Made when this is loaded, which is once, before Ansible forks for each host.
DIGEST = _digest()


class Request(NamedTuple):
    """What goes to the program's standard input, and what nobody may read in its answer."""

    document: bytes
    params: Dict[str, Any]
    hidden: Set[str]


def request_of(args: Mapping[str, Any], check_mode: bool, diff: bool) -> Optional[Request]:
    """The task's arguments as the module would have them; None when only the module can say what is wrong with them."""
    checked = ArgumentSpecValidator(ARGUMENT_SPEC, required_if=REQUIRED_IF).validate(dict(args))
    if checked.error_messages or checked.unsupported_parameters or getattr(checked, "_deprecations", None):
        return None
    params: Dict[str, Any] = checked.validated_parameters
    # Ansible would put the controller's own home and environment into a path.
    paths = [args.get(name) for name, option in ARGUMENT_SPEC.items() if option["type"] == "path"]
    if any("~" in str(path) or "$" in str(path) for path in paths if path is not None):
        return None
    request = {"params": asked(params), "check_mode": check_mode, "wait": params["wait"], "diff": diff}
    try:
        document = json.dumps(request).encode("utf-8")
    except (TypeError, ValueError):
        return None
    return Request(document, params, set(checked._no_log_values))


def result_of(request: Request, digest: str, rc: int, stdout: str) -> Optional[Dict[str, Any]]:
    """The module's result out of what the program printed; None when there is none in it."""
    answer = _last_object(stdout.splitlines(), digest) if rc == 0 else None
    result = (answer or {}).get("result")
    if not isinstance(result, dict):
        return None
    for key in list(result):
        if key.startswith("_ansible_") or key in _OBEYED or (key in ("warnings", "deprecations") and not result[key]):
            del result[key]
    result["invocation"] = {"module_args": dict(request.params)}
    # Without anything to hide it would be gone through, value by value, for nothing.
    cleaned: Dict[str, Any] = remove_values(result, request.hidden) if request.hidden else result
    return cleaned


def _last_object(lines: List[str], digest: str) -> Optional[Dict[str, Any]]:
    """A login may print whatever it likes before."""
    for line in reversed(lines):
        if line.startswith("{"):
            try:
                answer = json.loads(line)
            except ValueError:
                continue
            if isinstance(answer, dict) and answer.get("id") == digest:
                return answer
    return None
