# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A change in the middle of which nobody walks away.

When the controller or its connection dies, the SSH session's end arrives here as SIGHUP. The change is then finished all
the same: a server that was stopped is not left down because a laptop was closed. SIGTERM and SIGINT are somebody's wish
to stop now: the change ends with a failure, which puts back what was there before.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from types import FrameType
from typing import Iterator, Optional

from .._core.errors import GpuFleetError

_ASKING = (signal.SIGTERM, signal.SIGINT)


class Interrupted(BaseException):
    """Somebody asked this run to end; ``msg`` says how.

    No Exception: it arrives in the middle of anything, and nobody on the way may take it for what became of that, such as a server that
    gave no answer. Whoever can put back what was changed makes a failure of it.
    """

    def __init__(self, msg: str) -> None:
        super().__init__(msg)
        self.msg = msg


_shields = 0


@contextmanager
def shielded() -> Iterator[None]:
    """Ignore SIGHUP and SIGPIPE; turn the first SIGTERM or SIGINT into Interrupted and ignore the ones after it.

    Where nobody inside has made a failure of it, it leaves as a GpuFleetError.
    """
    global _shields
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM, signal.SIGINT)}

    def stop(number: int, _frame: Optional[FrameType]) -> None:
        past_return()  # the way back must not be interrupted as well
        raise Interrupted("This run was asked to end (%s)." % signal.Signals(number).name)

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    _shields += 1
    try:
        yield
    except Interrupted as exc:
        raise GpuFleetError(exc.msg) from exc
    finally:
        _shields -= 1
        for number, handler in before.items():
            signal.signal(number, handler)


def past_return() -> None:
    """Nobody is listened to any more until the shield ends: what is put back now is put back whole."""
    if _shields:
        for each in _ASKING:
            signal.signal(each, signal.SIG_IGN)
