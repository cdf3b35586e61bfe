# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is read of an environment without running anything in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.installed import (
    Torch,
    find_installation,
    has_plugins,
    shebang,
)
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._preflight.environment import make


def test_versions_are_read_from_files(tmp_path: Path) -> None:
    executable = make(tmp_path / "venv")
    found = find_installation(str(executable))
    assert found is not None
    assert (found.prefix, found.version) == (str(tmp_path / "venv"), "0.33.0")
    assert found.package == str(tmp_path / "venv/lib/python3.12/site-packages/vllm")
    assert found.torch == Torch("2.11.0", "13.0", None)


def test_a_link_leads_to_the_environment(tmp_path: Path) -> None:
    executable = make(tmp_path / "venv")
    link = tmp_path / "usr/local/bin/vllm"
    link.parent.mkdir(parents=True)
    link.symlink_to(executable)
    found = find_installation(str(link))
    assert found is not None and found.version == "0.33.0"


@pytest.mark.parametrize(("torch", "cuda", "said"), [
    ("2.11.0+cpu", None, Torch("2.11.0+cpu", None)),
    ("2.9.1+cu128", "12.8", Torch("2.9.1+cu128", "12.8")),
])
def test_torch_says_what_it_was_built_for(tmp_path: Path, torch: str, cuda: str | None, said: Torch) -> None:
    found = find_installation(str(make(tmp_path, torch=torch, cuda=cuda)))
    assert found is not None and found.torch == said


def test_a_wheels_name_stands_in_for_torchs_own_file(tmp_path: Path) -> None:
    executable = make(tmp_path, torch="2.9.1+cu128")
    (tmp_path / "lib/python3.12/site-packages/torch/version.py").unlink()
    found = find_installation(str(executable))
    assert found is not None and found.torch == Torch("2.9.1+cu128", "12.8")


def test_a_build_without_metadata_says_its_version_itself(tmp_path: Path) -> None:
    executable = make(tmp_path)
    site = tmp_path / "lib/python3.12/site-packages"
    (site / "vllm-0.33.0.dist-info/METADATA").unlink()
    (site / "vllm-0.33.0.dist-info").rmdir()
    (site / "vllm/_version.py").write_text(
        "version: str\n__version__: str\n__version__ = version = '0.32.1'\n__version_tuple__ = (0, 32, 1)\n", encoding="utf-8"
    )
    found = find_installation(str(executable))
    assert found is not None and found.version == "0.32.1"


def test_a_wrapper_belongs_to_nothing(tmp_path: Path) -> None:
    wrapper = tmp_path / "bin/vllm"
    wrapper.parent.mkdir()
    wrapper.write_text("#!/bin/sh\nexec docker run vllm\n", encoding="utf-8")
    assert find_installation(str(wrapper)) is None
    assert find_installation("/nowhere/at/all") is None


@pytest.mark.parametrize(("text", "said"), [
    (b"#!/opt/vllm/bin/python3\n", "/opt/vllm/bin/python3"),
    (b"#! /usr/bin/python3 -I\n", "/usr/bin/python3"),
    (b"#!/usr/bin/env python3\n", None),
    (b"#!/bin/sh\n'''exec' \"/a b/bin/python\" \"$0\" \"$@\"\n", "/a b/bin/python"),
    (b"#!/bin/sh\necho\n", "/bin/sh"),
    (b"\x7fELF", None),
    (b"#!\n", None),
    (b"", None),
])
def test_the_interpreter_of_a_script(tmp_path: Path, text: bytes, said: str | None) -> None:
    script = tmp_path / "script"
    script.write_bytes(text)
    assert shebang(str(script)) == said


def test_plugins_are_seen(tmp_path: Path) -> None:
    found = find_installation(str(make(tmp_path)))
    assert found is not None and not has_plugins(found)
    entry = tmp_path / "lib/python3.12/site-packages/acme-1.0.dist-info/entry_points.txt"
    entry.parent.mkdir()
    entry.write_text("[console_scripts]\nx = y\n\n[vllm.platform_plugins]\nacme = acme:register\n", encoding="utf-8")
    assert has_plugins(found)
