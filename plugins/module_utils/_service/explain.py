# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a server did not come: its journal, read for a person."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Optional

from .._core.errors import GpuFleetError
from .._diagnosis.classify import Diagnosis, DiagnosisContext, classify
from .._model.facts import read_model
from .._preflight.removed import REMOVED
from .._server.ready import ReadyState
from .look import Look
from .memory import as_now, holder_text
from .ports import Ports
from .ready import NotReady
from .request import FREE_MAX_USED_MIB

# A message with more holders than this is a list nobody reads; gpu_memory_facts has them all.
_NAMED = 4
_MEMORY = ("memory_not_free", "oom_load", "oom_warmup")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def explain(failure: NotReady, look: Look, ports: Ports) -> Diagnosis:
    """Classify the journal of the failed invocation. A journal that cannot be read is said to be so."""
    status = failure.status
    context = DiagnosisContext(
        unit=status.unit,
        result=status.result,
        exit_status=status.exec_main_status,
        exit_code=status.exec_main_code,
        start_pre_status=status.start_pre_status,
        start_pre_path=status.start_pre_path,
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
    found = _with_replacements(_with_holders(classify(lines, context), look, ports))
    return found if failure.unwell is None else _with_answer(found, failure.unwell, status.unit)


def _with_answer(found: Diagnosis, answer: ReadyState, unit: str) -> Diagnosis:
    """A server that is up and answers amiss: more time does not mend it, whatever its journal lacks."""
    if found.kind not in ("timeout", "unknown"):
        return found
    summary = "the server is up, but does not serve: %s" % answer.detail
    if answer.other_name:
        advice = "Set served_name to a name that it serves, or find who else listens there (`ss -ltnp`)."
        return Diagnosis("unknown", summary, found.evidence, advice)
    if found.kind == "timeout":
        return Diagnosis("unknown", summary, found.evidence, "Read its journal: journalctl -u %s" % unit)
    return replace(found, summary="%s; in its journal: %s" % (summary, found.summary))


def _with_holders(found: Diagnosis, look: Look, ports: Ports) -> Diagnosis:
    """vLLM says that memory was missing, never who has it: the driver is asked while he may still be there."""
    if found.kind not in _MEMORY or not look.gpus:
        return found
    # What was to fit may have failed for another's few MiB; weights that are too large did not fail for those of an idle process.
    least = 0 if found.kind == "memory_not_free" else FREE_MAX_USED_MIB
    try:
        with ports.open_reader() as reader:
            now = as_now(look.gpus, reader.snapshot())
    except (GpuFleetError, OSError) as exc:
        return replace(found, advice="%s Who holds it could not be read (%s)." % (found.advice, exc))
    strangers = [
        "%s on GPU %d" % (holder_text(process), gpu.index)
        for gpu in now for process in gpu.processes
        if process.unit != look.view.unit and process.state == "running" and (process.used_mib is None or process.used_mib >= least)
    ]
    if not strangers:
        return found
    named = "; ".join(strangers[:_NAMED])
    more = "; and %d more" % (len(strangers) - _NAMED) if len(strangers) > _NAMED else ""
    return replace(found, advice="%s%s. %s" % (named[0].upper() + named[1:], more, found.advice))


def _with_replacements(found: Diagnosis) -> Diagnosis:
    """What takes the place of flags that vLLM once had."""
    if found.kind != "bad_argument":
        return found
    flags = dict.fromkeys(flag for line in (found.summary, *found.evidence) for flag in _FLAG.findall(line))
    said = ["%s: %s." % (flag, REMOVED[name]) for flag, name in ((flag, _name_of(flag)) for flag in flags) if name in REMOVED]
    return replace(found, advice=" ".join([*said, found.advice])) if said else found


def _name_of(flag: str) -> str:
    name = flag.lstrip("-").replace("-", "_")
    return name[3:] if name.startswith("no_") and name not in REMOVED else name


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
