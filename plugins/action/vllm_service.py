# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets the module begin the change, then follows the host's job: shows how far it is, and survives a lost connection."""

from __future__ import annotations

import shlex
import shutil
import sys
from typing import Any, Dict, List, Mapping, Optional

from ansible import constants, context
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _resident
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._first import begin, behind
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._follow import (
    Ended,
    Follower,
    Host,
    Lost,
    Unanswered,
    parse_answer,
)
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._progress import line_of
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._table import cell_text
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._task_args import (
    may_be_begun_twice,
    patience,
    taken_apart,
    truth,
)
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._task_result import as_asked, merged
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._terminal import UNSEEN, for_people, pace_for

MODULE = "gpufleet.vllm.vllm_service"
PROGRAM = "/usr/local/lib/gpufleet/change.pyz"


class ActionModule(ActionBase):
    """Without a change of servers it is the module in one round trip."""

    _supports_check_mode = True
    _supports_async = True
    # Another module whose work is a job of the host is followed in the same way.
    module = MODULE
    # What is there in any case when it failed.
    failed_with: Mapping[str, Any] = {"actions": [], "rolled_back": False}

    def run(self, tmp: Any = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        """See the module's documentation."""
        result: Dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        args = taken_apart(dict(self._task.args))
        if self._task.async_val or self._task.check_mode:
            result.update(self.ask(args, task_vars))
            return result
        waits, twice = truth(args.get("wait", True)), may_be_begun_twice(args)
        shows = not self._task.no_log and for_people(constants.config.get_config_value("DEFAULT_STDOUT_CALLBACK"))
        remote = Remote(self, args, task_vars, shows)
        pace = pace_for(_side_by_side(task_vars)) if shows else UNSEEN

        def follow_first(change: str, step: Mapping[str, Any]) -> None:
            remote.say("first this is brought to its end: %s, %s" % (step.get("target"), step.get("reason")))
            # The module, run to wait for this one's end, would begin the task's own after it.
            ended = Follower(remote, pace, patience(args), twice=False).end_of(change)
            if ended.get("failed"):
                remote.say("it has ended, and failed: %s" % ended.get("msg"))

        try:
            begun, before = begin(lambda: self._begin(remote, twice) if waits else self.ask(args, task_vars), follow_first)
        except Lost as lost:
            raise AnsibleConnectionFailure(str(lost)) from None
        job = begun.get("job")
        if not waits or not isinstance(job, Mapping) or begun.get("failed"):
            result.update(behind(before, as_asked(begun) if waits else begun))
            return result
        try:
            done = Follower(remote, pace, patience(args), twice=twice).end_of(str(job["id"]))
        except Lost as lost:
            raise AnsibleConnectionFailure(str(lost)) from None
        except Ended as ended:
            done = {"failed": True, "changed": True, "msg": str(ended)}
        else:
            self.heard(remote, str(job["id"]))
        result.update(behind(before, merged(as_asked(begun), done, bool(self._task.diff), self.failed_with)))
        return result

    def heard(self, remote: "Remote", change: str) -> None:
        """Called when what came of the change has arrived here."""

    def ask(self, args: Dict[str, Any], task_vars: Dict[str, Any]) -> Dict[str, Any]:
        """The module's result, in one round trip. Raises AnsibleConnectionFailure."""
        result = None if self._task.async_val else self._by_program(args)
        if result is None:
            wrap_async = bool(self._task.async_val) and not self._connection.has_native_async
            result = self._execute_module(module_name=self.module, module_args=args, task_vars=task_vars, wrap_async=wrap_async)
        return result

    def _by_program(self, args: Dict[str, Any]) -> Optional[Dict[str, Any]]:
        """The same of the program that is on the host already; None where that has nothing to say, and has done nothing that the
        module would not find and go on with."""
        again = self._task.check_mode or may_be_begun_twice(args)
        can = self._is_pipelining_enabled("new") and not any(self._task.environment or ())
        if self.module != MODULE or _resident.DIGEST is None or not again or not can:
            return None
        request = _resident.request_of(args, bool(self._task.check_mode), bool(self._task.diff))
        if request is None:
            return None
        done = self._low_level_execute_command("%s module %s" % (PROGRAM, _resident.DIGEST), in_data=request.document)
        result = _resident.result_of(request, _resident.DIGEST, int(done["rc"]), done["stdout"])
        if result is None:
            Display().vv("%s on the host is not there, or of another version: the module is sent." % PROGRAM)
        return result

    def _begin(self, remote: "Remote", twice: bool) -> Dict[str, Any]:
        """Run the module. A connection that breaks under it says nothing of the host: it is tried once more, which does no harm."""
        try:
            return remote.module(wait=False)
        except Lost as lost:
            if not twice:
                raise AnsibleConnectionFailure(str(lost)) from None
        remote.reset()
        try:
            return remote.module(wait=False)
        except Lost as lost:
            raise AnsibleConnectionFailure(str(lost)) from None


class Remote(Host):
    """The host of one task, by way of its action plugin."""

    def __init__(self, action: ActionModule, args: Mapping[str, Any], task_vars: Dict[str, Any], shows: bool) -> None:
        self._action = action
        self._args = args
        self._task_vars = task_vars
        self._shows = shows
        self._name = _host_name(action, task_vars)
        self._padded = self._name.ljust(_padding(task_vars))

    def attend(self, change: str, phase: str, seconds: float, steady: float) -> Dict[str, Any]:
        """See the port."""
        words = [PROGRAM, "attend", change, "--for", "%g" % seconds, "--steady", "%g" % steady]
        return self._asked(words + (["--phase", phase] if phase else []))

    def result(self, change: str, seconds: float) -> Dict[str, Any]:
        """See the port."""
        return self._asked([PROGRAM, "result", change, "--for", "%g" % seconds])

    def _asked(self, words: List[str]) -> Dict[str, Any]:
        """What the program says. What else the host has said is nobody's business where the task has ``no_log``."""
        try:
            done = self._action._low_level_execute_command(" ".join(map(shlex.quote, words)))
        except AnsibleConnectionFailure as exc:
            raise Lost(_brief(exc)) from None
        try:
            return parse_answer(int(done["rc"]), done["stdout"], done["stderr"])
        except (Lost, Unanswered) as exc:
            if not self._action._task.no_log:
                raise
            raise type(exc)("exit status %d, its output is hidden by no_log" % int(done["rc"])) from None

    def received(self, change: str) -> None:
        """Let the host know that what came of the change has arrived. Where that fails, it is told once more to whoever asks again."""
        try:
            self._action._low_level_execute_command(" ".join(map(shlex.quote, [PROGRAM, "received", change])))
        except AnsibleConnectionFailure as exc:
            Display().vv("%s: %s" % (self._name, _brief(exc)))

    def resume(self, change: str) -> Dict[str, Any]:
        """See the port."""
        return self._asked([PROGRAM, "resume", change])

    def again(self) -> Dict[str, Any]:
        """See the port."""
        return self.module(wait=True)

    def module(self, wait: bool) -> Dict[str, Any]:
        """The module's result. Raises Lost."""
        args = dict(self._args, wait=wait)
        try:
            return self._action.ask(args, self._task_vars)
        except AnsibleConnectionFailure as exc:
            raise Lost(_brief(exc)) from None

    def reset(self) -> None:
        """See the port."""
        try:
            self._action._connection.reset()
        except (AnsibleConnectionFailure, NotImplementedError) as exc:
            Display().vv("%s: resetting the connection: %s" % (self._name, exc))

    def tell(self, news: Mapping[str, Any]) -> None:
        """See the port."""
        if self._shows:
            Display().display(line_of(self._padded, news, _width()))

    def say(self, text: str) -> None:
        """One line for people, between those of how far it is."""
        if self._shows:
            Display().display("%s  %s" % (self._padded, " ".join(cell_text(text).split("\n"))))

    def warn(self, text: str) -> None:
        """See the port."""
        # Not warning(): those are kept until the task has ended.
        Display().display("[WARNING] %s: %s" % (self._name, text), color=constants.COLOR_WARN, stderr=True)


def _side_by_side(task_vars: Mapping[str, Any]) -> int:
    """How many hosts tell of themselves at the same time."""
    hosts: List[str] = list(task_vars.get("ansible_play_batch") or [])
    forks = context.CLIARGS.get("forks") or constants.DEFAULT_FORKS
    return max(1, min(len(hosts), int(forks)))


def _host_name(action: ActionModule, task_vars: Mapping[str, Any]) -> str:
    name = str(task_vars.get("inventory_hostname") or "host")
    delegate = action._task.delegate_to
    return "%s -> %s" % (name, delegate) if delegate else name


def _padding(task_vars: Mapping[str, Any]) -> int:
    """The lines of hosts side by side begin alike."""
    return min(40, max([len(str(host)) for host in task_vars.get("ansible_play_batch") or []], default=0))


def _brief(exc: Exception) -> str:
    lines = [line.strip() for line in str(getattr(exc, "message", None) or exc).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(exc).__name__


def _width() -> int:
    return shutil.get_terminal_size((200, 24)).columns if sys.stdout.isatty() else 200
