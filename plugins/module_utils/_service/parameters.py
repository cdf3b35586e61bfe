# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the module's parameters to a :class:`Request`, with one clear message for each thing that cannot be right."""

from __future__ import annotations

import re
from typing import Any, Dict, Mapping, Tuple

from .._core.errors import GpuFleetError
from .._unit.spec import GuardSpec
from .request import Request

_REPLACE_WORDS = ("none", "conflicting")
_UNIT = re.compile(r"^[A-Za-z0-9:_.@\\-]+\.(service|scope)\Z")
_WEEK_S = 7 * 24 * 3600
# With the last look at it, within what is allowed for all that nobody can foresee in how long a change takes.
_STEADY_S = 600


def to_request(params: Mapping[str, Any]) -> Request:
    """Check what an argument spec cannot, and give the values their types."""
    replace, units = _replace(params.get("replace"))
    _in_range(params, "port", 1, 65535)
    for name in ("drain_timeout", "stop_timeout", "ready_timeout"):
        _in_range(params, name, 0 if name == "drain_timeout" else 1, _WEEK_S)
    _in_range(params, "steady_time", 0, _STEADY_S)
    guard = params.get("guard") or {}
    _in_range(guard, "timeout", 1, _WEEK_S, "guard.timeout")
    _in_range(guard, "margin_mib", 0, 1 << 30, "guard.margin_mib")
    given = params.get("gpus")
    if given is not None and not given:
        raise GpuFleetError("`gpus` is an empty list. Give indices, UUIDs, PCI ids, or \"all\" for every GPU of the host.")
    gpus = tuple(str(gpu).strip() for gpu in given or ("all",))
    if any(not gpu for gpu in gpus):
        raise GpuFleetError("`gpus` holds an empty entry. Give indices, UUIDs, PCI ids, or \"all\".")
    request = Request(
        name=_text(params, "name"),
        state=params.get("state") or "started",
        enabled=params.get("enabled"),
        model=params.get("model") or None,
        served_name=params.get("served_name") or None,
        gpus=gpus,
        host=params.get("host") or "0.0.0.0",
        port=int(params.get("port") or 8000),
        args=dict(params.get("args") or {}),
        env=_environment(params),
        secrets=_secrets(params),
        executable=params.get("executable") or "/opt/vllm/bin/vllm",
        user=params.get("user") or "vllm",
        group=params.get("group") or "vllm",
        unit_options=_sections(params.get("unit_options")),
        guard=GuardSpec(
            enabled=guard.get("enabled", True) is not False,
            timeout=float(guard.get("timeout") or 300),
            margin_mib=int(guard.get("margin_mib") or 0),
        ),
        replace=replace,
        replace_units=units,
        drain_timeout=float(params.get("drain_timeout") or 0),
        stop_timeout=float(params.get("stop_timeout") or 60),
        ready_timeout=float(params.get("ready_timeout") or 1800),
        steady_time=float(params.get("steady_time") or 0),
        smoke=params.get("smoke") is not False,
        rollback=params.get("rollback") is not False,
        overlap=params.get("overlap") or "auto",
        warm_cache=params.get("warm_cache") is not False,
        preflight=params.get("preflight") or "enforce",
        model_facts_path=params.get("model_facts_path") or None,
    )
    if request.declares_files and not (params.get("model") is None or str(params["model"]).strip()):
        raise GpuFleetError("`model` is empty. Give a directory of the host, or a repository's name.")
    return request


def _replace(value: Any) -> Tuple[str, Tuple[str, ...]]:
    if value is None or value == "":
        return "none", ()
    if isinstance(value, str):
        if value in _REPLACE_WORDS:
            return value, ()
        value = [part.strip() for part in value.split(",")]
    if isinstance(value, (list, tuple)) and value and all(isinstance(unit, str) and unit for unit in value):
        units = tuple(unit if unit.endswith((".service", ".scope")) else unit + ".service" for unit in value)
        for unit in units:
            if not _UNIT.match(unit) or unit.startswith("-"):
                raise GpuFleetError("`replace` names %r, which is no unit's name. Write each unit out; patterns are not taken." % unit)
        return "listed", units
    raise GpuFleetError("`replace` is %r. It takes \"none\", \"conflicting\" or a list of unit names." % (value,))


def _in_range(params: Mapping[str, Any], name: str, low: int, high: int, label: str = "") -> None:
    value = params.get(name)
    if value is not None and not low <= int(value) <= high:
        raise GpuFleetError("`%s` is %s. It has to be between %d and %d." % (label or name, value, low, high))


def _text(params: Mapping[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str) or not value.strip():
        raise GpuFleetError("`%s` is empty. Give the service a name." % name)
    return value.strip()


def _variables(params: Mapping[str, Any], name: str) -> Dict[str, str]:
    result = {}
    for key, value in (params.get(name) or {}).items():
        if isinstance(value, (dict, list, tuple)):
            raise GpuFleetError(
                "`%s.%s` is a %s. An environment variable holds text; give it as a string." % (name, key, type(value).__name__)
            )
        if value is None:
            raise GpuFleetError("`%s.%s` has no value. Give one, or leave the key out." % (name, key))
        if isinstance(value, bool):
            value = "1" if value else "0"
        result[str(key)] = str(value)
    return result


def _environment(params: Mapping[str, Any]) -> Dict[str, str]:
    variables = _variables(params, "env")
    port = variables.get("VLLM_PORT")
    # What Kubernetes sets for a service called "vllm" is a URI, and vLLM ends at its start with anything but a number.
    if port is not None and not (port.isascii() and port.isdigit()):
        raise GpuFleetError(
            "`env.VLLM_PORT` is %r. vLLM takes a number there, the first port that its processes use among themselves; the port that "
            "it serves on is `port`." % port
        )
    return variables


def _secrets(params: Mapping[str, Any]) -> Dict[str, str]:
    secrets = _variables(params, "secrets")
    key = secrets.get("VLLM_API_KEY", "")
    if not (key.isascii() and key.isprintable()):
        raise GpuFleetError(
            "`secrets.VLLM_API_KEY` holds a line break, another control character, or one beyond ASCII, and clients send it in an HTTP "
            "header, which cannot carry that. A key read from a file often ends with a line break: strip it, or choose another key."
        )
    return secrets


def _sections(value: Any) -> Dict[str, Dict[str, Any]]:
    sections = {}
    for section, settings in (value or {}).items():
        if not isinstance(settings, Mapping):
            raise GpuFleetError(
                "`unit_options.%s` is a %s. It has to be a dictionary of systemd settings, such as {Nice: 5}."
                % (section, type(settings).__name__)
            )
        sections[str(section)] = {str(key): setting for key, setting in settings.items()}
    return sections
