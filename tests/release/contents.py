# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tarball may hold and must hold, and whether it is what the tree holds."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import yaml

# What ansible-galaxy writes itself. All else comes from the tree.
OWN = {"MANIFEST.json", "FILES.json"}
# Everything of the tree that belongs in the tarball, by where it is. A new kind of file needs a line here.
ALLOWED = (
    r"README\.md|LICENSE|CHANGELOG\.rst|requirements\.txt|bindep\.txt",
    r"meta/(runtime|execution-environment)\.yml",
    r"changelogs/(config|changelog)\.yaml|changelogs/fragments/[\w.-]+\.yml",
    r"docs/(?!design\.md|decisions\.md|dependencies\.md|_static)[\w./-]+\.(md|rst|json|yml|svg)",
    r"examples/ci/[\w-]+\.yml",
    r"inventories/example/[\w./-]+\.yml",
    r"playbooks/(tasks/)?\w+\.yml",
    r"plugins/(action|doc_fragments|filter|modules|module_utils|plugin_utils)/[\w/]+\.(py|yml)",
    r"plugins/module_utils/[\w/]+\.json",
    r"roles/\w+/(README\.md|(defaults|meta|tasks|handlers|vars)/\w+\.yml|(templates|files)/[\w.-]+)",
)
# What users were promised, and so must be there whatever the tree holds.
NEEDED = {
    "README.md", "LICENSE", "CHANGELOG.rst", "changelogs/changelog.yaml", "requirements.txt", "bindep.txt",
    "meta/runtime.yml", "meta/execution-environment.yml",
    "docs/index.md", "docs/errors.md", "docs/schemas/swap-model.schema.json", "examples/ci/github-actions.yml",
    "playbooks/swap_model.yml", "playbooks/tasks/swap_host.yml", "playbooks/gpu_cleanup.yml",
    "playbooks/tasks/swap_take_out.yml", "playbooks/tasks/swap_take_back.yml",
    "plugins/modules/vllm_service.py",
    "inventories/example/hosts.yml", "inventories/example/group_vars/gpu_hosts.yml",
    "roles/vllm_swap/README.md", "roles/vllm_service/README.md", "roles/gpu_reclaim/README.md",
}  # fmt: skip
# What one file, and the whole, may weigh. Nothing in here is large; something large got in by mistake.
FILE_KIB = 120
TARBALL_KIB = 900


def allowed(name: str) -> bool:
    """Whether a file of the tree, by its path from the root, belongs in the tarball."""
    return any(re.fullmatch(pattern, name) for pattern in ALLOWED)


def files(built: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of each plain file in a tarball. ValueError for a link, a device, or a name that comes twice."""
    found: dict[str, tuple[int, bytes]] = {}
    with tarfile.open(built) as archive:
        for member in archive.getmembers():
            if member.isdir():
                continue
            opened = archive.extractfile(member) if member.isfile() else None
            if opened is None or member.name in found:
                raise ValueError("%s: %s is %s" % (built.name, member.name, "no plain file" if opened is None else "there twice"))
            found[member.name] = (member.mode & 0o777, opened.read())
    return found


def problems(built: Path, root: Path, tracked: Collection[str]) -> list[str]:
    """What is wrong with a tarball, a line each.

    ``root`` is the tree that it was built from, ``tracked`` the paths of its files that git knows.
    """
    try:
        held = files(built)
    except ValueError as error:
        return [str(error)]
    expected = {name for name in tracked if allowed(name)} | NEEDED | OWN
    found = ["%s does not belong in it" % name for name in sorted(set(held) - expected)]
    found += ["%s is missing" % name for name in sorted(expected - set(held))]
    found += ["%s weighs more than %d KiB" % (name, FILE_KIB) for name, (_mode, data) in held.items() if len(data) > FILE_KIB * 1024]
    if built.stat().st_size > TARBALL_KIB * 1024:
        found.append("the whole weighs more than %d KiB" % TARBALL_KIB)
    if set(held) >= OWN:
        found += _manifest_problems(built, held, root)
    return found


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _manifest_problems(built: Path, held: dict[str, tuple[int, bytes]], root: Path) -> Iterable[str]:
    """Where FILES.json, MANIFEST.json, the files beside them and the tree say different things."""
    manifest = json.loads(held["MANIFEST.json"][1])
    if manifest["file_manifest_file"]["chksum_sha256"] != _sum(held["FILES.json"][1]):
        yield "MANIFEST.json has another checksum of FILES.json"
    listed = {entry["name"]: entry["chksum_sha256"] for entry in json.loads(held["FILES.json"][1])["files"] if entry["ftype"] == "file"}
    for name in sorted(set(listed) ^ (set(held) - OWN)):
        yield "%s is %s FILES.json" % (name, "only in" if name in listed else "not in")
    for name in sorted(set(listed) & set(held)):
        if listed[name] != _sum(held[name][1]):
            yield "%s has another checksum in FILES.json" % name
        if not (root / name).is_file() or (root / name).read_bytes() != held[name][1]:
            yield "%s is another file in the tree" % name
    galaxy = yaml.safe_load((root / "galaxy.yml").read_text(encoding="utf-8"))
    info = manifest["collection_info"]
    for key in ("namespace", "name", "version", "license", "repository"):
        if info[key] != galaxy[key]:
            yield "MANIFEST.json says %s %s, galaxy.yml %s" % (key, info[key], galaxy[key])
    if built.name != "%(namespace)s-%(name)s-%(version)s.tar.gz" % galaxy:
        yield "its name is not that of galaxy.yml's version %s" % galaxy["version"]


def differences(one: Path, other: Path) -> list[str]:
    """The names of what is not the same in two tarballs.

    FILES.json lists the files as the file system gave them, so its order, and with it its checksum in MANIFEST.json, says nothing.
    """
    first, second = _comparable(files(one)), _comparable(files(other))
    return sorted(name for name in set(first) | set(second) if first.get(name) != second.get(name))


def _comparable(held: dict[str, tuple[int, bytes]]) -> dict[str, Any]:
    result: dict[str, Any] = dict(held)
    listed = json.loads(held["FILES.json"][1])
    listed["files"].sort(key=lambda entry: entry["name"])
    manifest = json.loads(held["MANIFEST.json"][1])
    del manifest["file_manifest_file"]["chksum_sha256"]
    return {**result, "FILES.json": listed, "MANIFEST.json": manifest}
