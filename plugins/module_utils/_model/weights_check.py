# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the weights on disk are all there, and are what the configuration says they are."""

from __future__ import annotations

from typing import List, Optional, Sequence, Set

from .check import FAIL, PASS, WARN, Check, counted
from .checkpoint import Checkpoint
from .quantisation import Quantisation
from .types import ModelFacts

_DOWNLOAD = "Wait for the download, or run it again."
_NAMED = 3


def check_weights(facts: ModelFacts, checkpoint: Checkpoint) -> List[Check]:
    """``weights``: whether all of them are there; the others (layers, dtype, encoder) only when something doesn't agree."""
    checks = [_there(checkpoint)]
    if checkpoint.complete:
        checks += _layers(facts, checkpoint)
    if checkpoint.dtype_bytes and checkpoint.format == "safetensors":
        checks += _dtype(facts.quantisation, checkpoint)
        checks += _encoder(facts.quantisation, checkpoint)
    return checks


def _layers(facts: ModelFacts, checkpoint: Checkpoint) -> List[Check]:
    """Weights of another model than the configuration's: fewer layers, or more than it and its predictions have."""
    if facts.layers is None or checkpoint.last_layer is None:
        return []
    there = checkpoint.last_layer + 1
    detail = "%s says %d layers, and the weights have %d" % (facts.source, facts.layers, there)
    fix = "Take the configuration that came with these weights."
    if there < facts.layers:
        return [Check("weights_layers", FAIL, detail, fix)]
    if there > facts.layers + facts.num_nextn_predict_layers:
        return [Check("weights_layers", WARN, detail, fix)]
    return []


def _there(checkpoint: Checkpoint) -> Check:
    problems = []
    if checkpoint.missing_files:
        problems.append(
            "%s missing (%s)" % (_are(len(checkpoint.missing_files), "weight file"), _some(checkpoint.missing_files))
        )
    if checkpoint.broken:
        name, what = checkpoint.broken[0]
        others = len(checkpoint.broken) - 1
        more = ", and %d more %s broken" % (others, "is" if others == 1 else "are") if others else ""
        problems.append("%s %s%s" % (name, what, more))
    if checkpoint.missing_tensors:
        detail = "%s promised by the index and in no file (%s)"
        problems.append(detail % (_are(len(checkpoint.missing_tensors), "tensor"), _some(checkpoint.missing_tensors)))
    if not checkpoint.files and not problems:
        what = (
            "an adapter (LoRA) but no weights"
            if checkpoint.adapter
            else "no weights (.safetensors, .bin, .pt or .gguf)"
        )
        problems.append("%s holds %s" % (checkpoint.path, what))
    if problems:
        if checkpoint.pending:
            problems.append("a download is not finished (%s)" % _some(checkpoint.pending))
        return Check("weights", FAIL, "; ".join(problems), _DOWNLOAD)
    under_way = [name for name in checkpoint.pending if name.rsplit(".", 1)[0] in checkpoint.files]
    if under_way:
        # Some clients give a file its full length before it has its contents.
        return Check("weights", FAIL, "a download is not finished (%s)" % _some(under_way), _DOWNLOAD)
    said = "{:,} MiB in {}".format(checkpoint.total_bytes >> 20, counted(len(checkpoint.files), "file"))
    if checkpoint.format == "pytorch":
        return Check("weights", PASS, said + "; their format doesn't tell whether they are whole")
    return Check("weights", PASS, "%s, %s, all there" % (said, counted(checkpoint.tensors, "tensor")))


def _are(number: int, what: str) -> str:
    return "%s %s" % (counted(number, what), "is" if number == 1 else "are")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def _dtype(quantisation: Optional[Quantisation], checkpoint: Checkpoint) -> List[Check]:
    """A configuration that speaks of another checkpoint: vLLM then reads the weights as what they aren't."""
    fp8 = any(dtype.startswith("F8") and size for dtype, size in checkpoint.dtype_bytes.items())
    if quantisation is None:
        if fp8 or checkpoint.dtype_bytes.get("F4"):
            detail = "the weights are in FP8, and %s has no quantization_config" % "config.json"
            return [Check("weights_dtype", WARN, detail, "Take the configuration that came with these weights.")]
        return []
    if quantisation.method not in ("fp8", "fbgemm_fp8"):
        return []
    total = sum(checkpoint.dtype_bytes.values())
    small = checkpoint.dtype_bytes.get("U8", 0) + checkpoint.dtype_bytes.get("I8", 0)
    if fp8 or small or not total:
        return []
    most = max(checkpoint.dtype_bytes, key=lambda dtype: checkpoint.dtype_bytes[dtype])
    detail = "quantization_config says %s, but no weights are: most are %s" % (quantisation.method, most)
    return [
        Check(
            "weights_dtype", FAIL, detail, "Remove quantization_config from config.json, or take the quantised weights."
        )
    ]


def _encoder(quantisation: Optional[Quantisation], checkpoint: Checkpoint) -> List[Check]:
    """Vision and audio encoders that were quantised along, though their sizes don't divide into groups."""
    if quantisation is None or not quantisation.group:
        return []
    sizes: Set[int] = set()
    packed = 32 // (quantisation.bits or 4)
    for suffix, rows, columns in checkpoint.encoder_packed:
        if suffix == "weight_packed":
            sizes.add(columns * packed)
        else:
            sizes.add(rows if quantisation.method.startswith("awq") else rows * packed)
    bad = sorted(size for size in sizes if size % quantisation.group)
    if not bad:
        return []
    detail = "the encoder beside the language model was quantised, and its input size %d is not a multiple of the %s group size %d"
    fix = "Take a checkpoint that leaves the encoder as it was."
    return [Check("weights_encoder", FAIL, detail % (bad[0], quantisation.method, quantisation.group), fix)]
