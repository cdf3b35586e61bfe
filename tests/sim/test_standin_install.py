# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Putting the stand-in into a host's root, and telling it how to behave."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from lab.standin.behaviours import TABLE, Behaviours, Misused
from lab.standin.control import Standin
from lab.standin.install import install


def _snapshot(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in root.rglob("*")
        if path.is_file()
    }


def test_install_is_whole_and_idempotent(tmp_path: Path) -> None:
    install(tmp_path, "python3.13")
    program = tmp_path / "opt/vllm/bin/vllm"
    assert program.read_text().startswith("#!/opt/vllm/bin/python3\n")
    assert stat.S_IMODE(program.stat().st_mode) == 0o755
    packages = tmp_path / "opt/vllm/lib/python3.13/site-packages"
    installed = {path.name for path in (packages / "lab/standin").iterdir()}
    assert {"main.py", "engine.py", "worker.py", "server.py", "flags.json"} <= installed
    assert not installed & {"install.py", "control.py", "derive_flags.py"}
    assert (packages / "lab/driver/client.py").is_file()
    before = _snapshot(tmp_path)
    install(tmp_path, "python3.13")
    assert _snapshot(tmp_path) == before
    (packages / "lab/standin/old.py").touch()
    program.write_text("something else")
    install(tmp_path, "python3.13")
    assert {name: content for name, (_when, content) in _snapshot(tmp_path).items()} == {
        name: content for name, (_when, content) in before.items()
    }


def test_behave(tmp_path: Path) -> None:
    standin = Standin(tmp_path)
    standin.behave(load_seconds=3)
    standin.behave("m", ignore_sigterm=True)
    standin.behave("m", slow_stop=2.0)
    scenario = json.loads((tmp_path / "scenario.json").read_text())
    assert scenario.pop("_epoch")
    assert scenario == {"*": {"load_seconds": 3}, "m": {"ignore_sigterm": True, "slow_stop": 2.0}}
    assert (tmp_path / "scenario.json").stat().st_mode & 0o444 == 0o444
    standin.behave("m", slow_stop=None)
    assert standin.scenario()["m"] == {"ignore_sigterm": True}
    standin.clear("m")
    assert "m" not in standin.scenario()
    standin.clear()
    assert set(standin.scenario()) == {"_epoch"}


def test_behave_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    standin = Standin(tmp_path)
    with pytest.raises(Misused, match="no behaviour is called 'loud'"):
        standin.behave(loud=True)
    with pytest.raises(Misused, match="load_seconds can't be 'long'"):
        standin.behave(load_seconds="long")
    assert not (tmp_path / "scenario.json").exists()


def test_names_win_over_all_and_the_file_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standin = Standin(tmp_path)
    monkeypatch.setenv("STANDIN_SCENARIO", str(standin.path))
    monkeypatch.setenv("STANDIN_LOAD_SECONDS", "1")
    monkeypatch.setenv("STANDIN_IGNORE_SIGTERM", "1")
    assert (Behaviours(["m"])["load_seconds"], Behaviours(["m"])["ignore_sigterm"]) == (1, True)
    standin.behave(load_seconds=2)
    assert Behaviours(["m"])["load_seconds"] == 2
    standin.behave("m", load_seconds=3)
    found = Behaviours(["m"])
    assert (found["load_seconds"], Behaviours(["n"])["load_seconds"]) == (3, 2)
    standin.behave("m", load_seconds=4, ignore_sigterm=False)
    assert found["load_seconds"] == 3  # read at the start
    assert found["ignore_sigterm"] is False  # live


def test_every_behaviour_is_described_and_has_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_standin_*.py"))
    for name, row in TABLE.items():
        assert row.says and row.read in ("start", "live")
        assert not name.upper().startswith("VLLM_")
        assert f"{name}=" in tests or f"STANDIN_{name.upper()}=" in tests, f"no test provokes {name}"
    assert not [name for name in os.environ if name.startswith("STANDIN_")]
