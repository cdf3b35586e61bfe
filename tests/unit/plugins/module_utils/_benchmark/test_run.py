# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A whole run against a server on loopback: judged, and alone on its host."""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Dict, List

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark import target
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.notes import notes_of
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.run import summary
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.host_lock import HostLock, holder_of
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.store import Store
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._benchmark.world import PROFILE, World


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


def test_a_server_that_hangs_is_told_with_what_to_do(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_ASK_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as hung:
        url = "http://127.0.0.1:%d" % hung.getsockname()[1]
        with pytest.raises(GpuFleetError, match=r"/health gave no answer: nothing within 0\.2 s\. .*Look at its journal.*run again"):
            world.run(base_url=url)


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
