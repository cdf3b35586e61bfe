# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A message stays one that somebody reads, whatever a configuration holds."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._model.checkpoint import Checkpoint
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.parallel import Check, check_parallel
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.types import ModelFacts
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.weights_check import check_weights
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.report import Report, line_of


@pytest.mark.parametrize("long", ["x" * 45000, "y " * 22500])
def test_what_is_repeated_is_cut(long: str) -> None:
    check = Check("quantisation", "fail", "quant_method %s is not known" % long, "Correct %s." % long)
    (entry,) = Report((check,)).to_result()["checks"]
    assert len(entry["detail"]) < 2100 and len(entry["fix"]) < 2100 and "characters)" in entry["detail"]
    assert len(line_of(check)) < 4300


def test_one_of_a_kind_is_not_spoken_of_as_many() -> None:
    facts = ModelFacts("/m", "config.json", layers=1, attention_heads=8, kv_heads=8, vocab_size=64)
    (one,) = [check for check in check_parallel(facts, 1, gpu_count=2) if check.id == "gpu_count"]
    assert "Give the service 1 GPU," in str(one.fix)
    (two,) = [check for check in check_parallel(facts, 2, gpu_count=1) if check.id == "gpu_count"]
    assert "Give the service 2 GPUs," in str(two.fix)
    for number, said in ((1, "1 weight file is missing"), (2, "2 weight files are missing")):
        names = tuple("model-%d.safetensors" % each for each in range(number))
        (weights,) = check_weights(facts, Checkpoint("/m", "safetensors", missing_files=names))
        assert said in weights.detail


def test_what_is_as_usual_is_left_as_it_is() -> None:
    check = Check("weights", "warn", "/models/" + "a" * 300 + "/config.json is there", None)
    assert Report((check,)).to_result()["checks"] == [check.to_result()]
    assert line_of(check) == "weights: " + check.detail + "."
