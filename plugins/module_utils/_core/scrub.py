# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking secrets out of what is told: a journal's line that is quoted may hold an API key."""

from __future__ import annotations

from typing import Any, Iterable, List

_HIDDEN = "********"
# A word of three letters is in half of all sentences, and no secret that could be kept.
SHORTEST = 4


def scrubber(secrets: Iterable[str]) -> "Scrub":
    """What hides these."""
    found = {secret.strip() for secret in secrets}
    for secret in list(found):
        found |= {line.strip() for line in secret.splitlines()}
    return Scrub(sorted((each for each in found if len(each) >= SHORTEST), key=len, reverse=True))


class Scrub:
    """Called with text or data, gives the same without the secrets."""

    def __init__(self, secrets: List[str]) -> None:
        self._secrets = secrets

    def __call__(self, value: Any) -> Any:
        """A copy of plain data in which every secret is hidden.

        The keys are ours and stay: a secret that is part of one, such as `fail`, would take `failed` out of the result.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self(each) for each in value]
        return value

    def text(self, value: str) -> str:
        """The same for text alone."""
        for secret in self._secrets:
            value = value.replace(secret, _HIDDEN)
        return value
