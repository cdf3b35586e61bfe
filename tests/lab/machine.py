# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host as a machine: how it is booted, found, waited for."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import cgroup
from lab.errors import LabError

_LAUNCHER = Path(__file__).with_name("launcher.sh")
_READY_SECONDS = 120.0
_EXAMINE_SECONDS = 3.0


@dataclass(frozen=True)
class Layout:
    """The files and directories of one host, outside it."""

    directory: Path

    @property
    def upper(self) -> Path:
        """What the host has written."""
        return self.directory / "upper"

    @property
    def gpu(self) -> Path:
        """The simulated driver's directory, ``/run/nvidia-sim`` in the host."""
        return self.directory / "gpu"

    @property
    def vllm(self) -> Path:
        """The stand-in's scenario, ``/run/vllm-standin`` in the host."""
        return self.directory / "vllm"

    @property
    def console(self) -> Path:
        """What the launcher and the host's console print."""
        return self.directory / "console.log"

    @property
    def driver_log(self) -> Path:
        """What the driver process prints."""
        return self.directory / "driver.log"

    @property
    def host_key(self) -> Path:
        """The host's own SSH key, kept through resets."""
        return self.directory / "identity" / "ssh_host_ed25519_key"

    @property
    def machine_id(self) -> Path:
        """The host's machine id, kept through resets."""
        return self.directory / "identity" / "machine-id"

    @property
    def lowers(self) -> Path:
        """The directories below the upper one, the topmost first, one a line."""
        return self.directory / "lowers"


def machine_name(name: str, lab_id: str) -> str:
    """The host's name among all machines on this one."""
    return f"gfl-{lab_id}-{name}"


def nspawn_command(name: str, lab_id: str, layout: Layout, bridge: str, models: Path) -> list[str]:
    """The systemd-nspawn command of a host."""
    argv = ["systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--settings=no"]
    argv += ["--link-journal=no", "--resolv-conf=off", "--timezone=off", "--console=read-only"]
    argv += [
        f"--directory={layout.directory / 'root'}",
        f"--machine={machine_name(name, lab_id)}",
        f"--hostname={name}",
    ]
    argv += [f"--network-bridge={bridge}", f"--bind-ro={models}:/models"]
    argv += [f"--bind={layout.gpu}:/run/nvidia-sim", f"--bind={layout.vllm}:/run/vllm-standin"]
    return argv


def environment(cgroup_form: str) -> dict[str, str]:
    """What systemd-nspawn is told by environment: the cgroup form, and no system call filter (a server has none)."""
    settings = {"SYSTEMD_SECCOMP": "0", "SYSTEMD_LOG_TARGET": "console"}
    if cgroup_form == "unified":
        settings["SYSTEMD_NSPAWN_UNIFIED_HIERARCHY"] = "1"
    return settings


def launcher_command(layout: Layout, lowers: Sequence[Path], nspawn: Sequence[str]) -> list[str]:
    """The whole command that runs a host in a mount namespace of its own."""
    return ["unshare", "--mount", "sh", str(_LAUNCHER), str(layout.directory), ":".join(map(str, lowers)), *nspawn]


def leader(group: Sequence[Path]) -> int | None:
    """The host's PID 1 as this machine numbers it, or None while there is none."""
    own_depth = namespace_pids("self")
    if own_depth is None:
        raise LabError("/proc/self/status tells no NSpid: the kernel lacks PID namespaces")
    for pid in cgroup.pids(group[0] / "machine"):
        numbers = namespace_pids(pid)
        if numbers is not None and len(numbers) == len(own_depth) + 1 and numbers[-1] == 1:
            return pid
    return None


def namespace_pids(pid: int | str) -> list[int] | None:
    """A process's numbers in its PID namespaces, this machine's first; None once it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    line = next((line for line in text.splitlines() if line.startswith("NSpid:")), None)
    return [int(word) for word in line.split()[1:]] if line else None


def ssh_answers(address: str, timeout: float) -> bool:
    """Whether an SSH server greets at the address."""
    try:
        with socket.create_connection((address, 22), timeout=timeout) as connection:
            connection.settimeout(timeout)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def console_tail(layout: Layout, lines: int = 15) -> str:
    """The end of what the launcher and the console printed."""
    if not layout.console.exists():
        return ""
    text = layout.console.read_text(encoding="utf-8", errors="replace")
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


def wait_for_ssh(
    name: str,
    address: str,
    layout: Layout,
    group: Sequence[Path],
    examine: Callable[[], None],
    *,
    not_leader: int | None = None,
) -> None:
    """Wait until the host's SSH server answers.

    ``examine`` is called now and then and raises when the host came up without it; ``not_leader`` is the PID 1 of the
    boot that is to end: only a later one counts. LabError when the host dies on the way or takes two minutes.
    """
    start = time.monotonic()
    examined = start
    while True:
        now = time.monotonic()
        pid = leader(group)
        if pid is not None and pid != not_leader:
            if ssh_answers(address, 0.5):
                return
            if now > examined + _EXAMINE_SECONDS:
                examine()
                examined = time.monotonic()
        # The launcher needs a moment before the first process is in its group.
        if now > start + 5.0 and not cgroup.pids(group[0]):
            raise LabError(f"{name} ended while it booted; the end of {layout.console}:\n{console_tail(layout)}")
        if now > start + _READY_SECONDS:
            raise LabError(
                f"{name} didn't answer SSH at {address} within {_READY_SECONDS:.0f} s; "
                f"the end of {layout.console}:\n{console_tail(layout)}"
            )
        time.sleep(0.1)
