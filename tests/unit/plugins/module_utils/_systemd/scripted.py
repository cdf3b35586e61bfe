# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A runner that answers from a script and remembers what it was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.runner import Completed, Runner


class ScriptedRunner(Runner):
    """Answers by the first words of a command; a command that nobody expected fails the test."""

    def __init__(self, answers: Mapping[str, tuple[int, str, str]]) -> None:
        self._answers = dict(answers)
        self.calls: list[tuple[str, ...]] = []

    def run(
        self,
        argv: Sequence[str],
        timeout: float = 30.0,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """The scripted answer."""
        self.calls.append(tuple(argv))
        line = " ".join(argv)
        for start in sorted(self._answers, key=len, reverse=True):
            if line.startswith(start):
                rc, out, err = self._answers[start]
                return Completed(tuple(argv), rc, out, err)
        raise AssertionError("nobody expected: %s" % line)
