# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with the options of a benchmark, told by the names of the variables that hold them."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.profile import Profile, to_profile
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.request import to_request
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.modules.vllm_benchmark import ARGUMENT_SPEC

_PREFIX = "vllm_benchmark_"
_SECRET = ("api_key",)
# The types by what people call them.
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "list": "a list", "dict": "a dictionary"}


def faults_of_options(given: Mapping[str, Any]) -> List[str]:
    """A sentence for each value of ``given`` that the module would refuse. Its keys are the names of variables."""
    faults: List[str] = []
    taken: Dict[str, Any] = {}
    names = {name.replace(_PREFIX, ""): name for name in given}
    for option, variable in names.items():
        unknown = _unknown(option, given[variable])
        if unknown:
            faults.append(variable + unknown)
            continue
        checked = ArgumentSpecValidator({option: ARGUMENT_SPEC[option]}).validate({option: given[variable]})
        if checked.error_messages:
            faults.append("%s takes %s%s" % (variable, _takes(option), "" if option in _SECRET else ", not %r" % (given[variable],)))
        else:
            taken[option] = checked.validated_parameters[option]
    if not faults:
        try:
            to_request({**{name: spec.get("default") for name, spec in ARGUMENT_SPEC.items()}, **taken})
        except GpuFleetError as exc:
            option, why = _split(exc)
            faults.append(names.get(option, option) + why)
    return faults


def _unknown(option: str, value: Any) -> str:
    """What a profile has that none has, in the words of who reads it: the check of the types has a list of what it supports at most."""
    if option == "profile" and isinstance(value, Mapping):
        try:
            to_profile({name: each for name, each in value.items() if name not in Profile.__dataclass_fields__})
        except GpuFleetError as exc:
            return _split(exc)[1]
    return ""


def _split(exc: GpuFleetError) -> Tuple[str, str]:
    """The option that an error of the module begins with, and the rest, from the colon on."""
    option, colon, why = exc.msg.rstrip(".").partition(":")
    return option, colon + why


def _takes(option: str) -> str:
    if option == "profile":
        return "a dictionary with whole numbers, of %s" % ", ".join(Profile.__dataclass_fields__)
    spec = ARGUMENT_SPEC[option]
    return "one of %s" % ", ".join(spec["choices"]) if "choices" in spec else _KINDS.get(spec["type"], "a text")
