# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two ansible-cores that the gates run with: the oldest supported one and the newest."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import List, NamedTuple

from tree import ROOT

OLDEST = ROOT / ".venv"
NEWEST = ROOT / ".venv-newest"
_ASK = (
    "import importlib.metadata as m, json, sys, ansible_test;"
    " print(json.dumps([m.version('ansible-core'), '%d.%d' % sys.version_info[:2], list(ansible_test.__path__)[0]]))"
)


class Core(NamedTuple):
    """An ansible-core in an environment: its ``version`` (2.19.14), the ``python`` that runs it (3.11), its test tool's files."""

    venv: Path
    version: str
    python: str
    ansible_test: Path

    @property
    def minor(self) -> str:
        """The release it belongs to, as 2.19."""
        return ".".join(self.version.split(".")[:2])


def core(venv: Path) -> Core:
    """What an environment holds. SystemExit with what to do when it holds none."""
    try:
        done = subprocess.run([str(venv / "bin" / "python"), "-I", "-c", _ASK], capture_output=True, text=True, check=False)
        version, python, ansible_test = json.loads(done.stdout)
    except (OSError, ValueError):
        raise SystemExit("There is no ansible-core in %s. Run: make venv venv-newest" % venv) from None
    return Core(venv, version, python, Path(ansible_test))


def supported_from() -> str:
    """The oldest release that the collection says it supports, as 2.19."""
    text = (ROOT / "meta" / "runtime.yml").read_text(encoding="utf-8")
    found = re.search(r"""^requires_ansible:\s*['"]>=([0-9]+\.[0-9]+)""", text, re.MULTILINE)
    if found is None:
        raise SystemExit("meta/runtime.yml: requires_ansible does not begin with >= and a version.")
    return found.group(1)


def complaints(cores: List[Core]) -> List[str]:
    """What keeps these from being the oldest supported core and a newer one; nothing when they are."""
    found = []
    if cores[0].minor != supported_from():
        found.append(
            "%s holds ansible-core %s, not the oldest supported %s, which needs Python 3.11 to 3.13. Install one"
            " (.venv/bin/uv python install 3.11) and run: make clean venv PYTHON=/path/to/it"
            % (cores[0].venv.name, cores[0].version, supported_from())
        )
    if [int(part) for part in cores[-1].minor.split(".")] <= [int(part) for part in cores[0].minor.split(".")]:
        found.append("%s holds no newer ansible-core than %s does." % (cores[-1].venv.name, cores[0].venv.name))
    return found
