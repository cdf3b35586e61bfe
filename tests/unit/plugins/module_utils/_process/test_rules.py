# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What counts as vLLM, what is an orphan, what is protected."""

from __future__ import annotations

import re
from typing import Any, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._process import rules
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.rules import (
    classify,
    host_unit_reason,
    vllm_reason,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.types import CgroupOwner, ProcessInfo

NOBODY = CgroupOwner()


def process(title: str | Sequence[str], comm: str = "", exe: str = "", **more: Any) -> ProcessInfo:
    """A process as it looks in a list; a list is its arguments, a text its title in one piece."""
    argv = (title,) if isinstance(title, str) else tuple(title)
    comm = comm or argv[0].rsplit("/", 1)[-1][:15]
    fields = {"pid": 500, "ppid": 1, "state": "S", "start_ticks": 1, "start_time": 1.0, "uid": 0, "user": "root", **more}
    return ProcessInfo(comm=comm, cmdline=" ".join(argv), argv=argv, exe=exe or None, **fields)


PYTHON = "/usr/bin/python3.11"
VLLM = [
    process("VLLM::EngineCore", "VLLM::EngineCor", PYTHON),
    process("VLLM::EngineCore_DP1", "VLLM::EngineCor", PYTHON),
    process("VLLM::Worker_TP0", "VLLM::Worker_TP", PYTHON),
    process("VLLM::Worker_DP1_EP1", "VLLM::Worker_DP", PYTHON),
    process("VLLM::APIServer_2", "VLLM::APIServer", PYTHON),
    process("", "VLLM::EngineCor"),  # the title could not be read, the short name is enough
    process("VllmWorker rank=3", "python3", PYTHON),
    process("VllmWorkerProcess", "VllmWorkerProce", PYTHON),
    process("ray::RayWorkerWrapper.execute_method", "ray::RayWorkerW", PYTHON),
    process("ray::RayWorkerWrapper", "ray::RayWorkerW", PYTHON),
    process(["/opt/vllm/bin/python3", "/opt/vllm/bin/vllm", "serve", "/models/x"], "vllm", PYTHON),
    process(["/opt/vllm/bin/vllm", "serve", "/models/x"], "vllm"),
    process(["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "x"], "python3", PYTHON),
    process(["python", "-u", "-X", "dev", "-m", "vllm.entrypoints.cli.main", "serve", "x"], "python", PYTHON),
]
NOT_VLLM = [
    process(["grep", "vllm", "serve"]),
    process(["vim", "/etc/vllm/minimax.yaml"]),
    process(["bash", "-c", "vllm serve /models/x"]),
    process(["tail", "-f", "/var/log/vllm"]),
    process(["journalctl", "-u", "vllm-minimax.service"]),
    process(["python3", "train.py", "--engine", "vllm"], "python3", PYTHON),
    process(["python3", "/home/me/vllm_client.py"], "python3", PYTHON),
    process(["python3", "-c", "import vllm"], "python3", PYTHON),
    process(["python3", "-m", "pytest", "vllm"], "python3", PYTHON),
    process("ray::MyActor", "ray::MyActor", PYTHON),
    process(["ollama", "serve"]),
    process(["xVLLM::EngineCore"], "xVLLM::EngineCo"),
]


@pytest.mark.parametrize("info", VLLM, ids=lambda info: info.cmdline or info.comm)
def test_vllm_is_known_in_all_its_titles(info: ProcessInfo) -> None:
    assert vllm_reason(info, NOBODY)


@pytest.mark.parametrize("info", NOT_VLLM, ids=lambda info: info.cmdline)
def test_what_only_mentions_vllm_is_not_vllm(info: ProcessInfo) -> None:
    assert vllm_reason(info, NOBODY) is None


def test_a_python_child_of_vllm_is_vllms() -> None:
    server = VLLM[10]
    tracker = process(["python3", "-c", "from multiprocessing.resource_tracker import main;main(42)"], "python3", PYTHON)
    assert vllm_reason(tracker, NOBODY, [server]) and vllm_reason(tracker, NOBODY) is None
    # through Python processes in between, but not past a shell
    between = process(["python3", "-c", "from multiprocessing.spawn import spawn_main"], "python3", PYTHON)
    assert vllm_reason(tracker, NOBODY, [between, server])
    assert vllm_reason(tracker, NOBODY, [process(["bash"]), server]) is None
    assert vllm_reason(process(["nvcc", "x.cu"]), NOBODY, [server]) is None


def test_python_in_a_vllm_unit_is_vllms() -> None:
    info = process(["python3", "-c", "x"], "python3", PYTHON)
    for unit in ("vllm-minimax-m2-5.service", "vllm.service", "vllm@a.service"):
        assert vllm_reason(info, CgroupOwner(unit=unit))
    assert vllm_reason(info, CgroupOwner(unit="vllm-exporter-proxy.timer")) is None
    assert vllm_reason(info, CgroupOwner(unit="notvllm.service")) is None


@pytest.mark.parametrize(
    ("owner", "active", "orphan"),
    [
        (NOBODY, None, True),
        (CgroupOwner(unit="vllm-a.service"), True, False),
        (CgroupOwner(unit="vllm-a.service"), False, True),
        (CgroupOwner(session="3", scope="session-3.scope"), True, False),
        (CgroupOwner(session="3", scope="session-3.scope"), False, True),
        (CgroupOwner(container="abc", runtime="docker"), None, False),
    ],
)
def test_an_orphan_belongs_to_no_active_unit_container_or_session(owner: CgroupOwner, active: "bool | None", orphan: bool) -> None:
    assert classify(VLLM[0], owner, active).orphan is orphan
    assert not classify(process(["ollama", "serve"]), owner, active).orphan


PROTECTED = [
    ("Xorg", process(["/usr/lib/xorg/Xorg", ":0"])),
    ("Xwayland", process(["/usr/bin/Xwayland"])),
    ("gnome-shell", process(["/usr/bin/gnome-shell"])),
    ("kwin", process(["/usr/bin/kwin_wayland"])),
    ("persistenced", process(["/usr/bin/nvidia-persistenced", "--user", "x"], "nvidia-persiste")),
    ("powerd", process(["/usr/bin/nvidia-powerd"])),
    ("hostengine", process(["/usr/bin/nv-hostengine", "-n"])),
    ("dcgm", process(["/usr/bin/dcgm-exporter"])),
    ("fabricmanager", process(["/usr/bin/nv-fabricmanager", "-c", "x"], "nv-fabricmanage")),
    ("mps server", process(["nvidia-cuda-mps-server"], "nvidia-cuda-mps")),
    ("mps control", process(["nvidia-cuda-mps-control", "-d"], "nvidia-cuda-mps")),
    ("nvidia-smi", process(["nvidia-smi", "-l", "1"])),
    ("nvtop", process(["nvtop"])),
    ("nvitop", process(["/usr/bin/python3", "/usr/local/bin/nvitop"], "nvitop", PYTHON)),
    ("sshd", process(["sshd: root@pts/0"], "sshd")),
    ("sshd-session", process(["sshd-session: root"], "sshd-session")),
    ("systemd", process(["/lib/systemd/systemd", "--user"])),
    ("udev", process(["/lib/systemd/systemd-udevd"], "systemd-udevd")),
    ("containerd", process(["/usr/bin/containerd-shim-runc-v2", "-id", "x"], "containerd-shim")),
    ("dockerd", process(["/usr/bin/dockerd"])),
    ("kubelet", process(["/usr/bin/kubelet"])),
    ("vgpu", process(["vgpu"])),
    ("qemu", process(["/usr/bin/qemu-system-x86_64"], "qemu-system-x86")),
    ("slurm", process(["slurmstepd: [7.0]"], "slurmstepd")),
    ("slurm's job", process(["/bin/bash", "/var/spool/slurmd/job00042/slurm_script"], "slurm_script", "/usr/bin/bash")),
    ("htcondor", process(["condor_starter", "-f"], "condor_starter", "/usr/sbin/condor_starter")),
    ("htcondor's job", process(["condor_exec.exe"], "condor_exec.exe", "/var/lib/condor/execute/dir_7/condor_exec.exe")),
    ("grid engine", process(["sge_shepherd-42", "-bg"], "sge_shepherd", "/opt/sge/bin/lx-amd64/sge_shepherd")),
    ("lsf", process(["/opt/lsf/10.1/etc/res"], "res", "/opt/lsf/10.1/etc/res")),
    ("flux", process(["/usr/bin/flux-broker"], "flux-broker", "/usr/bin/flux-broker")),
    ("flux's shell", process(["/usr/libexec/flux/flux-shell", "1"], "flux-shell", "/usr/libexec/flux/flux-shell")),
    ("flux's imp", process(["flux-imp", "exec"], "flux-imp", "/usr/libexec/flux/flux-imp")),
    ("a desktop's script", process(["/usr/bin/perl", "-w", "/usr/bin/gnome-x"], "perl", "/usr/bin/perl")),
    ("nomad", process(["/usr/bin/nomad", "agent"], "nomad", "/usr/bin/nomad")),
]


@pytest.mark.parametrize("info", [info for _name, info in PROTECTED], ids=[name for name, _info in PROTECTED])
def test_infrastructure_is_protected(info: ProcessInfo) -> None:
    judged = classify(info, NOBODY, None)
    assert judged.protected and judged.protected_by


@pytest.mark.parametrize("info", VLLM[:-1] + NOT_VLLM[5:8], ids=lambda info: info.cmdline or info.comm)
def test_workloads_are_not_protected(info: ProcessInfo) -> None:
    assert not classify(info, NOBODY, None).protected


# (title, kernel's name, program): somebody's own work that is called like the system's.
ALIKE = [
    ("X", "X", PYTHON),
    ("./X", "X", "/home/alice/X"),
    (["/usr/bin/python3", "/home/alice/sshd-train"], "sshd-train", PYTHON),
    (["/scratch/systemd-train"], "systemd-train", "/scratch/systemd-train"),
    (["kwin_bench"], "kwin_bench", PYTHON),
    (["bash", "./gnome-sort.sh"], "gnome-sort.sh", "/usr/bin/bash"),
    (["slurm-sweep"], "slurm-sweep", "/data/bin/slurm-sweep (deleted)"),
    (["kube-llm"], "kube-llm", PYTHON),
    (["qemu-vision"], "qemu-vision", PYTHON),
]


@pytest.mark.parametrize(("title", "comm", "exe"), ALIKE, ids=[comm for _title, comm, _exe in ALIKE])
def test_a_name_alike_protects_only_where_the_program_may_be_the_systems(title: "str | list[str]", comm: str, exe: str) -> None:
    assert not classify(process(title, comm, exe, uid=1000), NOBODY, None).protected
    # Where the program can't be seen, or lies where the system's do, nothing is proven.
    assert classify(process(comm, comm), NOBODY, None).protected
    assert classify(process(comm, comm, "/usr/bin/" + comm), NOBODY, None).protected


@pytest.mark.parametrize(
    ("title", "comm", "exe"),
    [
        (["/usr/bin/python3", "/usr/bin/gnome-tweaks"], "gnome-tweaks", PYTHON),
        (["/usr/libexec/gsd-media-keys"], "gsd-media-keys", "/usr/libexec/gsd-media-keys"),
        (["sshd: alice@pts/0"], "sshd", "/usr/sbin/sshd"),
        (["/usr/lib/systemd/systemd-hostnamed"], "systemd-hostnam", "/usr/lib/systemd/systemd-hostnamed"),
        (["/var/lib/rancher/k3s/data/x/bin/k3s", "agent"], "k3s-agent", "/var/lib/rancher/k3s/data/x/bin/k3s"),
    ],
)
def test_the_systems_own_programs_stay_protected(title: "list[str]", comm: str, exe: str) -> None:
    assert classify(process(title, comm, exe), NOBODY, None).protected


@pytest.mark.parametrize("place", ["/opt/models/", "/var/lib/models/", "/usr/share/models/"])
@pytest.mark.parametrize("model", [
    "flux-lm", "cosmic-reason1-7b", "mir-7b", "mate-7b", "slim", "river", "awesome", "nomad", "sshd-lm", "systemd-lm", "kube-llm", "X",
])
def test_a_model_is_no_daemon_whatever_it_is_called(model: str, place: str) -> None:
    """Only the script tells what an interpreter runs; that is how our own units start their server."""
    words = ["/opt/vllm/bin/vllm", "serve", place + model, "--config", "/etc/vllm/%s.yaml" % model]
    for argv in (["/opt/vllm/bin/python", *words], ["/opt/vllm/bin/python", "-u", *words], ["/usr/bin/bash", "-e", *words],
                 ["/usr/bin/bash", "-o", "pipefail", *words], ["/usr/bin/perl", "-w", *words], ["/usr/bin/bash", "-c", place + model],
                 ["/usr/bin/perl", "-e", place + model], ["/usr/bin/python3", "-m", "serve", place + model]):
        exe = PYTHON if "python" in argv[0] else argv[0]
        assert not classify(process(argv, "vllm", exe, uid=1000), NOBODY, None).protected, argv


@pytest.mark.parametrize("title", [["/usr/bin/python3", "/opt/img/flux-server.py"], ["/usr/local/bin/flux-serve"]])
def test_of_flux_only_its_own_programs_are_known(title: "list[str]") -> None:
    exe = PYTHON if len(title) > 1 else title[0]
    assert not classify(process(title, title[-1].rsplit("/", 1)[-1], exe), NOBODY, None).protected


@pytest.mark.parametrize("name", [
    "cosmic-comp", "niri", "labwc", "wayfire", "river", "marco", "metacity", "muffin", "compiz", "budgie-wm", "gamescope", "gamescope-wl",
    "Xtigervnc", "sway", "i3", "xrdp-chansrv",
])
def test_display_servers_and_window_managers_are_protected_where_the_system_has_them(name: str) -> None:
    for exe in ("/usr/bin/" + name, ""):
        assert classify(process("/usr/bin/" + name, name, exe), NOBODY, None).protected
    if not name.startswith("Xtiger") and name != "sway":
        assert not classify(process(["python3", "/home/alice/" + name], name, PYTHON), NOBODY, None).protected


def test_what_must_never_be_signalled_is_protected_by_its_pid() -> None:
    info = process(["python3", "x.py"], "python3", pid=77)
    assert classify(info, NOBODY, None, own_pids={77, 5}).protected_by == "it runs this task"
    assert classify(process(["init"], pid=1), NOBODY, None).protected_by == "the host's first process"
    assert classify(process("", "kworker/0:1", ppid=2), NOBODY, None).protected_by == "kernel thread"


def test_a_containers_process_is_protected_and_named() -> None:
    owner = CgroupOwner(container="f" * 64, runtime="docker")
    assert classify(VLLM[0], owner, None).protected_by == "container ffffffffffff (docker)"


@pytest.mark.parametrize(
    ("pattern", "protected"),
    [
        ("vllm-a.service", True),
        ("unit:vllm-*.service", True),
        ("unit:vllm-a", True),
        ("vllm-a", True),
        ("unit:vllm", False),
        ("user:alice", True),
        ("alice", True),
        ("process:VLLM::Worker*", True),
        ("VLLM::*", True),
        ("unit:alice", False),
        ("process:alice", False),
        ("user:bob", False),
        ("VLLM", False),
    ],
)
def test_the_users_patterns_protect(pattern: str, protected: bool) -> None:
    info = process("VLLM::Worker_TP0", "VLLM::Worker_TP", user="alice")
    judged = classify(info, CgroupOwner(unit="vllm-a.service"), True, [pattern])
    assert judged.protected is protected
    assert judged.protected_by == ("protect: %s" % pattern if protected else None)


@pytest.mark.parametrize(
    "unit",
    ["ssh.service", "sshd.service", "ssh.socket", "user@1000.service", "session-3.scope", "init.scope", "docker.service",
     "containerd.service", "kubelet.service", "slurmd.service", "slurmstepd.scope", "nvidia-persistenced.service",
     "pbs.service", "pbs_mom.service", "condor.service", "htcondor.service", "lsfd.service", "sgeexecd.service", "sgeexecd.p6444.service",
     "gridengine-exec.service", "nomad.service", "nomad-client.service", "oar-node.service", "hadoop-yarn-nodemanager.service",
     "systemd-logind.service", "dbus.service", "cron.service", "gdm.service", "greetd.service", "xrdp-sesman.service"],
)
def test_units_that_carry_the_host_are_never_stopped(unit: str) -> None:
    assert host_unit_reason(unit)


@pytest.mark.parametrize("unit", ["vllm-a.service", "ollama.service", "jupyter.service", "run-r8.scope", "sshd-proxy-for-llm.service",
                                  "nomadic.service", "general.service", "condorcet.service", "flux.service", "genai.service"])
def test_ordinary_units_may_be_stopped(unit: str) -> None:
    assert host_unit_reason(unit) is None


def test_a_worker_is_without_a_server_when_the_chain_above_it_ends() -> None:
    server, engine, worker = VLLM[10], VLLM[0], VLLM[2]
    script = process(["python3", "offline.py"], "python3", PYTHON)
    init, shell = process(["systemd", "--user"]), process(["bash"])
    assert not rules.serverless(worker, [engine, server, init])
    assert not rules.serverless(engine, [script, shell])
    assert rules.serverless(worker, [engine, init])
    assert rules.serverless(engine, [shell])  # given to whatever launched it, not to pid 1
    assert rules.serverless(engine, [])
    assert not rules.serverless(server, [init])


def test_only_what_serves_the_host_is_quiet() -> None:
    """A short look is proof enough beside these alone; each of them is a rule's."""
    quiet = {name for name, info in PROTECTED if classify(info, NOBODY, None).protected_by in rules.QUIET}
    assert quiet == {"Xorg", "Xwayland", "gnome-shell", "kwin", "a desktop's script", "persistenced", "powerd", "hostengine", "dcgm",
                     "fabricmanager", "nvidia-smi", "nvtop", "nvitop"}
    assert rules.QUIET <= {rule.reason for rule in rules.PROTECTED_RULES}


def test_every_rule_is_a_pattern_with_a_reason() -> None:
    for table in (rules.VLLM_RULES, rules.PROTECTED_RULES, rules.HOST_UNITS):
        for rule in table:
            assert re.compile(rule.pattern) and rule.reason and rule.field in ("name", "installed", "title", "program", "unit")


@given(st.text(max_size=60), st.text(max_size=15), st.one_of(st.none(), st.booleans()))
def test_any_process_is_judged_without_an_error(title: str, comm: str, active: "bool | None") -> None:
    judged = classify(process(title, comm or "x"), NOBODY, active)
    assert judged.vllm or not judged.orphan
    assert judged.protected == (judged.protected_by is not None)
