# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Following a change to its end from afar: everything that is worth a round trip in one answer, and nothing that is not.

Whoever follows a fleet from one machine pays for each answer, so the waiting is done here. A phase that is over in a moment is no news.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Optional

from .._core.clock import Clock
from .let_go import wait_until_gone
from .progress import PATH, read
from .store import DIRECTORY, Store

_PAUSE_S = 0.1
# Words of systemd for a unit that has not ended.
_RUNS = ("active", "activating", "deactivating", "reloading")


def job_state() -> str:
    """The job's unit in systemd's word, such as ``active`` or ``failed``."""
    # Loaded only here: this program is started for each line on a terminal, and most of them have no use for it.
    from .._core.runner import Runner
    from .._unit.change_unit import CHANGE_UNIT

    return Runner().run(["systemctl", "is-active", CHANGE_UNIT], timeout=10.0).stdout.strip()


def attend(
    change: str,
    phase: str,
    seconds: float,
    steady: float = 0.0,
    directory: str = DIRECTORY,
    path: str = PATH,
    job: Callable[[], str] = job_state,
) -> Dict[str, Any]:
    """The last news of a change, as soon as it is in another phase than ``phase`` for ``steady`` seconds, or has ended.

    After ``seconds`` whatever is known, with ``job``, the state of the job's unit. With ``done`` comes ``result``, what the module
    returns; that is told once the job is gone. ``unfinished`` is whether the change is still to be brought to an end, ``unknown``
    that it has told nothing since the boot. ``now`` is this host's time, in seconds since the epoch.
    """
    store = Store(directory)
    end = time.monotonic() + seconds
    while True:
        news = _news(change, path)
        last = store.last()
        if last is not None and last.get("id") == change:
            wait_until_gone(lambda: job() not in _RUNS, Clock())
            return dict(news or {"id": change}, done=True, result=last["result"])
        late = time.monotonic() >= end
        other = news is not None and news.get("phase") != phase
        if late or (other and _lasts(news, steady)):
            # Read once more: it may have ended between the two looks, and a record that is gone means just that.
            last, record = store.last(), store.load()
            if last is None or last.get("id") != change:
                unfinished = record is not None and record.get("id") == change
                answer = dict(news or {"id": change, "unknown": True}, done=False, unfinished=unfinished, now=time.time())
                return dict(answer, job=job()) if late and unfinished else answer
            continue
        time.sleep(_PAUSE_S)


def _news(change: str, path: str) -> Optional[Dict[str, Any]]:
    news = read(path)
    return news if news is not None and news.get("id") == change else None


def _lasts(news: Optional[Dict[str, Any]], steady: float) -> bool:
    since = (news or {}).get("phase_since")
    return not isinstance(since, (int, float)) or time.time() - since >= steady or time.time() < since
