# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a service is ready: every sign together, since none of them alone proves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from .._core.clock import Clock, Deadline
from .http import CompletionResult, NoAnswer, Server, ServerError

# What a completion comes to that says nothing about the engine: no reply (None), or one that asks to come back later.
_OVERLOAD = (None, 429, 503)
# It answers, though not to whoever has no key that it takes: nothing is said of the engine.
_REFUSED = (401, 403)


@dataclass(frozen=True)
class ReadyState:
    """What is there and what is missing. ``stage`` names the first sign that is missing:

    ``unit`` (systemd doesn't have it running), ``loading`` (nothing listens yet), ``health``, ``models`` (another
    name is served), ``completion`` (the engine doesn't compute), or ``ready``. ``silent`` is whether what is missing is an
    answer: then the server may be busy, or hang. ``refused`` is whether it turned away who asked (401, 403): then it may serve
    those who have its key. Without both, what it answered is wrong.
    """

    ready: bool
    stage: str
    detail: str
    served_models: Tuple[str, ...] = ()
    completion: Optional[CompletionResult] = None
    silent: bool = False
    refused: bool = False

    @property
    def wrong(self) -> bool:
        """Whether it answered, and not as a server that serves does."""
        return self.stage in ("health", "models", "completion") and not self.silent and not self.refused

    @property
    def other_name(self) -> bool:
        """Whether it serves models, and not the one that was asked for."""
        return self.stage == "models" and bool(self.served_models)


class Readiness:
    """Asks one server for every sign, in the order in which they appear."""

    def __init__(
        self,
        server: Server,
        served_name: str,
        smoke: bool = True,
        timeout: float = 60.0,
        call_timeout: float = 5.0,
        clock: Optional[Clock] = None,
    ) -> None:
        """``timeout`` is for the completion, ``call_timeout`` for every other request, in seconds."""
        self._server = server
        self._served_name = served_name
        self._smoke = smoke
        self._timeout = timeout
        self._call_timeout = call_timeout
        self._clock = clock or Clock()

    def check(self, running: bool, unit_detail: str = "", limit: Optional[float] = None) -> ReadyState:
        """One look. ``running`` is what systemd says, ``limit`` caps all requests together, in seconds.

        Never raises for what the server does: a silence is a sign that is missing.
        """
        if not running:
            return ReadyState(False, "unit", unit_detail or "the unit is not running")
        deadline = Deadline(self._clock, self._call_timeout * 2 + self._timeout if limit is None else limit)
        try:
            status = self._server.health(self._within(deadline, self._call_timeout))
        except ServerError as exc:
            return _failed("health", exc)
        if status is None:
            return ReadyState(False, "loading", "nothing listens on %s yet" % self._server.url)
        if status != 200:
            return ReadyState(False, "health", "%s/health answers HTTP %d" % (self._server.url, status), refused=status in _REFUSED)
        try:
            served = tuple(self._server.models(self._within(deadline, self._call_timeout)))
        except ServerError as exc:
            return _failed("models", exc)
        if self._served_name not in served:
            names = ", ".join(served) or "no model"
            detail = "%s serves %s, not %s" % (self._server.url, names, self._served_name)
            return ReadyState(False, "models", detail, served)
        if not self._smoke:
            return ReadyState(True, "ready", "/health and /v1/models answer (no completion was asked for)", served)
        completion = self._server.complete(self._served_name, self._within(deadline, self._timeout))
        if not completion.ok:
            silent, refused = completion.status in _OVERLOAD, completion.status in _REFUSED
            return ReadyState(False, "completion", completion.detail, served, completion, silent, refused)
        return ReadyState(True, "ready", completion.detail, served, completion)

    @staticmethod
    def _within(deadline: Deadline, seconds: float) -> float:
        return max(0.1, min(seconds, deadline.remaining))


def _failed(stage: str, exc: ServerError) -> ReadyState:
    return ReadyState(False, stage, exc.msg, silent=isinstance(exc, NoAnswer), refused=exc.status in _REFUSED)
