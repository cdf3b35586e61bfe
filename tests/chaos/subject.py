# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One disturbed swap on one host, from the fault to the proof that the host is in order again."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field

from chaos.controller import Controller, Ended
from chaos.moments import Try, wait_for
from chaos.sight import CHANGE_UNIT, Window, complete, files, invocations, last, look, serves, unit_of, wait_for_rest
from lab import Host, LabError

MODELS = ("minimax-m2.5", "kimi-k2.5-int4")
REST_S = 180.0
_TRIES_TO_ASK = 10


@dataclass
class Outcome:
    """What came of it. ``end`` is ``old``, ``new``, ``reported`` (neither, and the host says why) or ``neither``."""

    host: str
    what: str
    kind: str
    hit: bool = False
    end: str = ""
    rest_s: float | None = None
    again_ok: bool = False
    wrong: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


class Subject:
    """A host that serves one of two models, and is asked for the other one again and again."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.old, self.new = MODELS
        self.usual_s = 0.0
        self.job_s = 0.0
        self._disorder = False

    def prepare(self) -> None:
        """A clean host that serves; the time of an undisturbed swap is taken."""
        self.host.reset()
        self._disorder = False
        self.swap(self.old)
        controller, window = Controller(self.new, [self.host.name]), Window(self.host)
        began: float | None = None
        while controller.running:
            if began is None and window.record():
                began = time.monotonic()
            elif began is not None and not self.job_s and not window.record():
                self.job_s = time.monotonic() - began
            time.sleep(0.01)
        self.usual_s = self._must(controller.end()).seconds
        if not self.job_s:
            raise LabError(f"{self.host.name}: no record of a change was seen while a swap went on")
        self.turn()

    def turn(self) -> None:
        """The models change places."""
        self.old, self.new = self.new, self.old

    def swap(self, model: str) -> None:
        """A swap that nobody disturbs; LabError when it does not succeed."""
        self._must(Controller(model, [self.host.name]).end())

    def done(self, outcome: Outcome) -> None:
        """After a try: the new model serves and is the next one's old. Where it went wrong, the next one begins on a clean host."""
        if outcome.wrong:
            self._disorder = True
        else:
            self.turn()

    def _must(self, ended: Ended) -> Ended:
        if ended.rc:
            raise LabError(f"{self.host.name}: a swap that nobody disturbed ended with {ended.rc}\n{ended.out}")
        return ended

    def make_ready(self, fresh: bool) -> None:
        """The old model serves, the other one is down; with ``fresh`` as if it had never been there."""
        if self._disorder or complete(self.host, self.old) is not None:
            self.prepare()
        if fresh:
            unit = unit_of(self.new)
            self.host.enter(
                f"systemctl stop {unit}; rm -rf /etc/systemd/system/{unit} /etc/systemd/system/{unit}.d /etc/vllm/{self.new}.*; "
                f"systemctl daemon-reload; systemctl reset-failed {unit} 2>/dev/null || true"
            )

    # -- a try

    def disturb(self, one: Try) -> Outcome:
        """Begin a swap, disturb it, and see what becomes of the host. What went wrong stands in the outcome."""
        outcome = Outcome(self.host.name, str(one), one.kind)
        try:
            self.make_ready(one.fresh)
            before = files(self.host)
            faulted = time.monotonic()
            outcome.hit, faulted = {"controller": self._controller, "job": self._job, "power": self._power}[one.kind](one, outcome)
            self._settle(outcome, faulted, before)
            self._again(outcome)
        except Exception as exc:  # noqa: BLE001 - whatever it was, it is told with the try that it belongs to
            outcome.wrong.append(f"{type(exc).__name__}: {exc}")
        if outcome.wrong:
            outcome.told.append(self.story())
        self.done(outcome)
        return outcome

    def _controller(self, one: Try, outcome: Outcome) -> tuple[bool, float]:
        controller = Controller(self.new, [self.host.name])
        try:
            hit = wait_for(one.moment, controller.begun, self.usual_s, Window(self.host), lambda: controller.running)
        finally:
            outcome.told.append(controller.kill().out)
        return hit, time.monotonic()

    def _job(self, one: Try, outcome: Outcome) -> tuple[bool, float]:
        controller, window = Controller(self.new, [self.host.name]), Window(self.host)
        hit, faulted = False, time.monotonic()
        try:
            while controller.running and not window.record():
                time.sleep(0.002)
            begun, pid = time.monotonic(), 0
            while not pid and window.record():
                inside = int(self.host.systemctl_show(CHANGE_UNIT, ["MainPID"])["MainPID"])
                pid = self.host.outside_pid(inside) if inside else 0
            if pid and wait_for(one.moment, begun, self.job_s, window, window.record):
                try:
                    os.kill(pid, signal.SIGKILL)
                    hit = True
                except ProcessLookupError:
                    hit = False
            faulted = time.monotonic()
        finally:
            outcome.told.append(controller.end().out)
        return hit, faulted

    def _power(self, one: Try, outcome: Outcome) -> tuple[bool, float]:
        controller = Controller(self.new, [self.host.name])
        try:
            hit = wait_for(one.moment, controller.begun, self.usual_s, Window(self.host), lambda: controller.running)
            self.host.power_cut()
        finally:
            outcome.told.append(controller.kill().out)
        faulted = time.monotonic()
        try:
            self.host.boot()
        except LabError as exc:
            outcome.told.append(str(exc))
            if not self.host.is_running():
                raise
        return hit, faulted

    # -- what has to hold

    def _settle(self, outcome: Outcome, faulted: float, before: dict[str, str]) -> None:
        """Without a hand, within bounds: one model serves, runs alone, starts at boot, and nothing lies about."""
        waited = time.monotonic()
        rest = wait_for_rest(self.host, MODELS, REST_S)
        if rest is None:
            outcome.wrong.append(f"not at rest {REST_S:.0f} s after the fault: {look(self.host, MODELS)}")
            return
        outcome.rest_s = waited - faulted + rest
        served = serves(self.host, MODELS)
        seen = look(self.host, MODELS)
        outcome.end = "old" if served == [self.old] else "new" if served == [self.new] else "neither"
        if outcome.end == "neither":
            result = last(self.host)
            if not (result.get("failed") and "FAILED" in str(result.get("msg"))):
                outcome.wrong.append(f"neither model serves ({served}), and the host does not say why: {result.get('msg')}")
                return
            outcome.end = "reported"
        if len(seen.running) > 1:
            outcome.wrong.append(f"both models run: {seen}")
        enabled = [model for model, at_boot in seen.enabled.items() if at_boot]
        if not enabled:
            outcome.wrong.append("no model starts at boot")
        elif served and enabled != served:
            outcome.wrong.append(f"{served} serves, but {enabled} starts at boot")
        now = files(self.host)
        if outcome.end == "old" and now != before:
            outcome.wrong.append(f"the old model serves, but files are not as before: {_differences(before, now)}")
        self._files_at_rest = now if outcome.end == "new" else None

    def _again(self, outcome: Outcome) -> None:
        """The same command completes; once more, it has nothing to do and touches nothing."""
        again = Controller(self.new, [self.host.name]).end()
        answer = complete(self.host, self.new)
        if again.rc or answer is not None:
            outcome.told.append(again.out)
            outcome.wrong.append(f"the same command again ended with {again.rc}; the new model: {answer or 'serves'}")
            return
        outcome.again_ok = True
        now, runs = files(self.host), invocations(self.host, MODELS)
        if self._files_at_rest is not None and now != self._files_at_rest:
            outcome.wrong.append(f"the new model served, but files were not in order: {_differences(self._files_at_rest, now)}")
        third = Controller(self.new, [self.host.name]).end()
        if third.rc or third.changed(self.host.name) != 0:
            outcome.told.append(third.out)
            outcome.wrong.append(f"the third run ended with {third.rc}, changed={third.changed(self.host.name)}")
        if files(self.host) != now or invocations(self.host, MODELS) != runs:
            outcome.wrong.append("the third run touched files or services")

    _files_at_rest: dict[str, str] | None = None

    def story(self) -> str:
        """What the host tells of its services and the change."""
        try:
            units = [word for name in ("vllm-*", CHANGE_UNIT) for word in ("--unit", name)]
            return self.host.journal(None, *units, "--lines=300") + f"\n{last(self.host)}"
        except (LabError, OSError) as exc:
            return f"(no journal: {exc})"


def _differences(before: dict[str, str], after: dict[str, str]) -> str:
    names = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    return ", ".join(f"{path} {'is new' if path not in before else 'is gone' if path not in after else 'differs'}" for path in names)
