# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's hosts: they boot, behave as servers do, lose power, and leave nothing behind.

These tests bring up labs of their own, in state directories of their own, beside whatever lab is up.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab import Host, HostSpec, Lab, LabError, cgroup, fleet, limits, models, network, record
from lab.errors import HostCommandError
from lab.places import STATE_VARIABLE, cache_dir, lab_id

ROOT = Path(__file__).resolve().parents[2]
BOOKWORM, TRIXIE, HYBRID = "gpu01", "gpu02", "gpu03"
SPECS = (
    HostSpec(BOOKWORM),
    HostSpec(TRIXIE, base="trixie", gpus=2, pynvml=False),
    HostSpec(HYBRID, cgroup="hybrid", gpus=0),
)
SYSTEMD = {"bookworm": 252, "trixie": 257}
PYTHON = {"bookworm": "3.11", "trixie": "3.13"}


@dataclass(frozen=True)
class Traces:
    """What of one lab can be seen on this machine: all of it is empty where nothing was left behind."""

    processes: tuple[str, ...]
    mounts: tuple[str, ...]
    links: tuple[str, ...]
    cgroups: tuple[str, ...]
    files: tuple[str, ...]

    @classmethod
    def of(cls, state: Path) -> Traces:
        """Look for everything that bears the lab's name or lies below its state directory, in all namespaces."""
        mark, prefix = f"gpufleet-lab-{lab_id(state)}", str(state)
        processes: list[str] = []
        mounts: set[str] = set()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                membership = (process / "cgroup").read_text(encoding="utf-8")
                mounted = (process / "mountinfo").read_text(encoding="utf-8")
            except (FileNotFoundError, ProcessLookupError, PermissionError, OSError):
                continue  # it has just ended
            if mark in membership or prefix in words:
                processes.append(words.strip() or process.name)
            mounts.update(line for line in mounted.splitlines() if prefix in line)
        bridge = network.bridge_name(lab_id(state))
        found = network.links().items()
        links = [name for name, link in found if name == bridge or link.get("master") == bridge]
        groups = [str(path) for top in cgroup.hierarchies() for path in top.mount.rglob(f"*{mark}*")]
        files = [str(path) for path in (state, *Path("/run").rglob(f"*gfl-{lab_id(state)}*")) if path.exists()]
        return cls(tuple(processes), tuple(sorted(mounts)), tuple(links), tuple(groups), tuple(files))


NOTHING = Traces((), (), (), (), ())


def machine_wide() -> dict[str, object]:
    """What no lab may change for good: the machine's mounts and top-level cgroups; other labs' come and go meanwhile."""
    return {
        "mounts": {line.split()[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()},
        "groups": {
            path.name
            for top in cgroup.hierarchies()
            for path in top.mount.iterdir()
            if path.is_dir() and not path.name.startswith("gpufleet-lab-")
        },
        "nspawn": sorted(str(path) for path in Path("/run/systemd").rglob("*nspawn*")),
    }


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the state directories of this module's labs are made; short, so that SSH connections can be shared."""
    directory = tmp_path_factory.mktemp("lab")
    yield directory
    # What a test that failed left up.
    for state in directory.iterdir():
        fleet.down(state)


@pytest.fixture(scope="module")
def mixed(states: Path) -> Iterator[Lab]:
    """A lab with both bases, both cgroup forms, hosts with and without GPUs and pynvml."""
    with in_state(states / "mixed"):
        lab = Lab.up(specs=SPECS)
    yield lab
    lab.down()


class in_state:  # noqa: N801 - used as a statement
    """Point this process, and those it starts, to another state directory."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def __enter__(self) -> Path:
        self._former = os.environ.get(STATE_VARIABLE)
        os.environ[STATE_VARIABLE] = str(self._state)
        return self._state

    def __exit__(self, *_exception: object) -> None:
        if self._former is None:
            del os.environ[STATE_VARIABLE]
        else:
            os.environ[STATE_VARIABLE] = self._former


def lab_command(state: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the lab's command line as a user would."""
    result = subprocess.run(
        [sys.executable, "-m", "lab", *words],
        cwd=ROOT / "tests",
        env={**os.environ, STATE_VARIABLE: str(state), "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert not check or result.returncode == 0, result.stderr
    return result


@pytest.fixture(params=[BOOKWORM, TRIXIE, HYBRID])
def each(request: pytest.FixtureRequest, mixed: Lab) -> Host:
    return mixed.hosts[str(request.param)]


# --- what a host is


def test_systemd_is_pid_1_and_nothing_failed(each: Host) -> None:
    version = each.run("systemctl --version").stdout
    assert int(version.split()[1]) == SYSTEMD[each.spec.base]
    assert each.run("cat /proc/1/comm").stdout.strip() == "systemd"
    assert each.run("systemctl is-system-running").stdout.strip() == "running"
    assert each.run("hostname").stdout.strip() == each.name


def test_python_is_the_bases_own_without_packages(each: Host) -> None:
    found = each.run(
        [
            "/usr/bin/python3",
            "-c",
            "import sys, importlib.util as u; print('%d.%d' % sys.version_info[:2], u.find_spec('yaml'))",
        ]
    ).stdout
    assert found.split() == [PYTHON[each.spec.base], "None"]


def test_cgroup_form(each: Host) -> None:
    kind = each.run("stat -f -c %T /sys/fs/cgroup").stdout.strip()
    unit = each.run("systemctl show -p ControlGroup --value ssh.service").stdout.strip()
    assert unit == "/system.slice/ssh.service"
    if each.spec.cgroup == "unified":
        assert kind == "cgroup2fs"
        assert each.run(f"test -e /sys/fs/cgroup{unit}/cgroup.kill").returncode == 0
    else:
        assert kind == "tmpfs"
        assert each.run(f"test -d /sys/fs/cgroup/systemd{unit} -a -d /sys/fs/cgroup/unified{unit}").returncode == 0


def test_login_is_a_session_of_logind(each: Host) -> None:
    line = each.run("grep -o '[^/]*[.]scope' /proc/self/cgroup | head -n 1").stdout.strip()
    assert line.startswith("session-")
    assert each.run("loginctl list-sessions --no-legend").stdout.strip()


def test_hosts_reach_each_other_and_nothing_else(mixed: Lab) -> None:
    first, second = mixed.hosts[BOOKWORM], mixed.hosts[TRIXIE]
    probe = "import socket,sys; print(socket.create_connection((sys.argv[1], 22), 5).recv(7).decode())"
    assert first.run(["python3", "-c", probe, second.address]).stdout.startswith("SSH-2.0")
    assert first.run("ip -4 route show default").stdout == ""


def test_machine_ids_keys_and_gpus_differ(mixed: Lab) -> None:
    hosts = list(mixed.hosts.values())
    assert len({host.read("/etc/machine-id") for host in hosts}) == len(hosts)
    assert len({host.read("/etc/ssh/ssh_host_ed25519_key.pub").split()[1] for host in hosts}) == len(hosts)
    uuids = [line for host in hosts[:2] for line in host.run("nvidia-smi -L").stdout.splitlines()]
    assert len({line.split("UUID: ")[1] for line in uuids}) == 10


def test_units_run_as_on_a_server(each: Host) -> None:
    shown = each.run(
        "systemd-run --wait --pipe -p DevicePolicy=closed -p PrivateTmp=yes -p ProtectSystem=strict -p User=nobody "
        "sh -c 'echo x > /dev/null; id -un; cat /proc/self/cgroup | tail -n 1'"
    ).stdout.splitlines()
    assert shown[0] == "nobody"
    assert "/system.slice/run-" in shown[1]


def test_pidfds_work(each: Host) -> None:
    program = (
        "import os, signal, subprocess; p = subprocess.Popen(['sleep', '60']); fd = os.pidfd_open(p.pid); "
        "signal.pidfd_send_signal(fd, signal.SIGKILL); print(p.wait())"
    )
    assert each.run(["python3", "-c", program]).stdout.strip() == "-9"


# --- GPUs, models, vLLM


def test_device_nodes_are_held_by_their_names(mixed: Lab) -> None:
    host = mixed.hosts[BOOKWORM]
    nodes = host.run("cd /dev; ls -d nvidia*").stdout.split()
    assert set(nodes) >= {"nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(8))}
    shown = host.run(
        "sleep 5 <> /dev/nvidia3 & sleep 0.1; readlink /proc/$!/fd/0; stat -c '%A %t:%T' /dev/nvidia3; kill $!"
    ).stdout
    assert shown.split() == ["/dev/nvidia3", "crw-rw-rw-", "1:3"]


def test_pci_bus_and_proc_files_follow_the_scenario(mixed: Lab) -> None:
    host = mixed.hosts[TRIXIE]
    devices = host.run("cat /sys/bus/pci/devices/*/vendor").stdout.split()
    assert devices == ["0x10de"] * 2
    assert all(each.startswith("0x03") for each in host.run("cat /sys/bus/pci/devices/*/class").stdout.split())
    assert len(host.run("ls /proc/driver/nvidia/gpus").stdout.split()) == 2
    assert "580.95.05" in host.read("/proc/driver/nvidia/version")
    smi = host.run("nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader").stdout.split()
    assert [name.lower()[4:] for name in smi] == host.run("ls /sys/bus/pci/devices").stdout.split()


def test_hardware_that_changes_while_the_host_runs(mixed: Lab) -> None:
    host = mixed.hosts[TRIXIE]
    shown = "ls /sys/bus/pci/devices | wc -l; ls -d /dev/nvidia[0-9]* | wc -l; ls /proc/driver/nvidia/gpus | wc -l"
    host.gpu.scenario(gpus=4)
    host.refresh_hardware()
    assert host.run(shown).stdout.split() == ["4", "4", "4"]
    host.gpu.scenario(gpus=1)
    host.refresh_hardware()
    assert host.run(shown).stdout.split() == ["1", "1", "1"]
    host.reboot()
    assert host.run(shown).stdout.split() == ["1", "1", "1"]
    host.reset()
    assert host.run(shown).stdout.split() == ["2", "2", "2"]


def test_pynvml_reads_the_simulated_driver(mixed: Lab) -> None:
    program = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount(), n.nvmlSystemGetDriverVersion())"
    assert mixed.hosts[BOOKWORM].run(["/usr/bin/python3", "-c", program]).stdout.split() == ["8", "580.95.05"]


def test_pynvml_can_be_left_out(mixed: Lab) -> None:
    host = mixed.hosts[TRIXIE]
    found = host.run(["/usr/bin/python3", "-c", "import pynvml"], check=False)
    assert "ModuleNotFoundError" in found.stderr
    assert host.run("ls /usr/local/lib/python3.13/dist-packages").stdout == ""
    assert host.run("nvidia-smi -L | wc -l").stdout.strip() == "2"


def test_the_driver_library_is_known_to_the_linker(mixed: Lab) -> None:
    assert "libnvidia-ml.so.1" in mixed.hosts[BOOKWORM].run("/sbin/ldconfig -p").stdout


def test_a_host_without_gpus(mixed: Lab) -> None:
    host = mixed.hosts[HYBRID]
    assert not host.exists("/dev/nvidia0")
    assert host.run("ls /sys/bus/pci/devices").stdout == ""


def test_memory_follows_the_hosts_processes(mixed: Lab) -> None:
    host = mixed.hosts[BOOKWORM]
    used = "nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i 2"
    before = int(host.run(used).stdout)
    holder = host.run(f"{HOLD} --gpu 2 --mib 5000 --seconds 60 > /dev/null 2>&1 & echo $!").stdout.strip()
    wait_until(lambda: int(host.run(used).stdout) == before + 5000)
    listed = host.run("nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits").stdout
    assert listed.strip() == f"{holder}, 5000"
    host.run(["kill", "-9", holder])
    wait_until(lambda: int(host.run(used).stdout) == before)


HOLD = "/opt/vllm/bin/python3 -m lab.driver.client"


def wait_until(condition: object, seconds: float = 10.0) -> None:
    """Wait for what another process brings about."""
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it didn't come about"
        time.sleep(0.05)


def test_models_are_whole_but_take_no_disk(mixed: Lab) -> None:
    host = mixed.hosts[TRIXIE]
    for model in models.MODELS:
        directory = f"/models/{model.name}"
        index = json.loads(host.read(f"{directory}/model.safetensors.index.json"))
        shards = sorted(set(index["weight_map"].values()))
        assert len(shards) == model.shards
        apparent = int(host.run(f"du -cb {directory}/*.safetensors | tail -n 1").stdout.split()[0])
        assert apparent > index["metadata"]["total_size"]
        on_disk = int(host.run(f"du -ck {directory}/*.safetensors | tail -n 1").stdout.split()[0])
        assert on_disk < 100 * 1024
    assert host.run("touch /models/x", check=False).returncode != 0


def test_headers_of_the_shards_say_what_the_index_says(mixed: Lab) -> None:
    directory = models.ensure(cache_dir()) / "MiniMax-M2.5"
    index = json.loads((directory / "model.safetensors.index.json").read_text(encoding="utf-8"))
    total = 0
    for shard in sorted(directory.glob("*.safetensors")):
        with shard.open("rb") as handle:
            (length,) = struct.unpack("<Q", handle.read(8))
            header = json.loads(handle.read(length))
        assert header.pop("__metadata__") == {"format": "pt"}
        end = max(entry["data_offsets"][1] for entry in header.values())
        assert shard.stat().st_size == 8 + length + end
        assert all(index["weight_map"][name] == shard.name for name in header)
        total += end
    assert total == index["metadata"]["total_size"] == 230_121_630_720


def test_the_stand_in_is_installed(each: Host) -> None:
    if each.spec.gpus:
        assert each.run("/opt/vllm/bin/vllm --version").stdout.strip()
    else:
        assert "Failed to infer device type" in each.run("/opt/vllm/bin/vllm --version", check=False).stderr
    assert each.run("/opt/vllm/bin/python3 -c 'import yaml, setproctitle; print(yaml.__version__)'").stdout.strip()


def test_scenarios_reach_the_host(mixed: Lab) -> None:
    host = mixed.hosts[BOOKWORM]
    host.vllm.behave(load_seconds=0.4)
    assert "load_seconds" in host.read("/run/vllm-standin/scenario.json")
    host.vllm.clear()


# --- commands and files


def test_files_and_units_through_the_api(each: Host) -> None:
    each.write("/etc/lab test/a file", "größer\n", mode=0o640, owner="root:daemon")
    assert each.read("/etc/lab test/a file") == "größer\n"
    assert each.run(["stat", "-c", "%a %U:%G", "/etc/lab test/a file"]).stdout.strip() == "640 root:daemon"
    assert each.exists("/etc/lab test/a file") and not each.exists("/etc/lab test/none")
    assert each.systemctl_show("ssh.service", ["ActiveState", "LoadState"]) == {
        "ActiveState": "active",
        "LoadState": "loaded",
    }
    assert "Server listening" in each.journal("ssh.service")
    assert "Server listening" in each.journal("ss*")
    assert each.journal("no-such-*") == each.journal("no-such.service") == ""


def test_a_command_that_fails_says_how(each: Host) -> None:
    with pytest.raises(HostCommandError) as caught:
        each.run("echo out; echo err >&2; exit 7")
    assert (caught.value.returncode, caught.value.stdout, caught.value.stderr) == (7, "out\n", "err\n")
    assert each.name in str(caught.value) and "status 7" in str(caught.value)
    assert each.run("exit 7", check=False).returncode == 7


def test_ansible_reaches_the_hosts_through_the_inventory(mixed: Lab) -> None:
    with in_state(mixed.state):
        result = subprocess.run(
            [
                str(Path(sys.executable).with_name("ansible")),
                "-i",
                "inventories/lab",
                "gpu_hosts",
                "-m",
                "ansible.builtin.ping",
            ],
            cwd=ROOT,
            env={**os.environ, "ANSIBLE_SSH_ARGS": "-o ControlMaster=no", "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("pong") == 3


def test_the_inventory_without_a_lab_says_what_to_run(states: Path) -> None:
    with in_state(states / "none"):
        result = subprocess.run(
            [str(ROOT / "inventories/lab/hosts"), "--list"], capture_output=True, text=True, check=False, timeout=60
        )
    assert json.loads(result.stdout) == {"_meta": {"hostvars": {}}, "gpu_hosts": {"hosts": []}}
    assert "make lab-up" in result.stderr


# --- power and network


def test_reboot_keeps_the_disk_and_starts_a_new_boot(each: Host) -> None:
    each.write("/root/kept", "yes\n")
    boot, uuids = each.read("/proc/sys/kernel/random/boot_id"), each.run("nvidia-smi -L", check=False).stdout
    each.reboot()
    assert each.read("/proc/sys/kernel/random/boot_id") != boot
    assert each.read("/root/kept") == "yes\n"
    assert each.run("nvidia-smi -L", check=False).stdout == uuids
    assert len(each.run("journalctl --list-boots -q --no-pager").stdout.splitlines()) >= 2
    assert each.run("systemctl is-system-running").stdout.strip() == "running"


def test_power_cut_ends_everything_at_once(each: Host) -> None:
    each.run("systemd-run --unit doomed --property=KillMode=none sh -c 'trap \"\" TERM; sleep 1000'")
    each.run("sync; echo before > /root/before; logger lab-says-before; journalctl --sync")
    start = time.monotonic()
    each.power_cut()
    assert time.monotonic() - start < 2.0
    assert not each.is_running()
    with pytest.raises(LabError, match="is off"):
        each.enter("true")
    with pytest.raises(OSError):
        socket.create_connection((each.address, 22), timeout=1).close()
    each.boot()
    assert each.read("/root/before") == "before\n"
    assert "lab-says-before" in each.enter("journalctl --boot=-1 --no-pager --grep lab-says").stdout
    # No farewell: nothing was stopped in order.
    assert (
        "Stopping"
        not in each.enter("journalctl --boot=-1 --no-pager --output=cat _PID=1").stdout.split("Started doomed")[-1]
    )


def test_power_cut_sends_no_farewell_to_who_is_connected(mixed: Lab) -> None:
    host = mixed.hosts[TRIXIE]
    serve = "import socket,time; s=socket.create_server(('',7000)); c=s.accept()[0]; c.send(b'hi'); time.sleep(1000)"
    host.run(["systemd-run", "--unit=talk", "python3", "-c", serve])
    wait_until(lambda: host.systemctl_show("talk", ["ActiveState"])["ActiveState"] == "active")
    with connect(host.address, 7000) as client:
        assert client.recv(2) == b"hi"
        host.power_cut()
        client.settimeout(1.0)
        with pytest.raises(TimeoutError):
            client.recv(1)
    host.boot()


def connect(address: str, port: int, seconds: float = 10.0) -> socket.socket:
    """A connection to a server that is just starting."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection((address, port), timeout=5)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_orderly_shutdown(mixed: Lab) -> None:
    host = mixed.hosts[TRIXIE]
    host.shutdown()
    assert not host.is_running()
    host.boot()
    assert "Stopping" in host.enter("journalctl --boot=-1 --no-pager --output=cat _PID=1").stdout


def test_a_cut_network_leaves_the_host_running(mixed: Lab) -> None:
    host = mixed.hosts[BOOKWORM]
    host.cut_network()
    try:
        with pytest.raises(OSError):
            socket.create_connection((host.address, 22), timeout=2).close()
        assert host.enter("systemctl is-system-running").stdout.strip() == "running"
    finally:
        host.restore_network()
    assert host.run("hostname", timeout=30).stdout.strip() == host.name


def test_a_process_that_sigkill_does_not_end(each: Host) -> None:
    pid = int(each.run("sleep 1000 > /dev/null 2>&1 & echo $!").stdout)
    with each.unkillable(pid):
        each.run(["kill", "-9", str(pid)])
        time.sleep(0.3)
        assert "State:\tD" in each.read(f"/proc/{pid}/status")
    wait_until(lambda: not each.exists(f"/proc/{pid}"))


def test_a_power_cut_ends_even_that(mixed: Lab) -> None:
    host = mixed.hosts[BOOKWORM]
    pid = int(host.run("sleep 1000 > /dev/null 2>&1 & echo $!").stdout)
    with host.unkillable(pid):
        host.power_cut()
    host.boot()


def test_reset_gives_a_clean_host_quickly(each: Host) -> None:
    each.write("/etc/systemd/system/left.service", "[Service]\nExecStart=/bin/sleep 1000\n")
    each.run("systemctl daemon-reload; systemctl start left")
    each.vllm.behave(load_seconds=5.0)
    keys = each.read("/etc/ssh/ssh_host_ed25519_key.pub")
    start = time.monotonic()
    each.reset()
    assert time.monotonic() - start < 8.0
    assert not each.exists("/etc/systemd/system/left.service")
    assert not each.exists("/run/vllm-standin/scenario.json")
    assert each.read("/etc/ssh/ssh_host_ed25519_key.pub") == keys
    assert each.run("systemctl is-system-running").stdout.strip() == "running"


def another_boot(host: Host, former: str) -> bool:
    """Whether the host has booted again and answers."""
    try:
        return host.read("/proc/sys/kernel/random/boot_id") != former and host.run("true").returncode == 0
    except (LabError, subprocess.TimeoutExpired):  # a host that goes down may let a command hang
        return False


@pytest.mark.parametrize("how", ["reboot from outside", "reboot from inside", "power cut"])
def test_leaked_memory_is_back_after_a_boot(mixed: Lab, how: str) -> None:
    host = mixed.hosts[BOOKWORM]
    host.gpu.set(1, leak_mib=4321)
    host.run(f"{HOLD} --gpu 1 --mib 5000 --seconds 0")
    clean = host.gpu.used_mib(0)
    assert host.gpu.used_mib(1) == clean + 4321
    if how == "power cut":
        host.power_cut()
        host.boot()
    elif how == "reboot from outside":
        host.reboot()
    else:
        boot = host.read("/proc/sys/kernel/random/boot_id")
        host.run("systemctl reboot", check=False)
        wait_until(lambda: another_boot(host, boot), 150)
    assert host.gpu.used_mib(1) == clean
    host.gpu.clear()


# --- up and down


def test_down_leaves_nothing(states: Path) -> None:
    before = machine_wide()
    with in_state(states / "once") as state:
        lab = Lab.up(specs=SPECS[:2])
        seen = Traces.of(state)
        assert seen.processes and seen.links and seen.cgroups and seen.files
        lab.hosts[BOOKWORM].run("true")
        lab.hosts[BOOKWORM].run("sleep 1000 > /dev/null 2>&1 &")
        assert fleet.down()
        assert Traces.of(state) == NOTHING
        assert not fleet.down()
    assert machine_wide() == before


def test_down_while_a_host_is_off_or_cut(states: Path) -> None:
    with in_state(states / "off") as state:
        lab = Lab.up(specs=SPECS[:2])
        lab.hosts[BOOKWORM].power_cut()
        lab.hosts[TRIXIE].cut_network()
        lab.down()
        assert Traces.of(state) == NOTHING


@pytest.mark.parametrize("seconds", [0.15, 0.4, 0.7, 1.0, 1.4])
def test_down_after_up_was_killed_half_way(states: Path, seconds: float) -> None:
    with in_state(states / "killed") as state:
        process = subprocess.Popen(
            [sys.executable, "-m", "lab", "up", "--hosts", "2", "--base", "mixed"],
            cwd=ROOT / "tests",
            env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        fleet.down()
        assert Traces.of(state) == NOTHING


def test_up_after_up_was_killed_half_way(states: Path) -> None:
    with in_state(states / "again") as state:
        process = subprocess.Popen(
            [sys.executable, "-m", "lab", "up", "--hosts", "1"],
            cwd=ROOT / "tests",
            env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(lambda: any((state / "hosts").glob("*/console.log")), 30)
        process.kill()
        process.wait()
        try:
            lab = Lab.up(hosts=1)
            assert lab.hosts[BOOKWORM].run("hostname").stdout.strip() == BOOKWORM
        finally:
            fleet.down()
        assert Traces.of(state) == NOTHING


def test_a_second_up_keeps_running_hosts_and_adds(states: Path) -> None:
    with in_state(states / "grow") as state:
        try:
            lab_command(state, "up", "--hosts", "1")
            first = Lab.attach().hosts[BOOKWORM]
            first.write("/root/kept", "yes\n")
            boot = first.read("/proc/sys/kernel/random/boot_id")
            again = lab_command(state, "up", "--hosts", "1", "--base", "trixie")
            assert "gpu01 stays as it is: base bookworm, not trixie" in again.stderr
            lab_command(state, "up", "--hosts", "2", "--base", "mixed")
            lab = Lab.attach()
            assert [host.spec.base for host in lab.hosts.values()] == ["bookworm", "trixie"]
            assert lab.hosts[BOOKWORM].read("/proc/sys/kernel/random/boot_id") == boot
            assert lab.hosts[BOOKWORM].read("/root/kept") == "yes\n"
            with pytest.raises(LabError, match="is up already with base bookworm, not trixie"):
                Lab.up(specs=[HostSpec(BOOKWORM, base="trixie")])
            # A host that is off is booted again, with what is on its disk.
            lab.hosts[BOOKWORM].power_cut()
            lab_command(state, "up", "--hosts", "1")
            assert lab.hosts[BOOKWORM].read("/root/kept") == "yes\n"
            rows = json.loads(lab_command(state, "status", "--json").stdout)
            assert [(row["name"], row["state"]) for row in rows] == [("gpu01", "running"), ("gpu02", "running")]
        finally:
            fleet.down()
        assert Traces.of(state) == NOTHING


def test_two_labs_side_by_side(states: Path) -> None:
    with in_state(states / "left") as left:
        one = Lab.up(hosts=1)
    with in_state(states / "right") as right:
        two = Lab.up(hosts=1)
    try:
        assert one.network != two.network
        assert one.hosts[BOOKWORM].address != two.hosts[BOOKWORM].address
        one.down()
        assert Traces.of(left) == NOTHING
        assert two.hosts[BOOKWORM].run("hostname").stdout.strip() == BOOKWORM
    finally:
        one.down()
        two.down()
    assert Traces.of(right) == NOTHING


def test_a_directory_of_somebody_elses_is_left_alone(states: Path) -> None:
    with in_state(states / "foreign") as state:
        state.mkdir()
        (state / "thesis.txt").write_text("years of work\n", encoding="utf-8")
        with pytest.raises(LabError, match="holds things that aren't a lab's"):
            Lab.up(hosts=1)
        assert not fleet.down()
        assert [path.name for path in state.iterdir()] == ["thesis.txt"]


def test_a_lab_whose_directory_was_deleted(states: Path) -> None:
    with in_state(states / "deleted") as state:
        lab = Lab.up(hosts=2)
        lab.hosts[BOOKWORM].run("sleep 1000 > /dev/null 2>&1 &")
        shutil.rmtree(state)
        assert Traces.of(state) != NOTHING
        assert fleet.down()
        assert Traces.of(state) == NOTHING
        assert not fleet.down()


def test_an_up_that_was_killed_before_its_first_record(states: Path) -> None:
    with in_state(states / "early") as state:
        state.mkdir()
        for name in ("lock", record.DRAFT):
            (state / name).touch()
        assert not fleet.down()
        assert not state.exists()


def test_a_mount_of_somebody_elses_is_not_deleted_through(states: Path) -> None:
    with in_state(states / "mounted") as state:
        Lab.up(hosts=1)
        foreign = state / "hosts" / BOOKWORM / "upper" / "mnt"
        foreign.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(foreign)], check=True)
        try:
            (foreign / "precious").touch()
            with pytest.raises(LabError, match="is mounted below"):
                fleet.down()
            assert (foreign / "precious").exists()
        finally:
            subprocess.run(["umount", str(foreign)], check=True)
        assert fleet.down()
        assert Traces.of(state) == NOTHING


def test_a_record_of_another_boot_is_started_over(states: Path) -> None:
    with in_state(states / "boot") as state:
        lab = Lab.up(hosts=1)
        try:
            lab.hosts[BOOKWORM].write("/root/old", "x")
            found = record.load(state)
            assert found is not None
            found.boot = "another"
            found.save()
            with pytest.raises(LabError, match="no lab is up"):
                Lab.attach()
            lab = Lab.up(hosts=1)
            assert not lab.hosts[BOOKWORM].exists("/root/old")
        finally:
            fleet.down()
        assert Traces.of(state) == NOTHING


def test_twelve_hosts_at_once(states: Path) -> None:
    before = limits.current()
    with in_state(states / "dozen") as state:
        try:
            lab = Lab.up(hosts=12)
            assert [row["state"] for row in lab.status()] == ["running"] * 12
            assert {host.spec.base for host in lab.hosts.values()} == {"bookworm", "trixie"}
            assert len({host.address for host in lab.hosts.values()}) == 12
            for host in lab.hosts.values():
                assert host.run("hostname; nvidia-smi -L | wc -l").stdout.split() == [host.name, "8"]
        finally:
            fleet.down()
        assert Traces.of(state) == NOTHING
    # Another lab on this machine may need the room still; the last one that goes puts the limit back.
    former = limits.former(cache_dir())
    assert limits.current() <= before if former is None else not limits.may_restore(limits.instances_in_use(), former)


def test_everything_missing_is_said_at_once(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "python3").symlink_to(sys.executable)
    nobody = shutil.which("setpriv")
    assert nobody is not None
    result = subprocess.run(
        [nobody, "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-m", "lab", "up"],
        cwd=ROOT / "tests",
        env={"PATH": str(tools), "PYTHONPATH": str(ROOT / "tests"), "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 1
    assert "not run as root" in result.stderr
    for program in ("systemd-nspawn", "debootstrap", "gcc", "nsenter"):
        assert f"no {program}\n" in result.stderr
    installs = [line for line in result.stderr.splitlines() if "apt-get install" in line]
    assert len(installs) == 1
    assert {"systemd-container", "debootstrap", "gcc"} <= set(installs[0].split())
