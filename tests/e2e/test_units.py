# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rendered units on real systemd: every value's journey, the sandbox with a working server, states, failures."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from e2e.remote import core
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._guard import exit_codes
from ansible_collections.gpufleet.vllm.plugins.module_utils._guard.zipapp import build_guard
from ansible_collections.gpufleet.vllm.plugins.module_utils._server.http import Server, ServerError
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.config import split_args
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.environment import unit_environment
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.render import (
    render_drop_in,
    render_unit,
    wanted_files,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.spec import GuardSpec, ServiceSpec
from lab import Host, Lab

ECHO = "/usr/local/lib/echo/bin/vllm"
# A stand-in for server and guard alike: it writes down how it was called, and stays.
ECHO_SOURCE = """#!/opt/vllm/bin/python3
import json, os, sys, time, yaml
args = open("/proc/self/cmdline", "rb").read().split(b"\\0")[:-1]
words = [arg.decode("utf-8", "surrogateescape") for arg in args]
environ = {k.decode(): v.decode("utf-8", "surrogateescape") for k, v in os.environb.items()}
config = None
if "--config" in words:
    with open(words[words.index("--config") + 1], encoding="utf-8") as handle:
        config = yaml.safe_load(handle)
target = os.path.join(os.environ["HOME"], "guard.json" if config is None else "server.json")
with open(target + ".new", "w", encoding="utf-8", errors="surrogateescape") as handle:
    json.dump({"argv": words, "environ": environ, "config": config}, handle)
os.rename(target + ".new", target)
if config is not None:
    time.sleep(600)
"""

TEXTS = st.text(
    st.one_of(
        st.sampled_from("%$\"'\\ \t;#{}[]=:,@-+!|~*?<>&`^()01e."),
        st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters="\ufeff\ufffe\uffff"),
    ),
    max_size=30,
)
HARD = ["", " ", "\t", ";", "-x", "--x", "%%", "%n", "%H", "$HOME", "${HOME}", "$$", "\\", "\\n", "\\x41", 'a"b', "a'b",
        " a b ", "ü 日本 😀", '{"method":"mtp","n":3}', "a;b", "# no comment", "ends\\", "~", "`id`", "100%", "no", "1e5",
        "0.90", "2024-01-01", "null", "- a", "a: b", "&a", "!t", "|", "-@:+!x", "long " * 20_000]  # fmt: skip


@pytest.fixture(scope="module", params=["gpu01", "gpu03"])
def machine(request: pytest.FixtureRequest, lab: Lab) -> Host:
    """One host per systemd version, clean once for this file."""
    chosen = lab.hosts[request.param]
    chosen.reset()
    chosen.write(ECHO, ECHO_SOURCE, 0o755)
    chosen.run(["sh", "-c", "mkdir -p /usr/local/lib/gpufleet"])
    return chosen


@pytest.fixture
def tidy(machine: Host) -> Iterator[None]:
    """No unit of a test stays for the next one."""
    yield
    machine.vllm.clear()
    machine.run(
        "systemctl kill -s KILL 'vllm-*' 2>/dev/null; systemctl stop 'vllm-*'; systemctl reset-failed 'vllm-*' 2>/dev/null;"
        "rm -rf /etc/systemd/system/vllm-* /etc/vllm; systemctl daemon-reload; true"
    )


def spec(name: str = "tested", **changes: Any) -> ServiceSpec:
    """A service of the lab: the small model on GPU 4 under a system user."""
    values: dict[str, Any] = {
        "name": name,
        "model": "/models/Qwen3-0.6B",
        "served_name": name,
        "gpus": (4,),
        "port": 8001,
        "user": "daemon",
        "group": "daemon",
    }
    values.update(changes)
    return ServiceSpec(**values)


def deploy(host: Host, *services: ServiceSpec) -> None:
    """Write the services' files, have systemd read them, and queue their starts."""
    for service in services:
        for entry in wanted_files(service):
            if entry.content is not None:
                host.write(entry.path, entry.content.decode("utf-8"), entry.mode)
    host.run(["systemctl", "daemon-reload"])
    host.run(["systemctl", "start", "--no-block", *[service.unit for service in services]])


def wait_for(look: Callable[[], Any], timeout: float = 30.0) -> Any:
    """What ``look`` returns as soon as it is something."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("nothing within %.0f s" % timeout)


def status(host: Host, unit: str) -> dict[str, Any]:
    """A unit as the core reads it on the host."""
    found: dict[str, Any] = core(
        host,
        "s = systemd.status(given['unit'])\n"
        "result = dict(s.__dict__, running=s.running, starting=s.starting, crash_looping=s.crash_looping, masked=s.masked,"
        " failed=s.failed, exists=s.exists, inactive=s.inactive, stopping=s.stopping)",
        unit=unit,
    )
    return found


def diagnosis(host: Host, unit: str) -> dict[str, Any]:
    """What the core says of a unit's last start."""
    found: dict[str, Any] = core(
        host,
        "from core._diagnosis.classify import DiagnosisContext, classify\n"
        "s = systemd.status(given['unit'])\n"
        "lines = [line.text for line in journal.lines(s.unit, s.invocation_id)]\n"
        "result = classify(lines, DiagnosisContext(unit=s.unit, result=s.result, exit_status=s.exec_main_status,"
        " exit_code=s.exec_main_code, start_pre_status=s.start_pre_status, restarts=s.n_restarts)).to_result()",
        unit=unit,
    )
    return found


def with_guard(host: Host) -> None:
    """Put the real guard on the host."""
    import base64

    encoded = base64.b64encode(build_guard()).decode("ascii")
    host.run(["sh", "-c", "base64 -d > /usr/local/lib/gpufleet/gpu-guard.pyz"], input=encoded)


# --- every value's journey


def expect_arrived(host: Host, service: ServiceSpec) -> None:
    """Compare what server and guard saw with what was declared."""
    seen = json.loads(wait_for(lambda: host.enter(["cat", service.home_path + "/server.json"], check=False).stdout))
    in_file, words = split_args(service.args)
    assert seen["argv"][2:] == ["serve", service.model, "--config", service.config_path, *words]
    for name, value in {**unit_environment(service), **service.secrets}.items():
        assert seen["environ"][name] == value, name
    config = dict(seen["config"])
    assert config.pop("served-model-name") == [service.served_name]
    assert (config.pop("host"), config.pop("port")) == (service.host, service.port)
    assert config == {name.replace("_", "-"): value for name, value in in_file.items()}
    guard = json.loads(host.read(service.home_path + "/guard.json"))
    assert guard["argv"][2:6] == ["--unit", service.unit, "--gpus", "4"]
    assert guard["environ"]["CUDA_VISIBLE_DEVICES"] == "4"


def echoing(name: str, **changes: Any) -> ServiceSpec:
    """A service whose server and guard write down how they were called."""
    return spec(
        name,
        executable=ECHO,
        guard=GuardSpec(path=ECHO, python="/opt/vllm/bin/python3"),
        **changes,
    )


def test_hard_values_arrive_unchanged(machine: Host, tidy: None) -> None:
    service = echoing(
        "hard",
        model='/models/it\'s a "50%" model\\$HOME; ü',
        served_name="a b;%n $x",
        env={"E%d" % index: value for index, value in enumerate(HARD)},
        secrets={"S%d" % index: value for index, value in enumerate(HARD)},
        args={"a%d" % index: value for index, value in enumerate(HARD)} | {"nested": {"in": HARD}, "seed": -1},
    )
    deploy(machine, service)
    expect_arrived(machine, service)


def test_any_value_arrives_unchanged(machine: Host, tidy: None) -> None:
    number = 0

    @settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(TEXTS, min_size=20, max_size=30), st.dictionaries(TEXTS, TEXTS, max_size=10))
    def journey(values: list[str], nested: dict[str, str]) -> None:
        nonlocal number
        number += 1
        service = echoing(
            "any-%d" % number,
            model="org/" + values[0],
            env={"E%d" % index: value for index, value in enumerate(values)},
            secrets={"S%d" % index: value for index, value in enumerate(values)},
            args={"a%d" % index: value for index, value in enumerate(values)} | {"nested": nested},
        )
        deploy(machine, service)
        expect_arrived(machine, service)
        machine.run(["systemctl", "stop", service.unit])

    def checked() -> None:
        journey()

    checked()
    assert number >= 8


# --- the unit itself

VARIED = [
    {},
    {"secrets": {"HF_TOKEN": "x"}, "unit_options": {"Service": {"Nice": 5, "Environment": ["A=1"]}}},
    {"home": "/srv/vllm/one", "model": "/home/me/model", "host": "::1"},
    {"model": "/models/a b%c", "env": {"A": "%n"}, "guard": GuardSpec(enabled=False), "shutdown_timeout": 300},
    {"model": "org/name", "gpus": (0, 1, 2, 3, 4, 5, 6, 7), "args": {"middleware": ["a.b", "c.d"]}},
]


@pytest.mark.parametrize("changes", VARIED, ids=[str(index) for index in range(len(VARIED))])
def test_verify_has_nothing_to_say(machine: Host, changes: dict[str, Any]) -> None:
    service = spec(**changes)
    drop_in = render_drop_in(service.unit_options)
    assert (
        core(
            machine,
            "result = systemd.verify(given['unit'], given['name'], given['drop_ins'])",
            unit=render_unit(service),
            name=service.unit,
            drop_ins={"50-options.conf": drop_in} if drop_in else {},
        )
        == []
    )


def test_verify_would_say_something(machine: Host) -> None:
    unit = render_unit(spec()).replace("[Service]\n", "[Service]\nStartLimitIntervalSec=600\n")
    (line,) = core(machine, "result = systemd.verify(given['unit'], 'vllm-tested.service')", unit=unit)
    assert "Unknown key 'StartLimitIntervalSec'" in line or "Unknown key name" in line, line


def test_a_server_works_in_the_sandbox_and_its_secrets_stay_secret(machine: Host, tidy: None) -> None:
    with_guard(machine)
    service = spec(secrets={"VLLM_API_KEY": 's3cr$t "k"ey'}, args={"max_model_len": 4096})
    deploy(machine, service)
    server = Server(machine.address, service.port, api_key=service.secrets["VLLM_API_KEY"])
    wait_for(lambda: server.health(5.0) == 200)
    assert server.models() == ["tested"]
    assert server.complete("tested").ok
    with pytest.raises(ServerError, match="401"):
        Server(machine.address, service.port).models()

    seen = status(machine, service.unit)
    assert seen["running"] and seen["n_restarts"] == 0 and seen["active_enter"] is not None
    assert seen["main_pid"] in core(machine, "result = systemd.cgroup_pids(given['u'])", u=service.unit)
    exposure = machine.run(["systemd-analyze", "security", "--no-pager", service.unit]).stdout
    found = re.search(r"exposure level for \S+: ([0-9.]+)", exposure)
    assert found is not None and float(found.group(1)) <= 3.0, exposure

    for command in (
        "systemctl show " + service.unit,
        "systemctl cat " + service.unit,
        "ps axww -o args",
        "journalctl --no-pager -u " + service.unit,
        "setpriv --reuid nobody --clear-groups sh -c 'cat /etc/vllm/* /etc/systemd/system/vllm-* /proc/[0-9]*/environ' 2>/dev/null; true",
    ):
        assert "s3cr" not in machine.run(command).stdout, command
    # Its own directory, nothing else: the sandbox lets it write there alone.
    owner = machine.run(["stat", "-c", "%U %a", "/var/lib/vllm/tested"]).stdout.split()
    assert owner == ["daemon", "750"]


def test_the_guard_says_why_and_does_not_loop_for_ever(machine: Host, tidy: None) -> None:
    with_guard(machine)
    quickly = {"Service": {"RestartSec": 1}}
    service = spec(args={"gpu_memory_utilization": 0.99}, guard=GuardSpec(margin_mib=200_000), unit_options=quickly)
    deploy(machine, service)
    first = wait_for(
        lambda: [seen for seen in [status(machine, service.unit)] if seen["start_pre_status"] is not None]
    )[0]
    assert first["start_pre_status"] == exit_codes.NEVER
    last = wait_for(lambda: [seen for seen in [status(machine, service.unit)] if seen["failed"]], 40.0)[0]
    assert last["crash_looping"] and last["n_restarts"] == 3 and last["start_pre_status"] == exit_codes.NEVER
    said = diagnosis(machine, service.unit)
    assert said["kind"] == "memory_not_free" and "gpu-guard" in said["evidence"][0] and said["advice"]
    lines = core(
        machine,
        "found = journal.lines(given['u'], systemd.status(given['u']).invocation_id)\n"
        "result = [[line.identifier, line.text, line.from_manager] for line in found]",
        u=service.unit,
    )
    assert any(name == "vllm-tested" and "gpu-guard" in text for name, text, _manager in lines)
    assert any(manager and "status=78" in text for _name, text, manager in lines)
    starts = [text for _name, text, manager in lines if manager and text.startswith("Starting")]
    assert len(starts) == 1, "one invocation only"


def test_a_flag_that_vllm_does_not_know_is_tried_once(machine: Host, tidy: None) -> None:
    service = spec(args={"swap_space": 4}, guard=GuardSpec(enabled=False))
    deploy(machine, service)
    seen = wait_for(lambda: [seen for seen in [status(machine, service.unit)] if seen["failed"]])[0]
    assert (seen["exec_main_code"], seen["exec_main_status"], seen["n_restarts"]) == ("exited", 2, 0)
    assert not seen["crash_looping"]
    said = diagnosis(machine, service.unit)
    assert said["kind"] == "bad_argument" and "--swap-space" in said["summary"]


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        ({"oom_warmup": True}, "oom_warmup"),
        ({"oom_load": True}, "oom_load"),
        ({"fp8_block": True}, "quant_block"),
        (
            {
                "die_at_load": {
                    "phase": "weights",
                    "process": "worker",
                    "error": "ValueError: nobody has seen this before",
                }
            },
            "unknown",
        ),
    ],
)
def test_a_failed_load_is_understood_on_the_host(
    machine: Host, tidy: None, behaviour: dict[str, Any], kind: str
) -> None:
    machine.vllm.behave("tested", load_seconds=0.2, **behaviour)
    service = spec(guard=GuardSpec(enabled=False))
    deploy(machine, service)
    wait_for(lambda: status(machine, service.unit)["crash_looping"])
    said = diagnosis(machine, service.unit)
    assert said["kind"] == kind, said
    assert said["evidence"] and said["advice"]
    if kind == "unknown":
        assert "nobody has seen this before" in said["summary"]


# --- states

SLEEPER = "[Service]\nExecStart=/bin/sleep 600\n"


def test_states_as_systemd_has_them(machine: Host, tidy: None) -> None:
    units = {
        "vllm-up.service": SLEEPER,
        "vllm-guarded.service": SLEEPER.replace("[Service]", "[Service]\nExecStartPre=/bin/sleep 600"),
        "vllm-crash.service": "[Service]\nExecStart=/bin/false\nRestart=always\nRestartSec=600\n",
        "vllm-dead.service": "[Service]\nExecStart=/bin/sh -c 'exit 7'\n",
        "vllm-killed.service": "[Service]\nExecStart=/bin/sh -c 'kill -KILL $$$$'\n",
        "vllm-stopping.service": "[Service]\nExecStart=/bin/sleep 600\nExecStop=/bin/sleep 600\n",
        "vllm-idle.service": SLEEPER,
    }
    for name, text in units.items():
        machine.write("/etc/systemd/system/" + name, text)
    machine.run("systemctl mask --runtime vllm-masked.service; systemctl daemon-reload")
    machine.run("systemctl start --no-block vllm-up vllm-guarded vllm-crash vllm-dead vllm-killed vllm-stopping")
    wait_for(lambda: status(machine, "vllm-stopping.service")["running"])
    machine.run("systemctl stop --no-block vllm-stopping")

    def seen() -> dict[str, Any]:
        found: dict[str, Any] = core(
            machine,
            "s = systemd.statuses(given['units'])\nresult = {n: [u.active_state, u.sub_state, u.running, u.starting, u.stopping, u.failed,"
            " u.crash_looping, u.exists, u.masked, u.exec_main_code, u.exec_main_status] for n, u in s.items()}",
            units=[*units, "vllm-masked.service", "vllm-nowhere.service"],
        )
        return found

    wait_for(lambda: seen()["vllm-stopping.service"][4] and seen()["vllm-crash.service"][6])
    found = seen()
    no = False
    assert found == {
        "vllm-up.service": ["active", "running", True, no, no, no, no, True, no, None, 0],
        "vllm-guarded.service": ["activating", "start-pre", no, True, no, no, no, True, no, None, 0],
        "vllm-crash.service": ["activating", "auto-restart", no, no, no, no, True, True, no, "exited", 1],
        "vllm-dead.service": ["failed", "failed", no, no, no, True, no, True, no, "exited", 7],
        "vllm-killed.service": ["failed", "failed", no, no, no, True, no, True, no, "killed", 9],
        "vllm-stopping.service": ["deactivating", "stop", no, no, True, no, no, True, no, None, 0],
        "vllm-idle.service": ["inactive", "dead", no, no, no, no, no, True, no, None, 0],
        "vllm-masked.service": ["inactive", "dead", no, no, no, no, no, True, True, None, 0],
        "vllm-nowhere.service": ["inactive", "dead", no, no, no, no, no, no, no, None, 0],
    }


def test_what_outlives_its_unit_is_seen_and_ended(machine: Host, tidy: None) -> None:
    machine.write(
        "/etc/systemd/system/vllm-left.service",
        "[Service]\nKillMode=process\nExecStart=/bin/sh -c 'sleep 601 & sleep 602 & exec sleep 603'\n",
    )
    machine.run("systemctl daemon-reload; systemctl start vllm-left")
    pids = "result = systemd.cgroup_pids('vllm-left.service')"
    wait_for(lambda: len(core(machine, pids)) == 3)
    machine.run("systemctl stop vllm-left")
    assert status(machine, "vllm-left.service")["active_state"] == "inactive"
    assert len(core(machine, pids)) == 2
    core(machine, "systemd.kill('vllm-left.service'); result = None")
    wait_for(lambda: core(machine, pids) == [])
    core(machine, "systemd.kill('vllm-left.service'); systemd.reset_failed('vllm-left.service'); result = None")


def test_what_starts_at_boot_is_seen_and_changed_without_a_reload(machine: Host, tidy: None) -> None:
    machine.write("/etc/systemd/system/vllm-up.service", SLEEPER + "[Install]\nWantedBy=multi-user.target\n")
    machine.run(["systemctl", "daemon-reload"])
    code = "s = systemd.status('vllm-up.service')\nresult = [s.enabled, s.need_daemon_reload]"
    core(machine, "systemd.start('vllm-up.service', no_block=False); result = None")
    assert core(machine, code) == [False, False]
    core(machine, "systemd.enable('vllm-up.service'); result = None")
    assert core(machine, code) == [True, False]
    assert machine.run("systemctl is-enabled vllm-up").stdout.strip() == "enabled"
    core(machine, "systemd.disable('vllm-up.service'); result = None")
    assert core(machine, code) == [False, False]


def test_a_change_of_the_file_is_seen_until_it_is_read(machine: Host, tidy: None) -> None:
    machine.write("/etc/systemd/system/vllm-up.service", SLEEPER)
    machine.write("/etc/systemd/system/vllm-up.service.d/50-options.conf", "[Service]\nNice=3\n")
    machine.run("systemctl daemon-reload; systemctl start vllm-up")
    code = "s = systemd.status('vllm-up.service')\nresult = [s.need_daemon_reload, s.drop_in_paths]"
    drop_ins = ["/etc/systemd/system/vllm-up.service.d/50-options.conf"]
    assert core(machine, code) == [False, drop_ins]
    machine.write("/etc/systemd/system/vllm-up.service.d/50-options.conf", "[Service]\nNice=4\n")
    assert core(machine, code) == [True, drop_ins]
    core(machine, "systemd.daemon_reload(); result = None")
    assert core(machine, code) == [False, drop_ins]
