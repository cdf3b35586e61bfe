# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who runs from an environment: by the program it was started as, and, where it calls itself something else, by what it has mapped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._environment.users import User, users_of

# A child as vLLM's are: its command line names no path of the environment, a library of it is mapped.
MAPS = "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); print('.', flush=True); input()"
IDLES = "print('.', flush=True); input()"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Something like an environment."""
    (tmp_path / "vllm" / "bin").mkdir(parents=True)
    (tmp_path / "vllm" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "vllm" / "libtorch.so").write_bytes(b"x" * 4096)
    return tmp_path / "vllm"


@pytest.mark.parametrize("how", ["its program", "what it has mapped"])
def test_who_runs_from_it_is_found(tree: Path, how: str) -> None:
    command = [str(tree / "bin" / "python"), "-c", IDLES]
    if how == "what it has mapped":
        # The path would give it away on the command line, if that were looked at beyond its first words.
        command = [sys.executable, "-c", MAPS, str(tree / "libtorch.so")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()  # type: ignore[union-attr]
        found = users_of([str(tree)])
        beside = users_of([str(tree)[:-1], str(tree) + "-0.34.0"])
        process.communicate(b"\n")
    assert [user.pid for user in found] == [process.pid] and beside == []
    assert users_of([str(tree)]) == []


def test_a_unit_is_named(tmp_path: Path) -> None:
    process = tmp_path / "4711"
    process.mkdir()
    (process / "cmdline").write_bytes(b"/opt/vllm/bin/python\0/opt/vllm/bin/vllm\0serve\0")
    (process / "comm").write_text("vllm\n", encoding="utf-8")
    (process / "cgroup").write_text("0::/system.slice/vllm-qwen3.service\n", encoding="utf-8")
    assert users_of(["/opt/vllm"], root=str(tmp_path)) == [User(4711, "vllm", "vllm-qwen3.service")]
    assert str(User(4711, "vllm", "vllm-qwen3.service")) == "vllm (pid 4711, vllm-qwen3.service)"
