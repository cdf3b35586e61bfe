# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A driver for tests that need no host: a daemon on a temporary directory, and the environment that leads to it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import build
from .control import Gpus
from .scenario import Scenario

TESTS = Path(__file__).resolve().parents[2]
CLIENT = Path(__file__).resolve().parent / "client.py"


@dataclass
class LocalDriver:
    """A running driver. `env` leads a child process to it; `bin` holds its nvidia-smi, `dev` its device nodes."""

    gpus: Gpus
    env: dict[str, str]
    bin: Path
    dev: Path
    lib: Path
    _daemon: subprocess.Popen[bytes] = field(repr=False)
    _started: list[subprocess.Popen[str]] = field(default_factory=list, repr=False)

    def environ(self) -> dict[str, str]:
        """This process's environment with env merged in, for a child."""
        return {**os.environ, **self.env}

    def run(self, *command: str, timeout: float = 30.0, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command against this driver; text output, undecodable bytes as surrogates."""
        return subprocess.run(
            command,
            env={**self.environ(), **more},
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=timeout,
            check=False,
        )

    def python(self, code: str, *arguments: str, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run Python code in a child that finds this driver's library."""
        return self.run(sys.executable, "-c", code, *arguments, timeout=timeout)

    def hold(self, gpu: int | str, mib: int, *options: str) -> subprocess.Popen[str]:
        """Start a process that holds memory; returns when it does. It ends with the driver, after five minutes at the latest."""
        command = [sys.executable, str(CLIENT), "--gpu", str(gpu), "--mib", str(mib), "--seconds", "300", *options]
        process = subprocess.Popen(
            command, env=self.environ(), stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._started.append(process)
        assert process.stdout is not None
        if not process.stdout.readline().startswith("holding"):
            raise RuntimeError(f"{' '.join(command)} ended with {process.wait()}")
        return process

    def release(self) -> None:
        """End the processes that hold() started, with their children."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the forked children too
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._started.clear()

    def clean(self) -> None:
        """As good as new: no process holds anything, the default scenario, nothing counted."""
        self.gpus.clear()
        if not self._started:
            return
        self.release()
        deadline = time.monotonic() + 10
        while any(gpu["allocations"] for gpu in self.gpus.state()):
            if time.monotonic() > deadline:
                raise TimeoutError("somebody still holds memory of the simulated GPUs")
            time.sleep(0.005)
        self.gpus.forget()

    def stop(self) -> None:
        """End the driver (the module is unloaded) and the processes that hold() started."""
        self.release()
        if self._daemon.poll() is None:
            self._daemon.terminate()
        self._daemon.wait(timeout=10)


@contextlib.contextmanager
def running_driver(
    tmp_path: Path, preset: str | None = None, omit: Iterable[str] = (), scenario: Scenario | None = None
) -> Iterator[LocalDriver]:
    """A driver in tmp_path, with a library that lacks the symbols in omit. Ends only what it started."""
    directory, dev = tmp_path / "driver", tmp_path / "dev"
    library, bin_dir = tmp_path / "lib", tmp_path / "bin"
    for each in (directory, dev, bin_dir):
        each.mkdir(parents=True)
    build.build_library(library, omit)
    shutil.copy(build.smi_path(python=sys.executable), bin_dir / "nvidia-smi")
    daemon, life = _start(directory)
    gpus = Gpus(directory)
    env = {
        "NVIDIA_SIM_SOCKET": str(gpus.socket),
        "NVIDIA_SIM_DEV": str(dev),
        "LD_LIBRARY_PATH": str(library),
        "PATH": f"{bin_dir}:{os.environ.get('PATH', os.defpath)}",
    }
    driver = LocalDriver(gpus, env, bin_dir, dev, library, daemon)
    try:
        if preset is not None:
            gpus.preset(preset)
        if scenario is not None:
            gpus.apply(scenario)
        make_nodes(dev, build.nodes(gpus.current))
        yield driver
    finally:
        driver.stop()
        os.close(life)


def make_nodes(dev: Path, names: Iterable[str]) -> None:
    """Device nodes that can be opened: character devices like /dev/null where that is allowed, else plain files."""
    for name in names:
        try:
            os.mknod(dev / name, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            (dev / name).touch()
        (dev / name).chmod(0o666)


def _start(directory: Path) -> tuple[subprocess.Popen[bytes], int]:
    """The daemon, serving, and the descriptor that keeps it alive: it ends with this process, whatever becomes of it."""
    ready, ready_end = os.pipe()
    life_end, life = os.pipe()
    command = [sys.executable, "-m", "lab.driver.daemon", "--dir", str(directory)]
    command += ["--ready-fd", str(ready_end), "--life-fd", str(life_end)]
    path = f"{TESTS}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    try:
        daemon = subprocess.Popen(command, pass_fds=[ready_end, life_end], env={**os.environ, "PYTHONPATH": path})
    finally:
        os.close(ready_end)
        os.close(life_end)
    with os.fdopen(ready) as told:
        if not told.readline():
            os.close(life)
            raise RuntimeError(f"the driver ended with {daemon.wait()}")
    return daemon, life
