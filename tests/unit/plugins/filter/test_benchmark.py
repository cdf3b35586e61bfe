# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of a benchmark: rows, slow hosts, the choice of hosts, Markdown, and the page of HTML."""

from __future__ import annotations

import re
import xml.dom.minidom
from html.parser import HTMLParser
from typing import Any, Dict, List, Optional, Sequence, Tuple

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.benchmark_faults import benchmark_faults
from ansible_collections.gpufleet.vllm.plugins.filter.benchmark_html import benchmark_html, benchmark_markdown
from ansible_collections.gpufleet.vllm.plugins.filter.benchmark_rows import benchmark_rows
from ansible_collections.gpufleet.vllm.plugins.filter.benchmark_slow import benchmark_hosts, benchmark_slow
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.compare import verdict
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.result import Sample, level_of, peak_of

NASTY = '<script>alert(1)</script>|`x`"'
VOID = {"meta", "circle", "rect", "line", "path", "br"}


def result(
    tokens_s: float = 100.0, levels: Sequence[int] = (1, 2, 4), failed: int = 0, deployment: str = "d", error: str = "boom"
) -> Dict[str, Any]:
    made = []
    for concurrency in levels:
        e2e = 10 / tokens_s
        good = [Sample(ttft=e2e / 10, e2e=e2e, input_tokens=8, output_tokens=10, gaps=(e2e / 10,))] * (8 - failed)
        made.append(level_of(concurrency, 8, good + [Sample(error)] * failed, 8 * e2e / concurrency, 10, 2))
    return {
        "schema_version": 1, "fingerprint": "f" * 32, "deployment": deployment, "measured": "2026-11-29T22:10:00Z", "duration_s": 12.5,
        "service": "m", "url": "http://127.0.0.1:8000", "model": "m", "tool": "builtin", "tool_version": "abc",
        "profile": {"input_tokens": 8, "output_tokens": 10, "seed": 0}, "levels": made, "peak": peak_of(made),
        "parts": [{"name": "vllm_version", "value": "0.33.0", "digest": "a"}], "commands": [["vllm", "bench", "it's"]],
    }  # fmt: skip


def outcome(found: Dict[str, Any], baseline: Optional[Dict[str, Any]] = None, changed: bool = True) -> Dict[str, Any]:
    judged = verdict(found, baseline, 10.0, 100.0)
    return {"changed": changed, "target": "m", "fingerprint": "f" * 32, "deployment": found["deployment"], "result": found,
            "verdict": judged, **({} if judged["ok"] else {"failed": True, "msg": "m does not do what is asked of it"})}  # fmt: skip


FLEET: Dict[str, Any] = {
    "gpu01": outcome(result()),
    "gpu02": outcome(result(), changed=False),
    "gpu03": outcome(result(70.0)),
    "gpu04": outcome(result(100.0), dict(result(200.0), parts=[{"name": "vllm_version", "value": "0.32.0", "digest": "b"}])),
    "gpu05": outcome(result(100.0, failed=2)),
    "gpu06": {"unreachable": True, "msg": "Failed to connect"},
    "gpu07": {"failed": True, "msg": "Another run measures", "lock_holder": {"pid": 1}},
    "gpu08": {"failed": True, "msg": "There is no command\nmore"},
    "gpu09": {"changed": True, "target": "m", "result": None, "verdict": None, "fingerprint": "f" * 32},
    "gpu10": {},
}


# -- rows --------------------------------------------------------------------------------------------------------------


def test_each_host_has_a_word() -> None:
    rows = {row["host"]: row for row in benchmark_rows(FLEET, benchmark_slow(FLEET))}
    assert {host: row["result"] for host, row in rows.items()} == {
        "gpu01": "measured", "gpu02": "stands", "gpu03": "measured, SLOW", "gpu04": "REGRESSION", "gpu05": "FAILED REQUESTS",
        "gpu06": "UNREACHABLE", "gpu07": "BUSY", "gpu08": "FAILED", "gpu09": "would measure", "gpu10": "not run",
    }  # fmt: skip
    assert [host for host, row in rows.items() if not row["ok"]] == ["gpu04", "gpu05", "gpu06", "gpu07", "gpu08", "gpu10"]
    assert rows["gpu01"]["peak_tokens_s"] == 400.0 and rows["gpu01"]["peak_concurrency"] == 4 and rows["gpu01"]["tokens_s"] == 100.0
    assert rows["gpu08"]["detail"] == "There is no command"
    assert "30.0 percent below the median of 4 like it" in rows["gpu03"]["detail"]
    assert rows["gpu04"]["detail"].count("percent worse") == 2 and "and" in rows["gpu04"]["detail"]


def test_a_result_that_stands_says_when_it_was_measured() -> None:
    two = {"a": outcome(result()), "b": outcome(result(70.0), changed=False)}
    rows = {row["host"]: row for row in benchmark_rows(two, benchmark_slow(two))}
    assert rows["a"]["detail"] is None
    assert rows["b"]["result"] == "stands, SLOW"
    assert rows["b"]["detail"] == "measured 2026-11-29T22:10:00Z; 30.0 percent below a", "there is no median of one"


def test_check_mode_says_what_it_did_not_try() -> None:
    (row,) = benchmark_rows({"a": dict(FLEET["gpu09"], untried="the tool was not tried")})
    assert (row["result"], row["detail"]) == ("would measure", "the tool was not tried")


def test_a_host_on_which_nothing_could_be_planned_says_why() -> None:
    (row,) = benchmark_rows({"a": {}}, (), {"a": {"failed": True, "msg": "No service runs"}})
    assert (row["result"], row["ok"], row["detail"]) == ("FAILED", False, "No service runs")
    (row,) = benchmark_rows({"a": {}}, (), {"a": {"changed": True, "deployment": "d", "fingerprint": "f"}})
    assert (row["result"], row["ok"]) == ("like another host", True)


def test_what_to_know_of_a_result_is_passed_on() -> None:
    (row,) = benchmark_rows({"a": dict(outcome(dict(result(), notes=["only 5 were busy"])), warnings=["of something else"])})
    assert row["detail"] == "only 5 were busy"


def test_the_hosts_to_measure() -> None:
    plans = {
        "a": {"fingerprint": "1", "deployment": "x", "changed": True},
        "b": {"fingerprint": "2", "deployment": "x", "changed": False},
        "c": {"fingerprint": "3", "deployment": "y", "changed": True},
        "d": {"failed": True, "msg": "no"},
        "e": {},
    }
    assert benchmark_hosts(plans) == ["a", "b", "c"]
    assert benchmark_hosts(plans, "deployment") == ["b", "c"], "one whose result stands costs nothing"
    with pytest.raises(AnsibleFilterError, match="host or deployment"):
        benchmark_hosts(plans, "rack")


@pytest.mark.parametrize("call", [benchmark_rows, benchmark_slow, benchmark_hosts, benchmark_faults, lambda x: benchmark_html(x, "", [])])
def test_what_is_no_dictionary_is_refused(call: Any) -> None:
    with pytest.raises(AnsibleFilterError, match="takes a dictionary"):
        call([1])


# -- what is asked for -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"once_per": "rack"}, "once_per is 'rack'"),
        ({"slow_percent": "much"}, "slow_percent is 'much'"),
        ({"slow_percent": 101}, "slow_percent is 101"),
        ({"profile": {"concurrency": [0]}}, "concurrency takes"),
        ({"profile": {"concurency": [1]}}, "profile: there is no concurency (there are: concurrency, input_tokens, output_tokens, "),
        ({"profile": "foo"}, "profile takes a dictionary with whole numbers, of concurrency, input_tokens"),
        ({"profile": {"requests": "many"}}, "profile takes a dictionary with whole numbers"),
        ({"query": "rows[?"}, "query"),
        ({"baseline": "/nowhere/a.json"}, "cannot be read on the controller"),
        ({"baseline": {"rows": []}}, "no result of a benchmark"),
    ],
)
def test_what_cannot_work_is_told_before_any_host_is_asked(asked: Dict[str, Any], said: str) -> None:
    (fault,) = benchmark_faults(asked)
    assert said in fault


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"vllm_benchmark_tool": "foo"}, "vllm_benchmark_tool takes one of vllm_bench, guidellm, builtin, not 'foo'"),
        ({"vllm_benchmark_max_regression": -1}, "vllm_benchmark_max_regression: -1 is no percentage from 0 to 1e+06"),
        ({"vllm_benchmark_timeout": "long"}, "vllm_benchmark_timeout takes a number, not 'long'"),
        ({"vllm_benchmark_judged": ["speed"]}, "vllm_benchmark_judged: there is no metric speed. There are: "),
        ({"vllm_benchmark_profile": {"seed": -1}}, "vllm_benchmark_profile: seed"),
        ({"vllm_benchmark_api_key": {"a": "hunter2"}, "vllm_benchmark_force": "maybe"}, "force takes true or false, not 'maybe'"),
    ],
)
def test_the_variables_of_each_host_are_told_by_their_names(variables: Dict[str, Any], said: str) -> None:
    fault = "; ".join(benchmark_faults({}, {"gpu01": variables, "gpu02": {}}, ["gpu01", "gpu02"]))
    assert said in fault and "(gpu01)" in fault and "hunter2" not in fault
    assert "(gpu01)" not in "; ".join(benchmark_faults({}, {"gpu01": variables}, ["gpu01"]))


def test_the_profile_of_the_run_counts_more_than_the_hosts() -> None:
    hosts = {"gpu01": {"vllm_benchmark_profile": "foo", "vllm_benchmark_timeout": "60", "vllm_benchmark_baseline": "here.json"}}
    assert benchmark_faults({"profile": {"concurrency": "1,2"}}, hosts, ["gpu01"]) == []
    assert len(benchmark_faults({"profile": {}}, hosts, ["gpu01"])) == 1


def test_nothing_is_wrong_with_the_defaults() -> None:
    asked = {"profile": {}, "baseline": "", "once_per": "host", "slow_percent": 10, "query": ""}
    assert benchmark_faults(asked) == []
    assert benchmark_faults(dict(asked, baseline={"hosts": {"a": {"result": result()}}}, query="length(slow) == `0`")) == []


# -- documents ---------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a page holds: its elements are closed, and it asks for nothing."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: List[str] = []
        self.tags: List[Tuple[str, Dict[str, Optional[str]]]] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: List[Tuple[str, Optional[str]]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: List[Tuple[str, Optional[str]]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(hosts: Dict[str, Any], title: str = "The fleet") -> str:
    slow = benchmark_slow(hosts)
    return benchmark_html(hosts, title, benchmark_rows(hosts, slow), slow)


def test_the_page_shows_the_fleet() -> None:
    page = page_of(FLEET)
    read = Page(page)
    assert "NOT OK." in read.text and "slow: gpu03 (30.0 % below the median of 4 like it" in read.text
    assert "as measured 2026-11-29T22:10:00Z)" in read.text
    for word in ("REGRESSION", "FAILED REQUESTS", "vllm_version: 0.33.0, was 0.32.0", "2 x other (boom)", "vllm bench 'it'\\''s'"):
        assert word in read.text
    plots = re.findall(r"<svg viewBox=\"0 0 560 300\".*?</svg>", page)
    assert len(plots) == 4
    for drawn in plots:
        xml.dom.minidom.parseString(drawn)  # well-formed
        assert 'role="img"' in drawn and "<desc" in drawn and drawn.count('class="line"') == 5
    assert "gpu03, concurrency 4: 280 tokens/s" in read.text, "each point says what it is"


def test_the_page_needs_nothing_else_and_runs_nothing() -> None:
    read = Page(page_of(FLEET))
    assert not {"script", "link", "img", "iframe", "object", "form", "a"} & {tag for tag, attributes in read.tags}
    for tag, attributes in read.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "href", "style", "srcset")]
    assert "url(" not in page_of(FLEET) and "@import" not in page_of(FLEET)


def test_nothing_in_a_name_or_in_an_error_becomes_a_part_of_the_page() -> None:
    hosts = {NASTY: outcome(result(failed=1, error=NASTY)), "b": {"failed": True, "msg": NASTY}}
    hosts[NASTY]["result"]["service"] = NASTY
    hosts[NASTY]["target"] = NASTY
    hosts[NASTY]["result"]["commands"] = [[NASTY]]
    page = page_of(hosts, NASTY)
    assert "<script" not in page
    read = Page(page)
    assert read.text.count(NASTY) >= 5
    text = benchmark_markdown(hosts, NASTY, benchmark_rows(hosts), [])
    outside = [line for line in text.splitlines() if not line.startswith("    ")]
    assert not [line for line in outside if re.search(r"(?<!\\)<script", line)]
    assert {line.count(" | ") for line in outside if line.startswith("| ")} == {9, 13}, "a bar in a name makes no column"


@pytest.mark.parametrize(
    "hosts",
    [
        {},
        {"a": {"unreachable": True}},
        {"a": outcome(result(levels=[8]))},
        {"a": outcome(result(levels=[3, 1000]))},
        {"a": outcome(result(failed=8))},
        {"a": outcome(result()), "b": outcome(result(levels=[2, 16]))},
        {"gpu%02d" % number: outcome(result(70.0 if number == 3 else 100.0)) for number in range(20)},
    ],
    ids=["nothing", "nobody", "one level", "odd levels", "all failed", "other levels", "many hosts"],
)
def test_the_page_works_with_whatever_there_is(hosts: Dict[str, Any]) -> None:
    page = page_of(hosts)
    Page(page)
    assert "nan" not in page.lower().replace("nano", "") and "inf" not in re.sub(r"[a-z]*inf[a-z]+", "", page.lower())
    assert benchmark_markdown(hosts, "t", benchmark_rows(hosts), [])


def test_of_many_hosts_only_the_slow_ones_are_told_apart() -> None:
    hosts = {"gpu%02d" % number: outcome(result(70.0 if number == 3 else 100.0)) for number in range(20)}
    page = page_of(hosts)
    assert page.count('class="series marked"') == 5 and page.count('class="series many"') == 4 * 19 + 1
    assert "19 hosts" in page and "gpu03 (slow)" in page


def test_markdown_has_the_same_tables() -> None:
    rows = benchmark_rows(FLEET, benchmark_slow(FLEET))
    text = benchmark_markdown(FLEET, "The fleet", rows, benchmark_slow(FLEET))
    assert text.startswith("# The fleet\n\n**NOT OK.** ")
    assert "| gpu01 | m | measured | 400 | 4 | 200 | 100 |" in text
    assert "| 4 | 100 | 400 | 200 |" in text
    assert "What changed since the baseline:\n\n- vllm\\_version: 0.33.0, was 0.32.0" in text
    assert "    vllm bench 'it'\\''s'" in text


def test_a_host_that_had_failed_before_the_benchmark_is_said_to() -> None:
    rows = {row["host"]: row for row in benchmark_rows({"a": {}, "b": {}}, (), {}, ["a"])}
    assert rows["a"]["detail"] == "it had failed before this playbook, in the same run" and rows["b"]["detail"] is None
    assert rows["a"]["result"] == rows["b"]["result"] == "not run"
