# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A role's variable that no task of it reads would be accepted and do nothing."""

from __future__ import annotations

import re

import pytest

from .conftest import ROOT, Collection

ROLES = Collection().roles()


@pytest.mark.parametrize("role", ROLES)
def test_every_variable_is_read(collection: Collection, role: str) -> None:
    options = collection.yaml("roles/%s/meta/argument_specs.yml" % role)["argument_specs"]["main"]["options"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "roles" / role / "tasks").glob("*.yml")))
    read = set(re.findall(r"\b%s_\w+" % role, text))
    assert sorted(set(options) - read) == []
