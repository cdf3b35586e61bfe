# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Running the collection's playbooks as a user would, and reading what a user would read.

Each report that a run leaves is held against its published schema.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report_schemas import faults

ROOT = Path(__file__).resolve().parents[2]
_RECAP = re.compile(r"^(\S+)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)\s+skipped=(\d+)\s+rescued=(\d+)", re.M)


@dataclass(frozen=True)
class Ran:
    """How a playbook ended. ``report`` is the JSON report it left, None when it left none."""

    rc: int
    out: str
    report: dict[str, Any] | None

    @property
    def recap(self) -> dict[str, dict[str, int]]:
        """The numbers of PLAY RECAP by host."""
        names = ("ok", "changed", "unreachable", "failed", "skipped", "rescued")
        return {found[0]: dict(zip(names, map(int, found[1:]), strict=True)) for found in _RECAP.findall(self.out)}

    @property
    def changed(self) -> dict[str, int]:
        """``changed=`` by host, the controller itself left out."""
        return {host: numbers["changed"] for host, numbers in self.recap.items() if host != "localhost"}

    def expect(self, rc: int = 0) -> Ran:
        """This run, if it ended as expected; the whole output otherwise."""
        assert self.rc == rc, f"exit status {self.rc}, expected {rc}\n{self.out}"
        return self


def playbook(name: str, *arguments: str, reports: Path | None = None, env: dict[str, str] | None = None, timeout: float = 300) -> Ran:
    """Run one of the collection's playbooks from the checkout against the lab, or the file of this name that imports one."""
    file = name if name.endswith(".yml") else f"playbooks/{name}.yml"
    command = [str(Path(sys.executable).parent / "ansible-playbook"), file, "-i", "inventories/lab", *arguments]
    before = set(reports.glob("*.json")) if reports is not None and reports.is_dir() else set()
    if reports is not None:
        command += ["-e", f"report_dir={reports}"]
    full = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0", "PYTHONUNBUFFERED": "1", **(env or {})}
    done = subprocess.run(command, cwd=ROOT, env=full, capture_output=True, text=True, timeout=timeout, check=False)
    left = sorted(set(reports.glob("*.json")) - before) if reports is not None and reports.is_dir() else []
    read = [json.loads(path.read_text()) for path in left]
    for report in read:
        assert (wrong := faults(report)) == [], "\n".join(wrong)
    return Ran(done.returncode, done.stdout + done.stderr, read[-1] if read else None)
