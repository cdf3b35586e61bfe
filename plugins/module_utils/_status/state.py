# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a service in a word, and what is wrong with it."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from .._server.ready import ReadyState
from .._systemd.show import UnitStatus


def state_of(status: UnitStatus, seen: Optional[ReadyState], there: bool, now: float, ready_timeout: float) -> Dict[str, Any]:
    """``state`` in a word, whether it was seen to answer a completion, and why not.

    ``there`` is whether the host has a unit of it at all. ``now`` is in seconds since the epoch; ``ready_timeout`` are the seconds
    that its declaration allows for a start.
    """
    since = status.active_enter if status.running else status.state_change
    word, detail = _word(status, seen, there)
    if word in ("starting", "loading") and since is not None and now - since > ready_timeout:
        late = "for %d s now, longer than its ready_timeout of %d s: see `journalctl -u %s`" % (now - since, ready_timeout, status.unit)
        detail = "%s, %s" % (detail, late) if detail else late
    return {
        "state": word,
        "ready": seen is not None and seen.ready,
        "detail": detail,
        "active_state": status.active_state,
        "sub_state": status.sub_state,
        "since": since,
        "main_pid": status.main_pid or None,
        "restarts": status.n_restarts,
        "enabled": status.enabled,
    }


def _word(status: UnitStatus, seen: Optional[ReadyState], there: bool) -> Tuple[str, str]:
    if not there:
        return "missing", ""
    if status.masked:
        runs = "; what was started before still runs (pid %d)" % status.main_pid if status.running else ""
        return "masked", "it can't be started before somebody unmasks it%s" % runs
    if status.crash_looping:
        return "crashing", "%d restarts so far, result %s" % (status.n_restarts, status.result)
    if status.failed:
        return "failed", "result %s" % status.result
    if status.stopping:
        return "stopping", ""
    if status.starting:
        return "starting", "its guard waits for free memory" if status.sub_state == "start-pre" else status.sub_state
    if status.running and seen is not None:
        return _of_server(seen)
    if status.active_state == "active" and status.sub_state == "exited":
        return "exited", "its process has ended, though systemd counts it as active: see `journalctl -u %s`" % status.unit
    if status.running:
        return "active", "it runs, and whether it serves is not known: its unit file does not tell where to ask"
    return ("stopped", "") if status.inactive else (status.active_state, status.sub_state)


def _of_server(seen: ReadyState) -> Tuple[str, str]:
    if seen.ready:
        return "serves", ""
    if seen.stage == "loading":
        return "loading", seen.detail
    if seen.refused:
        return "keyed", seen.detail
    return ("silent" if seen.silent else "not serving"), seen.detail
