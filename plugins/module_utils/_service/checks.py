# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known to go wrong, asked before anything is touched."""

from __future__ import annotations

import os
import socket
from typing import List, Optional

from .._core.errors import GpuFleetError
from .._model.facts import ModelFacts, read_model
from .._model.parallel import Check, check_parallel
from .._unit.render import render_drop_in, render_unit
from .look import Look
from .memory import holder_text, shortages
from .plan import Plan
from .ports import Ports
from .request import Request

_TRUE = (True, "true", "True", "yes", "1", 1)


def run_checks(request: Request, look: Look, plan: Plan, ports: Ports) -> List[Check]:
    """Every check that can be made on this host for this service."""
    checks: List[Check] = []
    checks += _gpus(request, look)
    facts = _model(request, checks)
    if facts is not None:
        checks += _parallel(look, facts)
    checks.append(_executable(request))
    checks += _unit_options(request, look, ports)
    if plan.has("start"):
        checks.append(_port(request, look, plan))
        checks += _memory(look, plan)
    return checks


def failed(checks: List[Check]) -> List[Check]:
    """Those that say it cannot work."""
    return [check for check in checks if check.status == "fail"]


def refusal(request: Request, checks: List[Check]) -> str:
    """One message for everything that stands against it."""
    lines = ["%s cannot work on this host, and nothing was touched:" % request.name]
    for check in failed(checks):
        lines.append("  - %s: %s.%s" % (check.id, check.detail.rstrip("."), " " + check.fix if check.fix else ""))
    return "\n".join(lines)


def _gpus(request: Request, look: Look) -> List[Check]:
    bad = [gpu for gpu in look.gpus if gpu.state != "ok"]
    if bad:
        detail = "; ".join("GPU %d is in state %s (%s)" % (gpu.index, gpu.state, gpu.error or "no detail") for gpu in bad)
        return [Check("gpus", "fail", detail, "Leave them out of gpus, or repair them first.")]
    names = ", ".join(str(gpu.index) for gpu in look.gpus)
    checks = [Check("gpus", "pass", "GPU %s answer" % names, None)]
    seen = look.snapshot
    if seen is not None and seen.pci_count is not None and seen.count is not None and seen.count < seen.pci_count:
        # Indices move up when one is missing: the service would come up on fewer or on other cards than were meant.
        named = all(each.upper().startswith(("GPU-", "MIG-")) or ":" in each for each in request.gpus)
        detail = "the driver shows %d GPUs, but %d are on the PCI bus" % (seen.count, seen.pci_count)
        fix = "Look in dmesg for the one that is missing. To go on without it, give GPUs by UUID."
        checks.append(Check("gpu_missing", "warn" if named else "fail", detail, fix))
    return checks


def _model(request: Request, checks: List[Check]) -> Optional[ModelFacts]:
    path = request.model_facts_path or request.model or ""
    if not os.path.isabs(path):
        checks.append(Check("model", "skip", "%s is not a directory of this host" % path, None))
        return None
    try:
        facts = read_model(path)
    except GpuFleetError as exc:
        checks.append(Check("model", "fail", exc.msg, "Put the model there, or correct the path in the catalogue."))
        return None
    checks.append(Check("model", "pass", "%s is readable" % path, None))
    return facts


def _parallel(look: Look, facts: ModelFacts) -> List[Check]:
    args = look.spec.args if look.spec is not None else {}
    try:
        tensor = int(args.get("tensor_parallel_size", 1))
        pipeline = int(args.get("pipeline_parallel_size", 1))
        data = int(args.get("data_parallel_size", 1))
    except (TypeError, ValueError):
        detail = "the parallel sizes have to be whole numbers"
        return [Check("parallel", "fail", detail, "Correct them in args.")]
    experts = args.get("enable_expert_parallel") in _TRUE
    return check_parallel(facts, tensor, pipeline, experts, len(look.gpus), data)


def _executable(request: Request) -> Check:
    path = request.executable
    if not os.path.isfile(path):
        return Check("executable", "fail", "%s does not exist" % path, "Install vLLM there, or set executable.")
    if not os.access(path, os.X_OK):
        return Check("executable", "fail", "%s is not executable" % path, "Correct its mode, or set executable.")
    return Check("executable", "pass", "%s is there" % path, None)


def _unit_options(request: Request, look: Look, ports: Ports) -> List[Check]:
    """systemd's own opinion of a drop-in, before it is in force: what it does not know it silently leaves out."""
    if not request.unit_options or look.spec is None or not look.view.unit_text_changed:
        return []
    drop_in = render_drop_in(look.spec.unit_options)
    problems = ports.systemd.verify(render_unit(look.spec), look.spec.unit, {"50-options.conf": drop_in})
    if problems:
        return [Check("unit_options", "fail", "systemd does not take them: " + "; ".join(problems), "Correct unit_options.")]
    return [Check("unit_options", "pass", "systemd takes them", None)]


def _port(request: Request, look: Look, plan: Plan) -> Check:
    if request.port < 1024:
        detail = "port %d is below 1024, and the service runs without the privilege to take it" % request.port
        return Check("port", "fail", detail, "Give a port from 1024 on.")
    stopped = set(plan.targets("stop"))
    holders = [rival.service for rival in look.view.rivals if rival.status.running]
    if look.own is not None and look.view.status.running:
        holders.append(look.own)
    if any(service.unit in stopped and service.port == request.port for service in holders):
        return Check("port", "pass", "port %d comes free when its holder stops" % request.port, None)
    error = _bind_error(request.host, request.port)
    if error is None:
        return Check("port", "pass", "port %d is free" % request.port, None)
    strangers = [service.unit for service in holders if service.unit in stopped and not service.port]
    if strangers:
        detail = "port %d is taken now, perhaps by %s, which is stopped first" % (request.port, ", ".join(strangers))
        return Check("port", "warn", detail, "If it is somebody else's, the service cannot start, and what is replaced serves again.")
    return Check(
        "port", "fail", "port %d on %s cannot be had: %s" % (request.port, request.host, error),
        "Give another port, or end what listens there (ss -ltnp 'sport = :%d')." % request.port,
    )


def _bind_error(host: str, port: int) -> Optional[str]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except socket.gaierror:
            return None  # a host name: the server resolves it itself
        except OSError as exc:
            return exc.strerror or str(exc)
    return None


def _memory(look: Look, plan: Plan) -> List[Check]:
    if look.need is None:
        raise AssertionError("look.need is not None")
    units = frozenset(plan.targets("stop")) | {look.view.unit}
    pids = frozenset(int(pid) for pid in plan.targets("end_process"))
    short = shortages(look.gpus, look.need, units, pids)
    unknown = [gpu for gpu in look.gpus if gpu.total_mib is None or gpu.used_mib is None]
    if not short and unknown:
        names = ", ".join(str(gpu.index) for gpu in unknown)
        return [Check("memory", "skip", "the driver does not say how much memory is free on GPU %s" % names, None)]
    if not short:
        return [Check("memory", "pass", "every GPU has, or will have, the memory that the server asks for at its start", None)]
    checks = []
    for gap in short:
        detail = "GPU {}: {:,} MiB have to be free at the start, {:,} MiB can be".format(gap.gpu.index, gap.needed_mib, gap.possible_mib)
        if gap.holders:
            detail += "; " + "; ".join(holder_text(holder) for holder in gap.holders)
        fix = "Stop who holds it, or lower gpu_memory_utilization."
        if not gap.holders:
            fix = "Nobody is seen to hold it; the guard will wait for the driver to give it back." if not gap.certain else (
                "The GPU is too small for this; lower gpu_memory_utilization."
            )
        checks.append(Check("memory", "fail" if gap.certain else "warn", detail, fix))
    return checks
