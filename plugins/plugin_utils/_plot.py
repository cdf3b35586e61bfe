# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One plot as inline SVG: lines over concurrency, one for each host. Colours are classes, so that the page decides about light and dark."""

from __future__ import annotations

import math
from html import escape
from typing import List, Mapping, Optional, Sequence, Tuple

WIDTH, HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 20, 16, 44
# Hosts that can be told apart by colour and mark; of more than these only the slow ones are.
MOST_SERIES = 8
_MARKS = ("circle", "square", "triangle", "diamond")
_TICKS = 5

Points = Sequence[Tuple[int, Optional[float]]]


def plot(identity: str, title: str, unit: str, series: Mapping[str, Points], marked: Sequence[str] = ()) -> str:
    """The SVG. ``series`` maps hosts to (concurrency, value); a value that is not known leaves a gap. ``marked`` hosts stand out."""
    levels = sorted({level for points in series.values() for level, value in points if value is not None})
    values = [value for points in series.values() for level, value in points if value is not None]
    head = '<svg viewBox="0 0 %d %d" role="img" aria-labelledby="%s-t %s-d"><title id="%s-t">%s</title><desc id="%s-d">%s</desc>' % (
        WIDTH, HEIGHT, identity, identity, identity, escape("%s (%s)" % (title, unit)), identity, escape(_described(unit, series))
    )  # fmt: skip
    if not values:
        return head + '<text class="axis" x="%d" y="%d" text-anchor="middle">nothing was measured</text></svg>' % (WIDTH // 2, HEIGHT // 2)
    ticks = _ticks(max(values))
    top = ticks[-1]
    parts = [head, *_grid(levels, ticks)]
    for number, (host, points) in enumerate(series.items()):
        parts += _line(host, class_of(number, host, len(series), marked), number, points, levels, top, unit)
    return "".join(parts) + "</svg>"


def class_of(number: int, host: str, count: int, marked: Sequence[str]) -> str:
    """The style of a host's line, the same in all plots and in the legend."""
    if count > MOST_SERIES:
        return "marked" if host in marked else "many"
    return "s%d" % number


def mark(number: int, x: float, y: float) -> str:
    """The mark of a host, so that colour is not all that tells it from the next one."""
    kind = _MARKS[number % len(_MARKS)]
    if kind == "circle":
        return '<circle cx="%.1f" cy="%.1f" r="4"/>' % (x, y)
    if kind == "square":
        return '<rect x="%.1f" y="%.1f" width="7.4" height="7.4"/>' % (x - 3.7, y - 3.7)
    if kind == "triangle":
        return '<path d="M%.1f %.1fl4.6 8.2h-9.2z"/>' % (x, y - 5)
    return '<path d="M%.1f %.1fl5 5l-5 5l-5 -5z"/>' % (x, y - 5)


def number_text(value: float) -> str:
    """A figure as people read it: three digits that count, thousands apart."""
    if value >= 1000:
        return "{:,.0f}".format(value)
    return "%g" % float("%.3g" % value)


def _x(level: int, levels: Sequence[int]) -> float:
    """Doubling the concurrency is the same step everywhere; one level alone stands in the middle."""
    least, most = math.log2(levels[0]), math.log2(levels[-1])
    share = 0.5 if most == least else (math.log2(level) - least) / (most - least)
    return _LEFT + 12 + share * (WIDTH - _LEFT - _RIGHT - 24)


def _y(value: float, top: float) -> float:
    return HEIGHT - _BOTTOM - value / top * (HEIGHT - _TOP - _BOTTOM)


def _ticks(most: float) -> List[float]:
    """The marks of the axis from 0 on: round steps, and the last one at or just over the largest value."""
    if most <= 0:
        return [0.0, 1.0]
    size = 10.0 ** math.floor(math.log10(most / _TICKS))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size * (_TICKS + 1) >= most)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def _grid(levels: Sequence[int], ticks: Sequence[float]) -> List[str]:
    parts = []
    top = ticks[-1]
    for value in ticks:
        y = _y(value, top)
        parts.append('<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>' % (_LEFT, WIDTH - _RIGHT, y, y))
        parts.append('<text class="axis" x="%d" y="%.1f" text-anchor="end">%s</text>' % (_LEFT - 8, y + 4, number_text(value)))
    last = -math.inf
    for level in levels:
        x = _x(level, levels)
        if x - last >= 26:  # room for a number; levels that are close together share one
            parts.append('<text class="axis" x="%.1f" y="%d" text-anchor="middle">%d</text>' % (x, HEIGHT - _BOTTOM + 18, level))
            last = x
    parts.append('<text class="axis" x="%d" y="%d" text-anchor="middle">concurrency</text>' % ((WIDTH + _LEFT) // 2, HEIGHT - 8))
    return parts


def _line(
    host: str, style: str, number: int, points: Points, levels: Sequence[int], top: float, unit: str
) -> List[str]:
    parts, path, open_ = [], "", False
    marks = []
    for level, value in sorted(points):
        if value is None:
            open_ = False
            continue
        x, y = _x(level, levels), _y(value, top)
        path += "%s%.1f %.1f" % ("L" if open_ else "M", x, y)
        open_ = True
        said = "%s, concurrency %d: %s %s" % (host, level, number_text(value), unit)
        marks.append("<g><title>%s</title>%s</g>" % (escape(said), mark(number, x, y)))
    parts.append('<g class="series %s"><path class="line" d="%s"/>%s</g>' % (style, path, "".join(marks)))
    return parts


def _described(unit: str, series: Mapping[str, Points]) -> str:
    """The plot in words, for those who do not see it: of many hosts the range."""
    told = []
    for host, points in list(series.items())[:MOST_SERIES]:
        known = [(level, value) for level, value in points if value is not None]
        if known:
            told.append("%s: %s" % (host, ", ".join("%s at %d" % (number_text(value), level) for level, value in known)))
    more = len(series) - MOST_SERIES
    return "%s over concurrency. %s.%s" % (unit, "; ".join(told), " And %d hosts more: see the table." % more if more > 0 else "")
