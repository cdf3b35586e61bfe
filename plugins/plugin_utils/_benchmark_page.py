# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of a benchmark as one page of HTML that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from html import escape
from typing import Any, Dict, List, Mapping, Sequence

from . import _benchmark as content
from ._plot import MOST_SERIES, class_of, mark, plot

_LIGHT = ("#1f6fb2", "#c2570c", "#17805a", "#a8328f", "#6a4fc4", "#0b7a8a", "#b3353d", "#6d6a00")
_DARK = ("#6cb4f5", "#ffa45c", "#4fd1a1", "#ee92d8", "#b7a3ff", "#4fd0e0", "#ff8b8f", "#d6d24e")
_STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --ink: #1c2128; --soft: #57606a; --rule: #d8dee4; --panel: #f6f8fa; --good: #17693f;
  --bad: #b3261e; --many: #8b949e; LIGHT }
@media (prefers-color-scheme: dark) { :root { --back: #11151b; --ink: #e6edf3; --soft: #9aa5b1; --rule: #30363d; --panel: #191f27;
  --good: #56d38f; --bad: #ff8a80; --many: #6e7681; DARK } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1240px; padding: 24px 20px 56px; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 19px; margin: 36px 0 10px; padding-top: 14px; border-top: 1px solid var(--rule); }
h3 { font-size: 15px; margin: 18px 0 6px; }
.when { color: var(--soft); margin: 0 0 14px; }
.verdict { border-left: 5px solid var(--good); background: var(--panel); padding: 10px 14px; margin: 0 0 22px; border-radius: 4px;
  overflow-wrap: anywhere; }
.verdict.bad { border-color: var(--bad); }
.verdict b { color: var(--good); } .verdict.bad b { color: var(--bad); }
.scroll { overflow-x: auto; margin: 0 0 12px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: 5px 12px 5px 0; text-align: right; border-bottom: 1px solid var(--rule); vertical-align: top; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
td:first-child, td:nth-child(2) { white-space: nowrap; }
table.summary { width: 100%; }
th.text, td.text { text-align: left; }
td.wide { min-width: 260px; max-width: 460px; overflow-wrap: anywhere; }
tr.bad td.verdict-cell { color: var(--bad); font-weight: 600; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 18px; }
figure { margin: 0; background: var(--panel); border-radius: 6px; padding: 12px 12px 6px; }
figcaption { font-weight: 600; margin: 0 4px 6px; }
figcaption span { color: var(--soft); font-weight: 400; }
svg { width: 100%; height: auto; display: block; }
.grid { stroke: var(--rule); stroke-width: 1; }
.axis { fill: var(--soft); font-size: 12px; }
.series { stroke: currentColor; fill: currentColor; }
.series .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.many { color: var(--many); opacity: .55; } .marked { color: var(--bad); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 20px; padding: 0; margin: 0 0 14px; }
.legend li { display: flex; align-items: center; gap: 7px; }
.legend svg { width: 30px; height: 14px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 0 0 14px; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
ul.plain { margin: 0 0 12px; padding-left: 20px; overflow-wrap: anywhere; }
pre { background: var(--panel); padding: 10px 12px; border-radius: 4px; white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12.5px; }
summary { cursor: pointer; color: var(--soft); }
.note { color: var(--soft); }
"""
_TEXT_COLUMNS = ("host", "server", "result", "detail")


def render(title: str, when: str, rows: Sequence[Mapping[str, Any]], slow: Sequence[Mapping[str, Any]], hosts: Mapping[str, Any]) -> str:
    """The whole page. ``when`` is text, ``hosts`` are the module's results by host."""
    fine, sentence = content.headline(rows, slow)
    marked = [str(each["host"]) for each in slow]
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        # Belt and braces: nothing in a name or in an error could load anything, whatever it looks like.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src \'unsafe-inline\'">',
        "<title>%s</title><style>%s</style></head><body>" % (escape(title), _style()),
        '<h1>%s</h1><p class="when">%s</p>' % (escape(title), escape(when)),
        '<p class="verdict%s"><b>%s</b> %s</p>' % ("" if fine else " bad", "OK." if fine else "NOT OK.", escape(sentence)),
        _summary(rows),
        *_plots(hosts, marked),
        '<p class="note">%s</p>' % escape(content.GLOSSARY),
    ]
    for report in content.host_reports(hosts):
        parts += _host(report)
    return "".join(parts) + "</body></html>\n"


def _style() -> str:
    colours = {"LIGHT": _LIGHT, "DARK": _DARK}
    text = _STYLE
    for word, values in colours.items():
        text = text.replace(word, " ".join("--s%d: %s;" % (number, value) for number, value in enumerate(values)))
    return text + "".join(".s%d { color: var(--s%d); }\n" % (number, number) for number in range(MOST_SERIES))


def _summary(rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join('<th scope="col"%s>%s</th>' % (' class="text"' if key in _TEXT_COLUMNS else "", escape(heading))
                   for key, heading in content.SUMMARY_COLUMNS)
    body = []
    for row in rows:
        cells = []
        for key, heading in content.SUMMARY_COLUMNS:
            style = {"result": "text verdict-cell", "detail": "text wide"}.get(key, "text" if key in _TEXT_COLUMNS else "")
            cells.append('<td class="%s">%s</td>' % (style, escape(content.text(row.get(key)))))
        body.append('<tr class="%s">%s</tr>' % ("" if row["ok"] else "bad", "".join(cells)))
    return '<div class="scroll" tabindex="0"><table class="summary"><thead><tr>%s</tr></thead><tbody>%s</tbody></table></div>' % (
        head, "".join(body))


def _plots(hosts: Mapping[str, Any], marked: Sequence[str]) -> List[str]:
    names = list(content.series_of(hosts, content.PLOTS[0][0]))
    if not names:
        return []
    parts = ['<h2>Over concurrency</h2><ul class="legend">%s</ul><div class="plots">' % "".join(_legend(names, marked))]
    for number, (metric, heading, unit) in enumerate(content.PLOTS):
        drawn = plot("plot%d" % number, heading, unit, content.series_of(hosts, metric), marked)
        parts.append("<figure><figcaption>%s <span>%s</span></figcaption>%s</figure>" % (escape(heading), escape(unit), drawn))
    return parts + ["</div>"]


def _legend(names: Sequence[str], marked: Sequence[str]) -> List[str]:
    entries: Dict[str, str] = {}
    for number, host in enumerate(names):
        style = class_of(number, host, len(names), marked)
        label = host + (" (slow)" if host in marked else "")
        if style == "many":
            label = "%d hosts" % sum(1 for place, name in enumerate(names) if class_of(place, name, len(names), marked) == "many")
        drawn = '<svg viewBox="0 0 30 14" aria-hidden="true"><g class="series %s"><path class="line" d="M1 7H29"/>%s</g></svg>'
        entries.setdefault(label, "<li>%s%s</li>" % (drawn % (style, mark(number, 15, 7)), escape(label)))
    return list(entries.values())


def _host(report: content.HostReport) -> List[str]:
    parts = ["<h2>%s</h2><dl>" % escape(report.host)]
    parts += ["<dt>%s</dt><dd>%s</dd>" % (escape(name), escape(value)) for name, value in report.facts]
    head = "".join('<th scope="col">%s</th>' % escape(heading) for key, heading in content.LEVEL_COLUMNS)
    body = "".join("<tr>%s</tr>" % "".join("<td>%s</td>" % escape(cell) for cell in row) for row in report.levels)
    parts.append('</dl><div class="scroll" tabindex="0"><table><thead><tr>%s</tr></thead><tbody>%s</tbody></table></div>' % (head, body))
    for heading, entries in (("Worse than allowed", report.regressions), ("What changed since the baseline", report.changed),
                             ("Failed requests", report.errors)):
        if entries:
            items = "".join("<li>%s</li>" % escape(entry) for entry in entries)
            parts.append('<h3>%s</h3><ul class="plain">%s</ul>' % (escape(heading), items))
    if report.commands:
        parts.append("<details><summary>To repeat it</summary><pre>%s</pre></details>" % escape("\n".join(report.commands)))
    return parts
