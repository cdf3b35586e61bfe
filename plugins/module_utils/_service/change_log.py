# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a change tells while it happens, as a port: what it is about to do, and how far it is.

A change that runs in the module's own process tells nobody. One that runs as a job of the host writes both down
(``_job/``): the first so that it can be undone or finished whatever happens, the second so that people can follow it.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from .._core.errors import GpuFleetError
from .._systemd.show import UnitStatus
from .interrupts import past_return
from .outcome import Undo

# Until which point a change has come, in the order in which it comes there. From COMMITTING on the new server was seen to serve.
STAGING, STOPPING, STARTING, COMMITTING, ROLLING_BACK = "staging", "stopping", "starting", "committing", "rolling_back"


class ChangeLog:
    """Tells nobody."""

    def intend(self, stage: str, undo: Undo, more: Optional[Dict[str, Any]] = None) -> None:
        """Called *before* something is changed, with all that will then have to be put back. Must be on disk on return."""

    def try_to_intend(self, stage: str, undo: Undo, more: Optional[Dict[str, Any]] = None) -> List[str]:
        """The same where nothing may fail for a disk that is full: what went wrong, if anything, as warnings."""
        try:
            self.intend(stage, undo, more)
        except (GpuFleetError, OSError) as exc:
            return ["How far this change is could not be written down: %s" % exc]
        return []

    def phase(self, name: str) -> None:
        """``preflight``, ``warm``, ``drain``, ``stop``, ``settle``, ``load``, ``ready``, ``commit`` or ``rollback`` begins."""

    def tell(self, **news: Any) -> None:
        """How far the phase is, as figures."""

    def seen(self, status: UnitStatus, detail: str) -> None:
        """A look at a server that is being waited for. Called up to five times a second."""

    def may_undo(self) -> None:
        """Called before anything is put back: whoever asks the change to end has come too late from now on, for that is what is done.

        Does not return where it has to be left to the next boot.
        """
        past_return()

    def fault(self, trace: str) -> str:
        """Called with the traceback of what nobody foresaw; where a person finds it: Ansible takes it out of a result."""
        return "this: %s" % trace
