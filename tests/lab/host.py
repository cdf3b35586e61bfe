# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One host of the lab, as tests use it: commands and files on it, its power, its network, its GPUs."""

from __future__ import annotations

import contextlib
import ipaddress
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab import cgroup, freezer, groups, hardware, keys, layers, locks, machine, network, places, provision
from lab.errors import HostCommandError, LabError
from lab.plan import HostSpec
from lab.record import Record

if TYPE_CHECKING:
    from lab.driver.control import Gpus
    from lab.standin.control import Standin

Command = str | Sequence[str]


def _shell(command: Command) -> str:
    return command if isinstance(command, str) else shlex.join(command)


class Host:
    """A host by its name in the lab's record."""

    def __init__(self, record: Record, name: str) -> None:
        if record.network is None or record.bridge is None:
            raise LabError(f"the lab in {record.state} has no network yet")
        self._record = record
        self.name = name
        self.spec: HostSpec = record.hosts[name].spec
        self.network = ipaddress.IPv4Network(record.network)
        self.address = str(network.host_address(self.network, record.hosts[name].number))
        self.layout = machine.Layout(record.state / "hosts" / name)
        self._machine_group = [Path(path) for path in record.groups[f"{name}.machine"]]
        self._driver_group = [Path(path) for path in record.groups[f"{name}.driver"]]
        self._ssh_group = [Path(path) for path in record.groups[f"{name}.ssh"]]
        self._frozen_group = Path(record.groups[f"{name}.frozen"][0])
        self._bridge = record.bridge

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.address} {self.spec.base} {self.spec.cgroup}>"

    # --- what stands for its GPUs and its vLLM

    @property
    def gpu(self) -> Gpus:
        """The simulated driver's control."""
        from lab.driver.control import Gpus

        return Gpus(self.layout.gpu)

    @property
    def vllm(self) -> Standin:
        """The stand-in vLLM's control."""
        from lab.standin.control import Standin

        return Standin(self.layout.vllm)

    def refresh_hardware(self) -> None:
        """Make the device nodes, the PCI bus and the driver's proc files follow a changed scenario."""
        hardware.write_files(self.layout.gpu)
        if self.is_running():
            self.enter([layers.HARDWARE_SCRIPT])

    # --- commands

    @property
    def ssh_args(self) -> list[str]:
        """Everything between ``ssh`` and the command, for a connection of one's own."""
        return [*keys.options(self._record.state), f"root@{self.address}"]

    def ssh_command(self, command: Command, *, shared: bool = True) -> list[str]:
        """The whole command line that runs ``command`` by SSH; ``shared`` uses the host's standing connection."""
        socket = self._standing_connection() if shared else None
        extra = ["-o", f"ControlPath={socket}", "-o", "ControlMaster=no"] if socket else ["-o", "ControlPath=none"]
        return ["ssh", *extra, *self.ssh_args, _shell(command)]

    def run(
        self, command: Command, *, input: str | None = None, check: bool = True, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command by SSH as root; a string goes to the host's shell, a list is quoted.

        HostCommandError when it ends with another status than 0 and ``check`` is on, subprocess.TimeoutExpired after
        ``timeout`` seconds.
        """
        result = subprocess.run(
            self.ssh_command(command),
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
        )
        return self._checked(command, result, check)

    def enter(
        self, command: Command, *, input: str | None = None, check: bool = True, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """As :meth:`run`, from outside by entering the host's namespaces: for when its network is cut or sshd is dead."""
        result = subprocess.run(
            self.enter_command(command),
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
        )
        return self._checked(command, result, check)

    def enter_command(self, command: Command) -> list[str]:
        """The command line that runs ``command`` in the host's namespaces, in its PID 1's control groups."""
        leader = self._leader()
        groups_of_leader = " ".join(str(cgroup.own_directory(h, leader)) for h in cgroup.hierarchies())
        join = 'for group in $1; do echo "$$" > "$group/cgroup.procs"; done; shift; exec "$@"'
        inner = ["nsenter", f"--target={leader}", "--all", "--root", "--wd", "sh", "-c", _shell(command)]
        plain = ["env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"]
        return ["sh", "-c", join, "sh", groups_of_leader, *plain, "HOME=/root", *inner]

    def _checked(
        self, command: Command, result: subprocess.CompletedProcess[str], check: bool
    ) -> subprocess.CompletedProcess[str]:
        if check and result.returncode != 0:
            raise HostCommandError(self.name, _shell(command), result.returncode, result.stdout, result.stderr)
        return result

    def _standing_connection(self) -> Path | None:
        """The socket of the connection that commands share, opened if need be; None where there can be none."""
        socket = keys.control_socket(self._record.state, self.name)
        if socket is None or socket.exists():
            return socket
        argv = ["ssh", "-M", "-N", "-o", f"ControlPath={socket}", *self.ssh_args]
        log = self.layout.directory / "ssh.log"
        name = f"{self.name}.ssh"
        # Two at once would leave one connection that nobody uses.
        with locks.exclusive(self.layout.directory / "ssh.lock", 30.0, f"another connection to {self.name}"):
            if socket.exists():
                return socket
            groups.end(self._ssh_group)
            groups.spawn(argv, lab_id=self._record.lab_id, name=name, group=self._ssh_group, log=log)
            while not socket.exists():
                # The command makes a connection of its own then, and tells what is wrong.
                if not groups.alive(self._ssh_group):
                    return None
                time.sleep(0.01)
        return socket

    def _drop_connection(self) -> None:
        groups.end(self._ssh_group)
        socket = keys.control_socket(self._record.state, self.name)
        if socket is not None:
            socket.unlink(missing_ok=True)

    # --- files and units

    def read(self, path: str) -> str:
        """A file's text."""
        return self.enter(["cat", "--", path]).stdout

    def write(self, path: str, text: str, mode: int = 0o644, owner: str = "root:root") -> None:
        """Write a file, its directories too, at once: nobody sees half of it."""
        script = (
            'set -e; mkdir -p "$(dirname "$1")"; cat > "$1.lab-new"; chown "$3" "$1.lab-new"; '
            'chmod "$2" "$1.lab-new"; mv -f "$1.lab-new" "$1"'
        )
        self.enter(["sh", "-c", script, "sh", path, f"{mode:o}", owner], input=text)

    def exists(self, path: str) -> bool:
        """Whether there is anything at ``path``, be it a dangling link."""
        return self.enter(["sh", "-c", 'test -e "$1" || test -L "$1"', "sh", path], check=False).returncode == 0

    def journal(self, unit: str | None = None, *words: str) -> str:
        """The journal of this boot, of one unit or a pattern of units; ``words`` are further arguments.

        Nothing logged, or no unit that the pattern fits, is an empty text.
        """
        chosen = ["--unit", unit] if unit else []
        command = ["journalctl", "--boot", "--no-pager", "--quiet", "--output=short-precise", *chosen, *words]
        result = self.enter(command, check=False)
        if result.returncode != 0 and "No data available" in result.stderr:
            return ""
        return self._checked(command, result, True).stdout

    def systemctl_show(self, unit: str, props: Sequence[str] = ()) -> dict[str, str]:
        """A unit's properties."""
        chosen = [f"--property={','.join(props)}"] if props else []
        lines = self.enter(["systemctl", "show", "--all", *chosen, "--", unit]).stdout.splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    # --- power

    def is_running(self) -> bool:
        """Whether the host is powered on, be it in the middle of booting."""
        return groups.alive(self._machine_group)

    def _leader(self) -> int:
        pid = machine.leader(self._machine_group)
        if pid is None:
            raise LabError(f"{self.name} is off: call boot() first")
        return pid

    def boot(self, *, wait: bool = True) -> None:
        """Power on. With ``wait``, return when the host is up: all units started, SSH answering."""
        if self.is_running():
            raise LabError(f"{self.name} is on already")
        self._clear_machine()
        layout = self.layout
        lowers = self.lowers()
        (layout.directory / "cgroups").write_text(
            "".join(f"{path}\n" for path in self._machine_group), encoding="utf-8"
        )
        if not groups.alive(self._driver_group):
            self._start_driver()
        hardware.power_cycle(layout.gpu)
        if self._record.models is None:
            raise LabError(f"the lab in {self._record.state} has no models yet")
        nspawn = machine.nspawn_command(self.name, self._record.lab_id, layout, self._bridge, Path(self._record.models))
        groups.spawn(
            machine.launcher_command(layout, lowers, nspawn),
            lab_id=self._record.lab_id,
            name=f"{self.name}.machine",
            group=self._machine_group,
            log=layout.console,
            environment={
                **machine.environment(self.spec.cgroup),
                "LAB_ON_REBOOT": hardware.on_reboot_command(layout.gpu),
            },
            subgroups=("launcher", "machine"),
        )
        if wait:
            self.wait_ready()

    def wait_ready(self, *, not_leader: int | None = None) -> None:
        """Wait until every unit has started and SSH answers; LabError names the units that failed."""
        machine.wait_for_ssh(
            self.name, self.address, self.layout, self._machine_group, self._examine, not_leader=not_leader
        )
        self._examine(wait=True)

    def _examine(self, wait: bool = False) -> None:
        """Raise LabError if systemd on the host is done starting and not all went well."""
        argv = ["systemctl", "is-system-running", *(["--wait"] if wait else [])]
        state = self.enter(argv, check=False, timeout=120.0).stdout.strip()
        # A PID 1 that has just begun answers nothing yet.
        if state == "running" or (not wait and state in ("", "offline", "initializing", "starting")):
            return
        failed = self.enter(["systemctl", "list-units", "--failed", "--plain", "--no-legend"], check=False).stdout
        raise LabError(f"{self.name} is {state or 'not running'}; failed units:\n{failed.rstrip() or '(none)'}")

    def power_cut(self) -> None:
        """Take the power away: the cable goes dead and every process is gone at once; the disk stays as it is."""
        leader = machine.leader(self._machine_group)
        link = network.host_link(leader, self._bridge) if leader is not None else None
        if link is not None:
            network.set_link(link, up=False)
        freezer.thaw(self._frozen_group)
        self._clear_machine()
        self._drop_connection()

    def _clear_machine(self) -> None:
        """End what runs in the host, and remove what a dead host leaves for a moment."""
        groups.end(self._machine_group)
        network.remove_host_link(machine.machine_name(self.name, self._record.lab_id), self._bridge)

    def reboot(self, *, wait: bool = True) -> None:
        """Reboot in an orderly way, as ``systemctl reboot`` does."""
        leader = self._leader()
        # The connection may end before the command does.
        self.enter(["systemctl", "reboot"], check=False)
        self._drop_connection()
        if wait:
            self.wait_ready(not_leader=leader)

    def shutdown(self, timeout: float = 90.0) -> None:
        """Power off in an orderly way and wait until the host is off."""
        self._leader()
        self.enter(["systemctl", "poweroff"], check=False)
        self._drop_connection()
        deadline = time.monotonic() + timeout
        while self.is_running():
            if time.monotonic() > deadline:
                raise LabError(f"{self.name} isn't off {timeout:.0f} s after `systemctl poweroff`")
            time.sleep(0.05)
        self._clear_machine()

    # --- network

    def _cable(self) -> str:
        link = network.host_link(self._leader(), self._bridge)
        if link is None:
            raise LabError(f"{self.name} has no link on the bridge {self._bridge}")
        return link

    def cut_network(self) -> None:
        """Unplug the cable; the host goes on, :meth:`enter` still reaches it. A reboot plugs it in again."""
        network.set_link(self._cable(), up=False)

    def restore_network(self) -> None:
        """Plug the cable in."""
        network.set_link(self._cable(), up=True)

    # --- processes that SIGKILL can't end

    @contextlib.contextmanager
    def unkillable(self, pid: int) -> Iterator[None]:
        """Keep the process ``pid`` (the host's number) from running, so that not even SIGKILL ends it until the end.

        It is frozen by the v1 freezer, as a process in an endless wait in the driver would hang.
        """
        outside = self.outside_pid(pid)
        with freezer.frozen(self._frozen_group, self._record.state, outside):
            yield

    def outside_pid(self, pid: int) -> int:
        """This machine's number of the host's process ``pid``."""
        for candidate in cgroup.pids(self._machine_group[0] / "machine"):
            numbers = machine.namespace_pids(candidate)
            if numbers is not None and len(numbers) > 1 and numbers[1] == pid:
                return candidate
        raise LabError(f"{self.name} has no process {pid}")

    # --- a life

    def prepare(self, lowers: Sequence[Path]) -> None:
        """Give the host, which is off, a fresh disk over ``lowers``, fresh GPUs and a stand-in without scenario."""
        layout = self.layout
        layout.directory.mkdir(parents=True, exist_ok=True)
        keys.generate(layout.host_key, f"root@{self.name}")
        if not layout.machine_id.exists():
            layout.machine_id.write_text(f"{uuid.uuid4().hex}\n", encoding="ascii")
        identity = provision.Identity(
            machine_id=layout.machine_id.read_text(encoding="ascii").strip(),
            address=ipaddress.IPv4Address(self.address),
            prefix=self.network.prefixlen,
            host_key=layout.host_key,
            authorized_key=keys.public_key(self._record.state),
        )
        provision.provision(self.spec, identity, layout.upper, tuple(lowers))
        layout.lowers.write_text("".join(f"{path}\n" for path in lowers), encoding="utf-8")
        layout.vllm.mkdir(exist_ok=True)
        for path in layout.vllm.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        hardware.prepare(layout.gpu, f"{self._record.lab_id}/{self.name}", self.spec.gpus)

    def lowers(self) -> list[Path]:
        """The directories that the host's disk lies over, the topmost first."""
        return [Path(line) for line in self.layout.lowers.read_text(encoding="utf-8").splitlines()]

    def _start_driver(self) -> None:
        hardware.start_driver(
            self.layout.gpu,
            lab_id=self._record.lab_id,
            name=f"{self.name}.driver",
            group=self._driver_group,
            log=self.layout.driver_log,
        )

    def remove(self) -> None:
        """End everything that runs for the host; its files stay for the caller to delete."""
        self.power_cut()
        groups.end(self._driver_group)

    def reset(self, *, wait: bool = True) -> None:
        """Back to a clean host: a fresh disk, fresh GPUs, no stand-in scenario; the address and the keys stay.

        The driver's files and the stand-in are those of the checkout as it is now.
        """
        base_root = self.lowers()[-1]
        lowers = layers.lowers(self.spec.base, base_root, self._record.state)
        self.remove()
        with places.usual_umask():
            self.prepare(lowers)
        self.boot(wait=wait)

    def facts(self) -> dict[str, Any]:
        """What ``lab status`` tells about the host."""
        running = self.is_running()
        state = "off"
        if running:
            leader = machine.leader(self._machine_group)
            state = "booting"
            if leader is not None:
                state = self.enter(["systemctl", "is-system-running"], check=False).stdout.strip() or "unknown"
        return {"name": self.name, "address": self.address, "state": state, **self.spec.as_dict()}
