# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A place for models, and the tests' own hub with one in it."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Dict, List

import pytest
from hub.server import Hub, Model

from ansible_collections.gpufleet.vllm.plugins.module_utils._fetch.run import Ports, ensure

REPO = "tests/tiny"
BIG = 3_000_000


def content(seed: int = 0) -> Dict[str, bytes]:
    """A model's files: small ones, one in a directory, and two of weights."""
    noise = random.Random(seed)
    return {
        ".gitattributes": b"*.safetensors filter=lfs\n",
        "config.json": b'{"architectures": ["LlamaForCausalLM"], "seed": %d}\n' % seed,
        "original/params.json": b"{}\n",
        "model-00001-of-00002.safetensors": noise.randbytes(BIG),
        "model-00002-of-00002.safetensors": noise.randbytes(5000),
    }


class Place:
    """A directory for models on a host, and calls of the core as the module makes them."""

    def __init__(self, root: Path, hub: Hub) -> None:
        self.root = root / "models"
        self.root.mkdir()
        self.path = self.root / "tiny"
        self.hub = hub
        self.free = 1 << 40

    def params(self, **options: Any) -> Dict[str, Any]:
        """Parameters as the module passes them."""
        return {
            "path": str(self.path), "repo": REPO, "revision": self.hub.models[REPO].head, "source": None, "ssh_user": None,
            "endpoint": self.hub.url, "token": None, "python": sys.executable,
            "include": [], "exclude": [], "verify": "size", "refresh": False,
            "transfer": "http", "workers": 1, "retries": 2, "retry_delay": 0.05, "stall_timeout": 20.0, "timeout": 120.0,
            "min_free_mib": 0, **options,
        }  # fmt: skip

    def ensure(self, check_mode: bool = False, **options: Any) -> Dict[str, Any]:
        """One run of the module."""
        return ensure(self.params(**options), Ports(free_bytes=lambda path: self.free), check_mode)

    @property
    def names(self) -> List[str]:
        """What lies where models lie."""
        return sorted(each.name for each in self.root.iterdir())

    def files(self) -> Dict[str, bytes]:
        """The model's files, but for the record."""
        found = {str(each.relative_to(self.path)): each for each in self.path.rglob("*") if each.is_file()}
        return {name: each.read_bytes() for name, each in found.items() if name != ".gpufleet-model.json"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub of which nothing is wrong yet."""
    with Hub() as running:
        running.models[REPO] = Model(content())
        yield running


@pytest.fixture
def place(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A host without any model."""
    for name in list(os.environ):
        if name.startswith("HF_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return Place(tmp_path, hub)


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """A directory with a model that nobody says anything about."""
    directory = tmp_path / "mirror"
    for name, data in content().items():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return directory
