# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A message stays one that somebody reads, whatever a configuration holds."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._model.parallel import Check
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.report import Report, line_of


@pytest.mark.parametrize("long", ["x" * 45000, "y " * 22500])
def test_what_is_repeated_is_cut(long: str) -> None:
    check = Check("quantisation", "fail", "quant_method %s is not known" % long, "Correct %s." % long)
    (entry,) = Report((check,)).to_result()["checks"]
    assert len(entry["detail"]) < 2100 and len(entry["fix"]) < 2100 and "characters)" in entry["detail"]
    assert len(line_of(check)) < 4300


def test_what_is_as_usual_is_left_as_it_is() -> None:
    check = Check("weights", "warn", "/models/" + "a" * 300 + "/config.json is there", None)
    assert Report((check,)).to_result()["checks"] == [check.to_result()]
    assert line_of(check) == "weights: " + check.detail + "."
