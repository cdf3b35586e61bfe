# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module answers: to Ansible, which has sent it, or to a controller that found the very same code on the host already."""

from __future__ import annotations

from typing import Any, Dict

from .._core.errors import GpuFleetError
from .._service.parameters import to_request
from .._service.ports import Ports
from .._service.request import Request
from .._service.taken_out import taken_out
from .change import change


def answer(params: Dict[str, Any], check_mode: bool, wait: bool, diff: bool) -> Dict[str, Any]:
    """The module's result, with ``warnings``; a failure has ``failed`` and ``msg``. ``params`` have been checked."""
    ports = Ports()
    try:
        result = change(params, _asked(params), ports, check_mode, wait)
    except GpuFleetError as exc:
        result = dict(exc.result, msg=exc.msg, failed=True)
    mark = taken_out(ports.paths.records)
    if mark is not None:
        result["taken_out"] = mark
    if not diff:
        result.pop("diff", None)
    if result.get("failed"):
        # These two are there in any case: whoever reads a failure can tell it from one that never came from here.
        result = {"actions": [], "rolled_back": False, **result}
    return result


def _asked(params: Dict[str, Any]) -> Request:
    try:
        return to_request(params)
    except GpuFleetError as exc:
        raise GpuFleetError("%s Nothing was touched." % exc.msg, **exc.result) from exc
