# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Both backends against a real driver, while a process holds a known amount of memory.

    python3 tests/gpu/check_real_gpu.py [--gpu 0] [--mib 1024]

Needs a machine with an NVIDIA GPU and nothing else: no package, no root (as root the holder is proven too). Prints what was read
and how long it took, and ends with 1 when a backend does not see what it should. Changes nothing on the GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COLLECTIONS = Path(__file__).resolve().parents[2] / "collections"
sys.path.insert(0, str(COLLECTIONS))

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.reader import open_reader

# A CUDA context takes memory of its own, and the driver rounds up: this much more than asked for is right.
CONTEXT_MIB = 1500
# Between two looks the driver's own figures may move by so much.
DRIFT_MIB = 64


def hold(gpu: int, mib: int) -> None:
    """Hold memory through the CUDA driver library until stdin is closed; prints a line when it does."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        code = getattr(cuda, name)(*arguments)
        if code != 0:
            raise SystemExit(f"{name} failed with CUDA error {code}")

    device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_ulonglong()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), gpu)
    call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
    call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(mib << 20))
    print("holding", flush=True)
    sys.stdin.read()


def read(backend: str, gpu: int, dev: str) -> tuple[dict[str, Any], float]:
    """The facts through one backend, and the seconds that the reading took."""
    started = time.monotonic()
    with open_reader(backend, timeout=30.0, dev_root=dev) as reader:
        facts = reader.snapshot([str(gpu)]).to_dict()
    return facts, time.monotonic() - started


def poll(gpu: int, count: int = 20) -> float:
    """Milliseconds per reading of memory alone, in a loop."""
    with open_reader("nvml", quick=True) as reader:
        reader.snapshot([str(gpu)], processes=False)
        started = time.monotonic()
        for _again in range(count):
            reader.snapshot([str(gpu)], processes=False)
        return (time.monotonic() - started) / count * 1000


def by_command(gpu: int) -> dict[str, int]:
    """What nvidia-smi says by itself."""
    fields = ("memory.total", "memory.used", "memory.free")
    argv = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "-i", str(gpu)]
    words = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.split(",")
    return {field.split(".")[1] + "_mib": int(word) for field, word in zip(fields, words, strict=True)}


class Report:
    """Collects what is not as it should be."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def expect(self, what: str, right: bool, detail: object) -> None:
        """One check, printed."""
        print(f"  {'ok   ' if right else 'WRONG'} {what}: {detail}")
        if not right:
            self.problems.append(what)


def check(gpu: int, mib: int, holder: list[str], dev: str) -> int:
    """Compare the backends with nvidia-smi, idle and while the holder runs."""
    report = Report()
    idle = {backend: read(backend, gpu, dev)[0]["gpus"][0] for backend in ("nvml", "nvidia_smi")}
    process = subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None or not process.stdout.readline().startswith("holding"):
            raise SystemExit("the process that should hold memory ended at once")
        command = by_command(gpu)
        found: dict[str, dict[str, Any]] = {}
        for backend in ("nvml", "nvidia_smi"):
            facts, seconds = read(backend, gpu, dev)
            one = found[backend] = facts["gpus"][0]
            print(f"{backend}: driver {facts['driver_version']}, CUDA {facts['cuda_version']}, read in {seconds * 1000:.0f} ms")
            print("  " + json.dumps({key: value for key, value in one.items() if key != "processes"}))
            report.expect("the GPU can be read", facts["available"] and one["state"] == "ok", one["error"])
            for key, value in command.items():
                report.expect(f"{key} is nvidia-smi's", abs(one[key] - value) <= DRIFT_MIB, f"{one[key]} and {value}")
            mine = [each for each in one["processes"] if each["pid"] == process.pid]
            report.expect("the holder is listed once", len(mine) == 1, [each["pid"] for each in one["processes"]])
            if mine:
                used = mine[0]["used_mib"]
                report.expect("its memory", used is None or mib <= used <= mib + CONTEXT_MIB, used)
                report.expect("its title", "--mib" in (mine[0]["cmdline"] or ""), mine[0]["cmdline"])
            grown = one["used_mib"] - idle[backend]["used_mib"]
            report.expect("used memory grew by as much", mib - DRIFT_MIB <= grown <= mib + CONTEXT_MIB, grown)
        for key in ("uuid", "pci_bus_id", "name", "total_mib", "compute_mode", "reserved_mib"):
            values = [found[backend][key] for backend in found]
            report.expect(f"both say the same {key}", len(set(values)) == 1, values[0] if len(set(values)) == 1 else values)
        print(f"a look at memory alone takes {poll(gpu):.2f} ms")
    finally:
        process.communicate(input="")
    deadline = time.monotonic() + 30
    while read("nvml", gpu, dev)[0]["gpus"][0]["used_mib"] > idle["nvml"]["used_mib"] + DRIFT_MIB:
        if time.monotonic() > deadline:
            report.expect("the memory came back within 30 s", False, "no")
            break
        time.sleep(0.05)
    else:
        report.expect("the memory came back", True, f"within {30 - (deadline - time.monotonic()):.2f} s of the end")
    print("all as it should be" if not report.problems else f"{len(report.problems)} wrong: {', '.join(report.problems)}")
    return 1 if report.problems else 0


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description="Compare both backends with a real driver.")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--hold", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--holder", help="another program that holds --mib MiB on --gpu and says 'holding'")
    parser.add_argument("--dev", default="/dev", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold:
        hold(options.gpu, options.mib)
        return 0
    own = [sys.executable, __file__, "--hold", "--gpu", str(options.gpu), "--mib", str(options.mib)]
    return check(options.gpu, options.mib, options.holder.split() if options.holder else own, options.dev)


if __name__ == "__main__":
    sys.exit(main())
