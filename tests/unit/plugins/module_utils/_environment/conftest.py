# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's corner for installations: the tests' own index, the real installers, nothing of the machine's own configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Dict, List, Sequence

import pytest
from packages.index import Index, wheel

from ansible_collections.gpufleet.vllm.plugins.module_utils._environment.run import Ports, ensure
from ansible_collections.gpufleet.vllm.plugins.module_utils._environment.users import User


class Host:
    """Calls the core as the module does, with real installers and a table of who runs from where."""

    def __init__(self, root: Path, index: Index) -> None:
        self.path = root / "opt" / "vllm"
        self.index = index
        self.users: List[User] = []
        self.asked_for: List[List[str]] = []
        self.free = 50000

    def users_of(self, directories: Sequence[str]) -> List[User]:
        """Who runs from there, by the table."""
        self.asked_for.append(list(directories))
        return self.users

    def params(self, **options: Any) -> Dict[str, Any]:
        """Parameters as the module passes them."""
        return {
            "path": str(self.path), "version": "0.32.0", "package": "vllm", "requirements": ["nvidia-ml-py"], "constraints": [],
            "dependencies": True, "python": sys.executable, "installer": "uv", "index_url": self.index.url, "extra_index_urls": [],
            "space_mib": 100, "keep": 1, "timeout": 120.0, "proof_timeout": 30.0, **options,
        }  # fmt: skip

    def ensure(self, check_mode: bool = False, **options: Any) -> Dict[str, Any]:
        """One run of the module."""
        ports = Ports(users_of=self.users_of, free_mib=lambda path: self.free)
        return ensure(self.params(**options), ports, check_mode)

    @property
    def trees(self) -> List[str]:
        """What lies beside the path, but for the lock."""
        directory = Path(str(self.path) + ".versions")
        return sorted(each.name for each in directory.iterdir() if each.name != ".lock") if directory.exists() else []

    def everything(self) -> Dict[str, int]:
        """Every file under the path's parent with its time, to see that nothing was touched."""
        return {str(each): each.lstat().st_mtime_ns for each in self.path.parent.rglob("*")}


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the index has."""
    directory = tmp_path_factory.mktemp("wheels")
    wheel(directory, "nvidia-ml-py", "13.615.71", scripts=False)
    wheel(directory, "torch", "2.13.0", scripts=False)
    wheel(directory, "torch", "2.12.0", scripts=False)
    wheel(directory, "vllm", "0.31.0", requires=["torch==2.12.0"])
    wheel(directory, "vllm", "0.32.0", requires=["torch==2.13.0"])
    wheel(directory, "vllm", "0.33.0", requires=["torch==2.13.0"])
    wheel(directory, "vllm", "0.33.1", body="crashes")
    wheel(directory, "vllm", "0.33.2", body="hangs")
    wheel(directory, "vllm", "0.33.3", body="lies")
    wheel(directory, "vllm", "0.33.4", requires=["torch==9.9"])
    wheel(directory, "vllm", "0.34.0", python=">=3.99")
    return directory


@pytest.fixture
def index(wheels: Path) -> Iterator[Index]:
    """The index, of which nothing is wrong yet."""
    with Index(wheels) as running:
        yield running


@pytest.fixture
def host(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host on which nothing is installed yet."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    values = {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0", "UV_NO_CONFIG": "1", "UV_HTTP_RETRIES": "0",
              "HOME": str(tmp_path / "home"), "UV_CACHE_DIR": str(tmp_path / "cache"),
              "PIP_CACHE_DIR": str(tmp_path / "cache"),
              "PATH": "%s:/usr/bin:/bin" % Path(sys.executable).parent}  # fmt: skip
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "opt").mkdir()
    return Host(tmp_path, index)
