# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a server did not come: its journal, read for a person."""

from __future__ import annotations

from typing import Any, Optional

from .._core.errors import GpuFleetError
from .._diagnosis.classify import Diagnosis, DiagnosisContext, classify
from .._model.facts import read_model
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
        port=look.spec.port if look.spec is not None else None,
        max_num_seqs=_whole(look.spec.args.get("max_num_seqs")) if look.spec is not None else None,
        vocab_size=_vocabulary(look),
    )
    try:
        lines = [line.text for line in ports.journal.lines(status.unit, status.invocation_id or None)]
    except GpuFleetError as exc:
        return Diagnosis("unknown", "The journal could not be read: %s" % exc.msg, (), "Look at `journalctl -u %s`." % status.unit)
    return classify(lines, context)


def _vocabulary(look: Look) -> Optional[int]:
    """Only makes the advice on a warm-up more exact; a model that cannot be read has its own check."""
    if look.spec is None or not look.spec.local_model:
        return None
    try:
        return read_model(look.spec.model).vocab_size
    except GpuFleetError:
        return None


def _whole(value: Any) -> Optional[int]:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None
