# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of a clean-up of a fleet: one row per host."""

from __future__ import annotations

from typing import AbstractSet, Any, Dict, FrozenSet, List, Mapping, Optional

from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.reasons import NO_SUCH_UNIT, NO_SUCH_USER
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.reset import WOULD_RESET

# What a slip in a name looks like in a host's result, and the word for it.
_SLIPS = {NO_SUCH_UNIT: "NO SUCH UNIT", NO_SUCH_USER: "NO SUCH USER"}
# What names it, in the words of the command line.
_NAMED_BY = {NO_SUCH_UNIT: ("unit", "gpu_reclaim_services"), NO_SUCH_USER: ("user", "gpu_reclaim_users")}


def rows_of(results: Any) -> List[Dict[str, Any]]:
    """One row per host for the table and the report of a clean-up."""
    if not isinstance(results, Mapping):
        raise AnsibleFilterError("cleanup_rows takes a dictionary of results by host, not %s" % type(results).__name__)
    by_host = {str(host): result if isinstance(result, Mapping) else {} for host, result in results.items()}
    nowhere = {reason: _nowhere(by_host, reason) for reason in _SLIPS}
    return [_row(host, result, nowhere) for host, result in by_host.items()]


def _nowhere(by_host: Mapping[str, Mapping[str, Any]], reason: str) -> FrozenSet[str]:
    """The named units, or users, that no host has: a slip. That only some hosts have one is how a fleet is."""
    looked = [_missing(result, reason) for result in by_host.values() if _looked(result)]
    return frozenset(looked[0]).intersection(*looked[1:]) if looked else frozenset()


def _looked(result: Mapping[str, Any]) -> bool:
    """Whether the host's units were looked at: not where the run failed before that."""
    return result.get("left_alone") is not None and bool(result.get("gpus_before") or not result.get("failed"))


def _missing(result: Mapping[str, Any], reason: str) -> List[str]:
    return [str(each.get("name")) for each in result.get("left_alone") or [] if each.get("reason") == reason]


def _row(host: str, result: Mapping[str, Any], nowhere: Mapping[str, FrozenSet[str]]) -> Dict[str, Any]:
    what, fine = _verdict(result)
    slips = {reason: nowhere[reason].intersection(_missing(result, reason)) if fine else frozenset() for reason in _SLIPS}
    said = [_not_there(slips[reason], reason) + ": correct %s" % _NAMED_BY[reason][1] for reason in _SLIPS if slips[reason]]
    if said:
        what, fine = next(word for reason, word in _SLIPS.items() if slips[reason]), False
    # A slip is what the host fails for, and is read first: what is in use beside it is no fault.
    left = said + _left(result)
    left += [_not_there(set(_missing(result, reason)) - slips[reason], reason) for reason in _SLIPS]
    if result.get("reboot_required"):
        left.append("reboot required")
    return {
        "host": host,
        "result": what,
        "ok": fine,
        "freed_mib": _would_free(result) if _is_plan(result) else result.get("freed_mib"),
        "ended": _ended(result),
        "left": "; ".join(filter(None, left)) or (None if fine else _first_line(result)),
        "total_s": (result.get("timings") or {}).get("total"),
    }


def _verdict(result: Mapping[str, Any]) -> "tuple[str, bool]":
    """(the word for it, whether the host is as it should be)."""
    if result.get("unreachable"):
        return "UNREACHABLE", False
    if result.get("lock_holder") is not None:
        return "BUSY", False
    if "freed" not in result:
        return ("FAILED", False) if result else ("not run", False)
    held = result.get("held") or []
    planned = _is_plan(result)
    if planned and result.get("changed"):
        return "would free", True
    if result["freed"]:
        return ("freed" if result.get("changed") else "clean"), True
    if held and all(each.get("verdict") == "in_use" for each in held):
        if result.get("failed"):
            return "IN USE", False
        return ("freed, in use" if result.get("changed") else "in use"), True
    if planned and not result.get("failed"):
        return "would stay dirty", True
    return ("DIRTY" if held else "FAILED"), False


def _is_plan(result: Mapping[str, Any]) -> bool:
    """Check mode signals nothing and takes no time."""
    timings = result.get("timings") or {}
    return not result.get("failed") and timings.get("total") == 0.0


def _ended(result: Mapping[str, Any]) -> Optional[str]:
    selected = {gpu.get("index") for gpu in result.get("gpus_before") or []}
    parts = ["%s%s (%s)" % (_unit(each), _elsewhere(each, selected), str(each.get("result")).replace("_", " "))
             for each in result.get("stopped_units") or []]
    for each in result.get("signalled") or []:
        how = "+".join(each.get("signals") or []) or str(each.get("outcome")).replace("_", " ")
        gpus = ",".join(str(gpu) for gpu in each.get("gpus") or [])
        parts.append("%s pid %s on GPU %s (%s)" % (each.get("name"), each.get("pid"), gpus, how))
    parts += ["GPU %s reset" % each.get("gpu") for each in result.get("resets") or [] if each.get("done")]
    parts += ["GPU %s (would reset)" % each.get("gpu") for each in result.get("resets") or [] if each.get("detail") == WOULD_RESET]
    parts += ["%s (%s MiB)" % (each.get("path"), each.get("mib")) for each in result.get("shm_removed") or []]
    return "; ".join(parts) or None


def _unit(stopped: Mapping[str, Any]) -> str:
    return str(stopped.get("unit")) + (" of user %s" % stopped["user"] if stopped.get("user") else "")


def _elsewhere(stopped: Mapping[str, Any], selected: AbstractSet[Any]) -> str:
    """What ends with a unit on GPUs that were not selected."""
    names = ["%s pid %s on GPU %s" % (each.get("name"), each.get("pid"), ",".join(str(gpu) for gpu in sorted(each["gpus"])))
             for each in stopped.get("processes") or [] if not set(each.get("gpus") or []) <= selected]
    return " with " + ", ".join(names) if names else ""


def _would_end(holder: Mapping[str, Any]) -> bool:
    """Whether a plan ends this holder: its fate there, in the words of the module."""
    return str(holder.get("reason")) in ("it would be ended", "its unit would be stopped")


def _would_free(result: Mapping[str, Any]) -> int:
    """MiB that the driver lists for what a plan ends."""
    holders = [holder for each in result.get("held") or [] for holder in each.get("holders") or []]
    return sum(holder.get("used_mib") or 0 for holder in holders if _would_end(holder))


def _stays(held: Mapping[str, Any]) -> Optional[Mapping[str, Any]]:
    """What a plan leaves on a GPU, None when nothing is known to stay."""
    holders = [holder for holder in held.get("holders") or [] if not _would_end(holder)]
    if len(holders) == len(held.get("holders") or []):
        return held
    ended = [holder.get("used_mib") for holder in held["holders"] if _would_end(holder)]
    used = max(0, (held.get("used_mib") or 0) - sum(each or 0 for each in ended))
    # Who only has the device node open holds what no list shows.
    if used <= (held.get("limit_mib") or 0) or (None in ended and not holders):
        return None
    return dict(held, holders=holders, used_mib=used)


def _not_there(names: AbstractSet[str], reason: str) -> str:
    """Which of the named units, or users, the host does not have; nothing where it has all."""
    return "there is no %s %s on this host" % (_NAMED_BY[reason][0], ", ".join(sorted(names))) if names else ""


def _left(result: Mapping[str, Any]) -> List[str]:
    """What is still held, said once for GPUs with the same holders and the same reasons; what should be gone comes first."""
    gpus_by_text: Dict[str, List[str]] = {}
    reset = {each.get("gpu") for each in result.get("resets") or [] if each.get("detail") == WOULD_RESET}
    staying = [found for found in map(_stays, result.get("held") or []) if found is not None and found.get("gpu") not in reset]
    for each in sorted(staying, key=lambda one: one.get("verdict") == "in_use"):
        used = "" if each.get("used_mib") is None else " (%s MiB)" % each["used_mib"]
        gpus_by_text.setdefault(_holders(each), []).append("%s%s" % (each.get("gpu"), used))
    parts = ["GPU %s: %s" % (", ".join(gpus), text) for text, gpus in gpus_by_text.items()]
    for each in result.get("unkillable") or []:
        parts.append("pid %s (%s) can't be ended, state %s" % (each.get("pid"), each.get("name"), each.get("state")))
    return parts


def _holders(held: Mapping[str, Any]) -> str:
    if held.get("verdict") == "unreadable":
        return "can't be read (%s: %s)" % (held.get("state"), held.get("error") or "no detail")
    if held.get("verdict") == "in_use":
        return "in use by %s" % ", ".join(sorted({_user_of(each) for each in held.get("holders") or []}))
    holders = ["%s pid %s: %s" % (each.get("name"), each.get("pid"), each.get("reason")) for each in held.get("holders") or []]
    return "; ".join(holders) or "held by no process that can be seen"


def _user_of(holder: Mapping[str, Any]) -> str:
    """Who uses a GPU by right: a service by its name, any other process with the reason why it is left alone."""
    unit = str(holder.get("unit") or "")
    if unit.endswith(".service"):
        return unit
    return "%s pid %s (%s)" % (holder.get("name"), holder.get("pid"), holder.get("reason"))


def _first_line(result: Mapping[str, Any]) -> Optional[str]:
    lines = str(result.get("msg") or "").strip().splitlines()
    return lines[0] if lines else None
