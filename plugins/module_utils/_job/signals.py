# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When the job is asked to end.

Somebody who stops the job (``systemctl stop``) wants the change not to be: what was there before is put back, and that is not
interrupted by anything but the end of the host. So it is listened to only where that can be done, and noted everywhere else. When
the host goes down, systemd stops everything: then the job leaves at once, without a trace but its record, and the next boot goes on.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from types import FrameType
from typing import Iterator, Optional

from .._core.runner import Runner
from .._service.interrupts import Interrupted

_LOOK_S = 5


class Leave(BaseException):
    """End at once, and change nothing any more. No Exception: nobody on the way may take it for a failure to be undone."""


class Signals:
    """``undoing`` is set when the change is past the point at which it could be given up.

    ``listening`` is whether Interrupted may be raised; where it is not, it is as soon as it is again.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._asked = False
        self._noted: Optional[str] = None
        self.listening = True
        self.undoing = False

    def leave_with_host(self) -> None:
        """Raise Leave when the host is going down."""
        if self._runner.run(["systemctl", "is-system-running"], timeout=10.0).stdout.strip() == "stopping":
            raise Leave("the host is going down")

    def give_up(self, number: int, _frame: Optional[FrameType] = None) -> None:
        """The handler of SIGTERM and SIGINT."""
        self.leave_with_host()
        if self._asked or self.undoing:
            return
        self._asked = True
        # systemd asks once: if the host goes down while the old server loads, nobody would say so.
        signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
        text = "This change was asked to end (%s)." % signal.Signals(number).name
        if self.listening:
            raise Interrupted(text)
        self._noted = text

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Inside, somebody who asks is listened to, also who has asked before."""
        try:
            self.listening = True
            noted, self._noted = self._noted, None
            if noted is not None and not self.undoing:
                raise Interrupted(noted)
            yield
        finally:
            self.listening = False

    def look(self, _number: int, _frame: Optional[FrameType] = None) -> None:
        """The handler of the timer."""
        self.leave_with_host()

    @contextmanager
    def handled(self) -> Iterator[None]:
        """The handlers are in place inside."""
        wanted = {signal.SIGTERM: self.give_up, signal.SIGINT: self.give_up, signal.SIGALRM: self.look}
        before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)
