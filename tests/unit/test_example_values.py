# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is copied from an example: the whole of a deployment, and no secret that everybody knows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import ROOT

FILTERS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "plugins" / "filter").glob("*.yml"))
CATALOGUES = sorted((ROOT / "inventories" / "example").rglob("*.yml"))
# What the name of the service may be read from; every other key would have to be listed, and the one that is not is lost.
NAME = re.compile(r"\bdeployment\.(?!name\b)\w+")


def tasks(path: str) -> list[dict[str, Any]]:
    text = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))["EXAMPLES"]
    return [task["gpufleet.vllm.vllm_service"] for task in yaml.safe_load(text) if "gpufleet.vllm.vllm_service" in task]


def test_a_deployment_is_handed_over_whole() -> None:
    shown = {path: tasks(path) for path in FILTERS}
    assert {path for path, found in shown.items() if found} == {"plugins/filter/deployment.yml", "plugins/filter/time_limit.yml"}
    for path, found in shown.items():
        for options in found:
            assert options["deployment"] == "{{ deployment }}", path
            assert NAME.findall(str(options)) == [], path


@pytest.mark.parametrize("path", CATALOGUES, ids=lambda path: path.name)
def test_a_secret_is_a_variable_of_a_vault_and_nothing_else(path: Path) -> None:
    for entry in (yaml.safe_load(path.read_text(encoding="utf-8")).get("vllm_models") or {}).values():
        for value in (entry.get("secrets") or {}).values():
            assert re.fullmatch(r"\{\{ vault_\w+ \}\}", value), value


def test_there_is_a_secret_in_the_example() -> None:
    assert any("vault_vllm_api_key" in path.read_text(encoding="utf-8") for path in CATALOGUES)
