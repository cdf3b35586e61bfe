# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tool ``vllm_bench``: ``vllm bench serve`` of the service's own installation.

Written against vLLM 0.32 and 0.33. Its file is read with ``--save-detailed``, so that every request is judged here: it counts one
that got a single token as completed, and exits with 0 when every request has failed.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .._core.errors import GpuFleetError
from .._core.runner import Runner
from .._preflight.installed import find_installation
from .profile import Profile
from .result import Sample
from .tool import Aim, Measured, Tool, count, failed, number, read_json, workplace

_RESULT = "result.json"


class VllmBench(Tool):
    """Runs ``executable bench serve`` once for each level."""

    name = "vllm_bench"
    # Its --help alone takes seconds of a host that serves.
    untried = "`vllm bench serve` itself was not tried, only looked for"

    def __init__(self, aim: Aim, runner: Runner, executable: str) -> None:
        self._aim = aim
        self._runner = runner
        self._executable = executable

    def version(self) -> Optional[str]:
        """The version of vLLM, read from its files."""
        if not os.access(self._executable, os.X_OK):
            raise GpuFleetError(
                "The tool vllm_bench is part of vLLM, and there is no command %s on this host. Set executable to the vllm of an "
                "installation, or choose tool: builtin." % self._executable
            )
        installation = find_installation(self._executable)
        return installation.version if installation is not None else None

    def argv(self, profile: Profile, concurrency: int, seed: int, directory: str) -> List[str]:
        """The command for one level."""
        aim = self._aim
        words = [self._executable, "bench", "serve", "--backend", "openai", "--base-url", aim.url, "--endpoint", "/v1/completions"]
        words += ["--model", aim.model, "--served-model-name", aim.model, "--tokenizer", aim.tokenizer]
        if aim.tokenizer_mode:
            words += ["--tokenizer-mode", aim.tokenizer_mode]
        if aim.trusted:
            words.append("--trust-remote-code")
        words += ["--dataset-name", "random", "--random-input-len", str(profile.input_tokens)]
        words += ["--random-output-len", str(profile.output_tokens), "--num-prompts", str(profile.requests_at(concurrency))]
        words += ["--max-concurrency", str(concurrency), "--request-rate", "inf", "--ignore-eos", "--temperature", "0"]
        words += ["--seed", str(seed), "--num-warmups", str(profile.warmup_at(concurrency)), "--ready-check-timeout-sec", "0"]
        words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "99", "--disable-tqdm"]
        words += ["--save-result", "--save-detailed", "--result-dir", directory, "--result-filename", _RESULT]
        return words if aim.verify or not aim.url.startswith("https:") else words + ["--insecure"]

    def measure(self, profile: Profile, concurrency: int, nonce: int) -> Measured:
        """See the port."""
        aim = self._aim
        seed = (profile.seed + nonce + concurrency) % 2**31
        env = {"OPENAI_API_KEY": aim.api_key} if aim.api_key else {"OPENAI_API_KEY": ""}
        if os.path.isabs(aim.tokenizer):
            env.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
        with workplace(self._runner, aim.user) as place:
            argv = self.argv(profile, concurrency, seed, place.directory)
            done = place.run(argv, aim.level_timeout, env)
            found = read_json(place.path(_RESULT))
        if found is None:
            raise failed("vllm bench serve", concurrency, done, "there is no result file")
        return Measured(samples_of(found), duration_of(found), tuple(self.argv(profile, concurrency, seed, ".")))


def samples_of(found: Mapping[str, Any]) -> "tuple[Sample, ...]":
    """The requests of a result file. One that has no ``errors`` list is of a version without details: only its counts are taken."""
    errors = found.get("errors")
    if not isinstance(errors, list):
        completed = count(found.get("completed")) or 0
        return (Sample("vllm bench serve tells of %d completed requests, and nothing of each" % completed, kind="no_details"),) * completed
    names = ("ttfts", "latencies", "itls", "input_lens", "output_lens")
    columns: Dict[str, Sequence[Any]] = {name: found.get(name) or () for name in names}
    return tuple(_sample(str(error or ""), columns, place) for place, error in enumerate(errors))


def duration_of(found: Mapping[str, Any]) -> Optional[float]:
    """Seconds from sending the first request to the last token, from what the file says of each request.

    Its own ``duration`` ends when the last connection has been dealt with. It counts where a request has failed, since how long that one
    took isn't told, and where a version tells no times of sending.
    """
    begins, times, errors = found.get("start_times"), found.get("latencies"), found.get("errors")
    whole = number(found.get("duration"))
    if not isinstance(begins, list) or not isinstance(times, list) or not isinstance(errors, list) or any(errors):
        return whole
    pairs = [(number(begun), number(took)) for begun, took in zip(begins, times)]
    known = [(begun, begun + took) for begun, took in pairs if begun is not None and took is not None]
    if not known or not len(known) == len(begins) == len(times):
        return whole
    return max(ended for begun, ended in known) - min(begun for begun, ended in known)


def _sample(error: str, columns: Mapping[str, Sequence[Any]], place: int) -> Sample:
    values = {name: column[place] if place < len(column) else None for name, column in columns.items()}
    if error:
        return Sample(error)
    gaps = values["itls"] if isinstance(values["itls"], list) else None
    return Sample(
        ttft=number(values["ttfts"]),
        e2e=number(values["latencies"]),
        input_tokens=count(values["input_lens"]),
        output_tokens=count(values["output_lens"]),
        gaps=None if gaps is None else tuple(float(gap) for gap in gaps),
    )
