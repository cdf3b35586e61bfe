# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A whole run against a server on loopback: measured once, kept, judged, and alone on its host."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark import load
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.notes import notes_of
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.request import to_request
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.run import Run, summary
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.store import ResultStore
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.host_lock import HostLock, holder_of
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.runner import Completed, Runner
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.reader import GpuReader
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.store import Store
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ports import Paths, Ports
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.manager import Systemd
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.show import UnitStatus
from ansible_collections.gpufleet.vllm.plugins.modules.vllm_benchmark import ARGUMENT_SPEC
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._benchmark.streaming import Streaming, streaming

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


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with streaming() as server:
        yield World(tmp_path, server)


def test_a_run_is_measured_once_and_stands(world: World) -> None:
    world.runner = Runner()
    first = world.go()
    assert first["changed"] and first["target"] == "m" and first["verdict"]["ok"]
    result = first["result"]
    assert [level["completed"] for level in result["levels"]] == [4, 4]
    assert result["service"] == "m" and result["tool"] == "builtin" and [gpu["index"] for gpu in result["gpus"]] == [0, 1]
    assert result["levels"][0]["output_throughput_per_gpu"] == pytest.approx(result["levels"][0]["output_throughput"] / 2, abs=0.001)
    assert json.loads(Path(first["path"]).read_text()) == result
    asked = len(world.server.bodies)
    again = world.go()
    assert not again["changed"] and again["result"] == result and again["path"] == first["path"]
    assert len(world.server.bodies) == asked and world.server.proofs == 1, "not one request more but the proof that it answers"
    assert world.go(force=True)["changed"] and len(world.server.bodies) == 2 * asked


def test_check_mode_says_what_would_be_done_and_asks_for_no_token(world: World) -> None:
    plan = world.run().planned()
    assert plan["changed"] and plan["result"] is None and plan["verdict"] is None and plan["untried"] is None
    assert world.server.bodies == [] and not os.path.exists(world.paths.run)
    world.go()
    assert not world.run().planned()["changed"]


def test_check_mode_says_that_vllm_bench_was_not_tried(world: World) -> None:
    tool = world.root / "vllm"
    tool.write_text("#!/bin/false\n")
    tool.chmod(0o755)
    assert "was not tried" in world.run(tool="vllm_bench", executable=str(tool)).planned()["untried"]


@pytest.mark.parametrize("what", ["unit", "model", "profile", "drop-in", "configuration"])
def test_whatever_can_move_the_result_has_it_measured_again(world: World, what: str) -> None:
    before = world.go()
    params: Dict[str, Any] = {}
    if what == "unit":
        path = world.root / "units" / "vllm-m.service"
        path.write_text(path.read_text() + "# changed\n")
    elif what == "model":
        (world.root / "models" / "config.json").write_text('{"a": 1}')
    elif what == "drop-in":
        (world.root / "units" / "vllm-m.service.d").mkdir()
        (world.root / "units" / "vllm-m.service.d" / "50-options.conf").write_text("[Service]\nNice=5\n")
    elif what == "configuration":
        (world.root / "etc" / "m.yaml").write_text("max-num-seqs: 4\n")
    else:
        params = {"profile": dict(PROFILE, output_tokens=5)}
    again = world.run(**params)
    assert again.stored is None and again.fingerprint.digest != before["fingerprint"]


@pytest.mark.parametrize("what", ["units/vllm-m.service", "units/vllm-m.service.d/90-mine.conf", "etc/m.yaml", "etc/m.env",
                                  "models/config.json", "models/m.safetensors"])  # fmt: skip
def test_a_process_that_is_older_than_its_files_is_not_measured(world: World, what: str) -> None:
    path = world.root / what
    path.parent.mkdir(exist_ok=True)
    path.write_text(path.read_text() if path.exists() else "")
    written = path.stat().st_mtime
    world.systemd.main_start = written + 60
    world.run()
    world.systemd.main_start = written - 1
    for params in ({}, {"force": True}):
        with pytest.raises(GpuFleetError, match="vllm-m.service can't be measured: its process is older than .*The figures would be"):
            world.run(**params)
    assert world.server.bodies == []


def test_a_unit_that_systemd_has_not_read_is_not_measured(world: World) -> None:
    world.systemd.need_daemon_reload = True
    with pytest.raises(GpuFleetError, match="its unit file was changed since systemd read it"):
        world.run()


def test_an_installation_that_was_exchanged_under_the_server_is_not_measured(world: World) -> None:
    site = world.root / "venv" / "lib" / "python3.11" / "site-packages"
    (site / "vllm").mkdir(parents=True)
    (world.root / "venv" / "bin").mkdir()
    (world.root / "venv" / "bin" / "vllm").write_text("#!%s/venv/bin/python3\n" % world.root)
    (world.root / "venv" / "bin" / "python3").symlink_to(sys.executable)
    unit = world.root / "units" / "vllm-m.service"
    unit.write_text(unit.read_text().replace("/opt/vllm/bin/vllm", str(world.root / "venv" / "bin" / "vllm")))
    for version in ("0.33.0", "0.33.0+cpu", "0.34.0"):
        info = site / ("vllm-%s.dist-info" % version)
        info.mkdir()
        (info / "METADATA").write_text("Name: vllm\nVersion: %s\n" % version)
        if version == "0.34.0":
            with pytest.raises(GpuFleetError, match="it runs vLLM 0.33.0, and .*/vllm is vLLM 0.34.0 by now"):
                world.run()
        else:
            assert {"name": "vllm_version", "value": version} in [
                {"name": part["name"], "value": part["value"]} for part in world.run().fingerprint.to_result()]
        shutil.rmtree(info)


def test_another_driver_is_another_result(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.go()
    monkeypatch.setattr(Reader, "driver", "590.1")
    assert world.run().stored is None


def test_a_key_is_no_part_of_it_and_is_never_told(world: World) -> None:
    first = world.run().fingerprint.digest
    (world.root / "etc" / "m.env").write_text('VLLM_API_KEY="sk-secret"\n')
    world.server.key = "sk-secret"
    done = world.go()
    assert done["fingerprint"] == first and done["verdict"]["ok"]
    assert "sk-secret" not in json.dumps(done)


def test_a_throttled_server_is_a_regression(world: World) -> None:
    world.server.token_s = 0.02
    baseline = world.go()["result"]
    world.server.token_s = 0.1
    done = world.go(baseline=baseline, max_regression=20.0)
    assert not done["verdict"]["ok"] and done["changed"]
    assert {"output_throughput", "tpot_ms.median", "e2e_ms.median"} <= {each["metric"] for each in done["verdict"]["regressions"]}
    assert "percent worse than" in summary(done) and "m does not do what is asked of it" in summary(done)
    again = world.go(force=False, baseline=baseline, max_regression=20.0)
    assert not again["changed"] and not again["verdict"]["ok"], "the result stands, and so does what is wrong with it"
    assert world.go(force=False, baseline=baseline, max_regression=10000.0)["verdict"]["ok"]


def test_a_result_is_never_held_against_itself(world: World) -> None:
    baseline = world.go()["result"]
    with pytest.raises(GpuFleetError, match="it is the very result that stands for m, of %s" % baseline["measured"]):
        world.run(force=False, baseline=json.loads(json.dumps(baseline)))
    assert world.run(baseline=baseline).stored is None, "a gate measures"
    assert world.run(baseline=baseline).planned()["changed"]
    assert world.run(force=False, baseline=dict(baseline, measured="2026-01-01T00:00:00Z")).stored is not None


def test_a_result_stands_only_where_the_server_answers(world: World) -> None:
    world.go()
    world.server.answers = False
    for way in ("standing", "planned"):
        with pytest.raises(GpuFleetError, match="does not answer a completion now: HTTP 500: engine on fire"):
            getattr(world.run(), way)()
    world.server.answers = True
    assert not world.go()["changed"]


def test_an_older_result_does_not_stand_once_a_newer_run_has_failed(world: World) -> None:
    first = world.go()
    world.server.behave = lambda number: "http_500" if number % 4 == 0 else "ok"
    assert not world.go(force=True)["verdict"]["ok"] and not os.path.exists(first["path"])
    world.server.behave = lambda number: "ok"
    assert world.go()["changed"]


def test_a_result_with_failures_does_not_stand(world: World) -> None:
    world.server.behave = lambda number: "http_500" if number % 4 == 0 else "ok"
    done = world.go()
    assert not done["verdict"]["ok"] and done["path"] is None and "http_500" in summary(done)
    assert world.run().stored is None
    accepted = world.go(min_success=50.0)
    assert accepted["verdict"]["ok"] and accepted["path"] is not None
    assert not world.go(min_success=50.0)["changed"]
    assert world.run(min_success=100.0).stored is None, "what was good enough then is not now"


def test_a_baseline_of_no_use_is_told_before_the_load(world: World) -> None:
    baseline = world.go()["result"]
    asked = len(world.server.bodies)
    others: List[Dict[str, Any]] = [{"tool": "guidellm"}, {"model": "x"}, {"levels": []}]
    for other in others:
        with pytest.raises(GpuFleetError, match="^baseline: it "):
            world.run(baseline=dict(baseline, **other), force=True)
    assert len(world.server.bodies) == asked


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"max_regression": -1.0}, "max_regression"),
        ({"min_success": 101.0}, "min_success"),
        ({"timeout": 0.0}, "timeout"),
        ({"judged": ["tokens"]}, "there is no metric tokens"),
        ({"baseline": {"rows": []}}, "no result of a benchmark"),
        ({"baseline": "a.json"}, "no result of a benchmark"),
        ({"service": "m", "base_url": "http://x:1"}, "not both"),
        ({"service": "n"}, "There is no service 'n'.*are: m"),
        ({"base_url": "ftp://x"}, "no address"),
        ({"base_url": "http://u:p@x:1"}, "password"),
        ({"model": "other"}, "serves m, and not 'other'"),
        ({"profile": {"input_tokens": 60, "output_tokens": 5}}, "60 input and 5 output tokens are more than the 64"),
    ],
)
def test_what_cannot_work_is_refused_with_the_option(world: World, params: Dict[str, Any], said: str) -> None:
    with pytest.raises(GpuFleetError, match=said):
        world.run(**params)


def test_the_only_service_that_runs_is_meant(world: World) -> None:
    world.deploy("n")
    assert world.run().target.name == "m"
    world.systemd.active["vllm-n.service"] = "active"
    with pytest.raises(GpuFleetError, match="2 services run on this host: m, n"):
        world.run()
    assert world.run(service="vllm-n.service").target.name == "n"
    world.systemd.active.clear()
    with pytest.raises(GpuFleetError, match="No service"):
        world.run()
    with pytest.raises(GpuFleetError, match="does not run"):
        world.run(service="m")


def test_what_the_server_was_told_of_the_tokenizer_is_told_the_tool(world: World) -> None:
    assert world.run().target.tokenizer == {}
    text = '# head\ntokenizer: "/models/t"\ntokenizer-mode: "mistral"\ntrust-remote-code: true\nport: 8000\n'
    (world.root / "etc" / "m.yaml").write_text(text)
    found = world.run().target.tokenizer
    assert found == {"tokenizer": "/models/t", "tokenizer-mode": "mistral", "trust-remote-code": True}
    (world.root / "etc" / "m.yaml").write_text("tokenizer: {nonsense\n")
    assert world.run().target.tokenizer == {}


def test_a_server_that_is_not_managed_is_measured_by_its_address(world: World) -> None:
    done = world.go(base_url=world.server.url + "/v1/")
    assert done["target"] == "m at %s" % world.server.url and done["result"]["service"] is None
    assert done["result"]["levels"][0]["output_throughput_per_gpu"] is None
    assert not world.go(base_url=world.server.url)["changed"]
    with pytest.raises(GpuFleetError, match="nothing listens there"):
        world.run(base_url="http://127.0.0.1:1")


def test_a_server_that_was_restarted_meanwhile_gives_no_result(world: World) -> None:
    one = world.run(service="m")
    world.systemd.invocations = ["one", "one", "two"]
    with pytest.raises(GpuFleetError, match="restarted or stopped while it was measured at concurrency 2"):
        one.measure()
    assert world.run().stored is None


def test_it_refuses_while_another_one_or_a_clean_up_runs(world: World) -> None:
    one = world.run()
    with HostLock(world.paths.run, "gpu_reclaim scope orphans"), pytest.raises(GpuFleetError, match="gpu_reclaim scope orphans"):
        one.measure()
    assert world.server.bodies == []


def test_it_refuses_while_a_swap_is_under_way(world: World) -> None:
    record = {"id": "x", "digest": "d", "purpose": "vllm_service started big", "by": "ann", "at": 1.0, "attempts": 1}
    assert Store(world.paths.change, world.paths.run).create(record)
    for way in ("planned", "measure"):
        with pytest.raises(GpuFleetError, match="vllm_service started big, begun by ann"):
            getattr(world.run(), way)()
    assert world.server.bodies == []


def test_a_swap_that_begins_meanwhile_hears_who_measures(world: World) -> None:
    seen: List[Any] = []

    def look(number: int) -> str:
        seen.append(holder_of(world.paths.run))
        try:
            with HostLock(world.paths.run, "vllm_service started big"):
                seen.append("it began")
        except GpuFleetError as exc:
            seen.append(exc.msg)
        return "ok"

    world.server.behave = look
    world.go()
    assert seen[0]["purpose"] == "vllm_benchmark of m"
    assert "Another run measures a server of this host right now: vllm_benchmark of m (pid %d)" % os.getpid() in seen[1]
    assert "it began" not in seen and holder_of(world.paths.run) is None


def test_what_to_know_of_a_result_stands_in_it(world: World) -> None:
    world.server.tokenize = False
    one = world.run(profile=dict(PROFILE, input_tokens=3))
    done = one.measure()
    assert "the prompts had 4 tokens on average, and not the 3" in done["result"]["notes"][0], "words are two tokens each there"
    assert one.warnings == done["result"]["notes"] == world.go(profile=dict(PROFILE, input_tokens=3))["result"]["notes"]


def test_a_load_generator_that_cannot_keep_up_is_told(world: World) -> None:
    one = world.run()
    result = one.measure()["result"]
    result["levels"][1]["kept_busy"] = 1.1
    assert "At concurrency 2 only 1.1 requests were under way" in notes_of(result)[-1]
    result["levels"][1]["kept_busy"] = 1.7
    result["levels"][0]["kept_busy"] = None
    assert not [note for note in notes_of(result) if "under way" in note]
