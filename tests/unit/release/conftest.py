# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small tree, and the tarball that ansible-galaxy would make of it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml
from release import contents

GALAXY = {"namespace": "gpufleet", "name": "vllm", "version": "0.1.0", "license": ["GPL-3.0-or-later"], "repository": "https://git.example.com/x"}

Pack = Callable[..., Path]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with all that must be in a tarball, and a test that must not."""
    place = tmp_path / "tree"
    for name in [*contents.NEEDED, "tests/unit/test_x.py"]:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("%s\n" % name, encoding="utf-8")
    (place / "galaxy.yml").write_text(yaml.safe_dump(GALAXY), encoding="utf-8")
    return place


def tracked_in(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]


@pytest.fixture
def pack(root: Path, tmp_path: Path) -> Pack:
    """Packs what belongs in a tarball, or other ``files`` by name; ``sums`` are checksums that FILES.json has wrong."""

    def make(
        files: Mapping[str, bytes] | None = None, sums: Mapping[str, str] | None = None, links: Mapping[str, str] | None = None,
        name: str = "gpufleet-vllm-0.1.0.tar.gz", backwards: bool = False,
    ) -> Path:  # fmt: skip
        held = dict(files) if files is not None else {each: (root / each).read_bytes() for each in sorted(contents.NEEDED)}
        listed = [{"name": each, "ftype": "file", "chksum_sha256": hashlib.sha256(data).hexdigest()} for each, data in held.items()]
        listed = [{**each, "chksum_sha256": (sums or {}).get(each["name"], each["chksum_sha256"])} for each in listed]
        held["FILES.json"] = json.dumps({"files": listed[::-1] if backwards else listed}).encode()
        manifest = {"collection_info": GALAXY, "file_manifest_file": {"chksum_sha256": hashlib.sha256(held["FILES.json"]).hexdigest()}}
        held["MANIFEST.json"] = json.dumps(manifest).encode()
        built = tmp_path / ("backwards" if backwards else "built") / name
        built.parent.mkdir(exist_ok=True)
        with tarfile.open(built, "w:gz") as archive:
            for each, data in held.items():
                member = tarfile.TarInfo(each)
                member.size, member.mode = len(data), 0o644
                archive.addfile(member, io.BytesIO(data))
            for each, target in (links or {}).items():
                link = tarfile.TarInfo(each)
                link.type, link.linkname = tarfile.SYMTYPE, target
                archive.addfile(link)
        return built

    return make
