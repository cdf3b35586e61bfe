# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lists of modules in quantisation configurations: plain names, parts of names, wildcards, regular expressions."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Collection, Dict, Optional, Pattern, Set, Tuple

_NUMBER = re.compile(r"\.(\d+)(?=\.|$)")
_DIGIT = re.compile(r"\d")
# A repeated group that repeats within, or too many repetitions, may take forever: such an expression isn't tried.
_EXPLOSIVE = re.compile(r"[+*}]\)*[+*{]|\([^()]*[+*][^()]*\)[+*{]")
_REPEATED = re.compile(r"[*+{]")
_LONGEST, _MOST_REPEATED = 500, 5


def all_excluded(patterns: Tuple[str, ...], module: str, where: Collection[int]) -> bool:
    """Whether the patterns leave out the module of every layer in ``where``. ``module`` is its name in layer 0."""
    named, layered, expressions = _sorted(patterns)
    if any(("." + name + ".") in ("." + module + ".") for name in named):
        return True
    gone: Set[int] = set()
    for name, numbers in layered.items():
        if ("." + name + ".") in ("." + module + "."):
            gone |= numbers
    for expression in expressions:
        if not _DIGIT.search(expression):
            if _matches(expression, module):
                return True
            continue
        gone |= {index for index in where if index not in gone and _matches(expression, _in_layer(module, index))}
    return bool(where) and gone >= set(where)


def matches(pattern: str, module: str) -> bool:
    """Whether a pattern means this module: as a regular expression, a wildcard, or a part of its name."""
    if pattern.startswith("re:") or "*" in pattern:
        return _matches(pattern, module)
    return ("." + pattern.strip(".") + ".") in ("." + module + ".")


@lru_cache(maxsize=64)
def _sorted(patterns: Tuple[str, ...]) -> Tuple[Tuple[str, ...], Dict[str, Set[int]], Tuple[str, ...]]:
    """Plain names, plain names with a layer's number (by the name in layer 0), and what has to be tried."""
    named, expressions = [], []
    layered: Dict[str, Set[int]] = {}
    for pattern in patterns:
        plain = pattern.rstrip("*").strip(".")
        if pattern.startswith("re:") or "*" in plain or "?" in plain:
            expressions.append(pattern)
            continue
        found = _NUMBER.search("." + plain)
        if found is None:
            named.append(plain)
        else:
            general = _NUMBER.sub(".0", "." + plain).lstrip(".")
            layered.setdefault(general, set()).add(int(found.group(1)[:6]))
    return tuple(name for name in named if name), layered, tuple(expressions)


def _in_layer(module: str, index: int) -> str:
    return _NUMBER.sub(".%d" % index, module, count=1)


def _matches(pattern: str, module: str) -> bool:
    compiled = _compiled(pattern)
    return compiled is not None and compiled.match(module) is not None


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> Optional[Pattern[str]]:
    if len(pattern) > _LONGEST or len(_REPEATED.findall(pattern)) > _MOST_REPEATED:
        return None
    if pattern.startswith("re:"):
        expression = pattern[3:]
        if _EXPLOSIVE.search(expression):
            return None
    else:
        # A wildcard that ends a name means what is below it too.
        expression = re.sub(r"\*+", "*", pattern)
        expression = ".*".join(re.escape(part) for part in expression.split("*")) + r"(\..*)?$"
    try:
        return re.compile(expression)
    except (re.error, OverflowError, RecursionError):
        return None
