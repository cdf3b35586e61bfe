# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds what a host gets installed: the NVML library, nvidia-smi, device nodes, the trees in /sys and /proc."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
import zipapp
from collections.abc import Iterable, Iterator
from pathlib import Path

from . import codes
from .scenario import Scenario
from .trees import write_pci_tree, write_proc_tree

__all__ = [
    "BuildError",
    "build_library",
    "cache_dir",
    "exported",
    "nodes",
    "smi_path",
    "write_pci_tree",
    "write_proc_tree",
]

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "libnvml"
LIBRARY = "libnvidia-ml.so.1"

_FLAGS = [
    "-std=c99",
    "-D_DEFAULT_SOURCE",
    "-O2",
    "-g0",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-stringop-truncation",
    "-shared",
    f"-Wl,-soname,{LIBRARY}",
]


class BuildError(Exception):
    """Something can't be built; the message carries what the compiler said."""


def cache_dir() -> Path:
    """Where built files are kept between runs: GPUFLEET_LAB_CACHE, else the system's or the user's cache."""
    configured = os.environ.get("GPUFLEET_LAB_CACHE")
    if configured:
        return Path(configured)
    if os.geteuid() == 0:
        return Path("/var/cache/gpufleet-lab")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpufleet-lab"


def build_library(out_dir: Path, omit: Iterable[str] = ()) -> Path:
    """libnvidia-ml.so.1 in out_dir, without the symbols in omit (an old driver's). Returns its path.

    Compiled once per content and kept in the cache. Raises BuildError without a compiler or for an unknown symbol.
    """
    omitted = sorted(set(omit))
    built = _cached_library(omitted)
    out_dir.mkdir(parents=True, exist_ok=True)
    target = out_dir / LIBRARY
    staged = out_dir / f".{LIBRARY}.{os.getpid()}"
    shutil.copyfile(built, staged)
    staged.chmod(0o755)
    staged.replace(target)
    return target


def exported() -> list[str]:
    """The names of all functions that the whole library exports."""
    names = _run(["nm", "-D", "--defined-only", "--format=posix", str(_cached_library([]))]).split("\n")
    return sorted(row.split()[0] for row in names if row.startswith("nvml"))


def _cached_library(omitted: list[str]) -> Path:
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(repr((_FLAGS, omitted, sorted(codes.TEXTS.items()))).encode())
    for source in sources:
        digest.update(source.read_bytes())
    target = cache_dir() / "driver" / digest.hexdigest()[:24] / LIBRARY
    if target.exists():
        return target
    unknown = set(omitted) - set(exported()) if omitted else set()
    if unknown:
        raise BuildError(f"the library has no {', '.join(sorted(unknown))} to leave out")
    target.parent.mkdir(parents=True, exist_ok=True)
    with _staging(target.parent) as staging:
        (staging / "error_texts.h").write_text(_error_texts(), encoding="ascii")
        (staging / "symbols.map").write_text(_version_script(omitted), encoding="ascii")
        built = staging / LIBRARY
        units = [str(source) for source in sources if source.suffix == ".c"]
        flags = [*_FLAGS, f"-I{staging}", f"-Wl,--version-script={staging / 'symbols.map'}"]
        _run(["gcc", *flags, "-o", str(built), *units, "-lpthread"])
        built.replace(target)
    return target


def _version_script(omitted: list[str]) -> str:
    hidden = " ".join(f"{name};" for name in omitted)
    return f"{{ global: nvml*; local: {hidden} *; }};\n"


def _error_texts() -> str:
    """The initialisers of nvmlErrorString's table, from the one list of texts."""
    last = max(code for code in codes.TEXTS if code != codes.UNKNOWN)
    return "".join(f'    "{codes.text_of(code)}",\n' for code in range(last + 1))


@contextlib.contextmanager
def _staging(parent: Path) -> Iterator[Path]:
    staging = Path(tempfile.mkdtemp(prefix=".build.", dir=parent))
    try:
        yield staging
    finally:
        shutil.rmtree(staging)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise BuildError(f"{command[0]} is not installed") from error
    if done.returncode != 0:
        raise BuildError(f"{command[0]} failed:\n{done.stderr}")
    return done.stdout


def smi_path(python: str = "/usr/bin/python3") -> Path:
    """nvidia-smi as one executable file, run by that interpreter. Returns its path in the cache."""
    members = sorted([HERE / "client.py", HERE / "codes.py", *(HERE / "smi").glob("*.py")])
    digest = hashlib.sha256(python.encode())
    for member in members:
        digest.update(member.read_bytes())
    target = cache_dir() / "driver" / digest.hexdigest()[:24] / "nvidia-smi"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _staging(target.parent) as staging:
        package = staging / "tree" / "simulated_smi"
        (package / "smi").mkdir(parents=True)
        (package / "__init__.py").touch()
        for member in members:
            shutil.copy(member, package / member.relative_to(HERE))
        archive = staging / "nvidia-smi"
        zipapp.create_archive(staging / "tree", archive, f"{python} -IS", main="simulated_smi.smi.program:run")
        archive.chmod(0o755)
        archive.replace(target)
    return target


def nodes(scenario: Scenario) -> list[str]:
    """Names in /dev of the device nodes that a host with this driver has."""
    if not scenario.device_nodes:
        return []
    shared = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
    return shared + [f"nvidia{gpu.minor}" for gpu in scenario.gpus if gpu.visible]
