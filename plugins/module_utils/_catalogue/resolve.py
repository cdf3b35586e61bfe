# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the model catalogue (``vllm_models``) and a name to the parameters of ``vllm_service``."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .._core.errors import GpuFleetError
from .._unit.config import normalise_args
from .._unit.slug import unit_name
from .schema import ELSEWHERE, FIELDS, OWN_ARGUMENTS
from .values import hint, kind, sentence

# Where a model lives on the host when the entry names only its repository.
MODELS_DIRECTORY = "/models"


def resolve(models: Any, name: Any) -> Dict[str, Any]:
    """The parameters of ``vllm_service`` for the catalogue's entry ``name``.

    Always has ``name``, ``model`` and ``served_name``; the rest only where the entry says it, so that the module's defaults
    hold. Raises GpuFleetError with one message that names every problem; ``problems`` in its result lists them.
    """
    problems, parameters = examine(models, name)
    if problems:
        raise GpuFleetError(_message(problems), problems=problems)
    return parameters


def examine(models: Any, name: Any) -> Tuple[List[str], Dict[str, Any]]:
    """The problems of one entry, and its parameters (which mean something only when there are no problems)."""
    if models is None or (isinstance(models, Mapping) and not models):
        return ["the model catalogue `vllm_models` is missing or empty. Define it in the inventory."], {}
    if not isinstance(models, Mapping):
        return ["`vllm_models` has to be a dictionary of models by name, not %s." % kind(models)], {}
    names = sorted(str(key) for key in models)
    if name is None or not str(name).strip():
        return ["no model was given. Say which: -e model=NAME. The catalogue has: %s." % ", ".join(names)], {}
    name = str(name).strip()
    # A name such as 4.5 is a number to YAML; it is compared as text. The other entries are not looked at: on a controller they may be
    # templates still, and one that means nothing on this host is no fault of this entry.
    key = next((key for key in models if str(key) == name), None)
    if key is None:
        return [
            "the model %r is not in the catalogue%s. The catalogue has: %s." % (name, hint(name, names), ", ".join(names))
        ], {}
    problems, parameters = _examine_entry(name, models[key])
    problems = _unit_problems(name, names) + problems
    return problems, {} if problems else parameters


def _unit_problems(name: str, names: Sequence[str]) -> List[str]:
    """What keeps a name from being a unit's: it makes none, or the one of another entry."""
    try:
        unit = unit_name(name)
    except GpuFleetError as exc:
        return ["vllm_models[%r]: %s" % (name, exc.msg)]
    same = [other for other in names if other != name and _unit_of(other) == unit]
    if not same:
        return []
    return [
        "vllm_models[%r] and vllm_models[%r] would both be the unit %s. Choose a name that differs in letters, digits or dots."
        % (name, same[0], unit)
    ]


def _unit_of(name: str) -> Optional[str]:
    try:
        return unit_name(name)
    except GpuFleetError:
        return None


def _examine_entry(name: str, entry: Any) -> Tuple[List[str], Dict[str, Any]]:
    where = "vllm_models[%r]" % name
    if not isinstance(entry, Mapping):
        return ["%s has to be a dictionary with at least `path` or `repo`, not %s." % (where, kind(entry))], {}
    problems: List[str] = []
    unknown: List[str] = []
    read: Dict[str, Any] = {}
    for raw_key, value in entry.items():
        key = str(raw_key)
        if key in ELSEWHERE:
            problems.append("%s: the key %r does not belong here: %s." % (where, key, ELSEWHERE[key]))
        elif key not in FIELDS:
            unknown.append("%r%s" % (key, hint(key, list(FIELDS))))
        elif value is not None:  # a key without a value is as good as no key
            try:
                read[key] = FIELDS[key].read(value)
            except ValueError as exc:
                problems.append("%s.%s %s." % (where, key, exc))
    for argument in read.get("args", {}):
        for own, place in OWN_ARGUMENTS:
            if argument.replace("-", "_") == own:
                problems.append("%s.args.%s goes in %s instead." % (where, argument, place))
    if not problems:
        # What the host would refuse for what it is alone is refused before any host is asked.
        try:
            normalise_args(read.get("args", {}), "%s.args" % where)
        except GpuFleetError as exc:
            problems.append(exc.msg)
    if not entry.get("path") and not entry.get("repo"):
        problems.append("%s needs `path` (a directory on the host) or `repo` (where it is fetched from)." % where)
    if unknown:
        problems.append("%s: unknown %s. Allowed: %s." % (where, _keys(unknown), ", ".join(FIELDS)))
    if problems:
        return problems, {}
    return [], _parameters(name, read)


def _parameters(name: str, read: Mapping[str, Any]) -> Dict[str, Any]:
    parameters: Dict[str, Any] = {"name": name, "served_name": name}
    parameters["model"] = read.get("path") or "%s/%s" % (MODELS_DIRECTORY, str(read.get("repo", "")).rsplit("/", 1)[-1])
    for key, field in FIELDS.items():
        if field.option is not None and key in read:
            parameters[field.option] = read[key]
    return parameters


def _keys(names: Sequence[str]) -> str:
    return "%s %s" % ("key" if len(names) == 1 else "keys", ", ".join(names))


def _message(problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return sentence(problems[0])
    return "%d problems in the model catalogue:\n%s" % (len(problems), "\n".join("- " + problem for problem in problems))
