# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A unit behind the guard on a lab host, and what systemd and the journal say of it."""

from __future__ import annotations

import base64
import json
import re
import time
from dataclasses import dataclass

from ansible_collections.gpufleet.vllm.plugins.module_utils._guard.zipapp import build_guard
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.hardening import hardening
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.spec import ServiceSpec
from lab import Host

GUARD = "/usr/local/lib/gpufleet/gpu-guard.pyz"


@dataclass
class Guarded:
    """A unit whose server is ``sleep``, behind the guard."""

    host: Host
    unit: str = "vllm-guarded.service"

    def install(self, *options: str, gpus: str = "0,1,2,3", server: str = "/usr/bin/sleep 1000",
                extra: str = "") -> Guarded:
        """Put the guard and the unit on the host."""
        encoded = base64.b64encode(build_guard()).decode("ascii")
        self.host.run(f"mkdir -p {GUARD.rsplit('/', 1)[0]} && base64 -d > {GUARD} && chmod 755 {GUARD}", input=encoded)
        self.host.run("id vllm >/dev/null 2>&1 || useradd --system --create-home --home-dir /var/lib/vllm vllm")
        guard = ["/usr/bin/python3", GUARD, "--unit", "%n", "--gpus", gpus, "--utilization", "0.92", *options]
        sandbox = "\n".join(hardening(ServiceSpec(name="guarded", model="/models/x", served_name="x", gpus=(0,))))
        text = (
            "[Unit]\nStartLimitIntervalSec=0\n[Service]\nType=exec\nUser=vllm\nGroup=vllm\nTimeoutStartSec=120\nKillMode=mixed\n"
            f"ExecStartPre={' '.join(guard)}\nExecStart={server}\n{sandbox}\n{extra}\n"
        )
        self.host.write(f"/etc/systemd/system/{self.unit}", text)
        self.host.run("systemctl daemon-reload")
        return self

    def start(self, wait: bool = True) -> None:
        """Start the unit; without ``wait`` return at once."""
        self.host.run(["systemctl", "start", *([] if wait else ["--no-block"]), self.unit], check=False)

    @property
    def state(self) -> str:
        """Its ActiveState."""
        return self.host.systemctl_show(self.unit, ("ActiveState",))["ActiveState"]

    def wait_for(self, state: str, timeout: float = 30.0) -> None:
        """Wait for an ActiveState."""
        end = time.monotonic() + timeout
        while (found := self.state) != state:
            assert time.monotonic() < end, f"{self.unit} is {found}, not {state}:\n{self.said()}"
            time.sleep(0.05)

    @property
    def status(self) -> int:
        """How the guard ended."""
        found = re.search(r"status=(\d+)", self.host.systemctl_show(self.unit, ("ExecStartPre",))["ExecStartPre"])
        assert found is not None
        return int(found.group(1))

    def said(self) -> str:
        """What the guard told the journal."""
        out = self.host.run(["journalctl", "--unit", self.unit, "--output=json", "--no-pager", "--boot"]).stdout
        lines = [json.loads(line)["MESSAGE"] for line in out.splitlines()]
        return "\n".join(str(line) for line in lines if str(line).startswith("gpu-guard:"))

    def started_at(self) -> float:
        """When systemd started the server, seconds of CLOCK_MONOTONIC."""
        return int(self.host.systemctl_show(self.unit, ("ExecMainStartTimestampMonotonic",))["ExecMainStartTimestampMonotonic"]) / 1e6

    def activating_at(self) -> float:
        """When systemd began with the guard, seconds of CLOCK_MONOTONIC."""
        return int(self.host.systemctl_show(self.unit, ("InactiveExitTimestampMonotonic",))["InactiveExitTimestampMonotonic"]) / 1e6
