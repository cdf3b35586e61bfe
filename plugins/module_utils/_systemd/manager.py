# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""systemd as a port: looking at units and moving them, through ``systemctl``."""

from __future__ import annotations

import os
import re
import tempfile
from typing import Dict, List, Mapping, Optional, Sequence

from .._core.clock import Clock
from .._core.errors import GpuFleetError
from .._core.runner import Completed, Runner
from .cgroup import cgroup_pids
from .enabled import enabled_state
from .show import PROPERTIES, UnitStatus, parse_show

# The first release with everything the units use (ExecCondition, Type=exec, NeedDaemonReload, hardening).
MINIMUM_VERSION = 247
_CALL_S = 30.0
# Whose units are stopped with a unit. PropagatesStopTo is known from 249 on; an unknown property is simply not shown.
_STOPS = ("RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo")


class Systemd:
    """The system manager of this host. Every failed call raises GpuFleetError with the command, rc and stderr."""

    def __init__(self, runner: Runner, clock: Optional[Clock] = None, root: str = "/", uid: Optional[int] = None) -> None:
        """``root`` is where ``run/systemd/system`` and the cgroup trees are looked for. ``uid`` is that of a user's manager, which
        ``runner`` then speaks to."""
        self._runner = runner
        self._clock = clock or Clock()
        self._root = root
        self._uid = uid
        self._version: Optional[int] = None

    def available(self) -> Optional[str]:
        """None when units can be managed here, else the reason in one sentence."""
        if not os.path.isdir(os.path.join(self._root, "run/systemd/system")):
            return (
                "systemd is not running as PID 1 on this host (no /run/systemd/system), so no service can be managed "
                "here. Containers without an init system, and WSL without systemd enabled, look like this. Run it on a host that "
                "boots with systemd; in WSL, set systemd=true under [boot] in /etc/wsl.conf and start WSL anew."
            )
        if os.geteuid() != 0:
            return "Managing services needs root, and this task runs as uid %d. Set become: true." % os.geteuid()
        version = self._runner.run(["systemctl", "--version"], timeout=_CALL_S)
        if not version.ok:
            return "systemctl can't be used: %s" % _said(version)
        self._version = _version_in(version.stdout)
        if self.version() < MINIMUM_VERSION:
            return "systemd %d is too old: %d or newer is needed." % (self.version(), MINIMUM_VERSION)
        return None

    def version(self) -> int:
        """systemd's major version, e.g. 252."""
        if self._version is None:
            self._version = _version_in(self._call(["systemctl", "--version"]).stdout)
        return self._version

    def status(self, unit: str) -> UnitStatus:
        """One unit as it is now. A unit that doesn't exist has ``load_state`` ``not-found``."""
        return self.statuses([unit])[unit]

    def statuses(self, units: Sequence[str]) -> Dict[str, UnitStatus]:
        """Several units in one call, by the name they were asked for with."""
        if not units:
            return {}
        argv = ["systemctl", "show", "--property=" + ",".join(PROPERTIES), "--"] + list(units)
        done = self._call(argv)
        offset = self._clock.time() - self._clock.monotonic()
        parsed = parse_show(done.stdout)
        if len(parsed) != len(units):
            raise GpuFleetError(
                "systemctl show answered for %d units where %d were asked for (%s)."
                % (len(parsed), len(units), ", ".join(units))
            )
        for unit, found in zip(units, parsed):
            found["UnitFileState"] = enabled_state(unit, found.get("UnitFileState", ""), self._root)
        return {unit: UnitStatus.from_properties(found, offset) for unit, found in zip(units, parsed)}

    def start(self, unit: str, no_block: bool = True, timeout: float = _CALL_S) -> None:
        """Queue a start, or wait for it up to ``timeout`` seconds. Clear a start limit first: reset_failed()."""
        self._job("start", unit, no_block, timeout)

    def stop(self, unit: str, no_block: bool = True, timeout: float = _CALL_S) -> None:
        """Queue a stop, or wait for it up to ``timeout`` seconds. systemd stops no unit that is frozen: it is thawed before."""
        if self._call(["systemctl", "show", "--property=FreezerState", "--value", "--", unit]).stdout.strip() in _FROZEN:
            self._call(["systemctl", "thaw", "--", unit])
        self._job("stop", unit, no_block, timeout)

    def kill(self, unit: str, signal: str = "SIGKILL", whom: str = "all") -> None:
        """Send a signal to a unit's processes: ``whom`` is ``all``, ``main`` or ``control``.

        A unit without a process to signal is no error: it is what the caller wanted.
        """
        option = "--kill-whom" if self.version() >= 252 else "--kill-who"
        done = self._runner.run(
            ["systemctl", "kill", "%s=%s" % (option, whom), "--signal=" + signal, "--", unit], timeout=_CALL_S
        )
        if not done.ok and not re.search(r"not loaded|No such process|no (main|control) process", done.stderr, re.I):
            raise _error(done)

    def enable(self, unit: str) -> None:
        """Start the unit at boot. Nothing is reloaded.

        Done on the files alone (``--root=/``): over the bus, newer versions call every unit of the host outdated until
        the next daemon-reload, even when that is asked not to happen.
        """
        self._call(["systemctl", "--root=/", "--quiet", "enable", "--", unit])

    def disable(self, unit: str) -> None:
        """Don't start the unit at boot. Nothing is reloaded."""
        self._call(["systemctl", "--root=/", "--quiet", "disable", "--", unit])

    def daemon_reload(self) -> None:
        """Have systemd read its unit files again.

        Containers whose GPUs were injected behind systemd's back lose them in a reload, so this is called once, and
        only after a unit file really changed.
        """
        self._call(["systemctl", "daemon-reload"], timeout=120.0)

    def reset_failed(self, unit: str) -> None:
        """Forget a failure and the count of starts. A unit that isn't loaded has neither."""
        done = self._runner.run(["systemctl", "reset-failed", "--", unit], timeout=_CALL_S)
        if not done.ok and "not loaded" not in done.stderr:
            raise _error(done)

    def cgroup_pids(self, unit: str, status: Optional[UnitStatus] = None) -> List[int]:
        """The processes in the unit's cgroup and below, also after the unit itself went inactive.

        ``status`` saves a call where the unit was just looked at.
        """
        status = self.status(unit) if status is None else status
        return cgroup_pids(unit, status.control_group, status.slice, self._root, self._uid)

    def stopped_with(self, unit: str) -> List[str]:
        """The units that a stop of this one would stop as well (Requires=, BindsTo=, PartOf= and their like), over all steps.

        Targets are followed, not returned: nothing runs in them.
        """
        found: List[str] = []
        ahead = [unit]
        while ahead:
            shown = self._relations(ahead, _STOPS)
            found += ahead
            ahead = sorted(set(shown) - set(found))
        return [name for name in found[1:] if not name.endswith(".target")]

    def triggers_of(self, unit: str) -> List[str]:
        """The timers, sockets and paths that start this unit."""
        return sorted(set(self._relations([unit], ("TriggeredBy",))))

    def _relations(self, units: Sequence[str], properties: Sequence[str]) -> List[str]:
        done = self._call(["systemctl", "show", "--property=" + ",".join(properties), "--"] + list(units))
        return [name for shown in parse_show(done.stdout) for text in shown.values() for name in text.split()]

    def verify(self, unit_text: str, name: str, drop_ins: Optional[Mapping[str, str]] = None) -> List[str]:
        """What ``systemd-analyze verify`` says of a unit: every line is a problem, [] is clean.

        ``drop_ins`` maps file names to texts. Raises GpuFleetError where the tool isn't there: no answer is not a
        clean answer.
        """
        with tempfile.TemporaryDirectory(prefix="gpufleet-verify-") as directory:
            path = os.path.join(directory, name)
            _write(path, unit_text)
            if drop_ins:
                os.mkdir(path + ".d")
                for drop_in, text in drop_ins.items():
                    _write(os.path.join(path + ".d", drop_in), text)
            argv = ["systemd-analyze", "verify", "--man=no"]
            if self.version() >= 250:
                argv.append("--recursive-errors=no")
            done = self._runner.run(argv + [path], timeout=60.0)
        if done.rc in (126, 127) or done.timed_out:
            raise GpuFleetError("The unit %s could not be verified: %s" % (name, _said(done)))
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        # The other units that ours is ordered after may have their own faults; those are not this unit's.
        ours = [line.replace(directory + "/", "") for line in lines if name in line or directory in line]
        if not done.ok and not ours:
            raise GpuFleetError("The unit %s could not be verified: %s" % (name, _said(done)))
        return ours

    def _job(self, verb: str, unit: str, no_block: bool, timeout: float) -> None:
        argv = ["systemctl", verb] + (["--no-block"] if no_block else []) + ["--", unit]
        self._call(argv, timeout=timeout)

    def _call(self, argv: Sequence[str], timeout: float = _CALL_S) -> Completed:
        done = self._runner.run(argv, timeout=timeout)
        if not done.ok:
            raise _error(done)
        return done


# A unit within a frozen slice is the slice's to thaw.
_FROZEN = ("frozen", "freezing")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as handle:
        handle.write(text)


def _version_in(text: str) -> int:
    match = re.match(r"systemd (\d+)", text)
    if match is None:
        raise GpuFleetError("systemctl --version says nothing of a version: %r." % text[:200])
    return int(match.group(1))


def _said(done: Completed) -> str:
    what = (done.stderr or done.stdout).strip() or "it said nothing"
    how = "ran past its time" if done.timed_out else "exit status %s" % done.rc
    return "`%s` (%s): %s" % (" ".join(done.argv), how, what)


def _error(done: Completed) -> GpuFleetError:
    return GpuFleetError(
        "A command of systemd failed: %s" % _said(done), cmd=list(done.argv), rc=done.rc, stderr=done.stderr
    )
