# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""New models that do not come to serve, each way once: the old one has to be back, and back again after the second try."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chaos.catalogue import entries_with
from chaos.controller import Controller, Ended
from chaos.sight import complete, files, last, look, wait_for_rest
from chaos.subject import MODELS, REST_S, Outcome, Subject

# The second try may keep the old model from serving for as long as the first did, and a bit for a machine that is busy.
_SLACK_S = 5.0


@dataclass(frozen=True)
class Failing:
    """How the new model fails: the stand-in's behaviours, the kind that the diagnosis has to find, keys of its catalogue entry.

    ``once``: only the first start fails, and the same command again succeeds. ``hangs``: nothing but the end of
    the patience ends it, so the swap is given little: twice what an undisturbed one takes here. ``broken_cache``: an earlier run
    of it has left a compile cache on which each start dies, until somebody removes it as the diagnosis says.
    """

    name: str
    behaviours: Mapping[str, Any]
    diagnosis: str | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)
    once: bool = False
    hangs: bool = False
    broken_cache: bool = False


def _dies(phase: str, process: str, error: str, **more: Any) -> dict[str, Any]:
    return {"die_at_load": {"phase": phase, "process": process, "error": error, **more}}


# Not among them: completions without a text. A model whose first token ends its answer says nothing, and serves.
FAILING = (
    Failing("out of memory at load", {"oom_load": True}, "oom_load"),
    Failing("out of memory in the warm-up", {"oom_warmup": True}, "oom_warmup"),
    Failing("FP8 blocks that do not divide", {"fp8_block": True}, "quant_block"),
    Failing(
        "bad argument",
        {"die_at_load": {"phase": "config", "process": "api", "exit_code": 2, "raw": True,
                         "lines": ["vllm: error: unrecognized arguments: --swap-space 4"]}},
        "bad_argument",
    ),
    Failing("port in use", _dies("config", "api", "OSError: [Errno 98] Address already in use"), "port_in_use"),
    Failing("driver error", _dies("device", "worker", "RuntimeError: CUDA error: unspecified launch failure"), "driver"),
    Failing("a worker is killed", {"die_at_load": {"phase": "weights", "process": "worker", "signal": 9, "rank": 0}}),
    Failing("the server is killed", {"die_at_load": {"phase": "profile", "process": "api", "signal": 9}}),
    Failing("compile cache broken", {}, "compile_cache", broken_cache=True),
    Failing("crash at its first start", {"crash_at_nth_start": 1}, once=True),
    Failing("crash as soon as it listens", {"dies_after": 0.0, "watchdog_seconds": 0.0}),
    Failing("hangs while it loads", {"never_ready": True}, "timeout", hangs=True),
    Failing("hangs, deaf to SIGTERM", {"never_ready": True, "ignore_sigterm": True, "workers_ignore_sigterm": True}, "timeout",
            {"stop_timeout": 3}, hangs=True),
    Failing("health is 500", {"health": 500}, None, hangs=True),
    Failing("health hangs", {"health": "hang"}, None, hangs=True),
    Failing("completions fail", {"completions": "error"}, None, hangs=True),
    Failing("completions hang", {"completions": "hang"}, None, hangs=True),
    Failing("another name is served", {"wrong_served_name": True}, None, hangs=True),
    Failing("its workers outlive it", {"oom_warmup": True, "orphan_workers": True, "workers_ignore_sigterm": True}, "oom_warmup"),
)  # fmt: skip


@dataclass
class Fails:
    """Runs them on one subject."""

    subject: Subject

    def run(self, failing: Failing) -> Outcome:
        """Two swaps that fail alike, the old model serving after each; then one that succeeds."""
        subject, host = self.subject, self.subject.host
        outcome = Outcome(host.name, f"new model: {failing.name}", "new model", hit=True)
        try:
            subject.make_ready(fresh=False)
            if failing.broken_cache:
                self._break_cache()
            host.vllm.behave(subject.new, **failing.behaviours)
            before = files(host)
            first = self._once(failing, outcome, before)
            if outcome.wrong:
                pass
            elif failing.once:
                self._succeeds(outcome, failing)
            else:
                second = self._once(failing, outcome, before)
                self._alike(first, second, outcome)
                self._mend(failing)
                if not outcome.wrong:
                    self._succeeds(outcome, failing)
        except Exception as exc:  # noqa: BLE001 - told with the failure that it belongs to
            outcome.wrong.append(f"{type(exc).__name__}: {exc}")
        finally:
            self._mend(failing)
        if outcome.wrong:
            outcome.told.append(subject.story())
        subject.done(outcome)
        return outcome

    def _break_cache(self) -> None:
        """The new model has served here before, and what it has compiled is broken; the old one serves again."""
        subject, host = self.subject, self.subject.host
        host.vllm.behave(subject.new, poison_cache=True)
        subject.swap(subject.new)
        host.vllm.clear(subject.new)
        subject.swap(subject.old)

    def _mend(self, failing: Failing) -> None:
        """What made the new model fail is gone; a broken cache as the diagnosis advises."""
        self.subject.host.vllm.clear(self.subject.new)
        if failing.broken_cache:
            self.subject.host.enter(["rm", "-rf", f"/var/lib/vllm/{self.subject.new}/cache"])

    def _words(self, failing: Failing) -> tuple[str, ...]:
        patience = {"ready_timeout": math.ceil(2 * self.subject.job_s + _SLACK_S)} if failing.hangs else {}
        return entries_with(self.subject.new, **failing.keys, **patience)

    def _once(self, failing: Failing, outcome: Outcome, before: dict[str, str]) -> Mapping[str, Any]:
        subject, host = self.subject, self.subject.host
        ended: Ended = Controller(subject.new, [host.name], *self._words(failing)).end()
        begun = time.monotonic()
        rest = wait_for_rest(host, MODELS, REST_S)
        result = last(host)
        wrong = outcome.wrong
        if rest is None:
            wrong.append(f"not at rest: {look(host, MODELS)}")
        else:
            outcome.rest_s = max(outcome.rest_s or 0.0, rest)
        answer = complete(host, subject.old)
        outcome.end = "old" if answer is None else "neither"
        if answer is not None:
            wrong.append(f"the old model does not serve again ({answer}), {time.monotonic() - begun:.1f} s after the playbook's end")
        if ended.rc == 0 or not result.get("rolled_back"):
            wrong.append(f"ended with {ended.rc}, rolled_back={result.get('rolled_back')}: {result.get('msg')}")
        kind = (result.get("diagnosis") or {}).get("kind")
        if failing.diagnosis is not None and kind != failing.diagnosis:
            wrong.append(f"the diagnosis is {kind}, not {failing.diagnosis}: {result.get('diagnosis')}")
        seen = look(host, MODELS)
        if seen.running != [subject.old] or not seen.enabled[subject.old] or seen.enabled[subject.new]:
            wrong.append(f"after the roll-back: {seen}")
        if files(host) != before:
            wrong.append("files are not as before")
        if wrong:
            outcome.told.append(ended.out)
        return result

    def _alike(self, first: Mapping[str, Any], second: Mapping[str, Any], outcome: Outcome) -> None:
        kinds = [(result.get("diagnosis") or {}).get("kind") for result in (first, second)]
        if kinds[0] != kinds[1]:
            outcome.wrong.append(f"the second run fails in another way: {kinds}")
        down = [result.get("timings", {}).get("downtime") for result in (first, second)]
        if None in down:
            outcome.wrong.append(f"no downtime was told although the old model serves: {down}")
        elif down[1] > 1.5 * down[0] + _SLACK_S:
            outcome.wrong.append(f"the old model was down for {down[1]:.1f} s the second time, {down[0]:.1f} s the first")

    def _succeeds(self, outcome: Outcome, failing: Failing) -> None:
        again = Controller(self.subject.new, [self.subject.host.name], *self._words(failing)).end()
        answer = complete(self.subject.host, self.subject.new)
        outcome.again_ok = again.rc == 0 and answer is None
        if not outcome.again_ok:
            outcome.told.append(again.out)
            outcome.wrong.append(f"without the failure the same command ended with {again.rc}; the new model: {answer or 'serves'}")
