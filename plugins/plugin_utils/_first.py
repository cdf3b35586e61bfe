# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What comes first: a change that nobody carried out any more is followed to its end, then the module is asked for the task's own work.

Its end may take as long as what it was begun for, an hour of somebody's command. So it is followed like the task's own change, with news
and over lost connections, and is not waited for inside of the module.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._follow import Ended


class Answer(NamedTuple):
    """What the module says of the task's own work, and the ``actions`` that were taken for it before."""

    result: Dict[str, Any]
    before: List[Dict[str, Any]]


def begin(ask: Callable[[], Dict[str, Any]], follow: Callable[[str, Mapping[str, Any]], None]) -> Answer:
    """``ask`` runs the module without waiting. ``follow`` gets the change that comes first, and its action; it raises what a Follower does.

    The module is asked twice at most: one that finds something abandoned again begins nothing, and that is the task's failure.
    """
    result = ask()
    first = change_before(result)
    if first is None:
        return Answer(result, [])
    steps = [dict(step) for step in result.get("actions") or []]
    ended: Optional[Ended] = None
    try:
        follow(first, steps[-1] if steps else {})
    except Ended as exc:
        ended = exc  # it can't be followed any further; the host knows whether it is over
    result = ask()
    again = change_before(result)
    if again is None:
        return Answer(result, steps)
    if ended is not None:
        result = dict(result, msg="%s %s" % (ended, result.get("msg")))
    return Answer(result, [] if again == first else steps)


def change_before(result: Mapping[str, Any]) -> Optional[str]:
    """The change that has to come to its end before the module can begin what it was asked for; None where it could begin."""
    job = result.get("job")
    return str(job["id"]) if isinstance(job, Mapping) and job.get("first") and result.get("failed") else None


def behind(before: List[Dict[str, Any]], result: Mapping[str, Any]) -> Dict[str, Any]:
    """The task's result, with what was done before it."""
    return dict(result, actions=before + list(result.get("actions") or []), changed=True) if before else dict(result)
