# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The units that matter to a reclaim as they are now: whether they run, what speaks against stopping them, what goes with them."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import AbstractSet, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from .._core.errors import GpuFleetError
from .._process.cgroup import owner_of
from .._process.procfs import ancestors, cgroup_text, read_process, user_name
from .._process.rules import (
    CHANGE_OF_USER,
    GPU_TOOL,
    host_unit_reason,
    protected_by_user,
    protected_reason,
)
from .._process.shells import of_a_person
from .._process.types import CgroupOwner, ProcessInfo
from .._systemd.manager import Systemd
from .._systemd.show import UnitStatus
from .ports import Ports
from .request import ReclaimRequest
from .seen import Holder, UnitKey, UnitView
from .starts import server_that_loads

# The job that changes this host's services (_unit/change_unit.py). It holds the host's lock, but not in the moments in which it is
# started, or started again.
CHANGE_UNIT = "gpufleet-change.service"

# The client or supervisor of a container in a service's own cgroup (ExecStart=docker run, Podman's units) is no reason to leave
# the service alone: stopping the unit is how such a container is stopped.
_CONTAINER_CLIENT = "container runtime"
# A scope is stopped for one process in it only where systemd-run made it: with a name of its own (run-r0123.scope), or with any that
# its caller chose, which only the system's manager tells from what desktops, snaps and container runtimes make.
_OF_SYSTEMD_RUN = re.compile(r"run-[\w:-]+\.scope$")
_OF_OTHERS = re.compile(
    r"(?:app|dbus|snap|flatpak|vte-spawn|tmux-spawn|session|machine|docker|libpod|crio|cri-containerd|nerdctl|containerd|lxc|gnome|kde|plasma"
    r"|xdg|uwsm|tab|kitty|konsole|terminator|alacritty|wezterm|foot|ghostty|code|screen|tmux|crun|runc|podman|buildah|slurmstepd|init)\b.*$"
)


def unit_views(request: ReclaimRequest, holders: Sequence[Holder], ports: Ports) -> Dict[UnitKey, UnitView]:
    """The holders' units, those that the request names, and the job that changes services. Raises GpuFleetError where the system's
    manager does not answer.

    A unit that is asked for by two names is one, and is found by both.
    """
    keys: Set[UnitKey] = {holder.unit for holder in holders if holder.unit is not None}
    keys |= {(name, None) for name in request.units}
    if keys or holders or request.clean_shm:
        keys.add((CHANGE_UNIT, None))
    found: Dict[UnitKey, UnitView] = {}
    for uid in sorted({uid for _unit, uid in keys}, key=lambda each: -1 if each is None else each):
        names = sorted(unit for unit, of in keys if of == uid)
        for view in _Manager(request, uid, holders, ports).views(names):
            found.update({(name, uid): view for name in {view.unit, *view.aliases}})
    return found


def protection(
    info: ProcessInfo, owner: CgroupOwner, patterns: Sequence[str], own: AbstractSet[int]
) -> Optional[str]:
    """The rules' reason, or the caller's. Containers are told apart, since a unit named by the caller may hold one."""
    return protected_reason(info, replace(owner, container=None), own) or protected_by_user(info, owner, patterns)


def _made_by_systemd_run(view: UnitView, of_slice: str) -> bool:
    if _OF_SYSTEMD_RUN.match(view.unit):
        return True
    return view.uid is None and not of_slice.startswith("user") and not _OF_OTHERS.match(view.unit)


class _Manager:
    """The units of one manager: the system's, or a user's."""

    def __init__(self, request: ReclaimRequest, uid: Optional[int], holders: Sequence[Holder], ports: Ports) -> None:
        self._request = request
        self._uid = uid
        self._user = None if uid is None else user_name(uid)
        self._holders = holders
        self._systemd: Systemd = ports.systemd if uid is None else ports.user_systemd(uid)
        self._root = ports.proc_root
        self._ports = ports
        self._own: Optional[FrozenSet[int]] = None

    def views(self, names: Sequence[str]) -> List[UnitView]:
        try:
            statuses = self._systemd.statuses(names)
        except GpuFleetError as exc:
            if self._uid is None:
                raise
            # Without an answer of the user's manager the unit counts as active and is left alone, with the reason said.
            return [UnitView(name, self._uid, True, False, protected_by=exc.msg, user=self._user) for name in names]
        called: Dict[str, Set[str]] = {}
        for name in names:
            called.setdefault(statuses[name].unit or name, set()).add(name)
        return [self._view(name, frozenset(asked), statuses[min(asked)]) for name, asked in sorted(called.items())]

    def _view(self, name: str, asked: FrozenSet[str], status: UnitStatus) -> UnitView:
        """``name`` is what systemd calls it, ``asked`` are the names by which it was asked for."""
        named = bool(asked.intersection(self._request.units))
        view = UnitView(
            unit=name,
            uid=self._uid,
            exists=status.exists or not status.inactive,
            inactive=status.inactive,
            main_pid=status.main_pid,
            host_unit=next((reason for reason in map(host_unit_reason, sorted(asked | {name})) if reason is not None), None),
            user=self._user,
            aliases=asked - {name},
        )
        in_question = named or (self._request.scope == "all" and view.host_unit is None)
        if status.inactive or not in_question:
            return view
        infos = self._members(status)
        if name.endswith(".service") or named:
            against, helpers = self._against(infos, status.main_pid, named)
            against = against or self._of_another_user(infos, helpers)
            view = replace(view, protected_by=against, helpers=helpers, takes_along=self._along(name))
            return self._on_its_way(view, status, infos) if named else view
        supervisor = self._supervisor(view, status.slice, infos)
        return view if supervisor is None else replace(view, supervisor=supervisor, takes_along=self._along(name))

    def _on_its_way(self, view: UnitView, status: UnitStatus, infos: Mapping[int, ProcessInfo]) -> UnitView:
        """What speaks for a named unit that is on no GPU yet, or whose processes on GPUs are not to be seen as its own."""
        view = replace(view, rising=status.active_state in ("activating", "deactivating") or bool(status.job))
        here = [holder for holder in self._holders if holder.pid in infos]
        if here:
            return view
        left = [holder for holder in self._holders if holder.state == "running" and holder.unit is None and holder.container is None]
        return replace(
            view,
            loads=server_that_loads(view, self._ports) is not None,
            elsewhere=frozenset(
                gpu for holder in left if not infos.keys().isdisjoint(ancestors(holder.pid, self._root)) for gpu in holder.gpus
            ),
            opens_driver=not infos.keys().isdisjoint(self._ports.device_holders(self._root)),
        )

    def _members(self, status: UnitStatus) -> Dict[int, ProcessInfo]:
        infos = (read_process(pid, self._root) for pid in self._systemd.cgroup_pids(status.unit, status))
        return {info.pid: info for info in infos if info is not None}

    def _along(self, name: str) -> Tuple[str, ...]:
        statuses = self._systemd.statuses(self._systemd.stopped_with(name))
        return tuple(other for other, found in statuses.items() if not found.inactive)

    def _protection(self, info: ProcessInfo) -> Optional[str]:
        if self._own is None:
            self._own = frozenset(ancestors(os.getpid(), self._root))
        reason = protection(info, owner_of(cgroup_text(info.pid, self._root)), self._request.protect, self._own)
        return None if reason == _CONTAINER_CLIENT else reason

    def _against(self, infos: Mapping[int, ProcessInfo], main_pid: int, named: bool) -> Tuple[Optional[str], FrozenSet[int]]:
        """(why this unit must not be stopped: the first of its processes that is protected; those that are its own helpers)."""
        helpers: Set[int] = set()
        for info in infos.values():
            reason = self._protection(info)
            if reason is None:
                continue
            own = self._is_helper(info, reason, main_pid)
            if own and named:
                helpers.add(info.pid)
                continue
            way = "; named in `services` the unit is stopped, and this ends with it" if own else ""
            return "it runs %s (pid %d): %s%s" % (info.comm, info.pid, reason, way), frozenset()
        return None, frozenset(helpers)

    def _of_another_user(self, infos: Mapping[int, ProcessInfo], helpers: AbstractSet[int]) -> Optional[str]:
        """The first process of somebody who is not among ``users``: it would end with the unit, although it is on no GPU.

        That holds for root's too: what starts everybody's notebooks is not one user's to stop. Only the main process's own change
        of user is no reason, where the unit is named.
        """
        users = self._request.users
        if not users:
            return None
        for info in infos.values():
            if info.pid not in helpers and not info.zombie and info.user not in users and str(info.uid) not in users:
                return "it also runs %s (pid %d): its user %s is not among `users`" % (info.comm, info.pid, info.user)
        return None

    def _is_helper(self, info: ProcessInfo, reason: str, main_pid: int) -> bool:
        """Whether the unit's main process started it for itself (a logger), or it is the main process's change of user."""
        owner = owner_of(cgroup_text(info.pid, self._root))
        if not main_pid or protected_by_user(info, owner, self._request.protect) is not None:
            return False
        below = main_pid in ancestors(info.pid, self._root)
        return (reason == GPU_TOOL and below and info.pid != main_pid) or (reason == CHANGE_OF_USER and below)

    def _supervisor(self, view: UnitView, of_slice: str, infos: Mapping[int, ProcessInfo]) -> Optional[str]:
        """The process of a scope that holds no GPU, but has started one that does, and could again; None where there is none.

        None too where the scope is more than this program: a session, a graphical program's, one in which somebody sits at a terminal,
        a protected process, this task, or a process of somebody who is not among ``users``.
        """
        if not _made_by_systemd_run(view, of_slice) or any(of_a_person(info) or self._protection(info) for info in infos.values()):
            return None
        if self._of_another_user(infos, frozenset()) is not None:
            return None
        keys = {(name, self._uid) for name in {view.unit, *view.aliases}}
        on_gpu = {holder.pid for holder in self._holders if holder.unit in keys}
        for pid in sorted(on_gpu):
            line = [infos[elder] for elder in ancestors(pid, self._root) if elder in infos and elder not in on_gpu]
            if line and not line[0].zombie:
                return "%s (pid %d)" % (line[0].comm, line[0].pid)
        return None
