# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put the stand-in where a real vLLM would be: /opt/vllm of a host's root."""

from __future__ import annotations

import json
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
# What a look at an installation reads without running it, in the places where the real ones have it.
_ARGUMENTS = """\
# The arguments of the stand-in, in the form in which vLLM's own source adds them.
class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
{lines}
        return parser
"""
_TORCH = """\
from typing import Optional

__version__ = '{version}'
cuda: Optional[str] = '{cuda}'
hip: Optional[str] = None
"""
_TORCH_VERSION, _TORCH_CUDA = "2.11.0", "13.0"
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
    wanted |= {packages / name: text.encode() for name, text in _installation().items()}
    for target, content in wanted.items():
        _write(target, content, 0o644)
    standin = packages / "lab" / "standin"
    for leftover in set(standin.glob("*.py")) - set(wanted):
        leftover.unlink()
    shutil.rmtree(standin / "__pycache__", ignore_errors=True)
    _write(place / "bin" / "vllm", _PROGRAM.format(prefix=prefix).encode(), 0o755)


def _installation() -> dict[str, str]:
    table = json.loads((_HERE / "flags.json").read_text(encoding="utf-8"))
    version = table["version"]
    lines = [f'        parser.add_argument({", ".join(json.dumps(flag) for flag in entry["flags"])})' for entry in table["flags"]]
    return {
        f"vllm-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n",
        "vllm/engine/arg_utils.py": _ARGUMENTS.format(lines="\n".join(lines)),
        f"torch-{_TORCH_VERSION}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {_TORCH_VERSION}\n",
        "torch/version.py": _TORCH.format(version=_TORCH_VERSION, cuda=_TORCH_CUDA),
    }


def _write(target: Path, content: bytes, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_file() or target.read_bytes() != content:
        temporary = target.with_name(target.name + ".new")
        temporary.write_bytes(content)
        temporary.chmod(mode)
        temporary.rename(target)
    if target.stat().st_mode & 0o777 != mode:
        target.chmod(mode)
