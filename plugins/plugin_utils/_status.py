# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The status of a fleet: what its hosts are asked, and the table of what they say."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible.errors import AnsibleFilterError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.gpufleet.vllm.plugins.module_utils._catalogue.resolve import examine
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.arguments import ARGUMENT_SPEC, asked
from ansible_collections.gpufleet.vllm.plugins.module_utils._status.unreadable import unreadable

from ._report import plain

_GIB = 1024.0
_STATES = {"serves": ("active", "yes"), "silent": ("active", "no answer"), "keyed": ("active", "refused us"),
           "not serving": ("active", "NO"), "loading": ("active", "loading")}  # fmt: skip
_LOUD = ("failed", "crashing", "missing", "masked", "exited", "unknown")
_LONGEST = 300


def declarations(models: Any) -> Dict[str, Any]:
    """``entries``, ``secrets`` and ``revisions`` for the module, and by name the ``faults`` of entries that can't be used."""
    if not isinstance(models, Mapping):
        raise AnsibleFilterError("`models` is a %s. It is the catalogue, a dictionary of models by name." % type(models).__name__)
    made: Dict[str, Any] = {"entries": [], "secrets": {}, "revisions": {}, "faults": {}}
    catalogue = plain(models)
    for name, entry in catalogue.items():
        problems, parameters = examine(catalogue, name)
        if not problems:
            checked = ArgumentSpecValidator(ARGUMENT_SPEC).validate(dict(parameters, replace="conflicting"))
            problems = [str(message) for message in checked.error_messages]
            parameters = checked.validated_parameters
        if problems:
            made["faults"][str(name)] = " ".join(problems)
            continue
        options = asked(parameters)
        secrets = options.pop("secrets", None)
        if secrets:
            made["secrets"][str(name)] = secrets
        if isinstance(entry, Mapping) and entry.get("revision"):
            made["revisions"][str(name)] = str(entry["revision"])
        made["entries"].append(options)
    return made


def rows_of(results: Any, now: float) -> List[Dict[str, Any]]:
    """One row for each service of each host, and one for a host without any."""
    rows: List[Dict[str, Any]] = []
    for host, result in by_host(results).items():
        services = result.get("services") or []
        rows += [_row(host, result, service, now) for service in services] or [_empty(host, result)]
    return rows


def by_host(results: Any) -> Dict[str, Mapping[str, Any]]:
    """The result of each host, an empty one where there is none. Raises AnsibleFilterError."""
    if not isinstance(results, Mapping):
        raise AnsibleFilterError("status_rows takes a dictionary of results by host, not %s" % type(results).__name__)
    return {str(host): result if isinstance(result, Mapping) else {} for host, result in results.items()}


def _row(host: str, result: Mapping[str, Any], service: Mapping[str, Any], now: float) -> Dict[str, Any]:
    state = str(service.get("state"))
    active, ready = _STATES.get(state, (state.upper() if state in _LOUD else state, "no"))
    gpus = [gpu for gpu in result.get("gpus") or [] if gpu.get("index") in (service.get("gpus") or [])]
    since = service.get("since")
    return {
        "host": host,
        "service": service.get("name"),
        "model": os.path.basename(str(service.get("model") or "").rstrip("/")) or None,
        "state": active,
        "ready": ready,
        "gpus": spans(service.get("gpus") or []),
        "gpu_gib": _gib(gpus),
        "up": age(now - since) if isinstance(since, (int, float)) and active == "active" else None,
        "requests": _requests(service),
        "drift": _drift(service),
        "port": service.get("port"),
        "version": service.get("version") or service.get("installed_version"),
        "since": since,
        "ok": state == "serves" and service.get("drift") == [],
    }


def _empty(host: str, result: Mapping[str, Any]) -> Dict[str, Any]:
    state, ready = "no service", None
    if result.get("unreachable"):
        state = "UNREACHABLE"
    elif result.get("timedout"):
        state = "TIMED OUT"
    elif result.get("failed") or not result:
        state = "UNKNOWN"
    gpus = result.get("gpus") or []
    return {
        "host": host, "service": None, "model": None, "state": state, "ready": ready, "gpus": spans([gpu.get("index") for gpu in gpus]),
        "gpu_gib": _gib(gpus), "up": None, "requests": None, "drift": None, "port": None, "version": None, "since": None,
        "ok": state == "no service",
    }  # fmt: skip


def _requests(service: Mapping[str, Any]) -> Optional[str]:
    running, waiting = service.get("requests_running"), service.get("requests_waiting")
    if running is None:
        return None
    return "%d+%d" % (running, waiting or 0) if waiting else str(running)


def _drift(service: Mapping[str, Any]) -> Optional[str]:
    drift = service.get("drift")
    if drift is None:
        return "?" if service.get("drift_unknown") else "undeclared"
    return ", ".join(dict.fromkeys(str(each.get("kind")) for each in drift)) or None


def findings_of(results: Any) -> List[Dict[str, Any]]:
    """What a table of one line a service has no room for: why something does not serve, what has drifted, who else is on the GPUs."""
    found: List[Dict[str, Any]] = []
    for host, result in by_host(results).items():
        if result.get("failed") or result.get("unreachable") or not result:
            lines = unseen(host, result).splitlines()
            found.append({"host": host, "about": "host", "detail": lines[0][:_LONGEST]})
            continue
        found += [{"host": host, "about": about, "detail": detail[:_LONGEST]} for about, detail in _of_host(result)]
    return found


def unseen(host: str, result: Mapping[str, Any]) -> str:
    """Why a host could not be looked at."""
    late = result.get("timedout")
    if not late:
        return str(result.get("msg") or "").strip() or "The host was not looked at: nothing was heard of it."
    # Over a connection that stands, a host that is gone gives no sign but that.
    return (
        "The look did not finish within %s s: the host is gone, or a disk, systemd or the driver hangs there. "
        "Try `ssh %s`; if it answers, see `dmesg`, and `ps -eo pid,stat,wchan:20,args` for processes in state D."
        % (late.get("period", "?") if isinstance(late, Mapping) else "?", host)
    )


def _of_host(result: Mapping[str, Any]) -> "List[tuple[str, str]]":
    found: "List[tuple[str, str]]" = []
    driver = result.get("driver") or {}
    if not driver.get("available"):
        found.append(("driver", "%s: %s" % (driver.get("reason"), driver.get("detail") or "no further detail")))
    elif not driver.get("processes_reliable", True):
        found.append(("driver", "its list of processes failed validation: who is on the GPUs isn't known"))
    if result.get("under_way"):
        found.append(_under_way(result["under_way"]))
    out = result.get("taken_out")
    if out and not any(service.get("drift") for service in result.get("services") or []):  # there it is told with each
        told = "since %s, by a swap to %s" % (out.get("since") or "?", out.get("model") or "?")
        found.append(("taken out", unreadable(out) or told))
    for gpu in result.get("gpus") or []:
        if gpu.get("state") != "ok":
            found.append(("GPU %s" % gpu.get("index"), "%s: %s" % (gpu.get("state"), gpu.get("error") or "no further detail")))
    for service in result.get("services") or []:
        name = str(service.get("name"))
        if service.get("detail"):
            found.append((name, str(service["detail"])))
        if (service.get("diagnosis") or {}).get("advice"):
            found.append((name, str(service["diagnosis"]["advice"])))
        if service.get("drift_unknown") and service["drift_unknown"] != service.get("detail"):
            found.append((name, "its drift is unknown: %s" % service["drift_unknown"]))
        found += [(name, "%s: %s" % (each.get("kind"), each.get("detail"))) for each in service.get("drift") or []]
        found += [(name, str(note)) for note in service.get("notes") or []]
    for other in result.get("others") or []:
        if other.get("orphan") or other.get("used_mib") != 0:  # None: it is not known how much
            found.append(_other(other))
    return found


def _under_way(change: Mapping[str, Any]) -> "tuple[str, str]":
    if not change.get("abandoned"):
        return "under way", str(change.get("story"))
    text = "nobody carries it out any more: `%s` there, as root, brings it to its end, and so does the next swap: %s"
    return "abandoned", text % (change.get("complete_with"), change.get("story"))


def _other(other: Mapping[str, Any]) -> "tuple[str, str]":
    where = other.get("unit") or ("container %s" % str(other["container"])[:12] if other.get("container") else "no unit")
    size = "an unknown amount" if other.get("used_mib") is None else "%s GiB" % _number(other["used_mib"] / _GIB)
    text = "%s (pid %s, user %s, %s) holds %s on GPU %s" % (
        other.get("name") or "?", other.get("pid"), other.get("user") or "?", where, size, spans(other.get("gpus") or []),
    )  # fmt: skip
    return ("orphan" if other.get("orphan") else "not a service", text)


def spans(numbers: Sequence[Any]) -> Optional[str]:
    """``0-3,5`` for 0, 1, 2, 3 and 5."""
    known = sorted({number for number in numbers if isinstance(number, int)})
    parts: List[List[int]] = []
    for number in known:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else "%d-%d" % (first, last) for first, last in parts) or None


def age(seconds: float) -> str:
    """Such as ``4 d``, ``3 h``, ``12 min``, ``50 s``: the largest unit that makes at least two of it, else the next."""
    for length, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return "%d %s" % (seconds // length, name)
    return "%d s" % max(0, seconds)


def _gib(gpus: Sequence[Mapping[str, Any]]) -> Optional[str]:
    known = [gpu for gpu in gpus if gpu.get("used_mib") is not None and gpu.get("total_mib") is not None]
    if not known:
        return "?" if gpus else None
    return "%s/%s" % (_number(sum(gpu["used_mib"] for gpu in known) / _GIB), _number(sum(gpu["total_mib"] for gpu in known) / _GIB))


def _number(value: float) -> str:
    return "%.1f" % value if 0.05 <= value < 10 else "%d" % round(value)
