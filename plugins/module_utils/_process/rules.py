# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What counts as vLLM, what is an orphan, what is protected: the one place where that is decided.

Each table is read from the top, the first match names the reason. A pattern is a regular expression that must match the
whole field. Fields: ``name`` is the kernel's name of the process (cut to 15 characters), or the file name of its executable or
of its first argument; ``installed`` the same, but only as far as the program is one that the system installed, or can't be seen;
``title`` the whole command line; ``program`` what a Python interpreter was told to run; ``unit`` its unit. The cgroups of
schedulers' jobs stand in a table of their own (jobs.py), those of containers in cgroup.py.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import AbstractSet, Dict, FrozenSet, Iterable, Optional, Sequence, Tuple

from .jobs import SCHEDULERS, job_label
from .names import installed_names, is_python, names_of, program_of
from .types import CgroupOwner, Classification, ProcessInfo


@dataclass(frozen=True)
class Rule:
    """One line of a table."""

    pattern: str
    field: str
    reason: str

    def matches(self, values: Iterable[str]) -> bool:
        """Whether any of the field's values is the pattern's."""
        return any(re.match("(?:%s)$" % self.pattern, value, re.DOTALL) for value in values)


# vLLM retitles its children; comm keeps 15 characters of it (VLLM::EngineCor). Shells, editors and greps that only mention
# vLLM on their command line are not vLLM: the title must begin so, or the program that runs must be it.
VLLM_RULES: Tuple[Rule, ...] = (
    Rule(r"VLLM::.*", "name", "a child of a vLLM server (EngineCore, Worker, APIServer, DPCoordinator)"),
    Rule(r"VLLM::.*", "title", "a child of a vLLM server, by its whole title"),
    Rule(r"VllmWorker.*", "title", "a worker of older vLLM (VllmWorker rank=N, VllmWorkerProcess)"),
    Rule(r"ray::(?:RayWorkerWrapper|RayWorkerProc|RayDistributedExecutor|EngineCoreActor|DPMoEEngineCoreActor)\b.*", "title",
         "a vLLM worker under Ray"),
    Rule(r"ray::RayWorkerWr.*", "name", "a vLLM worker under Ray, by its short name"),
    Rule(r"vllm", "name", "the vllm command"),
    Rule(r"(?:.*/)?vllm", "program", "the vllm command, run by a Python interpreter"),
    Rule(r"-m vllm(?:\..*)?", "program", "a module of vLLM, run by a Python interpreter"),
)

# A Python process that does not carry vLLM's title (resource tracker, a worker before it is retitled) is vLLM's when its unit or
# its parent is.
VLLM_UNIT = Rule(r"vllm(?:[-@].+)?\.service", "unit", "it belongs to a vLLM service")

# What a service starts for itself as well: a logger beside its server, the program that takes another user. Never signalled, but they
# end with a unit that is theirs.
GPU_TOOL = "GPU tool"
CHANGE_OF_USER = "change of user"

# What serves the host and takes no memory for anybody's work. MPS does, for its clients; jobs, containers and virtual machines are work.
DISPLAY, DESKTOP, MONITORING = "display server", "desktop session", "GPU monitoring"
PERSISTENCE, POWER, FABRIC = "NVIDIA persistence daemon", "NVIDIA power daemon", "NVLink fabric management"
QUIET: FrozenSet[str] = frozenset((DISPLAY, DESKTOP, MONITORING, GPU_TOOL, PERSISTENCE, POWER, FABRIC))

# Programs that answer for whatever runs below them, and how that ends.
RUNTIME, KUBERNETES, SCHEDULER = "container runtime", "Kubernetes", "job scheduler"
KEEPERS: Dict[str, str] = {
    RUNTIME: "end it through that", KUBERNETES: "delete or scale down its pod", SCHEDULER: "end the job through that",
}

# Short and wide patterns would also name somebody's training that is called alike (X, sshd-train). Where the program proves that it is
# none of the system's, only the names written out count.
PROTECTED_RULES: Tuple[Rule, ...] = (
    Rule(r"Xorg(?:\.bin|\.wrap)?|Xwayland|Xvfb|Xvnc|Xtigervnc|Xtightvnc|Xrealvnc|Xephyr|Xnest|Xdcv", "name", DISPLAY),
    Rule(r"X(?:vnc.*)?|x11vnc|wayvnc|dcv(?:server|agent|xgltdaemon)|xrdp.*|nxagent|sunshine", "installed", DISPLAY),
    Rule(r"gnome-(?:shell|session.*)|mutter|kwin_(?:x11|wayland)|plasmashell|ksmserver|weston|sway|Hyprland|cinnamon|xfwm4|gdm3?|sddm|lightdm",
         "name", DESKTOP),
    Rule(r"gnome-.*|mutter.*|kwin.*|plasma.*|cinnamon.*|gdm.*|sddm.*|lightdm.*|gsd-.*", "installed", DESKTOP),
    Rule(r"cosmic-.*|niri|labwc|wayfire|river|hyprland|cage|phoc|miriway|mir-.*|gamescope.*|xwayland-satel.*|marco|metacity|muffin|compiz"
         r"|budgie-.*|mate-.*|xfce4-.*|xfdesktop|xfwm4.*|lxqt-.*|lxsession|openbox|fluxbox|icewm.*|i3|i3bar|awesome|bspwm|dwm|qtile|xmonad.*"
         r"|herbstluftwm|enlightenment.*|wmaker|jwm|twm|fvwm.*|picom|xcompmgr|deepin-.*|dde-.*|ukui-.*|sway.*|weston.*|greetd|lxdm|xdm|slim",
         "installed", DESKTOP),
    Rule(r"nvidia-persiste.*", "name", PERSISTENCE),
    Rule(r"nvidia-powerd", "name", POWER),
    Rule(r"nv-hostengine|dcgmi?|dcgm-exporter|nvidia_gpu_expo.*|nvidia_gpu_exporter", "name", MONITORING),
    Rule(r"dcgm.*", "installed", MONITORING),
    Rule(r"nv-fabricmanage.*|nvlsm|nvidia-imex.*", "name", FABRIC),
    Rule(r"nvidia-cuda-mps.*", "name", "MPS: it owns its clients' memory and always keeps some"),
    Rule(r"nvidia-smi|nvtop|nvitop|gpustat|nvidia-settings|nvidia-debugdum.*|nvidia-bug-repo.*|nsys|ncu", "name", GPU_TOOL),
    Rule(r"nsys.*", "installed", GPU_TOOL),
    Rule(r"vgpu|nvidia-vgpu.*|qemu-system-.*|kvm|libvirtd|virtqemud", "name", "virtual machine or vGPU tenant"),
    Rule(r"qemu.*", "installed", "virtual machine or vGPU tenant"),
    Rule(r"su|sudo", "name", CHANGE_OF_USER),
    Rule(r"sshd(?:-session|-auth)?|login|agetty|\(sd-pam\)", "name", "login"),
    Rule(r"sshd.*", "installed", "login"),
    Rule(r"systemd(?:-(?:logind|udevd|journal.*|networkd?|resolve.*|timesyn.*|machine.*|oomd|homed|userdb.*|executor|nspawn))?|init|dbus-.*"
         r"|polkitd|udevd|\(udev-worker\)|udisksd|upowerd",
         "name", "the host's own service management"),
    Rule(r"systemd.*", "installed", "the host's own service management"),
    Rule(r"containerd(?:-shim.*)?|dockerd|docker-(?:proxy|init|containe.*)|docker|runc|crun|conmon|podman|crio|lxc-.*|lxcfs|lxd|incusd"
         r"|buildkitd|nvidia-containe.*|nvidia-device-p.*|nvidia-ctk",
         "name", RUNTIME),
    Rule(r"containerd.*|docker-.*|lxc.*", "installed", RUNTIME),
    Rule(r"kubelet|kube-(?:proxy|apiserver|scheduler|controll.*|router|vip)|k3s(?:-.*)?|rke2(?:-.*)?", "name", KUBERNETES),
    Rule(r"kube-.*|k3s.*|rke2.*", "installed", KUBERNETES),
    # slurm_script is a job's own shell: the name of the script that Slurm copied to its spool.
    Rule(r"slurm(?:d|ctld|dbd|stepd|restd|_script)|munged|pbs_(?:mom|server|sched|comm)|trqauthd|sge_(?:execd|shepherd|qmaster)"
         r"|condor_(?:master|startd|starter|shadow|schedd|procd|exec.*)|sbatchd|mbatchd|flux-(?:broker|shell|imp|start)",
         "name", SCHEDULER),
    Rule(r"(?:slurm|pbs_|sge_|condor_).*|lim|res|pim|nomad", "installed", SCHEDULER),
)


# Units below which processes run that others answer for, a runtime or a scheduler: nothing in them is touched, whatever runs there
# and whether or not its cgroup tells it apart.
CONTAINERS = "it carries containers or virtual machines"
SCHEDULED_JOBS = "it carries scheduled jobs"

# Units that must never be stopped to free memory, whatever process is found in them: stopping one takes the host's way in, or
# every container and job, with it. A process started by hand lands there where no login sessions are kept.
HOST_UNITS: Tuple[Rule, ...] = (
    Rule(r"sshd?(?:@.*)?\.(?:service|socket)", "unit", "the way into the host"),
    Rule(r"(?:systemd-.*|dbus.*|user@.*|user-runtime-dir@.*|getty@.*|serial-getty@.*|polkit|udev.*|NetworkManager|network.*)\.service",
         "unit", "the host's own service management"),
    Rule(r"init\.scope|session-.*\.scope", "unit", "a login session, or the host itself"),
    Rule(r"(?:cron|crond|atd|rsyslog|auditd|sssd|chronyd?|ntp.*)\.service", "unit", "the host's own services"),
    Rule(r"(?:docker|containerd|podman|crio|kubelet|k3s.*|rke2.*|lxc.*|lxd.*|snap\.lxd.*|incus.*|libvirtd.*|virtqemud)\.service",
         "unit", CONTAINERS),
    # Slurm, PBS and Torque, HTCondor, LSF, Grid Engine, Nomad, OAR, YARN. Not Flux, as a model is called so: flux-broker protects its unit.
    Rule(r"(?:slurm.*|pbs.*|(?:torque|trqauthd)(?:[-_@.].*)?|(?:ht)?condor(?:[-_@.].*)?|lsf(?:d|[-_@.].*)?|openlava(?:[-_@.].*)?"
         r"|(?:sge|uge|gridengine)(?:[-_@.].*)?|(?:sge_?)?(?:execd|qmaster)(?:[-_@.].*)?|nomad(?:[-_@](?:client|agent|server).*)?"
         r"|oar(?:[-_].*)?|hadoop-yarn-.*|yarn-nodemanager)\.(?:service|scope)",
         "unit", SCHEDULED_JOBS),
    Rule(r"(?:nvidia-.*|dcgm.*|nv-hostengine)\.service", "unit", "it keeps the GPUs running"),
    Rule(r"(?:gdm3?|sddm|lightdm|display-manager|greetd|cosmic-greeter|lxdm|xdm|slim|xrdp(?:-sesman)?"
         r"|(?:tiger)?vncserver@.*)\.service",
         "unit", "the desktop"),
)


def classify(
    info: ProcessInfo,
    owner: CgroupOwner,
    unit_active: Optional[bool],
    extra_protect: Sequence[str] = (),
    family: Sequence[ProcessInfo] = (),
    own_pids: AbstractSet[int] = frozenset(),
) -> Classification:
    """Judge one process.

    ``unit_active`` says whether the unit or login session that ``owner`` names is active; None where it names none.
    ``extra_protect`` are the user's patterns (see :func:`protected_by_user`). ``family`` are the process's ancestors, nearest
    first; ``own_pids`` the caller itself and its ancestors.
    """
    vllm = vllm_reason(info, owner, family) is not None
    keeper = kept_by(owner, family)
    reason = protected_reason(info, owner, own_pids) or keeper or protected_by_user(info, owner, extra_protect)
    belongs = owner.container is not None or bool(unit_active) or keeper is not None
    return Classification(vllm, vllm and not belongs, reason is not None, reason, keeper)


def kept_by(owner: CgroupOwner, family: Sequence[ProcessInfo]) -> Optional[str]:
    """Which scheduler or container runtime answers for a process although no cgroup of its own tells so; None for none.

    Told by the unit, also where that is down: its jobs live on while it is started anew. Else by the programs above it, but for pid 1:
    from inside a container everything is below the container's own.
    """
    against = None if owner.unit is None else host_unit_reason(owner.unit)
    if against in (SCHEDULED_JOBS, CONTAINERS):
        return "it belongs to %s: %s" % (owner.unit, against)
    for elder in family:
        reason = _program_reason(elder) if elder.pid > 1 else None
        if reason in KEEPERS:
            return "it runs below %s (pid %d: %s); %s" % (elder.comm, elder.pid, reason, KEEPERS[reason])
    return None


def vllm_reason(info: ProcessInfo, owner: CgroupOwner, family: Sequence[ProcessInfo] = ()) -> Optional[str]:
    """Why this process is vLLM's; None when nothing proves it."""
    reason = _own_vllm_reason(info)
    if reason is not None or not is_python(info):
        return reason
    if owner.unit is not None and VLLM_UNIT.matches([owner.unit]):
        return VLLM_UNIT.reason
    for parent in family:
        if _own_vllm_reason(parent) is not None:
            return "its parent is vLLM's"
        if not is_python(parent):
            break
    return None


def protected_reason(info: ProcessInfo, owner: CgroupOwner, own_pids: AbstractSet[int] = frozenset()) -> Optional[str]:
    """Why this process must never be signalled; None when nothing speaks for it."""
    if info.pid <= 1:
        return "the host's first process"
    if info.pid in own_pids:
        return "it runs this task"
    if info.pid == 2 or (info.ppid == 2 and not info.cmdline):
        return "kernel thread"
    reason = _program_reason(info)
    if reason is not None:
        return reason
    if owner.container is not None and owner.runtime in SCHEDULERS:
        return job_label(owner.runtime, owner.container)
    if owner.container is not None:
        return "container %s (%s)" % (owner.container[:12] if len(owner.container) == 64 else owner.container, owner.runtime)
    return None


def _program_reason(info: ProcessInfo) -> Optional[str]:
    names, installed = names_of(info), installed_names(info)
    for rule in PROTECTED_RULES:
        if rule.matches(installed if rule.field == "installed" else names):
            return rule.reason
    return None


def protected_by_user(info: ProcessInfo, owner: CgroupOwner, patterns: Sequence[str]) -> Optional[str]:
    """Whether one of the user's shell patterns names this process, its unit or its user.

    ``unit:``, ``process:`` or ``user:`` in front narrows a pattern to that field; a process is matched by name or title, a unit
    with its suffix or without.
    """
    unit = owner.unit or ""
    units = [unit, unit.rpartition(".")[0]] if unit else []
    fields = {"unit": units, "process": names_of(info) + [info.cmdline], "user": [info.user]}
    for pattern in patterns:
        kind, colon, rest = pattern.partition(":")
        chosen = [kind] if colon and kind in fields else list(fields)
        wanted = rest if colon and kind in fields else pattern
        for field in chosen:
            if any(fnmatch.fnmatchcase(value, wanted) for value in fields[field]):
                return "protect: %s" % pattern
    return None


def host_unit_reason(unit: str) -> Optional[str]:
    """Why this unit must never be stopped to free memory; None for an ordinary service."""
    for rule in HOST_UNITS:
        if rule.matches([unit]):
            return rule.reason
    return None


def serverless(info: ProcessInfo, family: Sequence[ProcessInfo]) -> bool:
    """Whether this is an EngineCore or a worker whose server is gone. ``family`` are its ancestors, nearest first.

    Not told by parent pid 1: what is left behind goes to the nearest subreaper, which may be anything.
    """
    line = [info, *family]
    while line and (line[0].cmdline.startswith("VLLM::") or line[0].comm.startswith("VLLM::")):
        line.pop(0)
        if not line or not (is_python(line[0]) or _own_vllm_reason(line[0]) is not None):
            return True
    return False


def _own_vllm_reason(info: ProcessInfo) -> Optional[str]:
    names, program = names_of(info), program_of(info)
    for rule in VLLM_RULES:
        values = names if rule.field == "name" else [info.cmdline] if rule.field == "title" else program
        if rule.matches(values):
            return rule.reason
    return None
