# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is no file is never waited for: a named pipe has no end until somebody writes into it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._model.checkpoint import read_checkpoint
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.facts import facts_from_config
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.installed import (
    find_installation,
    has_plugins,
    shebang,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.quick import quick_checkpoint
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.regular import is_lfs_pointer, open_regular
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._preflight.checkpoints import minimax, write
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._preflight.environment import make


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """A read that waits ends the test."""

    def waited(_number: int, _frame: object) -> None:
        raise TimeoutError("something waits for a pipe's writer")

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"])
def test_a_pipe_among_the_shards_is_left_to_the_look_which_names_it(name: str, tmp_path: Path) -> None:
    config, shards = minimax(scales="BF16")
    directory, facts = write(tmp_path / "m", shards, config), facts_from_config(config)
    _pipe(directory / name)
    assert quick_checkpoint(str(directory), facts) is None
    if name.endswith(".safetensors"):
        assert name in str(read_checkpoint(str(directory), facts.layers).broken)


def test_a_pipe_in_the_environment_is_as_good_as_no_file(tmp_path: Path) -> None:
    executable = make(tmp_path)
    installation = find_installation(str(executable))
    assert installation is not None and installation.torch is not None
    _pipe(Path(installation.site[0]) / "vllm-0.33.0.dist-info/entry_points.txt")
    assert not has_plugins(installation)
    _pipe(executable)
    assert shebang(str(executable)) is None


def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with open_regular(str(tmp_path / "f")) as handle:
        assert handle.read(7) == b"version"
    assert is_lfs_pointer(str(tmp_path / "f")) and not is_lfs_pointer(str(tmp_path)) and not is_lfs_pointer(str(tmp_path / "none"))
    before = len(os.listdir("/proc/self/fd"))
    _pipe(tmp_path / "p")
    for path in (tmp_path / "p", tmp_path, Path("/dev/null")):
        with pytest.raises(OSError, match="regular file|directory"):
            open_regular(str(path))
    assert len(os.listdir("/proc/self/fd")) == before
