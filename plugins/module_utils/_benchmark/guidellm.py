# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tool ``guidellm``, from an environment of its own.

Written against GuideLLM 0.8. It tells of each request; gaps between the pieces of a stream it does not tell, so there is no ITL. It
exits with 0 when every request has failed.
"""

from __future__ import annotations

import os
import re
from typing import Any, List, Mapping, Optional, Tuple

from .._core.errors import GpuFleetError
from .._core.runner import Runner
from .profile import Profile
from .result import Sample
from .tool import Aim, Measured, Tool, count, failed, number, read_json, workplace

_RESULT = "result.json"
_VERSION_S = 120.0
# Its own way to be given the key of the server without a command line: settings by the environment.
_KEY_VARIABLE = "GUIDELLM__SPEC__BACKEND__API_KEY"


class GuideLlm(Tool):
    """Runs ``guidellm run`` once for each level."""

    name = "guidellm"

    def __init__(self, aim: Aim, runner: Runner, executable: str) -> None:
        self._aim = aim
        self._runner = runner
        self._executable = executable

    def version(self) -> Optional[str]:
        """What ``guidellm --version`` says."""
        if not os.access(self._executable, os.X_OK):
            raise GpuFleetError(
                "There is no command %s on this host. Install GuideLLM into an environment of its own (python3 -m venv /opt/guidellm && "
                "/opt/guidellm/bin/pip install guidellm), or set executable, or choose another tool." % self._executable
            )
        with workplace(self._runner, self._aim.user) as place:
            done = place.run([self._executable, "--version"], _VERSION_S, {})
        match = re.search(r"\d+(\.\d+)+\S*", done.stdout)
        if not done.ok or match is None:
            raise failed("guidellm --version", 0, done, "no version")
        return match.group(0)

    def argv(self, profile: Profile, concurrency: int, seed: int, result: str) -> List[str]:
        """The command for one level. The warm-up is part of the run, and left out when its file is read."""
        aim = self._aim
        for name, value in (("url", aim.url), ("model", aim.model), ("tokenizer", aim.tokenizer)):
            if "," in value:
                raise GpuFleetError(
                    "guidellm can't be given the %s %r: a comma separates its settings. Choose another tool." % (name, value)
                )
        requests = profile.requests_at(concurrency) + profile.warmup_at(concurrency)
        backend = "kind=openai_http,target=%s,model=%s,request_format=/v1/completions,timeout=%g" % (
            aim.url, aim.model, aim.request_timeout)
        return [
            self._executable, "run",
            "--backend", backend + (",verify=true" if aim.verify and aim.url.startswith("https:") else ""),
            "--profile", "kind=concurrent,streams=%d" % concurrency,
            "--constraint", "kind=max_requests,count=%d" % requests,
            "--data", "kind=synthetic_text,prompt_tokens=%d,output_tokens=%d" % (profile.input_tokens, profile.output_tokens),
            "--tokenizer", "kind=huggingface_auto,model=%s" % aim.tokenizer,
            "--seed", "kind=static,value=%d" % seed,
            "--output", "kind=json,path=%s" % result,
            "--disable-progress",
        ]  # fmt: skip

    def measure(self, profile: Profile, concurrency: int, nonce: int) -> Measured:
        """See the port."""
        aim = self._aim
        seed = (profile.seed + nonce + concurrency) % 2**31
        env = {_KEY_VARIABLE: aim.api_key} if aim.api_key else {}
        if os.path.isabs(aim.tokenizer):
            env.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
        with workplace(self._runner, aim.user) as place:
            done = place.run(self.argv(profile, concurrency, seed, place.path(_RESULT)), aim.level_timeout, env)
            found = read_json(place.path(_RESULT))
        read = samples_of(found, profile.warmup_at(concurrency), concurrency) if found is not None else None
        if read is None:
            raise failed("guidellm", concurrency, done, "there is no result file" if found is None else "its file holds no benchmark")
        return Measured(read[0], read[1], tuple(self.argv(profile, concurrency, seed, _RESULT)))


def samples_of(found: Mapping[str, Any], warmup: int, streams: int) -> Optional[Tuple[Tuple[Sample, ...], Optional[float]]]:
    """The requests of a result file after the first ``warmup`` of them, and the seconds that they took; None without a benchmark.

    Each of the ``streams`` goes over from the warm-up to what is counted by itself. Until the last has done so, the server works for
    requests that aren't counted, too. So the time begins when the streams have gone over on average: as many streams that begin together
    make the same in it.
    """
    benchmarks = found.get("benchmarks")
    if not isinstance(benchmarks, list) or not benchmarks or not isinstance(benchmarks[0], dict):
        return None
    requests = benchmarks[0].get("requests") or {}
    told: List[Tuple[float, Optional[float], Sample]] = []
    for status in ("successful", "errored", "incomplete"):
        for request in requests.get(status) or []:
            begun, ended = number(request.get("request_start_time")), _ended(request)
            told.append((begun or 0.0, ended, _sample(request, status)))
    told.sort(key=lambda each: each[0])
    counted = told[warmup:]
    ends = [ended for begun, ended, sample in counted if ended is not None]
    begins = [begun for begun, ended, sample in counted if begun][: streams if warmup else 1]
    duration = max(ends) - sum(begins) / len(begins) if ends and begins else None
    return tuple(sample for begun, ended, sample in counted), duration


def _ended(request: Mapping[str, Any]) -> Optional[float]:
    """When the last token came. What it calls the end of a request is when the stream was closed; that counts where no token is told of."""
    timings = (request.get("info") or {}).get("timings")
    last = number(timings.get("last_token_iteration")) if isinstance(timings, dict) else None
    return last if last is not None else number(request.get("request_end_time"))


def _sample(request: Mapping[str, Any], status: str) -> Sample:
    info = request.get("info") or {}
    if status != "successful":
        return Sample(str(info.get("error") or status), input_tokens=count(request.get("prompt_tokens")))
    ttft, between = number(request.get("time_to_first_token_ms")), number(request.get("inter_token_latency_ms"))
    begun, ended = number(request.get("request_start_time")), _ended(request)
    return Sample(
        ttft=None if ttft is None else ttft / 1000.0,
        e2e=None if begun is None or ended is None else ended - begun,
        input_tokens=count(request.get("prompt_tokens")),
        output_tokens=count(request.get("output_tokens")),
        # What it calls TPOT counts the first token in; this one is what others call TPOT.
        tpot=None if between is None else between / 1000.0,
    )
