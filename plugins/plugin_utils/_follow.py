# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Following a host's job from the controller to its end, over connections that may be lost on the way.

The job does not know of us, so there is nothing to lose but the sight of it: whatever breaks here, the answer is to look again.
"""

from __future__ import annotations

import json
import time
from typing import Any, Callable, Dict, Mapping, Optional

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._terminal import Pace

# A job that ends again and again without bringing its change to an end is not started for ever.
_STARTS = 3
_PAUSES_S = (0.5, 1.0, 2.0, 5.0)
_RESULT_S = 30.0
_ANOTHER = "The change %s has ended, and another one after it. Run again to see what serves now."


class Lost(Exception):
    """The connection to the host is gone; the text says how that showed."""


class Unanswered(Exception):
    """The host answered, but not with what was asked for; the text is what it said."""


class Ended(Exception):
    """There is nothing more to follow; the text says why."""


class Host:
    """What the follower asks of the world, as a port."""

    def attend(self, change: str, phase: str, seconds: float, steady: float) -> Dict[str, Any]:
        """What ``change.pyz attend`` says. Raises Lost and Unanswered."""
        raise NotImplementedError

    def result(self, change: str, seconds: float) -> Dict[str, Any]:
        """What ``change.pyz result`` says. Raises Lost and Unanswered."""
        raise NotImplementedError

    def resume(self, change: str) -> Dict[str, Any]:
        """What ``change.pyz resume`` says. Raises Lost and Unanswered."""
        raise NotImplementedError

    def again(self) -> Dict[str, Any]:
        """The result of the module, run once more to wait for the end. Raises Lost."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget a connection that is gone."""
        raise NotImplementedError

    def tell(self, news: Mapping[str, Any]) -> None:
        """How far it is, for people."""
        raise NotImplementedError

    def warn(self, text: str) -> None:
        """Something that people should know of at once."""
        raise NotImplementedError


class Follower:
    """Follows one change. ``patience`` is seconds for which a lost connection is tried again.

    ``twice`` is whether the module may be run again to wait for it: one that finds the change at its end begins another one.
    """

    def __init__(
        self,
        host: Host,
        pace: Pace,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        twice: bool = True,
    ) -> None:
        self._host = host
        self._pace = pace
        self._patience = patience
        self._clock = clock
        self._sleep = sleep
        self._twice = twice
        self._silent = False
        self._lost_at: Optional[float] = None
        self._tries = 0
        self._starts = 0

    def end_of(self, change: str) -> Dict[str, Any]:
        """What came of it: the module's result. Raises Lost when patience has ended, and Ended."""
        phase = ""
        while True:
            try:
                news = self._host.attend(change, phase, self._pace.every, self._pace.steady)
                self._answered()
                if news.get("done"):
                    return dict(news["result"])
                if not news.get("unfinished"):
                    raise Ended(_ANOTHER % change)
                if news.get("job") in ("inactive", "failed"):
                    # Not by the module: the change may have ended meanwhile, and the module would begin another one.
                    self._start_again(change)
                    continue
                self._host.tell(news)
                phase = str(news.get("phase") or phase)
            except Lost as lost:
                self._bear(lost)
            except Unanswered as exc:
                if not self._silent:
                    self._silent = True
                    self._host.warn("How far it is cannot be told (%s); its end is waited for." % exc)
                ended = self._wait_in_silence(change)
                if ended is not None:
                    return ended

    def _start_again(self, change: str) -> None:
        self._starts += 1
        if self._starts > _STARTS:
            raise Ended(
                "The job that carries out this change ends again and again without bringing it to an end. "
                "`journalctl -u gpufleet-change.service` on the host tells why; run again when that is repaired."
            )
        self._host.resume(change)
        self._answered()

    def _wait_in_silence(self, change: str) -> Optional[Dict[str, Any]]:
        """What came of it; None while it is under way. Where the program does not answer at all the module can wait as well."""
        while True:
            try:
                answer = self._host.result(change, _RESULT_S)
                self._answered()
                if answer.get("done"):
                    return dict(answer["result"])
                if answer.get("unknown"):
                    raise Ended(_ANOTHER % change)
                return None
            except Lost as lost:
                self._bear(lost)
            except Unanswered as exc:
                if not self._twice:
                    raise Ended(
                        "The change %s was begun, and what came of it cannot be told (%s). `change.pyz result %s` on the host tells it. "
                        "Nothing was begun again." % (change, exc, change)
                    ) from None
                break
        while True:
            try:
                return self._host.again()
            except Lost as lost:
                self._bear(lost)

    def _answered(self) -> None:
        if self._lost_at is not None:
            self._host.warn("The host answers again after %d s; the change is followed on." % (self._clock() - self._lost_at))
        self._lost_at, self._tries = None, 0

    def _bear(self, lost: Lost) -> None:
        """Wait a little and let it be tried again; raise Lost when patience has ended."""
        now = self._clock()
        if self._lost_at is None:
            self._lost_at = now
            self._host.warn(
                "The connection was lost while a change was followed (%s). The change goes on on the host; it is tried to reach it again "
                "for %d s." % (lost, self._patience)
            )
        left = self._patience - (now - self._lost_at)
        if left <= 0:
            raise Lost(
                "The host cannot be reached (%s), and has not been for %d s. The change that was begun there goes on on the host, and is "
                "finished or undone there. Run the same command again when the host can be reached: it follows the change, or tells "
                "what serves." % (lost, now - self._lost_at)
            )
        self._host.reset()
        self._sleep(min(left, _PAUSES_S[min(self._tries, len(_PAUSES_S) - 1)]))
        self._tries += 1


def parse_answer(rc: int, stdout: str, stderr: str) -> Dict[str, Any]:
    """The JSON object on the last line that is one: a login may print whatever it likes before. Raises Lost and Unanswered."""
    for line in reversed(stdout.splitlines()):
        if line.startswith("{"):
            try:
                answer = json.loads(line)
            except ValueError:
                continue
            if isinstance(answer, dict) and "id" in answer:
                return answer
    said = (stderr.strip() or stdout.strip()).splitlines()
    text = said[-1].strip()[:200] if said else "no output"
    if rc in (255, -1, 129, 137, 143):  # ssh's own word for a lost connection, or somebody ended the command
        raise Lost(text)
    raise Unanswered("exit status %d: %s" % (rc, text))
