# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A swap with ``drain_timeout`` under a stream of requests, on one host."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from chaos.catalogue import entries_with
from chaos.controller import Controller
from chaos.sight import complete, last
from chaos.stream import TOKENS_PER_S, Stream
from chaos.subject import MODELS
from lab import Host

DRAIN_S = 20
_HOOK = """
- name: Take it out of the balancer
  ansible.builtin.copy:
    dest: "{}"
    content: ""
    mode: "0644"
  delegate_to: localhost
"""


def drained(host: Host, balanced: bool, say: list[str], words: Sequence[str] = ()) -> list[str]:
    """Swap under a stream; what went wrong. ``balanced``: a before_host hook has the load balancer send nothing more, while what it has
    sent is still under way; without, requests go on coming while the server drains and after.
    """
    old, new = MODELS
    host.reset()
    host.vllm.behave("*", throttle={"tokens_per_s": TOKENS_PER_S})
    # Which requests the server had, its log tells the stream.
    options = [*entries_with(drain_timeout=DRAIN_S, args={"enable_log_requests": True}), *words]
    first = Controller(old, [host.name], *options).end()
    if first.rc:
        return [f"the old model could not be deployed: {first.out}"]
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gfc-hook-") as place:
        taken_out = Path(place, "taken out")
        if balanced:
            options += ["-e", f"before_host={_hook(Path(place), taken_out)}"]
        with Stream(host, old, taken_out) as stream:
            ended = Controller(new, [host.name], *options).end()
            stream.stop()
        if balanced and not taken_out.exists():
            wrong.append("the hook before the host did not run, so nothing was taken out of the balancer")
    if ended.rc:
        wrong.append(f"the swap ended with {ended.rc}:\n{ended.out}")
    wrong += [f"the new model: {answer}" for answer in [complete(host, new)] if answer]
    if stream.answers["whole"] < stream.clients:
        wrong.append(f"only {stream.answers['whole']} requests were answered, so too little was tried")
    if stream.lost:
        wrong.append(f"{len(stream.lost)} accepted requests were lost: {stream.lost[:5]}")
    told = ", ".join(f"{stream.answers[name]} {name}" for name in ("whole", "refused", "lost"))
    way = "taken out of the balancer first" if balanced else "sent without a pause"
    drain_s = (last(host).get("timings") or {}).get("drain") or 0.0
    say.append(f"requests during a swap that drained for {drain_s:.1f} s, {way}: {told}")
    return wrong


def _hook(directory: Path, taken_out: Path) -> Path:
    path = directory / "out.yml"
    path.write_text(_HOOK.format(taken_out), encoding="utf-8")
    return path
