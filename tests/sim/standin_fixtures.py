# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the installed stand-in on this machine, against a simulated driver, and end all that it started."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import setproctitle
import yaml

from lab.driver.testing import LocalDriver
from lab.standin.control import Standin
from lab.standin.install import install

MINIMAX = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax_m2",
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "num_hidden_layers": 62,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 200064,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 196608,
    "torch_dtype": "bfloat16",
    "quantization_config": {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
    },
}
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "vocab_size": 163840,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 262144,
    },
    "quantization_config": {"quant_method": "compressed-tensors"},
}
SMALL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}


def make_model(directory: Path, config: dict[str, Any], total_bytes: int, shards: int) -> Path:
    """A model directory whose weight files are empty of data but have their size."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for number in range(1, shards + 1):
        with open(directory / f"model-{number:05d}-of-{shards:05d}.safetensors", "wb") as shard:
            shard.truncate(total_bytes // shards)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": {}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return directory


def make_prefix(prefix: Path) -> Path:
    """An /opt/vllm of this interpreter, with the stand-in in it. Returns the vllm program."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "python3").symlink_to(sys.executable)
    home = Path(sys.base_prefix) / "bin"
    (prefix / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n", encoding="utf-8")
    packages = prefix / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    for module in (setproctitle, yaml):
        found = Path(module.__file__ or "").parent
        (packages / found.name).symlink_to(found)
    install(Path("/"), version, str(prefix))
    return prefix / "bin" / "vllm"


def free_port() -> int:
    """A port of the loopback that nobody has."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def eventually(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """The first true result of condition. AssertionError when none comes in time."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"{condition} did not become true in {seconds} s")
        time.sleep(0.02)


class Running:
    """One `vllm` that was started, with all the processes of its session and those that left it."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.pid = process.pid
        self._log = log
        self._seen: dict[int, int] = {}  # pid: start time, of every process that was ever found

    @property
    def log(self) -> str:
        """All that it printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def lines(self, text: str) -> list[str]:
        """The printed lines that hold text."""
        return [line.strip() for line in re.split(r"\r?\n|\r", self.log) if text in line]

    def tree(self) -> dict[int, str]:
        """Command lines of all living processes of this server, by pid: those that write into its log."""
        found = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                if os.readlink(f"/proc/{entry}/fd/1") != str(self._log):
                    continue
                command = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                if not command:
                    continue
                self._seen[int(entry)] = _start_time(int(entry))
            except OSError:
                continue
            found[int(entry)] = command
        return found

    def pids(self, title: str) -> list[int]:
        """Pids of the processes whose command line begins with title."""
        return sorted(pid for pid, command in self.tree().items() if command.startswith(title))

    def request(
        self, method: str, path: str, body: Any = None, *, timeout: float = 10.0, headers: Any = None, host: str = ""
    ) -> tuple[int, Any]:
        """(status, parsed body) of one request; text that is no JSON comes as text."""
        connection = http.client.HTTPConnection(host or "127.0.0.1", self.port, timeout=timeout)
        try:
            data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            raw = response.read()
        finally:
            connection.close()
        try:
            return response.status, json.loads(raw)
        except ValueError:
            return response.status, raw.decode()

    def complete(self, model: str, **more: Any) -> tuple[int, Any]:
        """A completion."""
        return self.request("POST", "/v1/completions", {"model": model, "prompt": "Hello", **more})

    def ready(self, seconds: float = 20.0) -> Running:
        """Wait until /health is 200. AssertionError with the log when it ends before."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.request("GET", "/health", timeout=2)[0] == 200:
                    return self
            time.sleep(0.02)
        raise AssertionError("not ready in time:\n" + self.log)

    def ends(self, seconds: float = 20.0) -> int:
        """The exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError("still running:\n" + self.log) from None

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Signal the server's main process."""
        self.process.send_signal(number)

    def clean_up(self) -> None:
        """SIGKILL whatever is left of it: by its log, which no other process writes to."""
        while left := self.tree():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    if _start_time(pid) == self._seen[pid]:
                        os.kill(pid, signal.SIGKILL)
            self.process.poll()
            time.sleep(0.01)
        self.process.wait(5)


def _start_time(pid: int) -> int:
    try:
        return int(Path("/proc", str(pid), "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    except OSError:
        return -1


class Bench:
    """Starts servers and ends them."""

    def __init__(self, directory: Path, program: Path, models: Path, driver: LocalDriver) -> None:
        self.directory = directory
        self.program = program
        self.models = models
        self.driver = driver
        self.standin = Standin(directory / "standin")
        self.home = directory / "home"
        self.home.mkdir()
        self._running: list[Running] = []

    def environ(self, **more: str | None) -> dict[str, str]:
        """What a server is started with: the driver, a home, quick loading."""
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "USER": "vllm",
            "VLLM_CACHE_ROOT": str(self.home / "cache"),
            "STANDIN_SCENARIO": str(self.standin.path),
            "STANDIN_LOAD_SECONDS": "0.05",
            **self.driver.env,
        }
        for name, value in more.items():
            env.pop(name, None)
            if value is not None:
                env[name] = value
        return env

    def start(self, *words: str, env: dict[str, str] | None = None, port: int | None = None) -> Running:
        """`vllm WORDS`; serve gets a free port unless port is given (0: no --port)."""
        number = free_port() if port is None else port
        command = [str(self.program), *words]
        if words[:1] == ("serve",) and number:
            command += ["--port", str(number)]
        log = self.directory / f"log-{len(self._running)}"
        with open(log, "wb") as out:
            process = subprocess.Popen(
                command,
                env=self.environ() if env is None else env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        running = Running(process, number, log)
        self._running.append(running)
        return running

    def serve(self, model: str = "small", *words: str, **env: str | None) -> Running:
        """Start `vllm serve` on a model of this bench."""
        return self.start("serve", str(self.models / model), *words, env=self.environ(**env))

    def used_mib(self) -> list[int]:
        """What the driver counts as used on each GPU."""
        done = self.driver.run("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
        return [int(line) for line in done.stdout.splitlines()]

    def listed(self) -> dict[int, int]:
        """MiB by pid, as the driver lists them."""
        query = "--query-compute-apps=pid,used_memory"
        done = self.driver.run("nvidia-smi", query, "--format=csv,noheader,nounits")
        return {int(line.split(",")[0]): int(line.split(",")[1]) for line in done.stdout.splitlines()}

    def clean_up(self) -> None:
        """End everything."""
        for running in self._running:
            running.clean_up()


@pytest.fixture(scope="session")
def standin_place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(the installed program, the directory of models)."""
    place = tmp_path_factory.mktemp("standin")
    make_model(place / "models" / "small", SMALL, 1_200_000_000, 1)
    make_model(place / "models" / "minimax", MINIMAX, 230_000_000_000, 125)
    make_model(place / "models" / "kimi", KIMI, 595_000_000_000, 64)
    return make_prefix(place / "opt" / "vllm"), place / "models"


@pytest.fixture(name="bench")
def standin_bench(standin_place: tuple[Path, Path], driver_local: LocalDriver, tmp_path: Path) -> Iterator[Bench]:
    """A bench that leaves nothing."""
    program, models = standin_place
    made = Bench(tmp_path, program, models, driver_local)
    try:
        yield made
    finally:
        made.clean_up()
