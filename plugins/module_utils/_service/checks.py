# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known to go wrong, asked before anything is touched."""

from __future__ import annotations

from dataclasses import replace
from typing import FrozenSet, List, Optional, Sequence, Tuple

from .._gpu.types import Gpu
from .._guard.port import port_trouble
from .._model.parallel import Check
from .._preflight.asked import Asked, Places, Seen
from .._preflight.report import Report, line_of
from .._preflight.run import examine
from .._unit.found import shares_port
from .._unit.hardening import hardening
from .._unit.render import render_drop_in, render_unit
from .._unit.spec import ServiceSpec
from .look import Look
from .memory import Need, holder_text, shortages
from .plan import Plan
from .ports import Ports
from .request import Request

# Those that fail when somebody has what this service needs, who might have been meant to make room.
_FOR_ROOM = ("port", "memory")


def run_checks(request: Request, look: Look, plan: Plan, ports: Ports, remember: bool = False) -> Report:
    """Every check that can be made on this host for this service. ``remember`` lets what took long to find be kept."""
    if look.spec is None:
        raise AssertionError("look.spec is not None")
    seen = Seen(look.snapshot, look.gpus)
    report = examine(asked_of(request, look.spec), seen, request.gpus, ports.places or Places(), ports.runner, ports.systemd, remember)
    checks = list(report.checks)
    checks += unit_options_check(request, look, ports)
    if plan.has("start"):
        checks.append(_port(request, look, plan))
        checks += _memory(look, plan)
    return replace(report, checks=tuple(checks), about={**report.about, "free_mib_per_gpu": _free_then(look, plan)})


def _free_then(look: Look, plan: Plan) -> Optional[int]:
    """MiB free on the fullest GPU once what is to be stopped is gone; None where that isn't known."""
    units, pids = _leaving(look, plan)
    least: Optional[int] = None
    for gpu in look.gpus:
        held = [process.used_mib for process in gpu.processes if process.unit in units or process.pid in pids]
        if gpu.free_mib is None or None in held:
            return None
        free = gpu.free_mib + sum(size or 0 for size in held)
        least = free if least is None else min(least, free)
    return least


def _leaving(look: Look, plan: Plan) -> Tuple[FrozenSet[str], FrozenSet[int]]:
    """The units and processes that will be gone before the start."""
    return frozenset(plan.targets("stop")) | {look.view.unit}, frozenset(int(pid) for pid in plan.targets("end_process"))


def asked_of(request: Request, spec: ServiceSpec) -> Asked:
    """The service as the checks need it."""
    lines = hardening(spec)
    own = {str(name) for name in spec.unit_options.get("Service", {})}
    return Asked(
        model=spec.model,
        facts_path=request.model_facts_path,
        args=spec.args,
        env=spec.env,
        executable=spec.executable,
        user=spec.user,
        group=spec.group,
        home=spec.home_path,
        # What the user sets of these himself is his own to judge.
        hides_home="ProtectHome=yes" in lines and "ProtectHome" not in own,
        hides_tmp="PrivateTmp=yes" in lines and "PrivateTmp" not in own,
    )


def refusal(request: Request, failed: Sequence[Check], missing: Sequence[str] = ()) -> str:
    """One message for everything that stands against it. ``missing`` are units listed in ``replace`` that are not there."""
    lines = ["%s cannot work on this host, and nothing was touched:" % request.name]
    lines += ["  - " + line_of(check) for check in failed]
    if missing and any(check.id in _FOR_ROOM for check in failed):
        lines.append("There is no unit %s on this host, which `replace` lists: see how the one in the way is written." % ", ".join(missing))
    return "\n".join(lines)


def given_memory(gpus: Sequence[Gpu], need: Need, rivals: object) -> List[Check]:
    """``memory`` by the figures of ``gpu_facts``; nothing where they don't say what is free.

    ``rivals`` is ``replace``: what would be stopped there isn't known, so that only with ``none`` it is certain.
    """
    known = [(gpu, gpu.free_mib, need.mib(gpu) or 0) for gpu in gpus if gpu.free_mib is not None]
    if len(known) < len(gpus):
        return []
    checks = []
    for gpu, free, needed in known:
        if (free or 0) < needed:
            detail = "GPU {}: {:,} MiB have to be free at the start, and {:,} MiB were when gpu_facts was read"
            checks.append(Check("memory", "fail" if rivals == "none" else "warn", detail.format(gpu.index, needed, free),
                                "See that whoever holds it there is stopped first, or lower gpu_memory_utilization."))
    return checks or [Check("memory", "pass", "by gpu_facts every GPU has the memory that the server asks for at its start", None)]


def unit_options_check(request: Request, look: Look, ports: Ports) -> List[Check]:
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
    # Whatever is not down may have it: a server that is on its way up or down holds its port as well.
    holders = [rival.service for rival in look.view.rivals if rival.running]
    if look.own is not None and not look.view.status.inactive:
        holders.append(look.own)
    strayed = look.own is None and look.view.unit in stopped  # ours by its process, though its file is gone
    if strayed or any(service.unit in stopped and look.spec is not None and shares_port(service, look.spec) for service in holders):
        return Check("port", "pass", "port %d comes free when its holder stops" % request.port, None)
    trouble = port_trouble(request.host, request.port)
    if trouble is None:
        return Check("port", "pass", "port %d is free" % request.port, None)
    strangers = [service.unit for service in holders if service.unit in stopped and not service.port]
    if strangers:
        detail = "port %d is taken now, perhaps by %s, which is stopped first" % (request.port, ", ".join(strangers))
        return Check("port", "warn", detail, "If it is somebody else's, the service cannot start, and what is replaced serves again.")
    return Check(
        "port", "fail", "port %d on %s %s" % (request.port, request.host or "all addresses", trouble),
        "Give another port or host, or end what listens there (ss -ltnp 'sport = :%d')." % request.port,
    )


def _memory(look: Look, plan: Plan) -> List[Check]:
    if look.need is None:
        raise AssertionError("look.need is not None")
    units, pids = _leaving(look, plan)
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
