# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module says of options that cannot be, before anything of the host is looked at."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpufleet.vllm.plugins.modules import vllm_service


@pytest.mark.parametrize("wrong", [
    {"port": 0}, {"gpus": []}, {"model": ""}, {"secrets": {"VLLM_API_KEY": "k\n"}}, {"guard": {"timeout": 0}},
])
def test_a_refused_option_leaves_no_doubt_about_the_host(capfd: pytest.CaptureFixture[str], wrong: dict[str, Any]) -> None:
    with patch_module_args({"name": "q", "model": "/models/q", **wrong}), pytest.raises(SystemExit):
        vllm_service.main()
    said = json.loads(capfd.readouterr().out)
    assert said["failed"] and said["msg"].endswith("Nothing was touched."), said
    assert (said["actions"], said["rolled_back"]) == ([], False)
    # What is always returned stands in the least that there is to return, and nothing else may be promised.
    returned = yaml.safe_load(vllm_service.RETURN)
    assert {name for name, value in returned.items() if value["returned"] == "always"} == {"actions", "rolled_back"} <= set(said)
