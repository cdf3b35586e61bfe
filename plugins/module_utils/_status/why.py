# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a service has failed, by its journal: the diagnosis of a failed start, for a failure that nobody has watched."""

from __future__ import annotations

from typing import Optional

from .._core.errors import GpuFleetError
from .._diagnosis.classify import Diagnosis, DiagnosisContext, classify
from .._service.ports import Ports
from .._systemd.show import UnitStatus

# States in which a process has ended on its own account.
FAILED = ("failed", "crashing")


def why_failed(status: UnitStatus, port: Optional[int], ports: Ports) -> Diagnosis:
    """Classify the journal of the last run. A journal that can't be read is said to be so."""
    context = DiagnosisContext(
        unit=status.unit, result=status.result, exit_status=status.exec_main_status, exit_code=status.exec_main_code,
        start_pre_status=status.start_pre_status, start_pre_path=status.start_pre_path, restarts=status.n_restarts, port=port,
    )  # fmt: skip
    try:
        lines = [line.text for line in ports.journal.lines(status.unit, status.invocation_id or None)]
    except GpuFleetError as exc:
        return Diagnosis("unknown", "its journal could not be read: %s" % exc.msg, (), "Look at `journalctl -u %s`." % status.unit)
    return classify(lines, context)
