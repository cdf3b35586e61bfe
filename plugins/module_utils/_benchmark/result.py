# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One form for the results of all tools.

Every tool is made to tell of each request by itself, and the figures are made from these here: with the same definitions and the
same percentiles, so that what two tools say can be compared.

* TTFT: from sending the request to the first token.
* TPOT: the time after the first token, divided by the tokens after the first one.
* ITL: the gaps between the pieces of a stream; a piece may hold several tokens.
* E2E: from sending the request to the last token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .errors import example_of, kind_of_error

SCHEMA_VERSION = 1
LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
STATISTICS = ("mean", "median", "p99")
_MS = 1000.0


@dataclass(frozen=True)
class Sample:
    """One request that was counted. Times are seconds; None is what the tool does not tell. ``error`` is "" for a good one."""

    error: str = ""
    ttft: Optional[float] = None
    e2e: Optional[float] = None
    input_tokens: Optional[int] = None
    output_tokens: Optional[int] = None
    tpot: Optional[float] = None  # only where it can't be had from the others
    gaps: Optional[Tuple[float, ...]] = None
    kind: str = ""  # of the error, where the tool itself knows it


def judged(sample: Sample, output_tokens: int) -> Sample:
    """The sample as a failure when it has fewer tokens than were asked for: the end of a text is ignored, so it was cut short.

    Tools count a request as good that got one token.
    """
    if sample.error:
        return sample
    if not sample.output_tokens:
        return Sample("the answer ended without a token", kind="empty", input_tokens=sample.input_tokens)
    if sample.output_tokens < output_tokens:
        text = "the answer ended after %d of %d tokens" % (sample.output_tokens, output_tokens)
        return Sample(text, kind="short", input_tokens=sample.input_tokens, output_tokens=sample.output_tokens)
    return sample


def level_of(
    concurrency: int, requests: int, samples: Sequence[Sample], duration: Optional[float], output_tokens: int, gpus: Optional[int]
) -> Dict[str, Any]:
    """One level of a result. ``requests`` were asked for: those that the tool does not tell of have failed too.

    ``duration`` is in seconds, from the first request to the last answer; ``gpus`` is how many the server has, None where that
    isn't known.
    """
    samples = [judged(sample, output_tokens) for sample in samples]
    good = [sample for sample in samples if not sample.error]
    bad = [sample for sample in samples if sample.error]
    missing = requests - len(samples)
    if missing > 0:
        bad += [Sample("the tool tells nothing of it", kind="missing")] * missing
    total_in = _total([sample.input_tokens for sample in good])
    total_out = _total([sample.output_tokens for sample in good])
    level: Dict[str, Any] = {
        "concurrency": concurrency,
        "requests": requests,
        "completed": len(good),
        "failed": len(bad),
        "success_percent": rounded(100.0 * len(good) / requests) if requests else 0.0,
        "errors": errors_of(bad),
        "duration_s": rounded(duration),
        "input_tokens": total_in,
        "output_tokens": total_out,
        "request_throughput": _rate(len(good), duration),
        "input_throughput": _rate(total_in, duration),
        "output_throughput": _rate(total_out, duration),
        "total_throughput": _rate(None if total_in is None or total_out is None else total_in + total_out, duration),
        "output_throughput_per_gpu": None,
        "kept_busy": _kept_busy(good, bad, duration),
    }
    if gpus and level["output_throughput"] is not None:
        level["output_throughput_per_gpu"] = rounded(level["output_throughput"] / gpus)
    level["ttft_ms"] = statistics([sample.ttft for sample in good])
    level["tpot_ms"] = statistics([_tpot(sample) for sample in good])
    level["itl_ms"] = statistics([gap for sample in good for gap in sample.gaps or ()])
    level["e2e_ms"] = statistics([sample.e2e for sample in good])
    return level


def errors_of(bad: Sequence[Sample]) -> List[Dict[str, Any]]:
    """The failures by kind, the most frequent first: ``kind``, ``count`` and one ``example``."""
    counts: Dict[str, Dict[str, Any]] = {}
    for sample in bad:
        kind = sample.kind or kind_of_error(sample.error)
        entry = counts.setdefault(kind, {"kind": kind, "count": 0, "example": example_of(sample.error)})
        entry["count"] += 1
    return sorted(counts.values(), key=lambda entry: (-entry["count"], entry["kind"]))


def statistics(seconds: Sequence[Optional[float]]) -> Dict[str, Optional[float]]:
    """Mean, median and 99th percentile in ms, each None where there is nothing to make them of."""
    values = sorted(value * _MS for value in seconds if value is not None and math.isfinite(value))
    if not values:
        return dict.fromkeys(STATISTICS)
    return {"mean": rounded(sum(values) / len(values)), "median": rounded(percentile(values, 50)), "p99": rounded(percentile(values, 99))}


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of values in order, with linear interpolation between the two nearest, as numpy has it."""
    place = (len(ordered) - 1) * percent / 100.0
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def peak_of(levels: Sequence[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
    """Where the most tokens came out: ``concurrency``, ``output_throughput``, and per GPU. None where nothing did."""
    known = [level for level in levels if level["output_throughput"]]
    if not known:
        return None
    best = max(known, key=lambda level: float(level["output_throughput"]))
    return {name: best[name] for name in ("concurrency", "output_throughput", "output_throughput_per_gpu")}


def success_percent(result: Mapping[str, Any]) -> float:
    """Over all levels of a result."""
    requests = sum(int(level["requests"]) for level in result["levels"])
    completed = sum(int(level["completed"]) for level in result["levels"])
    return 100.0 * completed / requests if requests else 0.0


def rounded(value: Optional[float]) -> Optional[float]:
    """Three decimals are more than any of this is good for."""
    return None if value is None or not math.isfinite(value) else round(float(value), 3)


def _kept_busy(good: Sequence[Sample], bad: Sequence[Sample], duration: Optional[float]) -> Optional[float]:
    """How many requests were under way on average; None where some have no times. Far below the concurrency it is the load generator
    that was measured: it could not keep up, mostly for want of processor time.
    """
    times = [sample.e2e for sample in good]
    if bad or not duration or any(time is None for time in times):
        return None
    return rounded(sum(time or 0.0 for time in times) / duration)


def _tpot(sample: Sample) -> Optional[float]:
    if sample.tpot is not None:
        return sample.tpot
    if sample.ttft is None or sample.e2e is None or not sample.output_tokens or sample.output_tokens < 2:
        return None
    return (sample.e2e - sample.ttft) / (sample.output_tokens - 1)


def _total(counts: Sequence[Optional[int]]) -> Optional[int]:
    return None if any(count is None for count in counts) else sum(count or 0 for count in counts)


def _rate(amount: Optional[float], seconds: Optional[float]) -> Optional[float]:
    return None if amount is None or not seconds else rounded(amount / seconds)
