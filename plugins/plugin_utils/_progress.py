# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host tells of its change, as one line for people."""

from __future__ import annotations

import re
from typing import Any, List, Mapping, Optional

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._table import cell_text

_LONGEST = 200
_PHASES = {
    "preflight": "looking and checking",
    "warm": "reading %s into the page cache",
    "drain": "draining what serves",
    "stop": "stopping what serves",
    "settle": "waiting until the GPU memory is free",
    "steady": "seeing that it goes on serving",
    "load": "loading %s",
    "commit": "setting what starts at boot",
    "rollback": "ROLLING BACK, the old service is brought back",
    "command": "running the command",
    "return": "bringing back what served before",
    "done": "done",
}

# What vLLM says before what it has to say: process, level, time, place in its source.
_PREFIX = re.compile(r"^(\([^()]*\bpid=\d+\)\s*)*((DEBUG|INFO|WARNING|ERROR)\s+\d\d-\d\d \d\d:\d\d:\d\d\s+(\[[^\]]*\]\s*)?)?")
# A bar that was drawn for a terminal of its own.
_BAR = re.compile(r"\d+%.*\|.*\d+/\d+ \[")


def line_of(host: str, news: Mapping[str, Any], width: int = _LONGEST) -> str:
    """Such as ``gpu01   34 s  loading kimi (22 s): shards 12/64, GPUs 301 of 764 GiB, Loading weights took 3.2 seconds``."""
    if news.get("unknown"):
        return "%s  nothing is known yet of how far it is" % host
    phase = str(news.get("phase") or "begun")
    words = _PHASES.get(phase, phase)
    if "%s" in words:
        words = words % (news.get("service") or "the model")
    now = news.get("now")
    total, within = _since(now, news.get("since")), _since(now, news.get("phase_since"))
    head = "%s %6s  %s" % (host, "-" if total is None else "%d s" % total, words)
    if within:
        head += " (%d s)" % within
    details = _details(phase, news)
    text = "%s: %s" % (head, ", ".join(details)) if details else head
    text = " ".join(cell_text(text).split("\n"))
    return text if len(text) <= width else text[: max(1, width - 3)] + "..."


def _details(phase: str, news: Mapping[str, Any]) -> List[str]:
    found = []
    if phase == "warm" and news.get("warm_total_mib"):
        found.append("%s of %s GiB" % (_gib(news.get("warm_read_mib")), _gib(news["warm_total_mib"])))
    if phase in ("load", "rollback"):
        if phase == "load" and news.get("shards"):
            found.append("shards %s" % news["shards"])
        if news.get("gpu_total_mib"):
            found.append("GPUs %s of %s GiB" % (_gib(news.get("gpu_used_mib")), _gib(news["gpu_total_mib"])))
        line = _said(str(news.get("line") or "")) if phase == "load" else ""
        if line or news.get("detail"):
            found.append(line or str(news["detail"]))
    elif news.get("detail"):
        found.append(str(news["detail"]))
    return found


def _said(line: str) -> str:
    """The server's line without what only a log needs; nothing of a bar, which is told as numbers."""
    return "" if _BAR.search(line) else _PREFIX.sub("", line).strip()


def _gib(mib: Any) -> str:
    if not isinstance(mib, (int, float)):
        return "?"
    return "%.1f" % (mib / 1024.0) if 0 < mib < 10240 else "%d" % round(mib / 1024.0)


def _since(now: Any, then: Any) -> Optional[int]:
    if not isinstance(now, (int, float)) or not isinstance(then, (int, float)):
        return None
    return max(0, int(now - then))
