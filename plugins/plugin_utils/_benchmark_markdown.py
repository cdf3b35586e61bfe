# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of a benchmark as Markdown, for a merge request or a wiki."""

from __future__ import annotations

import re
from typing import Any, List, Mapping, Sequence

from . import _benchmark as content


def render(title: str, rows: Sequence[Mapping[str, Any]], slow: Sequence[Mapping[str, Any]], hosts: Mapping[str, Any]) -> str:
    """The whole document."""
    fine, sentence = content.headline(rows, slow)
    lines = ["# %s" % _safe(title), "", "**%s** %s" % ("OK." if fine else "NOT OK.", _safe(sentence)), ""]
    lines += _table([heading for key, heading in content.SUMMARY_COLUMNS],
                    [[content.text(row.get(key)) for key, heading in content.SUMMARY_COLUMNS] for row in rows])
    for report in content.host_reports(hosts):
        lines += ["## %s" % _safe(report.host), ""]
        lines += ["- %s: %s" % (name, _safe(value)) for name, value in report.facts] + [""]
        lines += _table([heading for key, heading in content.LEVEL_COLUMNS], report.levels)
        for heading, entries in (("Worse than allowed", report.regressions), ("What changed since the baseline", report.changed),
                                 ("Failed requests", report.errors)):
            if entries:
                lines += ["%s:" % heading, ""] + ["- %s" % _safe(entry) for entry in entries] + [""]
        if report.commands:
            lines += ["To repeat it:", "", *("    " + " ".join(command.split()) for command in report.commands), ""]
    return "\n".join(lines + [content.GLOSSARY, ""])


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> List[str]:
    lines = ["| %s |" % " | ".join(headings), "|%s" % ("---|" * len(headings))]
    lines += ["| %s |" % " | ".join(_safe(cell) for cell in row) for row in rows]
    return lines + [""]


def _safe(value: str) -> str:
    """Text that stays text: nothing in a host's or a model's name or in an error makes a link, a tag or a column."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(value.split()))
