# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host answers to who follows a change: the next phase that lasts, or the end with all that came of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.vllm.plugins.module_utils._job.attend import attend


class Files:
    """The two places that are looked at."""

    def __init__(self, root: Path) -> None:
        self.store, self.progress = root / "change", root / "progress.json"
        self.looks = 0
        self.store.mkdir()

    def news(self, phase: str, ago: float = 100.0, change: str = "a") -> None:
        now = time.time()
        self.progress.write_text(json.dumps({"id": change, "seq": 1, "phase": phase, "phase_since": now - ago}))

    def record(self, change: str = "a") -> None:
        (self.store / "record.json").write_text(json.dumps({"id": change}))

    def last(self, change: str = "a") -> None:
        (self.store / "last.json").write_text(json.dumps({"id": change, "result": {"ready": True}}))

    def attend(self, phase: str, seconds: float, steady: float = 0.0) -> dict[str, Any]:
        return attend("a", phase, seconds, steady, str(self.store), str(self.progress), self.state)

    def state(self) -> str:
        """The job's: it goes on until the change has ended, and is gone some looks later."""
        if not (self.store / "last.json").exists():
            return "active"
        self.looks += 1
        return "deactivating" if self.looks < 3 else "inactive"


def test_another_phase_is_news_at_once(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.record()
    files.news("load")
    begun = time.monotonic()
    answer = files.attend("stop", 5.0)
    assert answer["phase"] == "load" and answer["unfinished"] and not answer["done"] and abs(answer["now"] - time.time()) < 5
    assert "job" not in answer and time.monotonic() - begun < 2.0


def test_the_same_phase_is_told_when_the_time_is_up_with_the_state_of_the_job(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.record()
    files.news("load")
    begun = time.monotonic()
    assert files.attend("load", 0.3)["job"] == "active"
    assert time.monotonic() - begun >= 0.3


def test_a_phase_that_has_only_begun_is_no_news_yet(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.record()
    files.news("settle", ago=0.0)
    begun = time.monotonic()
    assert files.attend("stop", 5.0, steady=0.4)["phase"] == "settle"
    assert 0.3 <= time.monotonic() - begun < 3.0


def test_the_end_comes_with_the_result_also_when_a_boot_has_taken_the_news(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.last()
    assert files.attend("load", 5.0) == {"id": "a", "done": True, "result": {"ready": True}}


def test_the_end_is_told_once_the_job_is_gone_for_the_next_change_to_begin_at_once(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.last()
    assert files.attend("load", 5.0)["done"] and files.looks == 3


def test_a_change_that_another_one_has_followed_is_neither_done_nor_unfinished(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.record("b")
    files.last("b")
    files.news("load", change="b")
    answer = files.attend("load", 0.1)
    assert answer["unknown"] and not answer["done"] and not answer["unfinished"] and "phase" not in answer
