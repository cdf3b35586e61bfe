# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far the change is, for everybody on the host to read: one small file, replaced at each piece of news.

There is nothing secret in it, and nothing that anything depends on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Dict, Optional

from .._core.directories import make_directories

PATH = "/run/gpufleet/progress.json"
_PAUSE_S = 0.1


class Progress:
    """Written by the job. What cannot be written is said once, on stderr, and not again: the change matters more."""

    def __init__(self, path: str, change: str, **fixed: Any) -> None:
        self._path = path
        before = read(path)
        same = before is not None and before.get("id") == change
        # A job that was started again goes on counting, so that nobody misses its news.
        self._news: Dict[str, Any] = {"id": change, "seq": before["seq"] if same and before is not None else 0}
        self._news.update(fixed)
        self._told = False

    def tell(self, **news: Any) -> None:
        """Publish, unless it is no news."""
        if all(self._news.get(name, self) == value for name, value in news.items()):
            return
        self._news.update(news)
        self._news["seq"] += 1
        temporary = "%s.%d" % (self._path, os.getpid())
        try:
            make_directories(os.path.dirname(self._path))
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            with open(fd, "w", encoding="utf-8") as handle:
                os.fchmod(fd, 0o644)
                json.dump(self._news, handle)
            os.rename(temporary, self._path)
        except OSError as exc:
            if not self._told:
                self._told = True
                sys.stderr.write("Progress cannot be told: %s: %s\n" % (self._path, exc.strerror))


def read(path: str = PATH) -> Optional[Dict[str, Any]]:
    """The last news, None when there is none (since this boot)."""
    try:
        with open(path, encoding="utf-8") as handle:
            news = json.load(handle)
    except (OSError, ValueError):
        return None
    return news if isinstance(news, dict) and isinstance(news.get("seq"), int) else None


def follow(change: str, after: int, seconds: float, path: str = PATH) -> Dict[str, Any]:
    """News of a change beyond number ``after``, as soon as there is some; after ``seconds`` whatever is known.

    ``change`` may be ``-``: whichever it is. Of a change that has not told anything yet: ``unknown``.
    """
    end = time.monotonic() + seconds
    while True:
        news = read(path)
        known = news is not None and change in ("-", news.get("id"))
        if news is not None and known and (news["seq"] > after or time.monotonic() >= end):
            return news
        if time.monotonic() >= end:
            return {"id": change, "seq": after, "unknown": True}
        time.sleep(_PAUSE_S)
