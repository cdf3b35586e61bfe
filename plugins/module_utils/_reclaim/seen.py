# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a look at a host saw: who holds GPU memory, and which unit answers for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import FrozenSet, Mapping, Optional, Tuple

from .._gpu.types import Gpu, Snapshot
from .._process.types import ProcessInfo

# (unit, uid of the user manager it belongs to, or None for the system's)
UnitKey = Tuple[str, Optional[int]]


@dataclass(frozen=True)
class Holder:
    """One process with everything it holds on this host's GPUs.

    ``gpus`` are driver indices. ``used_mib`` maps those on which the driver lists it to MiB, None where the driver does not say
    how much; on the others it only has the device node open. ``state`` is running, zombie, gone or not_visible. ``protected_by``
    is None for a process that may be signalled. A container is told apart from that in ``container``; ``stop_command`` is how
    it is stopped, ``runtime`` what runs it. ``kept_by`` says which scheduler or runtime answers for it without a container of its own.
    ``info`` is the process as /proc shows it, None where it shows none.
    """

    pid: int
    gpus: FrozenSet[int]
    used_mib: Mapping[int, Optional[int]]
    state: str
    name: str
    user: Optional[str]
    unit: Optional[UnitKey]
    container: Optional[str]
    vllm: bool
    orphan: bool
    protected_by: Optional[str]
    proven: bool
    start_time: Optional[float]
    info: Optional[ProcessInfo]
    stop_command: Optional[str] = None
    runtime: Optional[str] = None
    kept_by: Optional[str] = None

    @property
    def identity(self) -> Tuple[int, int]:
        """What names this process for good: pid and start in clock ticks."""
        return self.pid, -1 if self.info is None else self.info.start_ticks


@dataclass(frozen=True)
class UnitView:
    """One unit as a plan needs it.

    ``inactive`` means that nothing runs and nothing is about to. ``protected_by`` says why it must not be stopped, None when
    it may. ``main_pid`` is 0 when there is none. ``user`` names the owner of a user unit. ``takes_along`` are the running units
    that systemd would stop with it. ``supervisor`` names the process of a scope that would start its GPU processes again.
    ``helpers`` are processes that are protected by themselves and end with their unit where that is named. ``unit`` is what
    systemd calls it; ``aliases`` are other names by which it was asked for.

    Of a unit that the request names: ``rising`` means that systemd is about to start it (or to start it again), ``loads`` that its
    vLLM server has just begun and serves nobody yet, ``elsewhere`` which GPUs processes of its own hold that left its cgroup, and
    ``opens_driver`` that a process of it has the driver open, though the driver lists none.
    """

    unit: str
    uid: Optional[int]
    exists: bool
    inactive: bool
    main_pid: int = 0
    protected_by: Optional[str] = None
    host_unit: Optional[str] = None
    user: Optional[str] = None
    takes_along: Tuple[str, ...] = ()
    supervisor: Optional[str] = None
    helpers: FrozenSet[int] = frozenset()
    aliases: FrozenSet[str] = frozenset()
    rising: bool = False
    loads: bool = False
    elsewhere: FrozenSet[int] = frozenset()
    opens_driver: bool = False

    @property
    def key(self) -> UnitKey:
        """What it is found by."""
        return self.unit, self.uid

    @property
    def label(self) -> str:
        """The name for people."""
        return self.unit if self.uid is None else "%s of user %s" % (self.unit, self.user or self.uid)


@dataclass(frozen=True)
class Start:
    """A unit whose server loads its model on these GPUs, since ``since`` (seconds since the epoch)."""

    unit: UnitKey
    gpus: FrozenSet[int]
    since: float


@dataclass(frozen=True)
class View:
    """One look at a host: the GPUs asked for, all holders, the units that matter. ``now`` is seconds since the epoch.

    ``units`` finds a unit by each of the names by which it was asked for, so that one unit may stand there more than once.
    ``claims`` are the GPUs of units that do not serve yet, for which their guard waits or has let them start.
    ``unknown_users`` are those of ``users`` that have neither an account nor a process here.
    """

    snapshot: Snapshot
    selected: Tuple[int, ...]
    holders: Tuple[Holder, ...]
    units: Mapping[UnitKey, UnitView]
    now: float
    starts: Tuple[Start, ...] = ()
    unknown_users: Tuple[str, ...] = ()
    claims: Mapping[UnitKey, FrozenSet[int]] = field(default_factory=dict)

    def unit_of(self, holder: Holder) -> Optional[UnitView]:
        """The unit that answers for a process, by whatever name its cgroup has it; None where it has none."""
        return None if holder.unit is None else self.units.get(holder.unit)

    def members(self, unit: UnitView) -> Tuple[Holder, ...]:
        """The running processes on GPUs for which a unit answers."""
        return tuple(holder for holder in self.holders if holder.state == "running" and self.unit_of(holder) == unit)

    @property
    def gpus(self) -> Tuple[Gpu, ...]:
        """The GPUs asked for."""
        return tuple(gpu for gpu in self.snapshot.gpus if gpu.index in self.selected)

    @property
    def processes_reliable(self) -> bool:
        """Whether the driver's lists may be acted on: not when one makes no sense, nor when a GPU asked for does not answer."""
        bad = [gpu for gpu in self.snapshot.gpus if not gpu.processes_reliable]
        elsewhere = all(gpu.unanswered and gpu.index not in self.selected for gpu in bad)
        return self.snapshot.processes_reliable or (bool(bad) and elsewhere)

    @property
    def unanswered(self) -> Tuple[Gpu, ...]:
        """The GPUs that were not asked for and do not answer: what is on them is not known."""
        return tuple(gpu for gpu in self.snapshot.gpus if gpu.unanswered and gpu.index not in self.selected)
