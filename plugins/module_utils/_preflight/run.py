# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All checks of one service on one host, in the order in which a person would ask."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .._core.errors import GpuFleetError
from .._core.runner import Runner
from .._model.facts import read_model
from .._model.parallel import Check, check_parallel, working_sizes
from .._model.types import ModelFacts
from .._systemd.manager import Systemd
from .access import check_access
from .account import check_account
from .arguments import check_arguments
from .asked import Asked, Places, Seen, fail, passed, skip
from .cuda import check_cuda
from .executable import check_executable
from .gpus import check_gpus
from .host import check_fabric, check_host_memory
from .installed import find_installation
from .report import Report
from .room import check_room

_ELSEWHERE = "planned for a machine that is not there: %s can't be looked at"
# What a machine that isn't there can't be asked.
_ON_THE_HOST = (
    ("executable", "its executable"),
    ("arguments", "its vLLM"),
    ("cuda", "its torch"),
    ("user", "its accounts"),
    ("model_access", "the rights on its files"),
    ("disk", "its disks"),
    ("shm", "its shared memory"),
    ("host_memory", "its own memory"),
    ("fabric_manager", "its fabric manager"),
    ("port", "its ports"),
    ("memory", "who holds memory there"),
)


def examine(
    asked: Asked,
    seen: Seen,
    selection: Sequence[str],
    places: Places,
    runner: Runner,
    systemd: Systemd,
    remember: bool,
) -> Report:
    """The checks that need no look at other services. ``remember`` allows an answer of vLLM to be kept for the next run."""
    checks: List[Check] = check_gpus(selection, seen)
    about_model, suggest = _model(asked, seen)
    checks += about_model
    if seen.elsewhere:
        checks += [skip(check, _ELSEWHERE % what) for check, what in _ON_THE_HOST]
        return Report(tuple(checks), {}, suggest)
    installation = find_installation(asked.executable)
    checks += check_executable(asked, installation)
    if os.path.isfile(asked.executable):
        checks.append(check_arguments(asked, installation, places, runner, remember))
        checks.append(check_cuda(seen.snapshot, installation, asked.env, places))
    checks.append(check_account(asked))
    checks += check_access(asked)
    checks += check_room(asked, places)
    checks.append(check_host_memory(asked, places))
    checks += check_fabric(asked, places, systemd)
    return Report(tuple(checks), {}, suggest)


def _model(asked: Asked, seen: Seen) -> Tuple[List[Check], Dict[str, Any]]:
    path = asked.directory
    if path is None:
        return [skip("model", "%s is not a directory of this host" % asked.model)], {}
    try:
        facts = read_model(path)
    except GpuFleetError as exc:
        return [fail("model", exc.msg, "Put the model there, or correct the path in the catalogue.")], {}
    checks = [passed("model", "%s is readable" % path)]
    checks += _parallel(asked, seen, facts)
    return checks, {"tensor_parallel_size": _sizes(asked, seen, facts)}


def _parallel(asked: Asked, seen: Seen, facts: ModelFacts) -> List[Check]:
    tensor, pipeline, data = (asked.size(name + "_parallel_size") for name in ("tensor", "pipeline", "data"))
    if tensor is None or pipeline is None or data is None:
        return [fail("parallel", "the parallel sizes have to be whole numbers", "Correct them in args.")]
    count: Optional[int] = len(seen.gpus) or None
    return check_parallel(facts, tensor, pipeline, asked.expert_parallel, count, data)


def _sizes(asked: Asked, seen: Seen, facts: ModelFacts) -> List[int]:
    pipeline, data = max(asked.size("pipeline_parallel_size") or 1, 1), max(asked.size("data_parallel_size") or 1, 1)
    most = len(seen.gpus) // (pipeline * data) if seen.gpus else 8
    return working_sizes(facts, max(1, most), asked.expert_parallel, dp=data)
