# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guard as one file."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core import zipapp
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.unpack import unpack
from ansible_collections.gpufleet.vllm.plugins.module_utils._guard import exit_codes
from ansible_collections.gpufleet.vllm.plugins.module_utils._guard.zipapp import build_guard

ROOT = Path(__file__).resolve().parents[5]
PACKAGE = "ansible_collections/gpufleet/vllm/plugins/module_utils"


@pytest.fixture(scope="module")
def built() -> bytes:
    """The guard's bytes."""
    return build_guard()


def test_it_holds_the_guards_sources_and_nothing_more(built: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(built)) as archive:
        assert archive.testzip() is None
        for name in archive.namelist():
            if name != "__main__.py" and not name.endswith("__init__.py"):
                source = ROOT / "plugins" / "module_utils" / name.split("/", 1)[1]
                assert archive.read(name) == source.read_bytes()
        rooms = {name.split("/")[1] for name in archive.namelist() if name.count("/") > 1}
    assert rooms == {"_core", "_gpu", "_guard", "_process"}
    assert built.startswith(b"#!/usr/bin/python3\n") and len(built) < 300_000


def test_it_is_the_same_wherever_it_is_built(built: bytes, tmp_path: Path) -> None:
    # as Ansible runs it: from a zip file, in another time, by another user's umask
    payload = tmp_path / "payload.zip"
    with zipfile.ZipFile(payload, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted((ROOT / "plugins" / "module_utils").rglob("*.py")):
            archive.write(source, "%s/%s" % (PACKAGE, source.relative_to(ROOT / "plugins" / "module_utils")))
        for parent in ("ansible_collections", "ansible_collections/gpufleet", "ansible_collections/gpufleet/vllm",
                       "ansible_collections/gpufleet/vllm/plugins", PACKAGE):
            archive.writestr(parent + "/__init__.py", "")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from %s._guard.zipapp import build_guard\n"
        "sys.stdout.buffer.write(build_guard())\n" % PACKAGE.replace("/", ".")
    )
    done = subprocess.run([sys.executable, "-I", "-c", code, str(payload)], capture_output=True, check=True, timeout=60,
                          env={"TZ": "Pacific/Auckland", "PATH": os.environ["PATH"]})
    assert done.stdout == built


def test_it_runs_by_itself(built: bytes, tmp_path: Path) -> None:
    guard = tmp_path / "gpu-guard.pyz"
    guard.write_bytes(built)
    argv = [sys.executable, "-I", "-S", str(guard), "--unit", "x.service", "--gpus", "0", "--utilization", "0.9", "--timeout", "0"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env={"PATH": "/nowhere"}, check=False)
    assert done.returncode == exit_codes.DRIVER
    assert "gpu-guard: x.service is not started (DRIVER): the GPU driver can't be read" in done.stdout
    assert subprocess.run([sys.executable, str(guard)], capture_output=True, timeout=60, check=False).returncode == exit_codes.USAGE


def test_it_runs_what_is_compiled_of_it(tmp_path: Path) -> None:
    guard, code = tmp_path / "gpu-guard.pyz", tmp_path / "code"
    guard.write_bytes(zipapp.build("_guard.main", "gpufleet_guard", str(code)))
    unpack(str(guard), str(code))
    words = [sys.executable, "-I", "-S", "-v", str(guard), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert "--utilization" in done.stdout and f"matches {code}" in done.stderr


def _pythons() -> list[str]:
    """Every interpreter of a supported version on this machine: the system's, those on PATH, and pyenv's."""
    places = [Path(entry) for entry in ("/usr/bin", *os.environ.get("PATH", "").split(os.pathsep)) if entry and "shims" not in entry]
    places += Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin")
    found = {str(place / name) for place in places for name in ("python3.9", "python3.10", "python3.11", "python3.12", "python3.13")}
    return sorted(path for path in found if os.access(path, os.X_OK)) or [sys.executable]


@pytest.mark.parametrize("python", _pythons())
def test_it_runs_on_every_python_that_is_here(built: bytes, tmp_path: Path, python: str) -> None:
    guard = tmp_path / "gpu-guard.pyz"
    guard.write_bytes(built)
    done = subprocess.run([python, "-I", "-S", str(guard), "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "--utilization" in done.stdout


def test_without_sources_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(zipapp, "_PLACE", str(tmp_path))
    with pytest.raises(GpuFleetError, match="Install the collection with its .py files"):
        build_guard()


def test_out_of_a_zip_file_nothing_is_compiled_to_be_packed(tmp_path: Path) -> None:
    payload = tmp_path / "payload.zip"
    with zipfile.ZipFile(payload, "w") as archive:
        for source in sorted((ROOT / "plugins" / "module_utils").rglob("*.py")):
            archive.write(source, "packed/%s" % source.relative_to(ROOT / "plugins" / "module_utils"))
        archive.writestr("packed/__init__.py", "")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from packed._core import zipapp\n"
        "from packed._guard.zipapp import build_guard\n"
        "compiled = []\n"
        "sys.addaudithook(lambda event, more: compiled.append(str(more[1])) if event == 'compile' else None)\n"
        "sys.stdout.write('%d bytes, %d compiled' % (len(build_guard()), len([name for name in compiled if 'payload.zip' in name])))\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code, str(payload)], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.endswith(" bytes, 0 compiled") and not done.stdout.startswith("0 ")
