# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bases: root file systems made once with debootstrap, kept in the cache, never changed afterwards.

A base is built under a temporary name and renamed when it is complete, so that a half-built one is never used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from lab import apt, locks, wheels
from lab.errors import LabError
from lab.recipe import Recipe, recipe

_BUILD_SECONDS = 1800.0
_OWN_NAMESPACES = ("setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child=KILL")
_ENABLED_UNITS = {
    "systemd-networkd.service": "multi-user.target.wants",
    "systemd-networkd.socket": "sockets.target.wants",
}
_FILES = {
    # Kept over a power cut, as on a server; small, since a host lives for minutes.
    "etc/systemd/journald.conf.d/10-lab.conf": "[Journal]\nStorage=persistent\nSystemMaxUse=64M\n",
    # No name server is reachable: an empty list makes look-ups fail at once.
    "etc/resolv.conf": "",
}


def base_path(base: str, cache: Path) -> Path:
    """Where the base is, or will be once it is built."""
    return cache / "bases" / f"{base}-{recipe(base).key()}"


def ensure(base: str, cache: Path, say: Callable[[str], None]) -> Path:
    """The root of the base, built now if it isn't there (a minute or two, network needed)."""
    path = base_path(base, cache)
    if path.is_dir():
        return path
    with locks.exclusive(cache / f"{base}.lock", _BUILD_SECONDS, f"another build of the base {base}"):
        if not path.is_dir():
            say(f"building the base {base} in {cache} (once; a minute or two)")
            _build(recipe(base), path, cache)
    return path


def _build(wanted: Recipe, path: Path, cache: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".building-{wanted.suite}-*"):
        shutil.rmtree(left)
    root = path.with_name(f".building-{wanted.suite}-{os.getpid()}")
    fetched = {requirement: wheels.fetch(requirement, wanted.python, cache) for requirement in wanted.wheels}
    _debootstrap(wanted, root, cache)
    _configure(wanted, root)
    _add_python(wanted, root, fetched)
    root.chmod(0o755)
    os.sync()
    root.rename(path)


def _debootstrap(wanted: Recipe, root: Path, cache: Path) -> None:
    mirror = apt.debian_mirror()
    packages = cache / "debs"
    packages.mkdir(parents=True, exist_ok=True)
    log = cache / f"{wanted.suite}.log"
    argv = ["debootstrap", "--variant=minbase", f"--arch={wanted.architecture}", f"--cache-dir={packages}"]
    argv += [f"--include={','.join(wanted.packages)}", wanted.suite, str(root)]
    argv += [mirror] if mirror else []
    # In namespaces of its own: what it mounts and starts goes away with it, and it goes away with this process.
    with log.open("w", encoding="utf-8") as output:
        result = subprocess.run(
            [*_OWN_NAMESPACES, *argv],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **apt.proxy_environment(mirror), "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
            check=False,
            timeout=_BUILD_SECONDS,
        )
    if result.returncode != 0:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:])
        raise LabError(
            f"debootstrap of {wanted.suite} from {mirror or 'its default mirror'} failed (status {result.returncode}); "
            f"the end of {log}:\n{tail}\n"
            f"If that mirror doesn't carry {wanted.suite}, name one that does in {apt.MIRROR_VARIABLE}."
        )
    shutil.rmtree(root / "debootstrap", ignore_errors=True)


def _configure(wanted: Recipe, root: Path) -> None:
    units = root / "etc/systemd/system"
    for name in wanted.masked_units:
        target = units / name
        target.unlink(missing_ok=True)
        target.symlink_to("/dev/null")
    for name, wants in _ENABLED_UNITS.items():
        (units / wants).mkdir(exist_ok=True)
        link = units / wants / name
        link.unlink(missing_ok=True)
        link.symlink_to(f"/usr/lib/systemd/system/{name}")
    sshd = "".join(f"{option}\n" for option in wanted.sshd_options)
    for name, text in {**_FILES, "etc/ssh/sshd_config.d/10-lab.conf": sshd}.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_text(text, encoding="utf-8")
    # Each host gets its own.
    for target in [root / "etc/hostname", *(root / "etc/ssh").glob("ssh_host_*")]:
        target.unlink(missing_ok=True)
    (root / "etc/machine-id").write_text("", encoding="ascii")
    for name in ("models", "var/log/journal"):
        (root / name).mkdir(exist_ok=True)
    for directory in (root / "var/cache/apt/archives", root / "var/lib/apt/lists"):
        shutil.rmtree(directory, ignore_errors=True)
        (directory / "partial").mkdir(parents=True)


def _add_python(wanted: Recipe, root: Path, fetched: dict[str, Path]) -> None:
    result = subprocess.run(
        ["chroot", str(root), "/usr/bin/python3", "-m", "venv", "--without-pip", "/opt/vllm"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if result.returncode != 0:
        raise LabError(f"can't make /opt/vllm in the base {wanted.suite}:\n{result.stderr.strip()}")
    version = subprocess.run(
        ["chroot", str(root), "/opt/vllm/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.strip()
    if version != wanted.python:
        raise LabError(f"the base {wanted.suite} has Python {version}, not {wanted.python}: mend tests/lab/recipe.py")
    for requirement, wheel in fetched.items():
        wheels.unpack(wheel, root / site_directory(requirement, wanted.python_dir))


def site_directory(requirement: str, python_dir: str) -> str:
    """Where a wheel goes: the driver's binding to the system's Python, all else to the stand-in's environment."""
    if wheels.distribution(requirement) == "nvidia_ml_py":
        return f"usr/local/lib/{python_dir}/dist-packages"
    return f"opt/vllm/lib/{python_dir}/site-packages"
