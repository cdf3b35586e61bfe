# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the demo swaps, and what is seen of it from outside: completions, systemd's ids, Ansible's recap."""

from __future__ import annotations

import json
import re
import urllib.request

from lab import Host, Lab

PORT = 8000
# Models of the lab's catalogue: one to begin with, one to swap to, one that can't work.
FIRST, SECOND, IMPOSSIBLE = "minimax-m2.5", "kimi-k2.5-int4", "minimax-m2.5-tp8"
HOSTS = 3


def ask(host: Host, model: str, port: int = PORT) -> str:
    """One completion over HTTP, from outside the host. Empty when there was none, or another model gave it."""
    request = urllib.request.Request(
        "http://%s:%d/v1/completions" % (host.address, port),
        data=json.dumps({"model": model, "prompt": "The capital of France is", "max_tokens": 6}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as response:
            answer = json.load(response)
    except (OSError, ValueError) as exc:
        print("    %s: %s" % (host.name, exc))
        return ""
    return str(answer["choices"][0]["text"]) if answer.get("model") == model else ""


def invocations(lab: Lab, model: str) -> dict[str, str]:
    """systemd's id of each host's running service: another id means that it was started anew."""
    unit = "vllm-%s.service" % model
    return {name: host.systemctl_show(unit, ["InvocationID"])["InvocationID"] for name, host in lab.hosts.items()}


def recap(output: str, key: str) -> list[int]:
    """The hosts' numbers of one kind in Ansible's recap."""
    return [int(number) for number in re.findall(r"^gpu\S+ .*\b%s=(\d+)" % key, output, re.MULTILINE)]
