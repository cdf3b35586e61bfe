# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unit, its files, and the service found again from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.environment import unit_environment
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.found import (
    ManagedService,
    conflicts,
    find_managed,
    parse_managed,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.render import (
    absent_files,
    render_drop_in,
    render_unit,
    wanted_files,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.slug import slug, unit_name
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.spec import GuardSpec, ServiceSpec

from .texts import TEXTS


def spec(**changes: Any) -> ServiceSpec:
    """The founding service, with changes."""
    values: dict[str, Any] = {
        "name": "minimax-m2.5",
        "model": "/models/MiniMax-M2.5",
        "served_name": "minimax-m2.5",
        "gpus": (0, 1, 2, 3),
        "args": {"tensor_parallel_size": 4, "gpu_memory_utilization": 0.92},
    }
    values.update(changes)
    return ServiceSpec(**values)


def settings(text: str) -> dict[str, list[str]]:
    """A unit's settings by section and name, e.g. ``Service.Type``."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line[1:-1]
        elif "=" in line and not line.startswith("#"):
            name, _equals, value = line.partition("=")
            found.setdefault("%s.%s" % (section, name), []).append(value)
    return found


def test_the_unit_fits_the_servers_behaviour() -> None:
    unit = settings(render_unit(spec()))
    assert unit["Service.Type"] == ["exec"]
    assert unit["Service.Restart"] == ["always"]
    assert unit["Service.RestartPreventExitStatus"] == ["2"]
    assert unit["Service.KillMode"] == ["mixed"]
    assert unit["Service.SendSIGKILL"] == ["yes"]
    assert unit["Service.SuccessExitStatus"] == ["130 143"]
    # In [Unit], where systemd looks for them.
    assert unit["Unit.StartLimitBurst"] == ["3"]
    assert int(unit["Unit.StartLimitIntervalSec"][0]) > 3 * (300 + 1800)
    assert int(unit["Service.TimeoutStartSec"][0]) >= 300 + 30
    assert unit["Unit.After"] == ["network-online.target nvidia-fabricmanager.service nvidia-persistenced.service"]
    assert "Unit.Requires" not in unit and not any(name.startswith("Unit.Condition") for name in unit)
    assert unit["Service.ExecStart"] == [
        "/opt/vllm/bin/vllm serve /models/MiniMax-M2.5 --config /etc/vllm/minimax-m2.5.yaml"
    ]
    assert unit["Install.WantedBy"] == ["multi-user.target"]
    assert unit["Service.LimitMEMLOCK"] == ["infinity"]


def test_the_guard_gets_what_it_needs() -> None:
    guarded = spec(guard=GuardSpec(timeout=120, margin_mib=512, settle=0.5), host="::1", port=8001)
    unit = settings(render_unit(guarded))
    assert unit["Service.ExecStartPre"] == [
        "/usr/bin/python3 /usr/local/lib/gpufleet/gpu-guard.pyz --unit vllm-minimax-m2.5.service --gpus 0,1,2,3"
        " --utilization 0.92 --margin-mib 512 --timeout 120 --settle 0.5 --port 8001 --host ::1 --lock-dir /run/gpufleet/locks"
    ]
    # a directory of the unit's own, which systemd makes and removes, so that no user can write another one's claim
    assert unit["Service.RuntimeDirectory"] == ["gpufleet/locks/vllm-minimax-m2.5.service"]
    assert unit["Service.RuntimeDirectoryMode"] == ["0755"] and "Service.RuntimeDirectoryPreserve" not in unit
    without = settings(render_unit(spec(guard=GuardSpec(enabled=False))))
    assert "Service.ExecStartPre" not in without and "Service.RuntimeDirectory" not in without


def test_the_driver_is_loaded_first_where_it_can_be() -> None:
    commands = settings(render_unit(spec(nvidia_modprobe="/usr/bin/nvidia-modprobe")))["Service.ExecStartPre"]
    assert commands[0] == "-+/usr/bin/nvidia-modprobe -u -c=0" and "gpu-guard.pyz" in commands[1]


def test_what_the_user_named_stays_writable() -> None:
    unit = settings(render_unit(spec()))
    assert "Service.ReadWritePaths" not in unit, "its own directory is writable anyway"
    assert (unit["Service.ProtectHome"], unit["Service.PrivateTmp"]) == (["yes"], ["yes"])
    caches = {"HF_HOME": "/home/shared/hf", "TMPDIR": "/scratch/tmp", "TRITON_CACHE_DIR": "relative"}
    unit = settings(render_unit(spec(env=caches, args={"download_dir": "/data/models/"}, home="/srv/one")))
    assert unit["Service.ReadWritePaths"] == ["-/data/models", "-/home/shared/hf", "-/scratch/tmp", "/srv/one"]
    assert unit["Service.ProtectHome"] == ["read-only"]
    assert settings(render_unit(spec(model="/tmp/model")))["Service.PrivateTmp"] == ["no"]


def test_devices_that_would_lock_the_gpus_out_are_left_alone() -> None:
    unit = settings(render_unit(spec()))
    for name in (
        "PrivateDevices",
        "DeviceAllow",
        "DevicePolicy",
        "ProtectClock",
        "MemoryDenyWriteExecute",
        "RemoveIPC",
    ):
        assert "Service.%s" % name not in unit


@pytest.mark.parametrize(
    ("drain", "worker", "asked", "least"),
    [(None, None, 60, 60), (0, None, 5, 20), (120, None, 60, 140), (120, "30", 60, 165), (None, "300", 60, 315)],
)
def test_stopping_is_never_cut_short(drain: float | None, worker: str | None, asked: float, least: int) -> None:
    env = {} if worker is None else {"VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": worker}
    service = spec(shutdown_timeout=drain, env=env, stop_timeout=asked)
    assert int(settings(render_unit(service))["Service.TimeoutStopSec"][0]) == least
    config = next(entry.content or b"" for entry in wanted_files(service) if entry.path.endswith(".yaml"))
    assert (b"shutdown-timeout: %d\n" % drain in config) if drain is not None else b"shutdown-timeout" not in config


def test_the_environment() -> None:
    env = unit_environment(spec(env={"HF_HOME": "/cache/hf", "MY_OWN": "x"}))
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert env["PATH"].startswith("/opt/vllm/bin:/usr/local/cuda/bin:")
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env["HF_HOME"] == "/cache/hf", "what the user gives wins"
    assert env["MY_OWN"] == "x"
    assert env["VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"] == "5"
    home = "/var/lib/vllm/minimax-m2.5"
    assert env["HOME"] == home
    for name in ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert env[name].startswith(home + "/")
    assert "HF_HUB_OFFLINE" not in unit_environment(spec(model="org/model"))


def test_two_services_share_no_cache() -> None:
    one, other = unit_environment(spec()), unit_environment(spec(name="other"))
    for name in ("HOME", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "HF_HOME"):
        assert one[name] != other[name]


def test_mig_instances_are_named_by_uuid() -> None:
    mig = spec(gpus=(0,), gpu_uuids=("MIG-1111", "MIG-2222"))
    assert unit_environment(mig)["CUDA_VISIBLE_DEVICES"] == "MIG-1111,MIG-2222"
    assert "--gpus MIG-1111,MIG-2222 " in render_unit(mig)


def test_gpus_that_were_named_stay_those_for_the_guard() -> None:
    text = render_unit(spec(gpus=(3, 5), gpu_ids=("GPU-aaaa", "00000000:B1:00.0")))
    assert "--gpus GPU-aaaa,00000000:B1:00.0 --indices 3,5 " in text
    assert "Environment=CUDA_VISIBLE_DEVICES=3,5\n" in text, "not every vLLM reads UUIDs there"
    assert "--indices" not in render_unit(spec(gpus=(3, 5)))
    with pytest.raises(GpuFleetError, match="gpus"):
        spec(gpus=(3, 5), gpu_ids=("GPU-aaaa",))


def test_secrets_stand_in_their_file_alone() -> None:
    files = {entry.path: entry for entry in wanted_files(spec(secrets={"HF_TOKEN": "s3cret", "VLLM_API_KEY": "k$y"}))}
    env_file = files["/etc/vllm/minimax-m2.5.env"]
    assert env_file.secret and env_file.mode == 0o600 and (env_file.uid, env_file.gid) == (0, 0)
    assert b'HF_TOKEN="s3cret"\nVLLM_API_KEY="k\\$y"\n' in (env_file.content or b"")
    for path, entry in files.items():
        if not path.endswith(".env"):
            assert b"s3cret" not in (entry.content or b"")
    assert b"\nEnvironmentFile=/etc/vllm/minimax-m2.5.env\n" in (
        files["/etc/systemd/system/vllm-minimax-m2.5.service"].content or b""
    )


def test_without_secrets_there_is_no_file_for_them() -> None:
    files = {entry.path: entry for entry in wanted_files(spec())}
    assert files["/etc/vllm/minimax-m2.5.env"].content is None
    assert "EnvironmentFile" not in render_unit(spec())


def test_absent_covers_every_file_that_is_ever_wanted() -> None:
    full = spec(secrets={"HF_TOKEN": "x"}, unit_options={"Service": {"Nice": 5}})
    assert {entry.path for entry in absent_files(full)} == {entry.path for entry in wanted_files(full)}
    assert {entry.path for entry in absent_files(full.slug)} == {entry.path for entry in absent_files(full)}
    assert all(entry.content is None for entry in absent_files(full))


@given(TEXTS.filter(lambda text: bool(text.strip()) and text == text.strip() and not text.startswith("-")), TEXTS)
def test_a_unit_is_found_again_whatever_stands_in_it(model: str, value: str) -> None:
    service = spec(model=model, served_name="x" + value, env={"A": value}, args={"chat_template": value})
    text = render_unit(service)
    assert all(line and not line.endswith("\\") for line in text.splitlines() if line)
    found = parse_managed(text, service.unit_path)
    assert found is not None and not found.problem
    assert (found.model, found.served_name, found.gpus, found.port) == (model, "x" + value, (0, 1, 2, 3), 8000)
    assert found.unit == service.unit and found.slug == service.slug


def test_a_drop_in_is_systemds_own_syntax() -> None:
    text = render_drop_in(
        {"Service": {"Environment": ["", "A=1"], "PrivateUsers": True, "Nice": 5}, "Unit": {"After": "x.service"}}
    )
    assert text.endswith(
        "[Service]\nEnvironment=\nEnvironment=A=1\nNice=5\nPrivateUsers=yes\n\n[Unit]\nAfter=x.service\n"
    )
    assert render_drop_in({}) == render_drop_in({"Service": {}}) == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"service": {"Nice": 1}}, "no section of a service unit"),
        ({"Service]\n[X": {"Nice": 1}}, "no section of a service unit"),
        ({"Service": {"nice": 1}}, "no name of an option"),
        ({"Service": {"Nice": "1\nExecStartPre=/bin/x"}}, "line break"),
        ({"Service": {"Nice": "1\\"}}, "swallow the next line"),
        ({"Service": ["Nice=1"]}, "a dictionary of options"),
        ({"Service": {"Nice": {"a": 1}}}, "no text"),
    ],
)
def test_a_drop_in_cannot_be_made_of_anything_else(options: Any, message: str) -> None:
    with pytest.raises(GpuFleetError, match=message):
        render_drop_in(options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "///"}, "^name: "),
        ({"name": "a" * 200}, "too long"),
        ({"model": ""}, "^model: "),
        ({"model": "-x"}, "^model: "),
        ({"model": "/m\n/x"}, "^model: a line break"),
        ({"served_name": ""}, "^served_name: "),
        ({"host": "a b"}, "^host: "),
        ({"host": ""}, "^host: "),
        ({"port": 0}, "^port: "),
        ({"port": 70000}, "^port: "),
        ({"user": "a b"}, "^user: "),
        ({"group": ""}, "^group: "),
        ({"home": "relative"}, "^home: "),
        ({"home": "/a b"}, "^home: "),
        ({"home": "/a/../b"}, "^home: "),
        ({"gpus": (0, 0)}, "twice"),
        ({"gpus": (-1,)}, "below 0"),
        ({"executable": "vllm"}, "^executable: "),
        ({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "Use gpus"),
        ({"env": {"HF_TOKEN": "x"}}, "under secrets"),
        ({"env": {"A": True}}, "^env.A: "),
        ({"env": {"A": "b"}, "secrets": {"A": "c"}}, "given under secrets as well"),
        ({"env": {"VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "x"}}, "number of seconds"),
        ({"secrets": {"A B": "x"}}, "no name for an environment variable"),
        ({"args": {"gpu_memory_utilization": "much"}}, "gpu_memory_utilization: 'much' is no number"),
        ({"args": {"port": 8000}}, "Use port"),
    ],
)
def test_a_bad_declaration_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GpuFleetError, match=message):
        spec(**changes)


def test_a_secret_is_not_shown_when_it_is_refused() -> None:
    for value in (["s3cret"], {"s3cret": 1}, "s3cret\nx"):
        with pytest.raises(GpuFleetError) as refused:
            spec(secrets={"HF_TOKEN": value})
        assert "s3cret" not in refused.value.msg and "HF_TOKEN" in refused.value.msg


def test_names_become_safe_units() -> None:
    assert slug("MiniMax M2.5") == "minimax-m2.5"
    assert slug("a@b/../c") == "a-b-.-c"
    assert unit_name("Kimi_K2.5") == "vllm-kimi_k2.5.service"
    for bad in ("", " ", "---", "...", "日本", None, 3):
        with pytest.raises(GpuFleetError):
            slug(bad)  # type: ignore[arg-type]


@given(st.text(max_size=40))
def test_a_slug_is_safe_or_refused(name: str) -> None:
    try:
        made = slug(name)
    except GpuFleetError:
        return
    assert made and set(made) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")
    assert ".." not in made and "/" not in made and made[0].isalnum() and made[-1].isalnum()
    assert slug(made) == made


def test_only_our_units_are_found(tmp_path: Path) -> None:
    ours = spec(name="ours", port=8001)
    (tmp_path / ours.unit).write_text(render_unit(ours), encoding="utf-8")
    (tmp_path / "vllm-theirs.service").write_text("[Service]\nExecStart=/bin/true\n", encoding="utf-8")
    (tmp_path / "other.service").write_text(render_unit(ours), encoding="utf-8")
    (tmp_path / "vllm-ours.service.d").mkdir()
    (tmp_path / "vllm-link.service").symlink_to(tmp_path / ours.unit)
    (tmp_path / "vllm-bad.service").write_text('[X-GpuFleet]\nName=oops\nModel="m"\n', encoding="utf-8")
    (tmp_path / "vllm-half.service").write_text('[X-GpuFleet]\nName="half"\nGpus="0"\n', encoding="utf-8")
    found = {service.unit: service for service in find_managed(str(tmp_path))}
    assert set(found) == {"vllm-ours.service", "vllm-bad.service", "vllm-half.service"}
    assert found["vllm-ours.service"].name == "ours" and not found["vllm-ours.service"].problem
    assert "vllm-bad.service" in found["vllm-bad.service"].problem
    assert "Model is missing" in found["vllm-half.service"].problem
    assert find_managed(str(tmp_path / "nowhere")) == []


def managed(**changes: Any) -> ManagedService:
    """What stands on the host already."""
    values: dict[str, Any] = {
        "unit": "vllm-other.service",
        "name": "other",
        "model": "/m",
        "served_name": "o",
        "gpus": (4, 5),
        "port": 8001,
        "slug": "other",
        "path": "/etc/systemd/system/vllm-other.service",
    }
    values.update(changes)
    return ManagedService(**values)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"gpus": (3, 4)}, True),
        ({"port": 8000}, True),
        ({"unit": "vllm-minimax-m2.5.service", "gpus": (0,), "port": 8000}, False),
    ],
)
def test_conflicts(changes: dict[str, Any], expected: bool) -> None:
    other = managed(**changes)
    assert conflicts(spec(), [other]) == ([other] if expected else [])


def test_two_instances_of_one_gpu_do_not_conflict() -> None:
    mine = spec(gpus=(0,), gpu_uuids=("MIG-1",))
    assert conflicts(mine, [managed(gpus=(0,), gpu_uuids=("MIG-2",))]) == []
    assert len(conflicts(mine, [managed(gpus=(0,), gpu_uuids=("MIG-1",))])) == 1
    assert len(conflicts(mine, [managed(gpus=(0,))])) == 1, "a service on the whole GPU"
