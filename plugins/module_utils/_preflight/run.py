# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All checks of one service on one host, in the order in which a person would ask."""

from __future__ import annotations

import os
from typing import List, Optional, Sequence

from .._core.runner import Runner
from .._model.parallel import Check
from .._systemd.manager import Systemd
from .access import check_access
from .account import check_account
from .arguments import check_arguments
from .asked import Asked, Places, Seen, passed, skip
from .cuda import check_cuda
from .executable import check_executable, usable_version
from .gpus import check_gpus
from .host import check_fabric, check_host_memory
from .installed import find_installation
from .model import judge_model
from .report import Report
from .room import check_room
from .values import check_values

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
    """The checks that need no look at other services. ``remember`` allows what took long to be kept for the next run."""
    checks: List[Check] = check_gpus(selection, seen)
    checks += check_values(asked, seen.elsewhere)
    installation = None if seen.elsewhere else find_installation(asked.executable)
    version = seen.vllm_version if seen.elsewhere else usable_version(installation)
    model = judge_model(asked, seen, version, places.run, remember)
    checks += model.checks
    about = {**model.about, "vllm_version": version, "vllm_version_from": _source(seen, version)}
    if seen.elsewhere:
        checks.append(_given_version(version))
        checks += [skip(check, _ELSEWHERE % what) for check, what in _ON_THE_HOST]
        return Report(tuple(checks), model.plan, model.suggest, model.verdict, about)
    checks += check_executable(asked, installation)
    if os.path.isfile(asked.executable):
        checks.append(check_arguments(asked, installation, places, runner, remember))
        checks.append(check_cuda(seen.snapshot, installation, asked.env, places))
    checks.append(check_account(asked))
    checks += check_access(asked)
    checks += check_room(asked, places)
    checks.append(check_host_memory(asked, places))
    checks += check_fabric(asked, places, systemd)
    return Report(tuple(checks), model.plan, model.suggest, model.verdict, about)


def _source(seen: Seen, version: Optional[str]) -> str:
    if version is None:
        return "assumed"
    return "given" if seen.elsewhere else "installed"


def _given_version(version: Optional[str]) -> Check:
    if version is not None:
        return passed("vllm_version", "vLLM %s as given in gpu_facts" % version)
    detail = "the figures assume a recent vLLM: which one runs on a machine that is not there can't be looked at"
    return skip("vllm_version", detail, "Say it: gpu_facts: {vllm_version: 0.19.1, ...}.")
