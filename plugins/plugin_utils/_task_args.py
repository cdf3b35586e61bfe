# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The arguments of a task, before the module has checked them."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean

RECONNECT_S = 600


def taken_apart(args: Dict[str, Any]) -> Dict[str, Any]:
    """``deployment`` as options of their own; one that is given by itself counts more."""
    deployment = args.pop("deployment", None)
    if deployment is None:
        return args
    if not isinstance(deployment, Mapping):
        raise AnsibleActionFail("`deployment` is a %s. It is a dictionary of options." % type(deployment).__name__)
    return {**deployment, **args}


def may_be_begun_twice(args: Mapping[str, Any]) -> bool:
    """Whether the module finds its own work done when it is run once more, as a restart does not."""
    return bool((args.get("state") or "started") == "started")


def truth(value: Any) -> bool:
    """An option that is on unless it is said to be off."""
    # What is no boolean at all is the module's to complain of, which it does before it begins anything.
    return value is None or bool(boolean(value, strict=False))


def patience(args: Mapping[str, Any]) -> float:
    """For how many seconds a lost connection is tried again. Raises AnsibleActionFail."""
    value = args.get("reconnect_timeout")
    if value is None:
        return RECONNECT_S
    try:
        return float(value)
    except (TypeError, ValueError):
        raise AnsibleActionFail("`reconnect_timeout` is %r. It is a number of seconds." % (value,)) from None
