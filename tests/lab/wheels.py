# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Python wheels for the hosts: fetched with pip for each base's Python, kept in the cache, unpacked without pip."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

from lab import places
from lab.errors import LabError

# Newest first; pip takes any of them.
_GLIBC_TAGS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")


def distribution(requirement: str) -> str:
    """The normalised project name of a pinned requirement: ``PyYAML==6.0.3`` is ``pyyaml``."""
    return re.sub(r"[-_.]+", "_", requirement.partition("==")[0]).lower()


def _cached(directory: Path, requirement: str, python: str) -> Path | None:
    name, version = distribution(requirement), requirement.partition("==")[2]
    for path in sorted(directory.glob(f"*-{version}-*.whl")):
        parts = path.name.removesuffix(".whl").split("-")
        if distribution(parts[0]) == name and parts[-3] in (f"cp{python.replace('.', '')}", "py3", "py2.py3"):
            return path
    return None


def fetch(requirement: str, python: str, cache: Path) -> Path:
    """The wheel of ``requirement`` (``name==version``) for Python ``python`` (such as ``3.11``); fetched if need be."""
    directory = cache / "wheels"
    directory.mkdir(parents=True, exist_ok=True)
    wheel = _cached(directory, requirement, python)
    if wheel is not None:
        return wheel
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    argv += ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}", f"--dest={directory}"]
    argv += [f"--platform={tag}_{places.architecture().wheel}" for tag in _GLIBC_TAGS]
    result = subprocess.run([*argv, requirement], capture_output=True, text=True, check=False, timeout=600)
    wheel = _cached(directory, requirement, python)
    if result.returncode != 0 or wheel is None:
        raise LabError(
            f"pip could not fetch {requirement} for Python {python}:\n{(result.stderr or result.stdout).strip()}\n"
            "Check that pip can reach its package index, then run the command again."
        )
    return wheel


def unpack(wheel: Path, directory: Path) -> None:
    """Put a wheel's packages and metadata into ``directory`` (a ``site-packages``)."""
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        odd = [name for name in names if name.startswith(("/", "..")) or ".data/" in name]
        if odd:
            raise LabError(f"{wheel.name} has files that need an installer: {odd[0]}")
        archive.extractall(directory)
        for name in names:
            target = directory / name
            target.chmod(0o755 if target.is_dir() else 0o644)
