# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's GPUs as seen from outside it: the driver process, and the files that its device nodes and bus come from."""

from __future__ import annotations

import shlex
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lab import groups
from lab.driver import build, trees
from lab.driver.control import Gpus
from lab.driver.scenario import Scenario
from lab.errors import LabError

_TESTS = Path(__file__).resolve().parents[1]
_START_SECONDS = 20.0


def prepare(directory: Path, seed: str, gpus: int) -> None:
    """Empty the driver's directory and write the scenario of a machine with ``gpus`` GPUs into it.

    The directory itself stays: it may be bound into the host.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    scenario = Scenario.from_dict({"seed": seed, "gpus": gpus, "device_nodes": gpus > 0})
    (directory / "scenario.json").write_text(scenario.to_json() + "\n", encoding="utf-8")
    write_files(directory)


def write_files(directory: Path) -> None:
    """Bring the list of device nodes, the PCI bus and the driver's proc files in line with ``scenario.json``."""
    scenario = Scenario.from_json((directory / "scenario.json").read_text(encoding="utf-8"))
    for name, write in (("pci", trees.write_pci_tree), ("proc", trees.write_proc_tree)):
        # The directory is bound into the host: change what is in it, keep it.
        tree = directory / name
        tree.mkdir(exist_ok=True)
        for old in tree.iterdir():
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
        write(tree, scenario)
    (directory / "nodes").write_text("".join(f"{name}\n" for name in build.nodes(scenario)), encoding="ascii")


def start_driver(directory: Path, *, lab_id: str, name: str, group: Sequence[Path], log: Path) -> None:
    """Start the process in the kernel module's place and wait until it serves."""
    argv = [sys.executable, "-m", "lab.driver.daemon", "--dir", str(directory)]
    environment = {"PYTHONPATH": str(_TESTS), "PYTHONDONTWRITEBYTECODE": "1"}
    groups.spawn(argv, lab_id=lab_id, name=name, group=group, log=log, environment=environment)
    deadline = time.monotonic() + _START_SECONDS
    while not _serves(directory / "driver.sock"):
        alive = groups.alive(group)
        if not alive or time.monotonic() > deadline:
            text = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise LabError(f"the simulated driver for {directory} {'is not ready' if alive else 'ended'}:\n{text}")
        time.sleep(0.02)


def power_cycle(directory: Path) -> None:
    """What a boot does to the GPUs: memory that leaked, or was on its way back, is free."""
    Gpus(directory).power_cycle()


def on_reboot_command(directory: Path) -> str:
    """A shell command that does the same, for the launcher of a host that reboots by itself."""
    argv = [
        "env",
        f"PYTHONPATH={_TESTS}",
        "PYTHONDONTWRITEBYTECODE=1",
        sys.executable,
        "-m",
        "lab.hardware",
        str(directory),
    ]
    return shlex.join(argv)


def _serves(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


if __name__ == "__main__":
    power_cycle(Path(sys.argv[1]))
