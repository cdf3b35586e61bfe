# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reading core run against a simulated driver, in a child that finds the driver's library."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lab.driver.testing import LocalDriver

# Another user may be able to read neither the checkout nor the environment that the tests run in.
SYSTEM_PYTHON = "/usr/bin/python3"
COLLECTIONS = Path(__file__).resolve().parents[2] / "collections"
BACKENDS = ("nvml", "nvidia_smi")

# Reads once per line of its arguments' list; prints one JSON list of [snapshot or error text, seconds].
_READ = """
import json, os, sys, time
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.reader import open_reader
options = json.loads(sys.argv[1])
asks = options.pop("asks")
states = options.pop("units")
uid = options.pop("uid")
if uid:
    os.setgid(uid)
    os.setuid(uid)
found = []
for backend in options.pop("backends"):
    with open_reader(backend, unit_state=lambda unit: states.get(unit, "active"), **options) as reader:
        for ask in asks:
            started = time.monotonic()
            try:
                facts = reader.snapshot(**ask).to_dict()
            except GpuFleetError as error:
                facts = error.msg
            found.append([facts, time.monotonic() - started])
print(json.dumps(found, allow_nan=False))
"""


class Reading:
    """Readings of one driver."""

    def __init__(self, driver: LocalDriver) -> None:
        self.driver = driver
        self.took: list[float] = []
        self.stderr = ""

    def all(self, backends: str, asks: list[dict[str, Any]], timeout: float = 10.0, **options: Any) -> list[Any]:
        """What a reader of each backend (separated by blanks) answers to each ask (arguments of snapshot()); an error is its
        text. ``units`` are ActiveStates by name, ``uid`` the user to read as."""
        chosen = {"backends": backends.split(), "timeout": timeout, "dev_root": str(self.driver.dev), "asks": asks, "units": {},
                  "uid": 0, **options}
        with tempfile.TemporaryDirectory(prefix="reading-") as directory:
            python, path = (SYSTEM_PYTHON, _readable_copy(Path(directory))) if chosen["uid"] else (sys.executable, COLLECTIONS)
            more = {"PATH": "%s:/usr/bin:/bin" % _smi_for_all(self.driver, Path(directory))} if chosen["uid"] else {}
            done = self.driver.run(python, "-c", _READ, json.dumps(chosen), PYTHONPATH=str(path), timeout=120, **more)
        assert done.returncode == 0, done.stderr
        self.stderr = done.stderr
        found = json.loads(done.stdout)  # anything else on stdout is an error here
        self.took = [seconds for _facts, seconds in found]
        return [facts for facts, _seconds in found]

    def one(self, backend: str, timeout: float = 10.0, gpus: "list[str] | None" = None, processes: bool = True, **options: Any) -> Any:
        """One reading."""
        (facts,) = self.all(backend, [{"gpus": gpus, "processes": processes}], timeout, **options)
        return facts

    def both(self, **options: Any) -> tuple[Any, Any]:
        """The same reading through each backend."""
        ask = {"gpus": options.pop("gpus", None), "processes": options.pop("processes", True)}
        nvml, smi = self.all(" ".join(BACKENDS), [ask], **options)
        return nvml, smi


def comparable(facts: dict[str, Any]) -> dict[str, Any]:
    """A reading without what may differ between two: how it was read, and in which words it failed."""
    return {key: value for key, value in facts.items() if key not in ("backend", "reason_detail")}


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Where two readings differ, and how."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted(set(one) | set(other))
        return [found for key in keys for found in differences(one.get(key), other.get(key), f"{where}.{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [found for number in range(len(one)) for found in differences(one[number], other[number], f"{where}[{number}]")]
    return [] if one == other else [f"{where}: {one!r} and {other!r}"]


def _readable_copy(directory: Path) -> Path:
    """The collection's shared code where everybody can read it; what belongs on the path."""
    directory.chmod(0o755)
    part = Path("ansible_collections/gpufleet/vllm/plugins/module_utils")
    shutil.copytree(COLLECTIONS / part, directory / part, ignore=shutil.ignore_patterns("__pycache__"))
    return directory


def _smi_for_all(driver: LocalDriver, directory: Path) -> Path:
    """A directory with an nvidia-smi that another user can run: the driver's own names an interpreter that it may not read."""
    program = directory / "nvidia-smi"
    program.write_text('#!/bin/sh\nexec %s %s "$@"\n' % (SYSTEM_PYTHON, driver.bin / "nvidia-smi"))
    program.chmod(0o755)
    return directory


def wait_until(check: Any, timeout: float = 10.0) -> None:
    """Wait until a check is true."""
    end = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < end, "waited %g s in vain" % timeout
        time.sleep(0.02)
