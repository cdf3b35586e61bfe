# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands on a GPU beside weights and KV cache: activations, the sampler's warm-up, CUDA graphs, NCCL and libraries.

None of it can be known before a start. Each part is a range: the likely value is what starts printed, the ends are the
least and the most that were seen for its class.
"""

from __future__ import annotations

from dataclasses import dataclass

from .._model.types import ModelFacts
from .arguments import EngineArgs
from .types import MIB, Gpu, Range
from .versions import Behaviour

# Experts per token where a configuration has more than one: eight in most models that have any.
_EXPERTS_PER_TOKEN = 8
# Without load, libraries and workspaces: what starts of small models printed as peak activation.
_LEAST_ACTIVATION_MIB = 300
# CUDA contexts beyond the first, NCCL and all-reduce buffers, MiB by ranks that work together: (least, likely, most).
# Printed: 0.07 to 0.26 GiB on one GPU, 0.55 on two, 0.2 (PCIe, custom all-reduce off) to 2.5 GiB on four and more.
_NON_TORCH = ((1, (70, 150, 300)), (2, (200, 570, 1200)))
_NON_TORCH_MORE = (200, 1200, 2600)
# Unified memory: the page cache of the files just read counts as used by the time that vLLM looks, and the processes'
# own memory does. One start on two DGX Spark had 8 GiB less than the rest leaves; one loader cost 4 GiB more than another.
_NON_TORCH_UNIFIED = (1000, 8000, 20000)
# All graphs that are captured up to 512 tokens, MiB: 0.2 to 3.5 GiB were printed.
_GRAPHS = (250, 1000, 2000)
_ALL_CAPTURES = 51


@dataclass(frozen=True)
class Overheads:
    """``warmup_bytes``: the sampler's on the last stage, as likely and at most. The rest per GPU."""

    warmup_bytes: int
    warmup_most: int
    activation: Range  # of the last stage: the larger of a forward pass and the warm-up
    forward: Range  # of the others
    non_torch: Range
    graphs: Range


def overheads(
    facts: ModelFacts, args: EngineArgs, gpu: Gpu, how: Behaviour, seqs: int, batched_tokens: int
) -> Overheads:
    """For a model whose sizes may be unknown: what isn't known counts as nothing, and the range's upper end grows."""
    cells = seqs * (facts.vocab_size or 0)
    least, likely, most = (cells * each for each in how.sampler_bytes)
    forward = _forward(facts, args, batched_tokens)
    unknown_vocab = 2048 if facts.vocab_size is None else 0
    return Overheads(
        warmup_bytes=likely,
        warmup_most=most,
        activation=Range(
            max(least // MIB, forward.low),
            max(likely // MIB, forward.likely),
            max(most // MIB, forward.high) + unknown_vocab,
        ),
        forward=forward,
        non_torch=_non_torch(args, gpu),
        graphs=_graphs(args, seqs),
    )


def _forward(facts: ModelFacts, args: EngineArgs, batched_tokens: int) -> Range:
    """A pass over max_num_batched_tokens: hidden states, and the widest intermediate of an MLP or of experts."""
    hidden, tp = facts.hidden_size or 0, args.tensor_parallel_size
    values = 4 * hidden + 3 * max(facts.dense_width or 0, facts.shared_width or 0) // tp
    if facts.moe and facts.expert_widths:
        part = max(facts.expert_widths) // (1 if args.enable_expert_parallel else tp)
        # Of all tokens only those that come to this rank's experts, when whole experts are spread.
        copies = _EXPERTS_PER_TOKEN / (tp if args.enable_expert_parallel else 1)
        values = max(values, 4 * hidden + int(copies * (max(2 * part, hidden) + part)))
    # Activations are two bytes; layers with experts take tokens in chunks (VLLM_FUSED_MOE_CHUNK_SIZE).
    passed = min(batched_tokens, 32768) if facts.moe else batched_tokens
    likely = min(2 * passed * values // MIB, 2**30)
    if facts.encoder_heads:
        likely += likely // 4  # the encoder's own pass keeps its output
    return Range(likely // 2, likely + _LEAST_ACTIVATION_MIB, 2 * likely + 2 * _LEAST_ACTIVATION_MIB)


def _non_torch(args: EngineArgs, gpu: Gpu) -> Range:
    if gpu.memory_type == "unified":
        return Range(*_NON_TORCH_UNIFIED)
    ranks = args.tensor_parallel_size * args.pipeline_parallel_size
    for most, sizes in _NON_TORCH:
        if ranks <= most:
            return Range(*sizes)
    return Range(*_NON_TORCH_MORE)


def _graphs(args: EngineArgs, seqs: int) -> Range:
    """By how many sizes are captured: 1, 2, 4, then every 8 up to 256 and every 16 up to 512, at most twice max_num_seqs."""
    if args.enforce_eager:
        return Range(0, 0, 0)
    most = min(2 * seqs, 512)
    captures = 3 + min(most, 256) // 8 + max(most - 256, 0) // 16
    stages = max(args.pipeline_parallel_size, 1)
    low, likely, high = (size * captures // _ALL_CAPTURES // min(stages, 4) for size in _GRAPHS)
    return Range(low, likely, high)
