# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the report of a benchmark shows, in an order and in words that Markdown and HTML share."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.compare import value_at

from ._baseline import results_of
from ._plot import number_text

# metric, heading, unit; what the plots show, and the table of each host.
PLOTS = (
    ("output_throughput", "Output tokens per second", "tokens/s"),
    ("ttft_ms.median", "Time to first token, median", "ms"),
    ("tpot_ms.median", "Time per output token, median", "ms"),
    ("e2e_ms.median", "Whole request, median", "ms"),
)
LEVEL_COLUMNS = (
    ("concurrency", "concurrency"),
    ("success_percent", "success %"),
    ("output_throughput", "tokens/s out"),
    ("output_throughput_per_gpu", "per GPU"),
    ("input_throughput", "tokens/s in"),
    ("request_throughput", "requests/s"),
    ("ttft_ms.median", "TTFT ms"),
    ("ttft_ms.p99", "TTFT p99"),
    ("tpot_ms.median", "TPOT ms"),
    ("tpot_ms.p99", "TPOT p99"),
    ("itl_ms.median", "ITL ms"),
    ("itl_ms.p99", "ITL p99"),
    ("e2e_ms.median", "E2E ms"),
    ("e2e_ms.p99", "E2E p99"),
)
SUMMARY_COLUMNS = (
    ("host", "host"),
    ("server", "server"),
    ("result", "result"),
    ("peak_tokens_s", "peak tokens/s"),
    ("peak_concurrency", "at concurrency"),
    ("peak_tokens_s_per_gpu", "per GPU"),
    ("tokens_s", "tokens/s at the lowest"),
    ("ttft_ms", "TTFT ms there"),
    ("tpot_ms", "TPOT ms there"),
    ("detail", "detail"),
)
GLOSSARY = (
    "TTFT is the time to the first token, TPOT the time for each token after it, ITL the gap between two pieces of the stream, E2E the "
    "time to the last token; medians unless it says p99. Times are milliseconds."
)


class HostReport(NamedTuple):
    """One host that has a result. Texts are plain; whoever writes them out escapes them."""

    host: str
    facts: List[Tuple[str, str]]
    levels: List[List[str]]
    errors: List[str]
    regressions: List[str]
    changed: List[str]
    commands: List[str]


def text(value: Any) -> str:
    """A cell: figures as people read them, and a dash for what isn't known."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return number_text(float(value))
    return " ".join(str(value).split())


def headline(rows: Sequence[Mapping[str, Any]], slow: Sequence[Mapping[str, Any]]) -> Tuple[bool, str]:
    """(whether all is as it should be, that in a sentence)."""
    bad = [str(row["host"]) for row in rows if not row["ok"]]
    parts = ["%d of %d hosts do what is asked of them" % (len(rows) - len(bad), len(rows))]
    if bad:
        parts.append("not %s" % ", ".join(bad))
    if slow:
        parts.append("slow: %s" % ", ".join(
            "%s (%.1f %% below %s, as measured %s)" % (each["host"], each["below_percent"], said_of_others(each), each.get("measured"))
            for each in slow))
    return not bad, "; ".join(parts) + "."


def said_of_others(slow: Mapping[str, Any]) -> str:
    """Whom a slow host was compared with."""
    return str(slow["other"]) if slow.get("other") else "the median of %d like it" % slow["compared_with"]


def series_of(hosts: Mapping[str, Any], metric: str) -> Dict[str, List[Tuple[int, Optional[float]]]]:
    """What a plot shows: (concurrency, value) by host, for the hosts that have a result."""
    return {
        host: [(int(level["concurrency"]), value_at(level, metric)) for level in result["levels"]]
        for host, result in results_of({"hosts": hosts}).items()
    }


def host_reports(hosts: Mapping[str, Any]) -> List[HostReport]:
    """Every host that has a result, in order."""
    return [_host_report(host, result, hosts[host]) for host, result in results_of({"hosts": hosts}).items()]


def _host_report(host: str, result: Mapping[str, Any], outcome: Mapping[str, Any]) -> HostReport:
    judgement = outcome.get("verdict") if isinstance(outcome.get("verdict"), Mapping) else {}
    baseline = (judgement or {}).get("baseline") or {}
    return HostReport(
        host=host,
        facts=_facts(result, baseline),
        levels=[[text(_cell(level, key)) for key, heading in LEVEL_COLUMNS] for level in result["levels"]],
        errors=[
            "concurrency %s: %s x %s (%s)" % (level["concurrency"], each["count"], each["kind"], each["example"])
            for level in result["levels"] for each in level["errors"]
        ],
        regressions=[
            "concurrency %s: %s %s, was %s: %s %% worse"
            % (each["concurrency"], each["metric"], text(each["result"]), text(each["baseline"]), text(each["worse_percent"]))
            for each in (judgement or {}).get("regressions") or []
        ],
        changed=["%s: %s, was %s" % (each["name"], text(each["after"]), text(each["before"])) for each in baseline.get("changed") or []],
        commands=[" ".join(_quoted(str(word)) for word in command) for command in result.get("commands") or []],
    )


def _facts(result: Mapping[str, Any], baseline: Mapping[str, Any]) -> List[Tuple[str, str]]:
    profile = result.get("profile") or {}
    facts = [
        ("server", "%s at %s" % (result.get("service") or result.get("model"), result.get("url"))),
        ("measured", "%s, in %s s" % (result.get("measured"), text(result.get("duration_s")))),
        ("tool", "%s %s" % (result.get("tool"), result.get("tool_version") or "")),
        ("load", "%s input and %s output tokens, seed %s" % tuple(profile.get(name) for name in ("input_tokens", "output_tokens", "seed"))),
    ]
    for part in result.get("parts") or []:
        if part["name"] in ("vllm_version", "model", "gpus", "driver_version"):
            value = part["value"]
            facts.append((part["name"].replace("_", " "), text(", ".join(map(str, value)) if isinstance(value, list) else value)))
    facts.append(("fingerprint", str(result.get("fingerprint"))))
    if baseline:
        facts.append(("compared with", "the result of %s (%s)" % (baseline.get("measured"), baseline.get("fingerprint"))))
    return facts


def _cell(level: Mapping[str, Any], key: str) -> Any:
    return value_at(level, key)


def _quoted(word: str) -> str:
    plain = word and all(char.isalnum() or char in "_-./:=,@%+<" for char in word)
    return word if plain else "'%s'" % word.replace("'", "'\\''")
