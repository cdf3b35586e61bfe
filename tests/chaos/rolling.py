# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Twelve hosts, four at a time, and one that fails: what it leaves of the others."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.controller import Controller
from chaos.sight import complete, files, invocations, look, wait_for_rest
from chaos.subject import MODELS, REST_S
from lab import Host


def rolling(hosts: Sequence[Host], batch: int, broken: int, say: list[str]) -> list[str]:
    """Swap all of them ``batch`` at a time, with a new model that fails on the host number ``broken``; what went wrong.

    Hosts of later batches have to be as they were, byte for byte, with the very same servers running; the broken one
    has to be back on its old model. ``say`` gets what was seen.
    """
    old, new = MODELS
    names = [host.name for host in hosts]
    wrong: list[str] = []
    first = Controller(old, names, "-e", f"batch={len(hosts)}", "--forks", str(len(hosts))).end(1200)
    if first.rc:
        return [f"the old model could not be deployed: {first.out}"]
    culprit = hosts[broken - 1]
    culprit.vllm.behave(new, oom_warmup=True)
    before = {host.name: (files(host), invocations(host, MODELS)) for host in hosts}
    swap = Controller(new, names, "-e", f"batch={batch}", "--forks", str(len(hosts))).end(1200)
    if swap.rc == 0:
        wrong.append("the swap ended with 0 although a host failed")
    begin = (broken - 1) // batch * batch
    for number, host in enumerate(hosts, 1):
        if number <= begin or (number <= begin + batch and host is not culprit):
            wrong += [f"{host.name}, in a batch up to the broken one's: {answer}" for answer in [complete(host, new)] if answer]
        elif host is culprit:
            if wait_for_rest(host, MODELS, REST_S) is None:
                wrong.append(f"{host.name} does not come to rest")
            seen = look(host, MODELS)
            answer = complete(host, old)
            if answer or seen.running != [old] or not seen.enabled[old] or seen.enabled[new] or files(host) != before[host.name][0]:
                wrong.append(f"{host.name} is not back on its old model: {answer}, {seen}")
        else:
            if (files(host), invocations(host, MODELS)) != before[host.name]:
                wrong.append(f"{host.name}, of a later batch, was touched")
            wrong += [f"{host.name}, of a later batch: {answer}" for answer in [complete(host, old)] if answer]
    later = len(hosts) - begin - batch
    say.append(f"{len(hosts)} hosts, batch={batch}, host {broken} broken: the {later} hosts of later batches were looked at byte for byte")
    culprit.vllm.clear(new)
    again = Controller(new, names, "-e", f"batch={batch}", "--forks", str(len(hosts))).end(1200)
    if again.rc:
        wrong.append(f"mended, the same command ended with {again.rc}:\n{again.out}")
    wrong += [f"mended, {host.name}: {answer}" for host in hosts for answer in [complete(host, new)] if answer]
    if wrong:
        wrong.append(swap.out)
    return wrong
