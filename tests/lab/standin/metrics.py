# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""/metrics in Prometheus' text form, under vLLM's names."""

from __future__ import annotations

import time
from collections.abc import Sequence

_TIMES = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_LATENCIES = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)

_GAUGES = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
}
_COUNTERS = {
    "prompt_tokens": "Number of prefill tokens processed.",
    "generation_tokens": "Number of generation tokens processed.",
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
}
_HISTOGRAMS: dict[str, tuple[str, Sequence[float]]] = {
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", _TIMES),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", _TIMES),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", _LATENCIES),
    "request_prompt_tokens": ("Number of prefill tokens processed.", _TOKENS),
    "request_generation_tokens": ("Number of generation tokens processed.", _TOKENS),
}
FINISHED = ("stop", "length", "abort", "error", "repetition")
# By the level of sleep.
_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")


class Histogram:
    """Counts of values by upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        position = next((index for index, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        self.counts[position] += 1
        self.total += value


class Metrics:
    """The numbers of one server. stats holds, by engine, what that engine last said."""

    def __init__(self, model: str, engines: int) -> None:
        self._model = model
        self.stats: list[dict[str, float]] = [
            {"running": 0, "waiting": 0, "kv_usage": 0.0} for engine in range(engines)
        ]
        self.counters: list[dict[str, float]] = [dict.fromkeys(_COUNTERS, 0) for engine in range(engines)]
        self.finished: list[dict[str, int]] = [dict.fromkeys(FINISHED, 0) for engine in range(engines)]
        self.histograms = [
            {name: Histogram(bounds) for name, (_help, bounds) in _HISTOGRAMS.items()} for engine in range(engines)
        ]
        self._created = time.time()
        self.sleep_level = 0  # 0 is awake

    def render(self) -> str:
        """The whole text."""
        lines: list[str] = []
        for name, help_text in _GAUGES.items():
            key = {"num_requests_running": "running", "num_requests_waiting": "waiting"}.get(name, "kv_usage")
            self._head(lines, name, help_text, "gauge")
            for engine, stats in enumerate(self.stats):
                lines.append(f"vllm:{name}{self._labels(engine)} {float(stats[key])}")
        self._head(lines, "num_requests_waiting_by_reason", "Number of waiting requests by reason.", "gauge")
        for engine, stats in enumerate(self.stats):
            # What else vLLM makes requests wait for there isn't here.
            for reason, count in (("capacity", stats["waiting"]), ("deferred", 0)):
                labels = self._labels(engine, after=f'reason="{reason}"')
                lines.append(f"vllm:num_requests_waiting_by_reason{labels} {float(count)}")
        self._head(lines, "engine_sleep_state", "Engine sleep state: 1 for the one that it is in.", "gauge")
        for engine in range(len(self.stats)):
            for level, state in enumerate(_SLEEP_STATES):
                labels = self._labels(engine, after=f'sleep_state="{state}"')
                lines.append(f"vllm:engine_sleep_state{labels} {float(level == self.sleep_level)}")
        for name, help_text in _COUNTERS.items():
            self._head(lines, name + "_total", help_text, "counter")
            for engine, counters in enumerate(self.counters):
                lines.append(f"vllm:{name}_total{self._labels(engine)} {float(counters[name])}")
            self._head(lines, name + "_created", help_text, "gauge")
            for engine in range(len(self.stats)):
                lines.append(f"vllm:{name}_created{self._labels(engine)} {self._created}")
        self._head(lines, "request_success_total", "Count of successfully processed requests.", "counter")
        for engine, finished in enumerate(self.finished):
            for reason, count in finished.items():
                labels = self._labels(engine, f'finished_reason="{reason}"')
                lines.append(f"vllm:request_success_total{labels} {float(count)}")
        self._head(lines, "request_success_created", "Count of successfully processed requests.", "gauge")
        for engine, finished in enumerate(self.finished):
            for reason in finished:
                labels = self._labels(engine, f'finished_reason="{reason}"')
                lines.append(f"vllm:request_success_created{labels} {self._created}")
        for name, (help_text, _bounds) in _HISTOGRAMS.items():
            self._head(lines, name, help_text, "histogram")
            for engine, histograms in enumerate(self.histograms):
                self._histogram(lines, name, engine, histograms[name])
            self._head(lines, name + "_created", help_text, "gauge")
            for engine in range(len(self.stats)):
                lines.append(f"vllm:{name}_created{self._labels(engine)} {self._created}")
        return "\n".join(lines) + "\n"

    def _histogram(self, lines: list[str], name: str, engine: int, histogram: Histogram) -> None:
        below = 0
        for bound, count in zip([*histogram.bounds, float("inf")], histogram.counts, strict=True):
            below += count
            text = "+Inf" if bound == float("inf") else str(float(bound))
            labels = self._labels(engine, f'le="{text}"')
            lines.append(f"vllm:{name}_bucket{labels} {float(below)}")
        lines.append(f"vllm:{name}_count{self._labels(engine)} {float(below)}")
        lines.append(f"vllm:{name}_sum{self._labels(engine)} {histogram.total}")

    def _labels(self, engine: int, more: str = "", after: str = "") -> str:
        """In the order of their names, as the library has them that vLLM writes them with."""
        model = self._model.replace("\\", "\\\\").replace('"', '\\"')
        return f'{{engine="{engine}",{more + "," if more else ""}model_name="{model}"{"," + after if after else ""}}}'

    @staticmethod
    def _head(lines: list[str], name: str, help_text: str, kind: str) -> None:
        lines += [f"# HELP vllm:{name} {help_text}", f"# TYPE vllm:{name} {kind}"]
