# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The changelog lists what a release brought."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import changelog
import pytest
import yaml
from tree import ROOT

LISTED = {"modules": [{"name": "one"}], "plugins": {"filter": [{"name": "rows"}]}}


def collection(root: Path, release: Dict[str, Any], since: str = "0.2.0") -> Path:
    for name, text in {
        "plugins/modules/one.py": 'DOCUMENTATION = r"""\nmodule: one\nversion_added: %s\noptions:\n  new:\n    version_added: 9.0.0\n"""\n',
        "plugins/filter/rows.yml": "DOCUMENTATION:\n  name: rows\n  version_added: '%s'\n",
        "plugins/filter/rows.py": "# %s\n",
        "plugins/action/one.py": "version_added: %s\n",
        "changelogs/changelog.yaml": yaml.safe_dump({"releases": {"0.1.0": {}, "0.2.0": release}}) + "# %s\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text % since, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("release", "missing"),
    [
        (LISTED, []),
        ({**LISTED, "modules": []}, ["modules/one"]),
        ({**LISTED, "plugins": {"filter": []}}, ["filter/rows"]),
        ({}, ["filter/rows", "modules/one"]),
    ],
)
def test_what_a_release_brought_and_does_not_list_is_found(tmp_path: Path, release: Dict[str, Any], missing: list[str]) -> None:
    found = changelog.unlisted(collection(tmp_path, release))
    assert [line.split(" does not list ")[1].split(":")[0] for line in found] == missing
    assert all("release 0.2.0" in line and "--update-existing --reload-plugins" in line for line in found)


def test_a_release_still_to_come_lists_nothing(tmp_path: Path) -> None:
    assert changelog.unlisted(collection(tmp_path, {}, since="0.3.0")) == []


def test_this_one_lists_every_module_and_plugin() -> None:
    assert changelog.unlisted(ROOT) == []
    releases = yaml.safe_load((ROOT / "changelogs" / "changelog.yaml").read_text(encoding="utf-8"))["releases"]
    listed = {f"{kind}/{each['name']}" for release in releases.values() for kind, those in
              {"modules": release["modules"], **release["plugins"]}.items() for each in those}  # fmt: skip
    there = {f"{path.parent.name}/{path.stem}" for path in [*ROOT.glob("plugins/modules/*.py"), *ROOT.glob("plugins/filter/*.yml")]}
    assert there and there - listed == set()
