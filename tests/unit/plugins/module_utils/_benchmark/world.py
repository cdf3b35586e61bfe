# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One host in a directory, with a server on loopback, on which a benchmark runs."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark import load
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.request import to_request
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.run import Run
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.store import ResultStore
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.runner import Completed, Runner
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.reader import GpuReader
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ports import Paths, Ports
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.manager import Systemd
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.show import UnitStatus
from ansible_collections.gpufleet.vllm.plugins.modules.vllm_benchmark import ARGUMENT_SPEC
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._benchmark.streaming import Streaming

UNIT = """[Service]
User=%s
ExecStart=/opt/vllm/bin/vllm serve /models/m --config /etc/vllm/m.yaml
[X-GpuFleet]
Name="m"
Model="%s"
ServedName="m"
Gpus=[0, 1]
Port=%d
Host="127.0.0.1"
"""
PROFILE = {"concurrency": [1, 2], "input_tokens": 16, "output_tokens": 4, "requests": 4, "warmup": 1}


class Reader(GpuReader):
    driver = "580.65.06"

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        cards = tuple(Gpu(n, "GPU-%d" % n, None, "NVIDIA H200", total_mib=143771) for n in range(4))
        return Snapshot(True, driver_version=self.driver, cuda_version="13.0", gpus=cards)

    def close(self) -> None:
        """Nothing is open."""


class Units(Systemd):
    """The services of a host that are said to run."""

    def __init__(self) -> None:
        super().__init__(Runner())
        self.active = {"vllm-m.service": "active"}
        self.invocations: List[str] = []
        self.main_start: Optional[float] = None
        self.need_daemon_reload = False

    def statuses(self, units: Sequence[str]) -> Dict[str, UnitStatus]:
        found = {}
        for unit in units:
            state = self.active.get(unit, "inactive")
            invocation = self.invocations.pop(0) if self.invocations else "one"
            sub = "running" if state == "active" else "dead"
            found[unit] = UnitStatus(
                unit, "loaded", state, sub, main_pid=7 if state == "active" else 0, invocation_id=invocation,
                main_start=self.main_start, need_daemon_reload=self.need_daemon_reload,
            )  # fmt: skip
        return found


class InProcess(Runner):
    """Runs the load generator without a process of its own: what a process is for has tests of its own."""

    def run(
        self, argv: Sequence[str], timeout: float = 30.0, stdin: Optional[str] = None, env: Optional[Mapping[str, str]] = None
    ) -> Completed:
        if "import requests" in argv:
            return Completed(tuple(argv), 0, "", "")
        order = load.Order(json.loads(stdin or ""))
        prompts = load.make_prompts(order, load.session_of(order))
        told = [load._streams(order, prompts, kind, count, order.concurrency, multiprocessing.Value("q", 0))
                for kind, count in (("warmup", order.warmup), ("counted", order.requests))]
        return Completed(tuple(argv), 0, json.dumps({"requests": told[1], "prompts": prompts.how, "processes": 1}), "")


class World:
    """One host in a directory, with a server on loopback."""

    def __init__(self, root: Path, server: Streaming) -> None:
        self.root, self.server = root, server
        self.systemd = Units()
        self.runner: Runner = InProcess()
        self.paths = Paths(units=str(root / "units"), config=str(root / "etc"), run=str(root / "run"), change=str(root / "change"))
        self.store = ResultStore(str(root / "benchmarks"))
        for name in ("units", "etc", "models"):
            (root / name).mkdir()
        (root / "models" / "config.json").write_text("{}")
        self.deploy()

    def deploy(self, name: str = "m") -> None:
        text = UNIT.replace('Name="m"', 'Name="%s"' % name, 1) % ("root", self.root / "models", self.server.port)
        (self.root / "units" / ("vllm-%s.service" % name)).write_text(text)

    def run(self, **params: Any) -> Run:
        """A run that has looked."""
        spec: Dict[str, Any] = dict(ARGUMENT_SPEC)
        values: Dict[str, Any] = {name: option.get("default") for name, option in spec.items()}
        values.update({"tool": "builtin", "profile": PROFILE, "request_timeout": 20.0, **params})
        one = Run(to_request(values), Ports(systemd=self.systemd, open_reader=Reader, paths=self.paths), self.store, self.runner)
        one.look()
        return one

    def go(self, **params: Any) -> Dict[str, Any]:
        """What the module would do with it."""
        one = self.run(**params)
        return one.standing() if one.stored is not None else one.measure()
