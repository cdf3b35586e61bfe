# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights on the rank that has most: of a stage, split over its ranks, with what stands on several of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Tuple, Union

from .._model.types import ModelFacts
from .arguments import EngineArgs
from .cache import stage_layers
from .count import LayerBytes, ModelBytes, count
from .layers import draft_unknown, extra_layers
from .types import CheckpointBytes, Gpu
from .versions import Behaviour, hopper

# An estimate and a checkpoint that are further apart than this are of different things: an encoder, more layers.
_SAME = 0.15


@dataclass(frozen=True)
class Weights:
    """Bytes on one rank of each stage. ``exact``: from the checkpoint's own size rather than counted."""

    stages: Tuple[float, ...]
    exact: bool
    notes: Tuple[str, ...] = ()

    @property
    def most(self) -> float:
        """Of the stage that has most."""
        return max(self.stages)


def weights(
    facts: ModelFacts, checkpoint: Optional[CheckpointBytes], args: EngineArgs, gpu: Optional[Gpu], how: Behaviour
) -> Union[Weights, str]:
    """The weights as loaded, or why they can't be known."""
    if checkpoint is not None and not 0 < checkpoint.total <= 2**50:
        checkpoint = None
    counted = count(facts, args)
    if counted is not None and not 0 < counted.total <= 2**50:
        counted = None
    if counted is None:
        if checkpoint is None:
            return "neither the checkpoint's size nor all of the model's sizes are known"
        return _evenly(facts, checkpoint, args)
    encoder = 0.0
    notes: List[str] = []
    if checkpoint is None:
        if facts.encoder_heads:
            notes.append("The weights are counted from the model's sizes, without its encoders.")
    else:
        counted, encoder = _fitted(facts, checkpoint, args, counted)
    if facts.quantisation is not None and "mxfp4" in facts.quantisation.method:
        counted = _grown(facts, args, counted, gpu, how)
    if draft_unknown(args):
        notes.append("The weights and the cache of the draft model are not part of the plan.")
    stages = _stages(facts, args, counted, encoder)
    offload = args.cpu_offload_gb * 2**30
    return Weights(tuple(max(stage - offload, 0.0) for stage in stages), checkpoint is not None, tuple(notes))


def _evenly(facts: ModelFacts, checkpoint: CheckpointBytes, args: EngineArgs) -> Weights:
    """Nothing but a total: the stage with most layers, split over its ranks."""
    layers, stages = facts.layers, min(args.pipeline_parallel_size, 2**20)
    total = checkpoint.total - (
        0 if extra_layers(facts, args) else min(checkpoint.roles.get("nextn", 0), checkpoint.total)
    )
    share = 1 / stages
    if layers is not None and 1 <= stages <= layers:
        share = -(-layers // stages) / layers
    ranks = args.tensor_parallel_size
    offload = args.cpu_offload_gb * 2**30
    return Weights((max(total * share / ranks - offload, 0.0),), True)


def _fitted(
    facts: ModelFacts, checkpoint: CheckpointBytes, args: EngineArgs, counted: ModelBytes
) -> Tuple[ModelBytes, float]:
    """What was counted, brought to the checkpoint's size: by role where that is known, else all of it alike."""
    recast = _recast(facts, checkpoint, args)
    total = checkpoint.total * recast
    roles = {name: size * recast for name, size in checkpoint.roles.items() if 0 <= size <= checkpoint.total}
    encoder = roles.get("encoder", 0.0)
    # Some checkpoints have the next-token-prediction layers that their configuration names, some don't: by the size.
    nextn = facts.num_nextn_predict_layers * counted.nextn.total
    if abs(total - encoder - counted.total) <= abs(total - encoder - counted.total - nextn):
        nextn = 0.0
    if roles:
        nextn = roles.get("nextn", 0.0)
    embedding = roles.get("embedding", counted.embedding)
    head = roles.get("head", 0.0 if "embedding" in roles else counted.head)
    routed = sum(layer.experts for layer in counted.layers)
    rest = sum(layer.total for layer in counted.layers) - routed
    layers = max(total - encoder - nextn - embedding - head, 0.0)
    if routed and "experts" in roles:
        for_routed, for_rest = roles["experts"] / routed, max(layers - roles["experts"], 0.0) / rest if rest else 1.0
    else:
        ratio = layers / (routed + rest) if routed + rest else 1.0
        if ratio > 1 + _SAME and not roles and facts.encoder_heads:
            encoder, ratio = layers - routed - rest, 1.0
        for_routed = for_rest = ratio
    scaled = ModelBytes(
        layers=tuple(layer.scaled(for_rest, for_routed) for layer in counted.layers),
        embedding=embedding,
        head=head,
        nextn=counted.nextn.scaled(for_rest, for_routed),
    )
    return scaled, encoder


def _recast(facts: ModelFacts, checkpoint: CheckpointBytes, args: EngineArgs) -> float:
    """Weights stored as float32 are loaded in half precision; those that vLLM quantises on load shrink too."""
    factor = 1.0
    if facts.quantisation is None:
        wide = checkpoint.total if "float32" in (facts.dtype or "") else 0
        if checkpoint.float32 is not None:
            wide = min(max(checkpoint.float32, 0), checkpoint.total)
        if args.dtype not in ("float32", "float"):
            factor -= wide / checkpoint.total / 2
        if args.quantization in ("fp8", "experts_int8"):
            factor *= 0.5
    return factor


def _grown(facts: ModelFacts, args: EngineArgs, counted: ModelBytes, gpu: Optional[Gpu], how: Behaviour) -> ModelBytes:
    """MXFP4 experts are padded to what the kernels need (fused_moe/oracle/mxfp4.py): the hidden size to 256, the width on
    one rank to 128. With Triton on Hopper the width to 64, and of the hidden size the values alone, not their scales."""
    if facts.hidden_size is None or facts.expert_width is None:
        return counted
    triton = hopper(gpu) and how.mxfp4_triton
    parts = 1 if args.enable_expert_parallel else min(args.tensor_parallel_size * args.data_parallel_size, 2**20)
    width = facts.expert_width / parts
    step = 64 if triton else 128
    hidden = -(-facts.hidden_size // 256) * 256 / facts.hidden_size
    if triton:
        hidden = 1 + (hidden - 1) * 16 / 17  # 32 values are 16 bytes, their scale is one more
    factor = min(-(-width // step) * step / width * hidden, 4.0)
    return ModelBytes(
        tuple(layer.scaled(1.0, factor) for layer in counted.layers),
        counted.embedding,
        counted.head,
        counted.nextn.scaled(1.0, factor),
    )


def _stages(facts: ModelFacts, args: EngineArgs, counted: ModelBytes, encoder: float) -> List[float]:
    tp, pp = args.tensor_parallel_size, min(args.pipeline_parallel_size, len(counted.layers))
    expert_ranks = tp * args.data_parallel_size

    def on_rank(layer: LayerBytes) -> float:
        kv = layer.kv / min(tp, layer.kv_heads)
        return layer.split / tp + kv + layer.whole + layer.experts / expert_ranks

    found = [sum(on_rank(counted.layers[index]) for index in stage) for stage in stage_layers(len(counted.layers), pp)]
    found[0] += counted.embedding / tp
    if counted.head:
        found[-1] += counted.head / tp
    elif pp > 1:
        found[-1] += counted.embedding / tp  # tied: the last stage needs it too
    found[0] += encoder if args.encoder_data_parallel else encoder / tp
    found[-1] += extra_layers(facts, args) * on_rank(counted.nextn)
    return found
