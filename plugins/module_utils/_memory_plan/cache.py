# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The KV cache as vLLM lays it out: groups of layers, blocks of one pool, and how many requests it holds.

Layers of one kind form one group. Where there are several kinds, all groups have equally many layers, take blocks of
equal size from one pool, and a request holds blocks of every group (vllm/v1/core/kv_cache_utils.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple, Union

from .._model.types import BOTH, CHUNKED, FULL, LINEAR, NONE, SLIDING, ModelFacts
from .arguments import EngineArgs
from .layers import all_layers, cache_bytes, state_bytes, token_bytes
from .types import Gpu
from .versions import Behaviour, hopper

_MOST_TOKENS = 2**40


@dataclass(frozen=True)
class Group:
    """Layers that share a block table. ``layers`` are their indices, ``block_size`` tokens of a block (0: no tokens)."""

    kind: str
    layers: Tuple[int, ...]
    block_size: int


@dataclass(frozen=True)
class Cache:
    """The layout on one rank.

    ``page_bytes``: one block of one layer. ``stage_pages``: for each pipeline stage, how many of them one block of the
    pool has. ``token_bytes``: one token in all layers of the stage with most; None where layers
    are of several kinds.
    """

    groups: Tuple[Group, ...]
    page_bytes: int
    stage_bytes: Tuple[int, ...]
    token_bytes: Optional[float]
    window: int
    chunk: int
    in_flight: int
    state_blocks: int
    ranks: int  # that share one request's tokens

    @property
    def hybrid(self) -> bool:
        """Whether there are several kinds of layers, or none with tokens: a number per token means nothing then."""
        return len(self.groups) > 1 or any(group.kind != FULL for group in self.groups)

    @property
    def has_state(self) -> bool:
        """Whether some layers keep a state: each running request holds one block of it at least."""
        return any(group.kind == LINEAR for group in self.groups)

    @property
    def block_size(self) -> int:
        """Tokens of the smallest block."""
        return min((group.block_size for group in self.groups if group.block_size), default=0)

    def request_blocks(self, tokens: int) -> int:
        """Blocks that one request of so many tokens holds."""
        total = 0
        for group in self.groups:
            if group.kind == FULL:
                total += _up(_up(tokens, self.ranks), group.block_size)
            elif group.kind == SLIDING:
                # One more, as a window need not begin where a block begins.
                total += _up(min(self.window - 1 + self.in_flight, tokens), group.block_size) + 1
            elif group.kind == CHUNKED:
                total += _up(min(self.chunk + self.in_flight, tokens), group.block_size)
            else:
                total += self.state_blocks
        return total

    def request_bytes(self, tokens: int) -> int:
        """Bytes on the fullest stage for one request."""
        return self.request_blocks(tokens) * max(self.stage_bytes)

    def most_tokens(self, blocks: int, limit: Optional[int]) -> int:
        """The longest request that fits into so many blocks, at most ``limit`` (none: 2^40). 0 when not one token does."""
        low, high = 0, limit or _MOST_TOKENS
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.request_blocks(middle) <= blocks else (low, middle - 1)
        return low


def stage_layers(layers: int, stages: int) -> Tuple[range, ...]:
    """Which layers each pipeline stage has: what is left over goes to the stages before the last (distributed/utils.py)."""
    each, rest = divmod(layers, stages)
    counts = [each] * stages
    for index in range(rest):
        counts[-2 - index] += 1
    starts = [sum(counts[:index]) for index in range(stages)]
    return tuple(range(start, start + count) for start, count in zip(starts, counts))


def layout(
    facts: ModelFacts, args: EngineArgs, gpu: Optional[Gpu], how: Behaviour, batched_tokens: int
) -> Union[Cache, str]:
    """The layout, or why it can't be known."""
    layers = all_layers(facts, args)
    if not layers:
        return "%s doesn't say what each layer keeps, or says it in a way that isn't known here" % facts.source
    if args.pipeline_parallel_size > len(layers):
        return "there are more pipeline stages than layers"
    if facts.is_encoder_decoder:
        return "models with an encoder and a decoder keep a cross-attention cache that isn't planned here"
    if cache_bytes(facts, args) is None:
        return "the size of a KV cache of %s isn't known here" % args.kv_cache_dtype
    buckets: Dict[Tuple[str, int], List[int]] = {}
    for index, layer in enumerate(layers):
        if layer.kind == NONE or (not layer.owns_cache and layer.kind != LINEAR):
            continue
        if layer.kind in (FULL, SLIDING, CHUNKED, BOTH):
            each = token_bytes(facts, args, layer, how.latent_padded)
            if each is None:
                return "%s doesn't say the KV heads or their size" % facts.source
            each *= layer.attentions
            kind = FULL if layer.kind == BOTH or not args.hybrid_kv_cache else layer.kind
            buckets.setdefault((kind, each), []).append(index)
        if layer.kind in (LINEAR, BOTH):
            state = state_bytes(facts, args)
            if state is None:
                return "the state that linear attention keeps isn't described in a way that is known here"
            buckets.setdefault((LINEAR, state), []).append(index)
    missing = _missing(facts, buckets)
    if missing or not buckets:
        return missing or "no layer keeps a KV cache"
    if max(size for _kind, size in buckets) > 2**40:
        return "the sizes in %s are no model's" % facts.source
    # More than the model's own layers: those of speculation stand on the last stage.
    stages = list(stage_layers(facts.layers or len(layers), args.pipeline_parallel_size))
    stages[-1] = range(stages[-1].start, len(layers))
    page, sizes = _pages(facts, args, gpu, how, buckets)
    groups = _groups(buckets, sizes)
    kinds = {kind for kind, _size in buckets}
    uniform = kinds == {FULL}
    if uniform:
        # Layers of different sizes still share one table: a block is as large as all of them.
        owner = {index: size for (_kind, size), members in buckets.items() for index in members}
        per_token = [sum(owner.get(index, 0) for index in stage) for stage in stages]
        stage_bytes = tuple(total * groups[0].block_size for total in per_token)
        each_token: Optional[float] = max(per_token) / args.decode_context_parallel_size
    else:
        counted = [[sum(index in stage for index in group.layers) for group in groups] for stage in stages]
        stage_bytes = tuple(max(counts) * page for counts in counted)
        each_token = None
        if len(buckets) == 1 and kinds != {LINEAR}:
            # Layers that are all alike: what one token takes while it is in their window.
            each_token = (
                max(stage_bytes) / page * max(size for _kind, size in buckets) / args.decode_context_parallel_size
            )
    caching = how.hybrid_prefix_caching if args.enable_prefix_caching is None else args.enable_prefix_caching
    return Cache(
        groups=tuple(groups),
        page_bytes=page,
        stage_bytes=stage_bytes,
        token_bytes=each_token,
        window=facts.sliding_window or 1,
        chunk=facts.attention_chunk_size or 1,
        in_flight=batched_tokens * how.batches_in_flight,
        # With prefix caching the state at the last block's end is kept beside the running one ("align").
        state_blocks=(2 if caching else 1) + args.speculative_tokens,
        ranks=args.decode_context_parallel_size,
    )


def _missing(facts: ModelFacts, buckets: Dict[Tuple[str, int], List[int]]) -> Optional[str]:
    kinds = {kind for kind, _size in buckets}
    if SLIDING in kinds and facts.sliding_window is None:
        return "%s doesn't say how long the sliding window is" % facts.source
    if CHUNKED in kinds and facts.attention_chunk_size is None:
        return "%s doesn't say how long the attention's chunks are" % facts.source
    return None


def _pages(
    facts: ModelFacts,
    args: EngineArgs,
    gpu: Optional[Gpu],
    how: Behaviour,
    buckets: Dict[Tuple[str, int], List[int]],
) -> Tuple[int, Dict[Tuple[str, int], int]]:
    """Bytes of one block of one layer, the same for all, and the tokens that it holds for each bucket."""
    block = args.block_size or (64 if facts.mla and (hopper(gpu) or facts.index_head_dim is not None) else 16)
    tokens = [size for kind, size in buckets if kind != LINEAR]
    states = [size for kind, size in buckets if kind == LINEAR]
    if not tokens:
        return max(states), dict.fromkeys(buckets, 0)
    if states:
        # A block of attention is made as large as the state, in steps that the kernels can use.
        step = max(block, how.latent_block) if facts.mla else block
        block = max(block, step * _up(max(states), step * max(tokens)))
    page = block * max(tokens)
    # Smaller layers get more tokens into a block where that comes out even, else the block's end stays empty.
    sizes = {key: 0 if key[0] == LINEAR else block for key in buckets}
    for kind, size in buckets:
        if kind != LINEAR and page % (size * block) == 0:
            sizes[(kind, size)] = page // size
    return page, sizes


def _groups(buckets: Dict[Tuple[str, int], List[int]], sizes: Dict[Tuple[str, int], int]) -> List[Group]:
    if len({kind for kind, _size in buckets}) == 1 and FULL in {kind for kind, _size in buckets}:
        members = sorted(index for found in buckets.values() for index in found)
        return [Group(FULL, tuple(members), min(sizes.values()))]
    counts = Counter({key: len(members) for key, members in buckets.items()})
    least, most = min(counts.values()), max(counts.values())
    width = most if most < least * 1.5 else least
    found = []
    for (kind, size), members in buckets.items():
        number = _up(len(members), width)
        for start in range(number):
            found.append(Group(kind, tuple(members[start::number]), sizes[(kind, size)]))
    return found


def _up(value: int, step: int) -> int:
    return -(-value // step)
