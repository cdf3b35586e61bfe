# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a reclaim finds out about the host at its end, to say it: who can't be ended, who starts what again, who is suspect."""

from __future__ import annotations

import os
import pwd
from typing import Dict, FrozenSet, List, Sequence, Tuple

from .._core.errors import GpuFleetError
from .._process.procfs import ancestors, read_process
from .done import Done, Unkillable
from .left import DIRTY, Held, of_survivor, of_zombie
from .planned import Plan, Skip
from .ports import Ports
from .reasons import NO_SUCH_UNIT, NO_SUCH_USER
from .request import ReclaimRequest
from .seen import UnitView, View


def unkillable(view: View, done: Done, ports: Ports) -> List[Unkillable]:
    """The zombies on the selected GPUs, and what survived its KILL and is still there."""
    found: Dict[int, Unkillable] = {}
    for holder in view.holders:
        if holder.state == "zombie" and holder.gpus & set(view.selected):
            found[holder.pid] = of_zombie(holder)
    survivors = {key[0]: each.holder.name for key, each in done.signalled.items() if each.outcome == "survived"}
    for stopped in done.stopped.values():
        survivors.update(dict.fromkeys(stopped.survivors, stopped.unit))
    for pid, name in survivors.items():
        info = read_process(pid, ports.proc_root)
        if info is not None and not info.zombie:
            found[pid] = of_survivor(pid, info.comm or name, info.state, info.wchan)
    return [found[pid] for pid in sorted(found)]


def unanswered(view: View) -> List[str]:
    """The GPUs that hang although nobody asked for them: what is on them could not be seen."""
    return ["GPU %d, which was not selected, does not answer (%s)" % (gpu.index, gpu.error or "no detail") for gpu in view.unanswered]


def slips(skips: Sequence[Skip], done: Done) -> List[str]:
    """What the request names that is not on this host; not a transient unit that is gone because it was stopped."""
    stopped = {name for name, _uid in done.stopped}
    said = ["Unit %s: %s" % (skip.name, skip.reason) for skip in skips if skip.reason == NO_SUCH_UNIT and skip.name not in stopped]
    return said + ["User %s: %s" % (skip.name, skip.reason) for skip in skips if skip.reason == NO_SUCH_USER]


def warnings(view: View, skips: Sequence[Skip], done: Done) -> Tuple[str, ...]:
    """What a caller has to know although nothing failed for it: slips, and GPUs that could not be taken into account."""
    return tuple(unanswered(view) + slips(skips, done))


def notes(
    view: View, done: Done, revived: Sequence[UnitView], held: Sequence[Held], fresh: Plan, ports: Ports
) -> List[str]:
    """What else the failure message has to say: units that would not stop, what came back (``fresh`` would be ended next), suspects,
    resets that failed, GPUs, units and users that could not be taken into account."""
    said = ["Unit %s could not be stopped: %s" % (each.unit, each.detail) for each in done.stopped.values()
            if not each.ok and not each.restarted]
    said += ["Unit %s is started again each time it is stopped, by %s" % (unit.label, _reviver(unit, ports)) for unit in revived]
    said += _respawned(done, fresh, ports) + _suspects(view, held, ports) + unanswered(view)
    said += slips(fresh.skips, done)
    return said + ["GPU %d: %s" % (each.gpu, each.detail) for each in done.resets if each.detail is not None]


def shm_owners(request: ReclaimRequest, plan: Plan, done: Done) -> FrozenSet[int]:
    """Whose generic segments are vLLM's: root's, the service user's, and those of the processes at hand; or just ``users``."""
    uids = set() if request.users else {0}
    for name in request.users or ("vllm",):
        try:
            uids.add(int(name) if name.isascii() and name.isdigit() else pwd.getpwnam(name).pw_uid)
        except KeyError:
            continue  # no such account here: it owns nothing
    if request.users:
        return frozenset(uids)
    ended = [each.holder for each in done.signalled.values()] + [each.holder for each in plan.signals]
    return frozenset(uids | {holder.info.uid for holder in ended if holder.info is not None})


def _reviver(unit: UnitView, ports: Ports) -> str:
    """What starts a unit again, as far as systemd knows."""
    systemd = ports.systemd if unit.uid is None else ports.user_systemd(unit.uid)
    try:
        triggers = systemd.triggers_of(unit.unit)
    except GpuFleetError:
        triggers = []  # the message is about the memory, and must not get lost over this
    return "%s: stop that first" % ", ".join(triggers) if triggers else "something else (a script, a scheduler, a person)"


def _respawned(done: Done, fresh: Plan, ports: Ports) -> List[str]:
    """Who starts anew what was signalled: its parent, which holds no GPU itself."""
    if not done.signalled:
        return []
    said: List[str] = []
    for each in fresh.signals:
        parent = None if each.holder.info is None else read_process(each.holder.info.ppid, ports.proc_root)
        if parent is not None and parent.pid > 1:
            said.append("%s (pid %d) was started by %s (pid %d) meanwhile, which may start another: end that first"
                        % (each.holder.name, each.holder.pid, parent.comm, parent.pid))
    return said


def _suspects(view: View, held: Sequence[Held], ports: Ports) -> List[str]:
    """Where memory is held by nobody: who has the driver open without any GPU of its own."""
    if not any(each.verdict == DIRTY and not each.holders for each in held):
        return []
    known = {holder.pid for holder in view.holders} | set(ancestors(os.getpid(), ports.proc_root))
    infos = [read_process(pid, ports.proc_root) for pid in ports.device_holders(ports.proc_root) if pid not in known]
    names = ["%s (pid %d)" % (info.comm, info.pid) for info in infos if info is not None and info.ppid != os.getpid()]
    return ["These have the driver open, though no GPU: %s" % ", ".join(names)] if names else []
