# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One estimate for one set of arguments: what is left for the KV cache at best, as likely, and at worst."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Optional, Tuple, Union

from .._model.length import length_limit
from .._model.types import ModelFacts
from .arguments import AUTO, EngineArgs
from .cache import Cache, layout
from .overheads import Overheads, overheads
from .types import MIB, CheckpointBytes, Gpu, Range
from .versions import Behaviour, behaviour, cuda_total, max_num_batched_tokens, max_num_seqs, parse_version
from .weights import Weights, weights

BEST, LIKELY, WORST = 0, 1, 2
# What weights may differ by: those of a checkpoint were within 1 %, counted ones within 5 %.
_OFF = {True: (0.995, 1.0, 1.01), False: (0.95, 1.0, 1.05)}


@dataclass(frozen=True)
class Given:
    """What doesn't change between the estimates of one plan."""

    facts: ModelFacts
    checkpoint: Optional[CheckpointBytes]
    gpu: Gpu
    version: Optional[str]

    @property
    def how(self) -> Behaviour:
        """Of that version."""
        return behaviour(self.version)

    @property
    def version_known(self) -> bool:
        """Whether it is one."""
        return parse_version(self.version) is not None

    @property
    def total(self) -> int:
        """Bytes, as CUDA reports them."""
        return cuda_total(self.gpu) or 0


@dataclass(frozen=True)
class Estimate:
    """``weights`` and ``cache`` are texts where they can't be known: the reason. ``kv`` and ``blocks``: at best, as likely
    and at worst; what is left may be negative."""

    given: Given
    args: EngineArgs
    seqs: int
    batched_tokens: int
    budget: int
    weights: Union[Weights, str]
    cache: Union[Cache, str]
    over: Overheads
    kv: Tuple[int, ...]  # bytes on the stage that decides; empty where neither weights nor the cache's size are known
    blocks: Tuple[int, ...]
    max_model_len: Optional[int]

    @property
    def outside(self) -> int:
        """Bytes of the GPU that vLLM leaves alone, without the graphs where those come on top."""
        graphs = self.over.graphs.likely * MIB
        inside = self.given.how.graphs_in_budget and self.given.version_known
        return self.given.total - self.budget - (0 if inside else graphs)

    def fits(self, scenario: int) -> bool:
        """Whether one request of max_model_len fits. Only where weights and cache are known."""
        if isinstance(self.cache, str) or not self.blocks or min(self.kv[scenario], self.blocks[scenario]) <= 0:
            return False
        if self.args.kv_cache_memory_bytes is not None and self.held(scenario) > self.given.total:
            return False
        return self.cache.request_blocks(self.max_model_len or 1) <= self.blocks[scenario]

    def states_fit(self, scenario: int) -> bool:
        """Whether each of max_num_seqs requests finds a block for its state.

        While CUDA graphs are captured so many are used at once, and vLLM refuses to start with fewer
        (config/compilation.py); without graphs requests wait for one another instead.
        """
        if isinstance(self.cache, str) or not self.cache.has_state or self.args.enforce_eager:
            return True
        return self.seqs <= self.blocks[scenario]

    def held(self, scenario: int) -> float:
        """Bytes on the fullest GPU beside the KV cache's profile: for a cache of a given size."""
        if isinstance(self.weights, str):
            return 0.0
        kv = self.args.kv_cache_memory_bytes or 0
        return max(_used(self, scenario, stage) for stage in range(len(self.weights.stages))) + kv


def estimate(given: Given, args: EngineArgs) -> Estimate:
    """Never raises; what can't be known is a text."""
    facts, gpu, how = given.facts, given.gpu, given.how
    own = None if facts.quantisation is None else facts.quantisation.kv_cache
    if args.kv_cache_dtype == "auto" and own is not None and how.own_cache_dtype:
        args = replace(args, kv_cache_dtype=own)
    batched = max_num_batched_tokens(args, gpu)
    seqs = max_num_seqs(args, gpu, batched)
    share = how.utilization if args.gpu_memory_utilization is None else args.gpu_memory_utilization
    found = Estimate(
        given=given,
        args=args,
        seqs=seqs,
        batched_tokens=batched,
        budget=int(given.total * share),
        weights=weights(facts, given.checkpoint, args, gpu, how),
        cache=layout(facts, args, gpu, how, batched),
        over=overheads(facts, args, gpu, how, seqs, batched),
        kv=(),
        blocks=(),
        max_model_len=None,
    )
    kv, blocks = _room(found)
    return _with(found, kv, blocks, _length(found, blocks))


def _with(found: Estimate, kv: Tuple[int, ...], blocks: Tuple[int, ...], length: Optional[int]) -> Estimate:
    values = dict(found.__dict__, kv=kv, blocks=blocks, max_model_len=length)
    return Estimate(**values)


def _room(found: Estimate) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    """Bytes and blocks for the cache, in the three scenarios, of the stage that has fewest blocks."""
    given = found.args.kv_cache_memory_bytes
    if isinstance(found.weights, str) and (given is None or isinstance(found.cache, str)):
        return (), ()
    kv, blocks = [], []
    known = 1 if isinstance(found.weights, str) else len(found.weights.stages)
    for scenario in (BEST, LIKELY, WORST):
        sizes = (0,) if isinstance(found.cache, str) else found.cache.stage_bytes
        rooms = []
        for stage in range(max(len(sizes), known)):
            size = sizes[min(stage, len(sizes) - 1)]
            room = int(found.budget - _used(found, scenario, stage)) if given is None else given
            rooms.append((room // size if size else 2**62, room))
        least, room = min(rooms)
        kv.append(room)
        blocks.append(max(least, 0) if least < 2**62 else 0)
    return tuple(kv), tuple(blocks)


def _used(found: Estimate, scenario: int, stage: int) -> float:
    """Bytes inside the share that aren't KV cache."""
    if isinstance(found.weights, str):
        return 0.0
    stages, over = found.weights.stages, found.over
    last = stage >= found.args.pipeline_parallel_size - 1 or len(stages) == 1
    used = stages[min(stage, len(stages) - 1)] * _OFF[found.weights.exact][scenario]
    used += MIB * (_at(over.activation if last else over.forward, scenario) + _at(over.non_torch, scenario))
    if found.given.how.graphs_in_budget:
        used += MIB * _at(over.graphs, scenario)
    return used


def _at(part: Range, scenario: int) -> int:
    return (part.low, part.likely, part.high)[scenario]


def _length(found: Estimate, blocks: Tuple[int, ...]) -> Optional[int]:
    """max_model_len in tokens: as given, the model's own, or with "auto" the longest that fits."""
    own = length_limit(found.given.facts)
    if found.args.max_model_len is None:
        return own
    if found.args.max_model_len != AUTO:
        return found.args.max_model_len
    if isinstance(found.cache, str) or not blocks:
        return own
    return found.cache.most_tokens(blocks[LIKELY], own) or None
