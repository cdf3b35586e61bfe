# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make build`: the collection's tarball, from the tracked files, into build/.

ansible-galaxy packs whatever lies in the directory; a checkout holds much that nobody needs. So it is run on the copy
of the tracked files, and galaxy.yml's build_ignore leaves out what only a checkout uses.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Iterator

import tree


def build(output: Path) -> Path:
    """Build the tarball of the tracked files, as they are now, into a directory; returns its path."""
    with tree.copy("tarball") as copy:
        return build_from(copy, output)


def build_from(source: Path, output: Path) -> Path:
    """Build the tarball of a directory into another one, over an older one of the same version; returns its path."""
    output.mkdir(parents=True, exist_ok=True)
    before = {path: path.stat().st_mtime_ns for path in output.glob("gpufleet-vllm-*.tar.gz")}
    galaxy = Path(sys.executable).parent / "ansible-galaxy"
    subprocess.run(
        [str(galaxy), "collection", "build", "--force", "--output-path", str(output), str(source)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    new = [path for path in output.glob("gpufleet-vllm-*.tar.gz") if before.get(path) != path.stat().st_mtime_ns]
    if len(new) != 1:
        raise SystemExit("ansible-galaxy built %d tarballs in %s, not one." % (len(new), output))
    return new[0]


@contextlib.contextmanager
def unpacked(purpose: str) -> Iterator[Path]:
    """What users install, where Ansible's tools want it; for one user of this ``purpose`` at a time."""
    with tree.place(purpose) as target, tempfile.TemporaryDirectory(prefix="gpufleet-tarball-") as output:
        with tarfile.open(build(Path(output))) as opened:
            opened.extractall(target, filter="data")
        yield target


if __name__ == "__main__":
    print(build(tree.ROOT / "build"))
