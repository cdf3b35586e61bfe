# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A swap with ``drain_timeout`` under a stream of requests, on one host."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.catalogue import entries_with
from chaos.controller import Controller
from chaos.sight import complete
from chaos.stream import TOKENS_PER_S, Stream
from chaos.subject import MODELS
from lab import Host

DRAIN_S = 6


def drained(host: Host, balanced: bool, say: list[str], words: Sequence[str] = ()) -> list[str]:
    """Swap under a stream; what went wrong. ``balanced``: a load balancer sends nothing more once the swap has begun, as a hook
    would see to; without, requests go on coming while the server drains and after.
    """
    old, new = MODELS
    host.reset()
    host.vllm.behave("*", throttle={"tokens_per_s": TOKENS_PER_S})
    options = [*entries_with(drain_timeout=DRAIN_S), *words]
    first = Controller(old, [host.name], *options).end()
    if first.rc:
        return [f"the old model could not be deployed: {first.out}"]
    wrong: list[str] = []
    with Stream(host, old) as stream:
        swap = Controller(new, [host.name], *options)
        if balanced:
            stream.stop()
        ended = swap.end()
        stream.stop()
    if ended.rc:
        wrong.append(f"the swap ended with {ended.rc}:\n{ended.out}")
    wrong += [f"the new model: {answer}" for answer in [complete(host, new)] if answer]
    if not stream.answers["whole"]:
        wrong.append("not one request was answered, so nothing was tried")
    if stream.lost:
        wrong.append(f"{len(stream.lost)} accepted requests were lost: {stream.lost[:5]}")
    told = ", ".join(f"{stream.answers[name]} {name}" for name in ("whole", "refused", "lost"))
    say.append(f"requests during a drained swap, {'taken out of the balancer first' if balanced else 'sent without a pause'}: {told}")
    return wrong
