# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Borrowing the GPUs of a fleet: what is wrong with a request, and the table of what came of it."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ansible.errors import AnsibleFilterError
from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpufleet.vllm.plugins.module_utils._borrow.request import to_borrow
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.select import malformed

from ._names import refusals, slips, unknown
from ._playbooks import OWN
from ._readers import Readers
from ._report import plain

PREFIX = "gpu_borrow_"
# What the role leaves, and no request.
_RESULT = PREFIX + "result"
# What the role takes besides; what the playbook has a name of its own for is left out.
OPTIONS = (
    "env", "secrets", "chdir", "user", "timeout", "grace", "max_used_mib", "output_kib", "drain_timeout", "stop_timeout", "ready_timeout",
    "reconnect_timeout", "force",
)  # fmt: skip
NUMBERS = ("timeout", "grace", "max_used_mib", "output_kib", "drain_timeout", "stop_timeout", "ready_timeout", "reconnect_timeout")
TRUTHS = ("force", "wait")
_FAILED_BEFORE = "it had failed before this playbook, in the same run"
_WORDS = {
    "succeeded": "succeeded", "failed": "FAILED", "timed out": "TIMED OUT", "killed": "KILLED", "not begun": "NOT BEGUN",
    "stopped": "STOPPED",
}  # fmt: skip


def faults(
    asked: Mapping[str, Any],
    names: Iterable[str],
    hosts: Optional[Mapping[str, Mapping[str, Any]]] = None,
    readers: Optional[Readers] = None,
) -> List[str]:
    """What is wrong with a request, before any host is touched.

    ``names`` are the variables that were set on the command line, which ``readers`` may read instead, ``hosts`` the variables of each
    host: what ``asked`` does not say is theirs to say.
    """
    names = list(names)
    odd = slips([name for name in names if name != _RESULT], OWN["borrow_gpus"], PREFIX, OPTIONS)
    found = ["there is no variable wait here: the playbook always waits for the end"] if "wait" in names else []
    odd.update(dict.fromkeys(["wait"], found[0]) if found else {})
    found = refusals(odd, readers or Readers())
    said: Dict[str, List[str]] = {}
    for host, variables in (hosts or {"": {}}).items():
        for fault in _slips_of(variables) + _faults_of(_request_of(asked, variables)):
            said.setdefault(fault, []).append(str(host))
    everywhere = len(hosts or {"": {}})
    return found + [fault if len(on) == everywhere else "%s (%s)" % (fault, ", ".join(on)) for fault, on in said.items()]


def _slips_of(variables: Mapping[str, Any]) -> List[str]:
    """The names in a host's variables that look as if a borrowing read them: it would do without what they ask for."""
    known = [PREFIX + name for name in ("command", "gpus", *OPTIONS, "wait")]
    return [unknown(str(name), known) for name in variables if str(name).startswith(PREFIX) and name not in (*known, _RESULT)]


def _request_of(asked: Mapping[str, Any], variables: Mapping[str, Any]) -> Dict[str, Any]:
    """What one host is asked for: its own variables where the run does not say otherwise."""
    own = {option: variables[PREFIX + option] for option in ("command", "gpus", *OPTIONS) if PREFIX + option in variables}
    return {name: plain(value) for name, value in {"gpus": ["all"], **own, **{str(name): value for name, value in asked.items()}}.items()}


def _faults_of(given: Dict[str, Any]) -> List[str]:
    if given.get("command") in (None, ""):
        return ["no command is given: say which one with `command`, such as -e '{\"command\": \"/opt/bench/gemm\"}'"]
    odd = ["`%s%s` is %r. It is a whole number" % (PREFIX, name, given[name]) for name in NUMBERS if not _whole(given.get(name))]
    odd += ["`%s%s` is %r. It is true or false" % (PREFIX, name, given[name]) for name in TRUTHS if not _true_or_false(given.get(name))]
    odd += ["`%s%s` is no dictionary" % (PREFIX, name) for name in ("env", "secrets") if not isinstance(given.get(name) or {}, Mapping)]
    if odd:
        return odd
    gpus = given.get("gpus")
    words = gpus.split(",") if isinstance(gpus, str) else [gpus] if isinstance(gpus, int) else list(gpus or [])
    try:
        request = to_borrow(dict(given, gpus=words))
    except (GpuFleetError, TypeError, ValueError) as exc:
        return [_as_variables(str(exc).rstrip("."))]
    return ["%r in gpus is no GPU: give an index, a UUID, a PCI id, or all" % word for word in request.gpus if malformed(word)]


def _as_variables(text: str) -> str:
    """The module's message with the names by which the playbook takes its options."""
    return re.sub(r"`(%s)\b" % "|".join(OPTIONS), r"`%s\1" % PREFIX, text)


def _whole(value: Any) -> bool:
    return value is None or not isinstance(value, bool) and re.fullmatch(r"\s*-?\d+\s*", str(value)) is not None


def _true_or_false(value: Any) -> bool:
    try:
        return value is None or isinstance(boolean(value), bool)
    except TypeError:
        return False


def not_put_back(results: Any) -> List[str]:
    """The hosts that may be without what served on them: no other host gives its GPUs away before somebody has looked."""
    return [host for host, result in _by_host(results).items() if _word(result)[0] in ("NOT PUT BACK", "UNREACHABLE", "UNKNOWN")]


def rows_of(results: Any, left_out: Sequence[str] = ()) -> List[Dict[str, Any]]:
    """One row per host. ``left_out`` are those that had failed before, in the same run of several playbooks."""
    rows = [_row(host, result) for host, result in _by_host(results).items()]
    return [dict(row, detail=_FAILED_BEFORE) if row["host"] in left_out else row for row in rows]


def _by_host(results: Any) -> Dict[str, Mapping[str, Any]]:
    if not isinstance(results, Mapping):
        raise AnsibleFilterError("borrow_rows takes a dictionary of results by host, not %s" % type(results).__name__)
    return {str(host): result if isinstance(result, Mapping) else {} for host, result in results.items()}


def _row(host: str, result: Mapping[str, Any]) -> Dict[str, Any]:
    word, fine = _word(result)
    services = [each for each in result.get("services") or [] if each.get("back") is not None or not result.get("failed")]
    timings = result.get("timings") or {}
    return {
        "host": host,
        "result": word,
        "ok": fine,
        "gpus": ",".join(str(gpu) for gpu in result.get("gpus") or []) or None,
        "rc": result.get("rc"),
        "seconds": result.get("seconds"),
        "services": "; ".join(_service(each) for each in services) or None,
        "downtime_s": timings.get("downtime"),
        "total_s": timings.get("total"),
        "last_line": _last_line(result.get("output")),
        "left_behind": len(result.get("left_behind") or []),
        "detail": _detail(result, fine),
    }


def _service(each: Mapping[str, Any]) -> str:
    back = each.get("back")
    word = "NOT BACK"
    if back is None:
        word = "would be stopped and put back"
    elif back:
        word = str(each.get("seen") or "runs again")
    return "%s %s" % (each.get("name"), word)


def _word(result: Mapping[str, Any]) -> Tuple[str, bool]:
    """(the word for it, whether the host is as it should be)."""
    if result.get("unreachable"):
        return "UNREACHABLE", False
    if not result:
        return "not begun", False
    if result.get("failed"):
        if "actions" not in result:
            return "UNKNOWN", False  # no word of the module itself
        if result.get("put_back") is False:
            return "NOT PUT BACK", False
        if result.get("outcome") in ("failed", "timed out", "killed", "not begun", "stopped"):
            return _WORDS[str(result["outcome"])], False
        done = result.get("services") or result.get("ended_processes")
        return ("GAVE UP", False) if result.get("changed") and done else ("refused", False)
    if result.get("put_back") is None and result.get("outcome") == "succeeded":
        return "stands", True
    if result.get("put_back") is None:
        following = any(each.get("action") == "follow" for each in result.get("actions") or [])
        return "under way" if following else "would run", True
    return _WORDS.get(str(result.get("outcome")), str(result.get("outcome"))), True


def _detail(result: Mapping[str, Any], fine: bool) -> Optional[str]:
    ended = (result.get("job") or {}).get("ended")
    said = ["this is what came of the run that ended at %s, which nobody had heard of; it was not run again" % ended] if ended else []
    left = result.get("left_behind") or []
    if not fine:
        said += str(result.get("msg") or "").strip().splitlines()
        return _joined(said) or ("no host after one that is not put back gives its GPUs away" if not result else None)
    if result.get("put_back") is None and result.get("outcome") == "succeeded":
        said += [str(result["detail"])] if result.get("detail") else []
    elif left:
        said.append("it left %d process%s behind, ended since" % (len(left), "" if len(left) == 1 else "es"))
    return _joined(said) or None


def _joined(said: Sequence[str]) -> str:
    """Sentences one after the other, and what is none behind a semicolon."""
    return "".join(text if number == len(said) else text + (" " if text.endswith(".") else "; ") for number, text in enumerate(said, 1))


def _last_line(output: Any) -> Optional[str]:
    lines = [line.strip() for line in str(output or "").splitlines() if line.strip()]
    return lines[-1][:200] if lines else None
