# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One host that the real vLLM is installed on: what the playbooks are told, and what is seen of the server's processes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from e2e.playbook import Ran, playbook
from hub.server import Hub
from packages.index import Index
from real.tiny import CONTEXT
from real.wheels import VERSION

from lab import Host

PORT = 8000
# What the server of a model of 300,000 weights needs. CPU builds take the size of their cache from here, not from a share of a GPU.
_ARGS = {"max_model_len": CONTEXT, "max_num_seqs": 16, "dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 256 << 20}
_COMPLETE = """
import json, sys, urllib.request as u
body = json.dumps({"model": sys.argv[1], "prompt": "What serves here?", "max_tokens": 8, "ignore_eos": True}).encode()
call = u.Request("http://127.0.0.1:%s/v1/completions" % sys.argv[2], data=body, headers={"Content-Type": "application/json"})
answer = json.load(u.urlopen(call, timeout=120))
print(json.dumps([answer["model"], answer["usage"], answer["system_fingerprint"]]))
"""
# Stops everything of a unit for nine tenths of the time, whatever way the host has of sharing out its processors. A turn is long beside
# what a crowded machine takes to let this run again: with short ones the server got most of the time there.
_THROTTLE = """
import signal, sys, time
def put(value):
    with open(sys.argv[1], "w") as stream:
        stream.write(value)
def end(*_signal):
    put("0")
    sys.exit()
signal.signal(signal.SIGTERM, end)
while True:
    put("1")
    time.sleep(1.8)
    put("0")
    time.sleep(0.2)
"""


@dataclass(frozen=True)
class Real:
    """The host, and what it fetches from."""

    host: Host
    index: Index
    hub: Hub

    # --- playbooks

    def catalogue(self) -> dict[str, Any]:
        """Two models that work, and two entries that don't.

        What ``llama-short`` says can't work, and that is known beforehand. That ``llama-starved`` leaves no memory for the KV cache is
        known to the server alone, since only CPU builds ask this variable.
        """
        entries: dict[str, Any] = {}
        for name in ("llama", "qwen3"):
            repo = f"tiny/{name}"
            entries[name] = {
                "path": f"/srv/models/{name}", "repo": repo, "revision": self.hub.models[repo].head, "gpus": [0], "port": PORT,
                "args": dict(_ARGS), "ready_timeout": 900,
            }  # fmt: skip
        short = {**entries["llama"], "args": {**_ARGS, "kv_cache_memory_bytes": 4096}}
        starved = {**entries["llama"], "env": {"VLLM_CPU_KVCACHE_SPACE": "0"}}
        return {**entries, "llama-short": short, "llama-starved": starved}

    def run(self, name: str, model: str, *arguments: str, **more: Any) -> Ran:
        """A playbook for one model, with the variables that an inventory would have."""
        variables = {
            "vllm_models": self.catalogue(), "vllm_install_version": VERSION, "vllm_install_python": "/usr/bin/python3",
            "vllm_install_space_mib": 6000, "vllm_install_index_url": self.index.url, "vllm_install_manage_packages": False,
            "vllm_model_endpoint": self.hub.url, "vllm_model_min_free_mib": 10,
        }  # fmt: skip
        # A benchmark measures what serves, and refuses a variable that it would not read.
        chosen = [] if name == "benchmark" else ["-e", f"model={model}"]
        words = ["-l", f"{self.host.name},localhost", *chosen, "-e", json.dumps(variables), *arguments]
        return playbook(name, *words, **{"timeout": 1500, **more})

    # --- the server

    def completes(self, model: str) -> str:
        """Have it complete a prompt; its fingerprint comes back."""
        done = self.host.run(["/usr/bin/python3", "-c", _COMPLETE, model, str(PORT)], timeout=150)
        told, usage, fingerprint = json.loads(done.stdout)
        assert told == model and usage["completion_tokens"] == 8, done.stdout
        return str(fingerprint)

    def answers(self) -> bool:
        """Whether anything listens at its port."""
        return self.host.enter(["sh", "-c", f"ss -Hltn 'sport = :{PORT}' | grep -q ."], check=False).returncode == 0

    def shown(self, model: str) -> dict[str, str]:
        """What systemd knows of its unit."""
        properties = ("ActiveState", "SubState", "Result", "ExecMainCode", "ExecMainStatus", "MainPID", "NRestarts")
        return self.host.systemctl_show(unit(model), properties)

    def processes(self, model: str) -> dict[str, int]:
        """The processes in its unit's control group by what they are: ``api``, ``engine``, ``worker``, ``tracker``."""
        script = "cat %s/cgroup.procs | while read -r pid; do echo \"$pid $(tr '\\0' ' ' < /proc/$pid/cmdline)\"; done"
        lines = self.host.enter(["sh", "-c", script % group(model)], check=False).stdout.splitlines()
        return dict(_named(line) for line in lines if line.strip())

    def alive(self, pid: int) -> bool:
        """Whether a process is there and no zombie."""
        state = self.host.enter(["sh", "-c", f"sed -n 's/^State:.//p' /proc/{pid}/status"], check=False).stdout
        return bool(state.strip()) and not state.startswith(("Z", "X"))

    @contextmanager
    def throttled(self, model: str) -> Iterator[None]:
        """Let its processes run for a tenth of the time."""
        freeze = f"{group(model)}/cgroup.freeze"
        self.host.run(["systemd-run", "--quiet", "--collect", "--unit=lab-throttle", "/usr/bin/python3", "-c", _THROTTLE, freeze])
        try:
            yield
        finally:
            self.host.run(["systemctl", "stop", "lab-throttle.service"])
            self.host.run(["sh", "-c", f"echo 0 > {freeze}"])

    @contextmanager
    def drop_in(self, model: str, text: str) -> Iterator[None]:
        """Other settings for its unit, until the next boot at most."""
        path = f"/run/systemd/system/{unit(model)}.d/99-test.conf"
        self.host.write(path, text)
        self.host.run(["systemctl", "daemon-reload"])
        try:
            yield
        finally:
            self.host.run(["sh", "-c", f"rm -r /run/systemd/system/{unit(model)}.d && systemctl daemon-reload"])

    def started(self, model: str) -> None:
        """Start its unit and wait until it answers completions."""
        self.host.run(["systemctl", "start", unit(model)], timeout=120)
        until(self.answers, 600, "the server listens")
        self.completes(model)


def unit(model: str) -> str:
    """The unit of a model's service."""
    return f"vllm-{model}.service"


def group(model: str) -> str:
    """Its control group's directory on the host."""
    return f"/sys/fs/cgroup/system.slice/{unit(model)}"


def until(happens: Callable[[], bool], seconds: float, what: str) -> float:
    """Wait for something; how many seconds it took."""
    began = time.monotonic()
    while not happens():
        assert time.monotonic() - began < seconds, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.2)
    return time.monotonic() - began


def _named(line: str) -> tuple[str, int]:
    pid, _blank, words = line.partition(" ")
    for mark, name in (("VLLM::EngineCore", "engine"), ("VLLM::Worker", "worker"), ("resource_tracker", "tracker"), (" serve ", "api")):
        if mark in words:
            return name, int(pid)
    return words, int(pid)
