# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The layer between a base and a host: the simulated driver's files and the stand-in vLLM, from this checkout.

It is built anew for each state of the code and never changed while a host stands on it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Collection
from pathlib import Path

from lab import locks, places
from lab.errors import LabError
from lab.recipe import recipe

_ASSETS = Path(__file__).with_name("assets")
_SOURCES = (Path(__file__).with_name("driver"), Path(__file__).with_name("standin"), _ASSETS)
HARDWARE_SCRIPT = "/usr/lib/gpufleet-lab/gpu-hardware"
_HARDWARE_UNIT = "lab-gpu-hardware.service"
_WAITING_SECONDS = 600.0
# The linker's cache must know the driver's library, as after a real driver's installation.
_LDCONFIG = 'mount -t overlay overlay -o "lowerdir=$1,upperdir=$2,workdir=$3" "$4"; exec chroot "$4" /sbin/ldconfig'


def key(base_root: Path) -> str:
    """Twelve hexadecimal digits that change with the base and with every file that goes into the layer."""
    digest = hashlib.sha256(base_root.name.encode())
    for directory in (*_SOURCES, Path(__file__).parent):
        pattern = "layers.py" if directory == Path(__file__).parent else "**/*"
        for path in sorted(directory.glob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(str(path.relative_to(directory)).encode() + b"\0")
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def lowers(base: str, base_root: Path, state: Path) -> list[Path]:
    """What a host of ``base`` stands on, the topmost first: the layer of the code as it is now, and the base."""
    path = state / "layers" / f"{base}-{key(base_root)}"
    if not path.is_dir():
        with locks.exclusive(state / "layers" / ".lock", 300.0, "another build of a layer"):
            if not path.is_dir():
                _build(base, base_root, path)
    return [path, base_root]


def prune(state: Path, used: Collection[Path]) -> None:
    """Delete the layers that no host stands on; a new one may be waiting for its host."""
    oldest = time.time() - _WAITING_SECONDS
    for path in (state / "layers").iterdir():
        if path.is_dir() and path not in used and path.stat().st_ctime < oldest:
            shutil.rmtree(path)


def _build(base: str, base_root: Path, path: Path) -> None:
    draft = path.with_name(f".building-{base}-{os.getpid()}")
    if draft.exists():
        shutil.rmtree(draft)
    root = draft / "root"
    root.mkdir(parents=True)
    _install(root, recipe(base).python_dir)
    for name in ("work", "merged"):
        (draft / name).mkdir()
    result = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", _LDCONFIG, "sh"]
        + [str(part) for part in (base_root, root, draft / "work", draft / "merged")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if result.returncode != 0:
        raise LabError(f"ldconfig in the layer for {base} failed:\n{result.stderr.strip()}")
    root.rename(path)
    shutil.rmtree(draft)


def _install(root: Path, python_dir: str) -> None:
    from lab.driver import build
    from lab.standin import install

    libraries = root / "usr/lib" / places.architecture().multiarch
    libraries.mkdir(parents=True)
    library = build.build_library(libraries)
    if library.name != "libnvidia-ml.so.1":
        raise LabError(f"the simulated driver's library is called {library.name}, not libnvidia-ml.so.1")
    _copy(build.smi_path(), root / "usr/bin/nvidia-smi", 0o755)
    install.install(root, python_dir)
    _copy(_ASSETS / "gpu-hardware", root / HARDWARE_SCRIPT.lstrip("/"), 0o755)
    _copy(_ASSETS / _HARDWARE_UNIT, root / "etc/systemd/system" / _HARDWARE_UNIT, 0o644)
    wants = root / "etc/systemd/system/sysinit.target.wants"
    wants.mkdir()
    (wants / _HARDWARE_UNIT).symlink_to(f"../{_HARDWARE_UNIT}")


def _copy(source: Path, target: Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)
