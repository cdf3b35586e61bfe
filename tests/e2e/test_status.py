# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""fleet_status.yml on real systemd hosts: what serves and what has drifted, and nothing is changed for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.adhoc import module
from e2e.playbook import Ran, playbook
from e2e.programs import Programs

from lab import Host, Lab

MODEL = "minimax-m2.5"
UNIT = f"vllm-{MODEL}.service"
FILE = f"/etc/systemd/system/{UNIT}"
# Ansible unpacks a module below /tmp, so that the directory itself is written to; what is in it counts.
FILES = "/etc /usr/local /var/lib/gpufleet /var/lib/vllm /run/gpufleet /root /tmp"


def status(*arguments: str, **more: Any) -> Ran:
    return playbook("fleet_status", *arguments, **more)


def rows(ran: Ran) -> dict[str, dict[str, Any]]:
    assert ran.report is not None, ran.out
    return {row["host"]: row for row in ran.report["rows"]}


def service(ran: Ran, host: str) -> dict[str, Any]:
    assert ran.report is not None, ran.out
    found: dict[str, Any] = ran.report["hosts"][host]["services"][0]
    return found


def marks(host: Host) -> str:
    """Everything that a look must leave as it is, its own traces included."""
    units = "ActiveState,InvocationID,NRestarts,UnitFileState"
    return str(host.run(f"find {FILES} -xdev -not -path '*/.ansible*' -not -path /tmp -printf '%p %m %u %s %T@\\n' 2>/dev/null | sort;"
                        f" systemctl show -p {units} {UNIT}; find /root/.ansible/tmp -mindepth 1 2>/dev/null; true").stdout)  # fmt: skip


@pytest.fixture(scope="module")
def serving(lab: Lab) -> Iterator[dict[str, Host]]:
    """All hosts serve one model, as a swap has left them."""
    lab.reset()
    playbook("swap_model", "-e", f"model={MODEL}", "-e", "batch=3").expect()
    yield lab.hosts


@pytest.fixture
def one(serving: dict[str, Host], request: pytest.FixtureRequest) -> Iterator[Host]:
    """A host that a test may spoil; it is put back afterwards."""
    host = serving[getattr(request, "param", "gpu01")]
    yield host
    host.gpu.clear()
    host.vllm.clear()
    host.run("systemctl stop 'neighbour*' 2>/dev/null; true", check=False)
    playbook("swap_model", "-e", f"model={MODEL}", "-e", f"target={host.name}").expect()


def test_a_fleet_that_serves_as_declared(serving: dict[str, Host], tmp_path: Path) -> None:
    status().expect()  # Ansible's own directories are there from now on
    before = {name: marks(host) for name, host in serving.items()}
    ran = status("-e", "fail_on_drift=true", "-e", f"model={MODEL}", reports=tmp_path).expect()
    assert set(ran.changed.values()) == {0}
    for name in serving:
        row = rows(ran)[name]
        said = (row["service"], row["model"], row["state"], row["ready"], row["gpus"])
        assert said == (MODEL, "MiniMax-M2.5", "active", "yes", "0-3"), row
        assert row["drift"] is None and row["requests"] == "0" and row["ok"] and float(row["gpu_gib"].split("/")[0]) > 100
    assert {name: marks(host) for name, host in serving.items()} == before, "a look changes nothing and leaves nothing"
    assert "What to know of" not in ran.out
    assert {"hosts", "findings", "rows", "schema_version"} <= set(ran.report or {})
    checked = status("--check", "-e", json.dumps({"query": "rows[].[host, ready]"})).expect()
    assert '"yes"' in checked.out and "SERVICE" not in checked.out


def test_drift_is_named_and_fails_on_request(one: Host, tmp_path: Path) -> None:
    one.run(f"sed -i 's/^max-model-len: .*/max-model-len: 65536/' /etc/vllm/{MODEL}.yaml; systemctl disable -q {UNIT}")
    before = one.systemctl_show(UNIT, ("InvocationID",))
    ran = status(reports=tmp_path).expect()
    found = service(ran, one.name)
    assert [each["kind"] for each in found["drift"]] == ["arguments", "boot"], found["drift"]
    assert 'has "max-model-len: 65536" where "max-model-len: 131072" is declared' in found["drift"][0]["detail"]
    assert found["ready"] and rows(ran)[one.name]["drift"] == "arguments, boot" and rows(ran)["gpu03"]["drift"] is None
    failed = status("-e", "fail_on_drift=true").expect(2)
    assert failed.recap[one.name]["failed"] == 1 and failed.recap["gpu03"]["failed"] == 0
    assert one.systemctl_show(UNIT, ("InvocationID",)) == before, "nothing was restarted"
    planned = module(one, "vllm_status", models=json.loads(catalogue(one)), model=MODEL)
    assert planned["drifted"] and planned["services"][0]["actions"] == found["actions"]


def test_an_entry_that_means_nothing_here_hides_no_other(serving: dict[str, Host], tmp_path: Path) -> None:
    """It may be for other hosts, with variables that only they have."""
    models = {**json.loads(catalogue(serving["gpu01"])), "elsewhere": {"path": "{{ nvme_of_others }}/Kimi", "gpus": "all"}}
    ran = status("-e", json.dumps({"vllm_models": models}), "-e", "fail_on_drift=true", reports=tmp_path).expect()
    assert all(row["ok"] for row in rows(ran).values()) and len(rows(ran)) == len(serving), rows(ran)
    assert "entry 'elsewhere' can't be used: vllm_models['elsewhere'] cannot be read" in " ".join(ran.out.split())
    models[MODEL]["path"] = "{{ nvme_of_others }}/MiniMax"
    ran = status("-e", json.dumps({"vllm_models": models}), reports=tmp_path / "own").expect()
    drift = service(ran, "gpu01")["drift"]
    assert [each["kind"] for each in drift] == ["refused"] and "'nvme_of_others' is undefined" in drift[0]["detail"], drift


def catalogue(host: Host) -> str:
    return json.dumps({MODEL: {
        "path": "/models/MiniMax-M2.5", "gpus": [0, 1, 2, 3], "port": 8000,
        "args": {"tensor_parallel_size": 4, "max_model_len": 131072, "gpu_memory_utilization": 0.92},
    }})  # fmt: skip


@pytest.mark.parametrize("one", ["gpu03"], indirect=True)
def test_a_unit_changed_by_hand_and_a_stopped_service(one: Host, tmp_path: Path) -> None:
    one.run(f"sed -i 's/^\\[Service\\]/[Service]\\nNice=5/' /etc/systemd/system/{UNIT}")
    ran = status(reports=tmp_path / "unit").expect()
    found = service(ran, one.name)
    assert "unit" in [each["kind"] for each in found["drift"]] and '"Nice", which is not declared' in str(found["drift"]), found["drift"]
    one.run(["systemctl", "stop", UNIT])
    ran = status("-e", f"model={MODEL}", reports=tmp_path / "stopped").expect()
    found = service(ran, one.name)
    assert found["state"] == "stopped" and "running" in [each["kind"] for each in found["drift"]] and not found["ready"]


@pytest.fixture
def spoiled(serving: dict[str, Host], tmp_path: Path) -> Iterator[Path]:
    """The variables of a fleet: gpu01's server has ended, gpu02's unit was masked by hand while it runs, gpu03's catalogue has a slip."""
    failed, masked = serving["gpu01"], serving["gpu02"]
    failed.vllm.behave(MODEL, die_at_load={"phase": "config", "process": "api", "exit_code": 2})
    failed.run(f"systemctl restart {UNIT}; while systemctl is-active -q {UNIT}; do sleep 0.1; done")
    masked.run(f"mv {FILE} /root/kept; ln -s /dev/null {FILE}; systemctl daemon-reload")
    variables = tmp_path / "variables.json"
    good = json.loads(catalogue(failed))
    slip = json.loads(catalogue(failed).replace('"port"', '"prot"'))
    given = {"good": good, "slip": slip, "vllm_models": "{{ slip if inventory_hostname == 'gpu03' else good }}"}
    variables.write_text(json.dumps(given), encoding="utf-8")
    yield variables
    masked.run(f"mv /root/kept {FILE}; systemctl daemon-reload")
    failed.vllm.clear()
    playbook("swap_model", "-e", f"model={MODEL}", "-e", f"target={failed.name}").expect()


def test_each_host_in_trouble_of_its_own_is_told_with_why(spoiled: Path, tmp_path: Path) -> None:
    given = ("-e", f"@{spoiled}")
    ran = status(*given, reports=tmp_path / "reports").expect()
    shown = {name: (row["state"], row["ready"], row["ok"]) for name, row in rows(ran).items()}
    assert shown == {"gpu01": ("FAILED", "no", False), "gpu02": ("MASKED", "no", False), "gpu03": ("active", "yes", False)}, ran.out

    failed = service(ran, "gpu01")
    assert failed["diagnosis"]["summary"] in failed["detail"] and failed["diagnosis"]["advice"] and failed["diagnosis"]["evidence"]
    assert failed["active_state"] == "failed" and "running" in [each["kind"] for each in failed["drift"]]
    said = {(each["host"], each["detail"]) for each in (ran.report or {})["findings"]}
    assert ("gpu01", failed["detail"][:300]) in said and ("gpu01", failed["diagnosis"]["advice"][:300]) in said

    masked = service(ran, "gpu02")
    assert "what was started before still runs" in masked["detail"] and masked["drift"][0]["kind"] == "unit", masked
    broken = service(ran, "gpu03")
    assert [each["kind"] for each in broken["drift"]] == ["refused"] and "did you mean 'port'" in broken["drift"][0]["detail"]
    assert broken["ready"] and MODEL in (ran.report or {})["hosts"]["gpu03"]["faults"]

    asked = status(*given, "-e", json.dumps({"query": "rows[?state=='MASKED'].host"})).expect()
    assert '"gpu02"' in asked.out and "SERVICE" not in asked.out
    wrong = status(*given, "-e", json.dumps({"query": "length(rows[?!ok]) == `0`"})).expect(2)
    assert "is false" in wrong.out
    drifted = status(*given, "-e", "fail_on_drift=true").expect(2)
    assert {name: numbers["failed"] for name, numbers in drifted.recap.items() if name != "localhost"} == dict.fromkeys(shown, 1)


def test_a_model_that_has_to_serve_and_does_not(serving: dict[str, Host], tmp_path: Path) -> None:
    ran = status("-e", "model=kimi-k2.5-int4", "-e", "fail_on_drift=true", reports=tmp_path).expect(2)
    assert ran.report is not None
    for name in serving:
        services = {each["name"]: each for each in ran.report["hosts"][name]["services"]}
        assert services["kimi-k2.5-int4"]["state"] == "missing" and services[MODEL]["ready"]
        assert [each["kind"] for each in services["kimi-k2.5-int4"]["drift"]][:2] == ["missing", "rival"]


def test_a_slip_in_a_name_ends_the_run_before_any_host_is_asked(serving: dict[str, Host]) -> None:
    ran = status("-e", "fail_on_drfit=true").expect(2)
    assert "fail_on_drfit" in ran.out and not set(ran.recap) & set(serving), ran.out


def test_others_on_the_gpus_are_named(one: Host, tmp_path: Path) -> None:
    neighbour = Programs(one).service("neighbour", gpus=(5,), mib=20000, name="train.py", properties=())
    orphan = Programs(one).orphan(gpus=(6,), mib=3000)
    ran = status(reports=tmp_path).expect()
    assert ran.report is not None
    found = {each["pid"]: each for each in ran.report["hosts"][one.name]["others"]}
    stranger = found[neighbour.pid]
    assert stranger["unit"] == "neighbour.service" and stranger["gpus"] == [5] and not stranger["orphan"]
    assert found[orphan.pid]["orphan"] and f"pid {orphan.pid}" in ran.out and "neighbour.service" in ran.out
    assert Programs(one).alive(neighbour.pid) and Programs(one).alive(orphan.pid)
    one.run(["kill", "-9", str(orphan.pid)])


def test_a_driver_that_hangs_does_not_hang_the_table(one: Host, tmp_path: Path) -> None:
    one.gpu.hang("nvmlDeviceGetMemoryInfo*")
    ran = status(reports=tmp_path).expect()
    found = service(ran, one.name)
    assert found["ready"] and found["drift"] is None and "cannot be read" in found["drift_unknown"], found
    assert rows(ran)[one.name]["drift"] == "?" and rows(ran)["gpu03"]["drift"] is None and "driver_hung" in ran.out
    failed = status("-e", "fail_on_drift=true").expect(2)
    assert failed.recap[one.name]["failed"] == 1


def test_a_host_that_is_not_there(serving: dict[str, Host], tmp_path: Path) -> None:
    host = serving["gpu03"]
    host.cut_network()
    try:
        ran = status(reports=tmp_path, env={"ANSIBLE_TIMEOUT": "5"}).expect(2)
    finally:
        host.restore_network()
    # Over a connection that stood before, a host that is gone gives no sign but the end of the task's time.
    assert rows(ran)["gpu03"]["state"] in ("UNREACHABLE", "TIMED OUT") and rows(ran)["gpu01"]["ready"] == "yes"
