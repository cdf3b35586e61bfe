# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tool ``builtin``: the collection's own load generator, run by the first Python of the host that has ``requests``."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from .._core.errors import GpuFleetError
from .._core.runner import Runner
from . import load
from .fingerprint import digest
from .profile import Profile
from .result import Sample
from .tool import Aim, Measured, Tool, count, failed, number, workplace

_ASK_S = 60.0


class Builtin(Tool):
    """Runs ``load.py`` once for each level. ``pythons`` are the interpreters to try, in order."""

    name = "builtin"

    def __init__(self, aim: Aim, runner: Runner, pythons: Sequence[str]) -> None:
        self._aim = aim
        self._runner = runner
        self._pythons = list(dict.fromkeys(python for python in [sys.executable, *pythons] if python))
        self._python: Optional[str] = None
        self._source = source()

    def version(self) -> Optional[str]:
        """Of the load generator: a digest of its text, as it comes and changes with this collection."""
        self._find()
        return digest(self._source)[:12]

    def _find(self) -> str:
        if self._python is None:
            with workplace(self._runner, self._aim.user) as place:
                for python in self._pythons:
                    if place.run([python, "-c", "import requests"], _ASK_S, {}).ok:
                        self._python = python
                        break
        if self._python is None:
            raise GpuFleetError(
                "The tool builtin needs the Python library requests on this host, and none of its Pythons has it (%s). Install it "
                "(apt install python3-requests, or dnf install python3-requests), or choose tool: vllm_bench."
                % ", ".join(self._pythons)
            )
        return self._python

    def measure(self, profile: Profile, concurrency: int, nonce: int) -> Measured:
        """See the port."""
        aim = self._aim
        python = self._find()
        order = {
            "url": aim.url,
            "model": aim.model,
            "verify": aim.verify,
            "concurrency": concurrency,
            "requests": profile.requests_at(concurrency),
            "warmup": profile.warmup_at(concurrency),
            "input_tokens": profile.input_tokens,
            "output_tokens": profile.output_tokens,
            "seed": profile.seed,
            "nonce": nonce,
            "timeout": aim.request_timeout,
        }
        with workplace(self._runner, aim.user) as place:
            program = place.write("load.py", self._source)
            done = place.run([python, program], aim.level_timeout, {}, stdin=json.dumps(dict(order, api_key=aim.api_key)))
        told = _object(done.stdout)
        if told is None or "requests" not in told:
            raise failed("The load generator", concurrency, done, str((told or {}).get("refused") or "there is no answer"))
        samples, duration = samples_of(told["requests"])
        about = {"prompts": told.get("prompts"), "processes": told.get("processes")}
        return Measured(samples, duration, (python, "load.py", "<<<", json.dumps(order, sort_keys=True)), about)


def source() -> str:
    """The text of the load generator, from wherever this collection was loaded from."""
    spec = find_spec(load.__name__)
    get_source = getattr(spec.loader, "get_source", None) if spec is not None else None
    text = get_source(load.__name__) if get_source is not None else None
    if text is None:
        raise GpuFleetError("The source of the load generator can't be read. Install the collection with its .py files.")
    return str(text)


def samples_of(told: Sequence[Mapping[str, Any]]) -> Tuple[Tuple[Sample, ...], Optional[float]]:
    """The requests as the load generator tells of them, and the seconds from the first one's beginning to the last one's end."""
    samples: List[Sample] = []
    begins: List[float] = []
    ends: List[float] = []
    for each in told:
        begun, ended = number(each.get("start")), number(each.get("end"))
        if begun is None or ended is None:
            samples.append(Sample("the load generator tells no times", kind="missing"))
            continue
        begins.append(begun)
        ends.append(ended)
        if each.get("error"):
            samples.append(Sample(str(each["error"]), kind=str(each.get("kind") or ""), input_tokens=count(each.get("input_tokens"))))
            continue
        samples.append(
            Sample(
                ttft=number(each.get("ttft")),
                e2e=ended - begun,
                input_tokens=count(each.get("input_tokens")),
                output_tokens=count(each.get("output_tokens")),
                gaps=tuple(float(gap) for gap in each.get("gaps") or ()),
            )
        )
    return tuple(samples), (max(ends) - min(begins) if ends else None)


def _object(text: str) -> Optional[Mapping[str, Any]]:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
