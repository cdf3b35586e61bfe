# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When a result stands, when it is measured anew, and what is not measured at all."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, Dict

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.run import summary
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.runner import Runner
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._benchmark.world import PROFILE, Reader, World


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
