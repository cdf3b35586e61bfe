# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a server did not come: its journal, read for a person."""

from __future__ import annotations

from .._core.errors import GpuFleetError
from .._diagnosis.classify import Diagnosis, DiagnosisContext, classify
from .look import Look
from .ports import Ports
from .ready import NotReady


def explain(failure: NotReady, look: Look, ports: Ports) -> Diagnosis:
    """Classify the journal of the failed invocation. A journal that cannot be read is said to be so."""
    status = failure.status
    context = DiagnosisContext(
        unit=status.unit,
        result=status.result,
        exit_status=status.exec_main_status,
        exit_code=status.exec_main_code,
        start_pre_status=status.start_pre_status,
        restarts=status.n_restarts,
        timed_out=failure.timed_out,
    )
    try:
        lines = [line.text for line in ports.journal.lines(status.unit, status.invocation_id or None)]
    except GpuFleetError as exc:
        return Diagnosis("unknown", "The journal could not be read: %s" % exc.msg, (), "Look at `journalctl -u %s`." % status.unit)
    return classify(lines, context)
