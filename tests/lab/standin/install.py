# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put the stand-in where a real vLLM would be: /opt/vllm of a host's root."""

from __future__ import annotations

import shutil
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_LAB = _HERE.parent
_NOT_INSTALLED = {"install.py", "control.py", "derive_flags.py"}

_PROGRAM = """\
#!{prefix}/bin/python3
import sys

from lab.standin.main import main

if __name__ == "__main__":
    sys.exit(main())
"""
_PACKAGE = '"""Parts of the lab that run in its hosts."""\n'


def install(root: Path, python_dir: str, prefix: str = "/opt/vllm") -> None:
    """Copy the stand-in and the driver's client below root, as prefix has them inside of it.

    python_dir is the name below lib, "python3.11". The environment's own python3, PyYAML and setproctitle are there
    already. What is the same stays untouched, so that it can be done again and again.
    """
    place = root / prefix.lstrip("/")
    packages = place / "lib" / python_dir / "site-packages"
    wanted: dict[Path, bytes] = {
        packages / "lab" / "__init__.py": _PACKAGE.encode(),
        packages / "lab" / "driver" / "__init__.py": _PACKAGE.encode(),
        packages / "lab" / "driver" / "client.py": (_LAB / "driver" / "client.py").read_bytes(),
    }
    for source in sorted(_HERE.iterdir()):
        if source.suffix in (".py", ".json") and source.name not in _NOT_INSTALLED:
            wanted[packages / "lab" / "standin" / source.name] = source.read_bytes()
    for target, content in wanted.items():
        _write(target, content, 0o644)
    standin = packages / "lab" / "standin"
    for leftover in set(standin.glob("*.py")) - set(wanted):
        leftover.unlink()
    shutil.rmtree(standin / "__pycache__", ignore_errors=True)
    _write(place / "bin" / "vllm", _PROGRAM.format(prefix=prefix).encode(), 0o755)


def _write(target: Path, content: bytes, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_file() or target.read_bytes() != content:
        temporary = target.with_name(target.name + ".new")
        temporary.write_bytes(content)
        temporary.chmod(mode)
        temporary.rename(target)
    if target.stat().st_mode & 0o777 != mode:
        target.chmod(mode)
