# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""galaxy-importer on the built tarball: what Galaxy itself runs before it takes a release. Its warnings are failures here.

    tests/gates/importer.py

It leaves ansible-test to the gate that runs it with every interpreter of this machine (tests/gates/sanity.py), and ansible-lint to
the one that runs it with the production profile (tests/gates/lint.py): here it is given three minutes, which a busy machine does
not have.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import List

import tarball
from checks import PATH

DONE = "Importer processing completed successfully"
_CONFIG = """[galaxy-importer]
RUN_ANSIBLE_TEST = False
RUN_FLAKE8 = False
RUN_ANSIBLE_LINT = False
CHECK_REQUIRED_TAGS = True
CHECK_CHANGELOG = True
ANSIBLE_LOCAL_TMP = %s
"""


def problems(output: str, returncode: int) -> List[str]:
    """What Galaxy would hold against the tarball, a line each."""
    found = [line for line in output.splitlines() if re.match(r"(WARNING|ERROR|CRITICAL): ", line)]
    if returncode or DONE not in output:
        found.append("galaxy-importer ended with exit code %d" % returncode)
    return found


def check(built: Path) -> List[str]:
    """Run it on a tarball. What Galaxy would hold against it; all that was said comes first."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-importer-") as place:
        config = Path(place, "galaxy-importer.cfg")
        config.write_text(_CONFIG % Path(place, "ansible"), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "galaxy_importer.main", str(built)],
            cwd=place, env={**os.environ, "PATH": PATH, "GALAXY_IMPORTER_CONFIG": str(config)}, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
    found = problems(done.stdout, done.returncode)
    return [*done.stdout.splitlines(), *found] if found else []


def main() -> int:
    """Entry point."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-importer-") as place:
        found = check(tarball.build(Path(place)))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
