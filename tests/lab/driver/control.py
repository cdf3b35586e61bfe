# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tests' hand on a simulated driver: change its scenario while things run, and ask what it counted."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from . import presets
from .client import Channel, DriverError
from .scenario import Failure, Gpu, Process, Scenario, ScenarioError, Smi

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Release:
    """Memory that came back: GPU by its position, MiB, whose it was, and when (CLOCK_MONOTONIC; wall clock)."""

    gpu: int
    mib: int
    pid: int
    released_at: float
    freed_at: float
    freed_at_wall: float


class Gpus:
    """The driver that serves a directory. Changes are validated here, written atomically, and in force on return.

    Raises ScenarioError for a scenario that can't be meant, DriverError or OSError when no driver serves there.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory)
        self.path = self.directory / "scenario.json"
        self.socket = self.directory / "driver.sock"

    # --- the scenario

    @property
    def current(self) -> Scenario:
        """The scenario as its file says it now."""
        try:
            return Scenario.from_json(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Scenario()

    def apply(self, scenario: Scenario) -> None:
        """Make this the scenario. What a GPU reset or nvidia-smi changed before is forgotten where it differs."""
        before = self.current
        self._write(scenario)
        changed = [
            position
            for position, gpu in enumerate(scenario.gpus)
            if position >= len(before.gpus) or before.gpus[position] != gpu
        ]
        if changed:
            self._control("rearm", changed)

    def scenario(self, **changes: Any) -> None:
        """Change top-level fields: scenario(driver_version="570.1", gpus=4, smi={"banner": "umd"})."""
        data = json.loads(self.current.to_json())
        data.update(json.loads(json.dumps(changes, default=dataclasses.asdict)))
        self.apply(Scenario.from_dict(data))

    def preset(self, name: str) -> None:
        """Replace the whole scenario by one of presets.NAMES; the seed (and so the UUIDs' uniqueness) stays."""
        self.apply(presets.build(name, seed=self.current.seed))

    def set(self, gpu: int | None = None, **changes: Any) -> None:
        """Change fields of one GPU (by position), or of all: set(3, release_delay_s=2.5)."""
        scenario = self.current
        if gpu is not None and not 0 <= gpu < len(scenario.gpus):
            raise ScenarioError(f"no GPU {gpu}: the scenario has {len(scenario.gpus)}")
        data = json.loads(scenario.to_json())
        new = json.loads(json.dumps(changes, default=dataclasses.asdict))
        touched = range(len(scenario.gpus)) if gpu is None else [gpu]
        for position in touched:
            data["gpus"][position].update(new)
        self._write(Scenario.from_dict(data))
        self._control("rearm", list(touched))

    def add_process(self, gpu: int, process: Process) -> None:
        """Put an entry into a GPU's process lists that no allocation stands behind."""
        listed = (*self.current.gpus[gpu].processes, process)
        self.set(gpu, processes=[dataclasses.asdict(each) for each in listed])

    def smi(self, **changes: Any) -> None:
        """Change what nvidia-smi does on its own account: smi(exit_code=15, stderr="..."); smi() resets it."""
        self._write(dataclasses.replace(self.current, smi=Smi(**changes)))

    def fail(
        self,
        call: str,
        code: int | None,
        gpu: int | None = None,
        times: int | None = None,
        *,
        skip: int = 0,
        client: Literal["any", "library", "smi", "cuda"] = "any",
        **more: Any,
    ) -> None:
        """Let calls that match the pattern return code; only `times` of them, after `skip` that work."""
        self._add(Failure(call, code, gpu, times, skip, client, **more))

    def hang(
        self, call: str, seconds: float | Literal["forever"] = "forever", *, code: int | None = None, **more: Any
    ) -> None:
        """Let matching calls hang; taking the failure out of the scenario lets them go on."""
        self._add(Failure(call, code, hang_s=seconds, **more))

    def clear_failures(self) -> None:
        """Take out all failures; calls that hang are answered."""
        self._write(dataclasses.replace(self.current, failures=()))

    def clear(self) -> None:
        """Back to the default scenario, with nothing leaked or on its way back, and all counters at zero."""
        self._write(Scenario(seed=self.current.seed))
        self.forget()

    def forget(self) -> None:
        """Nothing is leaked, on its way back, changed at run time or counted any more; the scenario stays."""
        self._control("forget", None)

    # --- what the driver counted

    def state(self) -> list[dict[str, Any]]:
        """Per GPU: used, free, held, leaked and releasing MiB, and the allocations with their processes' pids."""
        return list(self._control("state", None)["gpus"])

    def used_mib(self, gpu: int) -> int:
        """Used memory of one GPU, MiB, without what the driver reserves."""
        return int(self.state()[gpu]["used_mib"])

    def calls(self) -> dict[str, int]:
        """How often each NVML (and CUDA) call was made since reset_calls()."""
        return dict(self._control("calls", None)["calls"])

    def reset_calls(self) -> None:
        """Count calls from zero."""
        self._control("reset_calls", None)

    def releases(self) -> list[Release]:
        """All memory that came back so far, in order: what reaction times are measured from."""
        return [Release(**each) for each in self._control("releases", None)["releases"]]

    def gpu_reset(self, gpu: int) -> None:
        """Reset a GPU by position, as nvidia-smi -r does. DriverError 19: somebody holds memory on it."""
        self._control("gpu_reset", gpu)

    def power_cycle(self) -> None:
        """Forget what is on its way back or leaked, as a power failure does."""
        self._control("power_cycle", None)

    def wait_for_used(self, gpu: int, mib: int, timeout: float = 10.0) -> None:
        """Wait until a GPU's used memory is mib MiB. Raises TimeoutError, naming what it is instead."""
        deadline = time.monotonic() + timeout
        while (used := self.used_mib(gpu)) != mib:
            if time.monotonic() > deadline:
                raise TimeoutError(f"GPU {gpu} has {used} MiB used, not {mib}, after {timeout} s")
            time.sleep(0.01)

    # --- inside

    def _add(self, failure: Failure) -> None:
        scenario = self.current
        failure = dataclasses.replace(failure, id=f"{os.getpid()}-{next(_numbers)}")
        self._write(dataclasses.replace(scenario, failures=(failure, *scenario.failures)))

    def _write(self, scenario: Scenario) -> None:
        scenario = Scenario.from_json(scenario.to_json())  # validates what dataclasses.replace lets through
        staged = self.path.with_name(f".scenario.{os.getpid()}.{next(_numbers)}")
        staged.write_text(scenario.to_json() + "\n", encoding="utf-8")
        staged.replace(self.path)
        self._control("reload", None)

    def _control(self, verb: str, argument: object) -> dict[str, Any]:
        channel = Channel(str(self.socket))
        try:
            code, words = channel.request("control", verb, json.dumps(argument))
        finally:
            channel.close()
        if code != 0:
            raise DriverError(code, words[0] if words else "refused")
        answer: dict[str, Any] = json.loads(words[0])
        if "error" in answer:
            raise ScenarioError(str(answer["error"]))
        return answer


__all__ = ["Failure", "Gpu", "Gpus", "Process", "Release", "Scenario", "ScenarioError"]
