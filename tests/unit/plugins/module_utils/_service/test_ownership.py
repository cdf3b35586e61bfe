# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose a unit is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ownership import (
    OURS,
    refuse_foreign_unit,
    refuse_newer,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ports import Paths, Ports
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.show import UnitStatus
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.found import parse_managed
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.render import FORMAT, render_unit
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.spec import ServiceSpec

UNIT = "vllm-x.service"
TEXT = render_unit(ServiceSpec("x", "/models/x", "x", (0,)))


@pytest.mark.parametrize(("text", "newer"), [
    (TEXT, False),
    (TEXT.replace("Format=%d" % FORMAT, "Format=%d" % (FORMAT + 1)), True),
    (TEXT.replace("Format=%d" % FORMAT, "Format=%d" % (FORMAT + 1)).replace("Port=", "Door="), True),
    (TEXT.replace("Format=%d\n" % FORMAT, ""), False),
    (TEXT.replace("Format=%d" % FORMAT, 'Format="x"'), False),
])  # fmt: skip
def test_what_a_newer_version_wrote_is_left_alone(text: str, newer: bool) -> None:
    own = parse_managed(text, "/etc/systemd/system/" + UNIT)
    assert own is not None
    if not newer:
        return refuse_newer(own)
    with pytest.raises(GpuFleetError, match="newer version"):
        refuse_newer(own)


def _status(active: str = "active", pid: int = 7, load: str = "not-found", fragment: str = "") -> UnitStatus:
    return UnitStatus(UNIT, load, active, "running", main_pid=pid, fragment_path=fragment)


def _host(tmp_path: Path, argv: Optional[str], config: Optional[bytes]) -> tuple[Ports, str]:
    if argv is not None:
        process = tmp_path / "proc" / "7"
        process.mkdir(parents=True)
        (process / "cmdline").write_bytes(argv.replace(" ", "\0").encode() + b"\0")
        (process / "stat").write_text("7 (vllm) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0 0")
        (process / "status").write_text("Name:\tvllm\nState:\tS (sleeping)\nUid:\t0\t0\t0\t0\n")
    path = tmp_path / "x.yaml"
    if config is not None:
        path.write_bytes(config)
    made: Any = Ports(paths=Paths(units=str(tmp_path / "units"), proc=str(tmp_path / "proc")))
    return made, str(path)


@pytest.mark.parametrize(("argv", "config", "pid", "ours"), [
    ("/opt/vllm/bin/python /opt/vllm/bin/vllm serve /m --config CONFIG", None, 7, True),
    ("/opt/vllm/bin/vllm serve /m --config CONFIG", b"theirs", 7, True),
    ("/bin/sleep 1000", OURS + b"\n", 7, False),  # a unit of somebody else's that took the name
    (None, OURS + b"\n", 0, True),  # on its way up: no process yet, and our configuration is there
    (None, b"theirs", 0, False),
    (None, None, 0, False),
])  # fmt: skip
def test_a_unit_without_a_file_is_known_by_its_server(tmp_path: Path, argv: str, config: bytes, pid: int, ours: bool) -> None:
    path = str(tmp_path / "x.yaml")
    ports, path = _host(tmp_path, argv.replace("CONFIG", path) if argv else None, config)
    seen = _status("active" if pid else "activating", pid)
    if ours:
        return refuse_foreign_unit(UNIT, seen, None, path, ports)
    with pytest.raises(GpuFleetError, match="did not write it"):
        refuse_foreign_unit(UNIT, seen, None, path, ports)


def test_a_vendors_unit_is_never_ours(tmp_path: Path) -> None:
    ports, path = _host(tmp_path, "/opt/vllm/bin/vllm serve --config %s" % (tmp_path / "x.yaml"), OURS)
    vendors = tmp_path / "lib.service"
    vendors.write_text("[Service]\nExecStart=/bin/true\n")
    with pytest.raises(GpuFleetError, match="did not write it"):
        refuse_foreign_unit(UNIT, _status(load="loaded", fragment=str(vendors)), None, path, ports)


def test_a_mask_over_nothing_is_in_nobodys_way(tmp_path: Path) -> None:
    ports, path = _host(tmp_path, None, None)
    refuse_foreign_unit(UNIT, _status("inactive", 0, "masked"), None, path, ports)
