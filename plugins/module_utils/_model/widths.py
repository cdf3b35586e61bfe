# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the widths of feed-forward layers and of attention can be cut as stored.

Sources: ``quantization/utils/fp8_utils.py`` (blocks), ``distributed/utils.py`` and the create_weights of each format
(groups), ``quantization/utils/marlin_utils.py`` (tiles), ``fused_moe/config.py`` (what splits experts), vLLM 0.8 to 0.33.
"""

from __future__ import annotations

import math
from typing import List, Optional, Tuple

from .check import FAIL, PASS, SKIP, WARN, Check, Split
from .modules import Stored
from .quantisation import Scheme
from .types import ModelFacts

# vLLM refines blocks no finer than this.
_FINEST_BLOCK = 32
# Marlin's smallest tile: 64 columns by 128 rows.
_TILE_N, _TILE_K = 64, 128

_LABELS = {
    "dense": "intermediate size",
    "shared_experts": "shared experts' intermediate size",
    "experts": "expert intermediate size",
}


def feed_forward(facts: ModelFacts, stored: Stored, split: Split) -> List[Check]:
    """The widths of dense layers, shared experts and routed experts."""
    # With expert parallelism routed experts stay whole; without it data parallel ranks split them further. Everything
    # else is split by the tensor parallel size alone.
    routed = 1 if split.expert_parallel else split.tp * split.dp
    checks = []
    for kind, widths, ranks in (
        ("dense", _one(facts.dense_width), split.tp),
        ("shared_experts", _one(facts.shared_width), split.tp),
        ("experts", facts.expert_widths or _one(facts.expert_width), routed),
    ):
        found = [_width(facts, kind, width, ranks, stored.of(kind), split.refines) for width in widths]
        # Several widths are one rule: what is worst about it is said.
        worst = [check for status in (FAIL, WARN, SKIP, PASS) for check in found if check.status == status]
        checks += worst[:1]
    unknown = facts.moe and not facts.expert_widths and facts.expert_width is None
    if unknown or facts.experts_unclear:
        checks.append(Check("mlp_experts", SKIP, "%s doesn't say how wide the experts are" % facts.source))
    if not checks and facts.quantisation is not None:
        checks.append(Check("mlp", SKIP, "%s doesn't say how wide the layers are" % facts.source))
    return checks


def _one(width: Optional[int]) -> Tuple[int, ...]:
    return () if width is None else (width,)


def _width(facts: ModelFacts, kind: str, width: int, ranks: int, scheme: Optional[Scheme], refines: bool) -> Check:
    label = _LABELS[kind]
    if width % ranks:
        return Check("mlp_%s" % kind, FAIL, "%s %d can't be split over %d ranks" % (label, width, ranks))
    part = width // ranks
    said = "%s %d / %d = %d" % (label, width, ranks, part)
    if scheme is None:
        return Check("mlp_%s" % kind, PASS, said)
    if scheme.unclear:
        return Check("mlp_%s" % kind, SKIP, "%s; how %s stores it isn't understood" % (said, scheme.method))
    if scheme.block is not None:
        return _block(facts, kind, said, part, ranks, scheme.block, refines)
    if scheme.group is not None:
        found = group_check(kind, said, part, ranks, scheme)
        if found.status != PASS or kind == "experts":
            return found
        return tile_check(kind, said, part, 2 * part, ranks, scheme, refines) or found
    if kind != "experts":
        tile = tile_check(kind, said, part, 2 * part, ranks, scheme, refines)
        if tile is not None:
            return tile
    return Check("mlp_%s" % kind, PASS, "%s; %s has no block that it must fit" % (said, scheme.method))


def _block(
    facts: ModelFacts, kind: str, said: str, part: int, ranks: int, block: Tuple[int, int], refines: bool
) -> Check:
    block_n, block_k = block
    check = "quant_block_%s" % kind
    # Columns (gate and up) must fit block_n even when nothing is split; rows (down) block_k only when they are.
    bad = [size for size in ((block_n, block_k) if ranks > 1 else (block_n,)) if part % size]
    if not bad:
        return Check(check, PASS, "%s is a multiple of the FP8 block %d x %d" % (said, block_n, block_k))
    detail = "%s is not a multiple of the stored FP8 block %d" % (said, bad[0])
    if kind != "experts" and ranks == 1:
        return Check(check, WARN, detail + ", which older versions refuse", "Watch the first start.")
    if kind == "experts" and refines and math.gcd(block_n, block_k, part, facts.hidden_size or part) >= _FINEST_BLOCK:
        detail += "; this version of vLLM re-cuts the blocks on load, and only its Triton kernels can use them"
        return Check(check, WARN, detail, "Expect less speed than with a size that divides.")
    return Check(check, FAIL, detail)


def group_check(kind: str, said: str, part: int, ranks: int, scheme: Scheme) -> Check:
    """Whether a rank holds whole groups. Unsplit, the checkpoint itself was made that way, and kernels may pad it."""
    check = "quant_group_%s" % kind
    if not scheme.group or part % scheme.group == 0:
        detail = "%s is a multiple of the %s group size %d" % (said, scheme.method, scheme.group or 1)
        return Check(check, PASS, detail)
    detail = "%s is not a multiple of the %s group size %d" % (said, scheme.method, scheme.group)
    # In a GGUF file each tensor has a block size of its own, and which kind has which isn't looked up.
    sure = ranks > 1 and scheme.method != "gguf"
    return Check(check, FAIL if sure else WARN, detail, None if sure else "Watch the first start.")


def tile_check(
    kind: str, said: str, rows: Optional[int], columns: Optional[int], ranks: int, scheme: Scheme, refines: bool
) -> Optional[Check]:
    """Whether Marlin's kernels can read a rank's share: ``rows`` of its input-split and ``columns`` of its output-split
    matrix, None for one that isn't there. None when they can."""
    if not scheme.tiles:
        return None
    if rows is not None and rows % _TILE_K:
        detail = "%s is not a multiple of %d, the rows of a Marlin tile for %s" % (said, _TILE_K, scheme.method)
    elif columns is not None and columns % _TILE_N:
        detail = "%s makes %d columns for one rank, not a multiple of %d, the columns of a Marlin tile for %s"
        detail = detail % (said, columns, _TILE_N, scheme.method)
    else:
        return None
    check = "quant_tile_%s" % kind
    if ranks > 1 and not refines:
        return Check(check, FAIL, detail)
    return Check(check, WARN, detail + ", which is padded or read by slower kernels", "Watch the first start.")


def attention(facts: ModelFacts, stored: Stored, split: Split) -> List[Check]:
    """The output projection's rows, and what query, key and value are cut into."""
    heads, tp = facts.attention_heads, split.tp
    scheme = stored.of("attention")
    value_dim = facts.v_head_dim if facts.mla else facts.v_head_dim or facts.head_dim
    query_dim = facts.head_dim
    if facts.mla:
        both = (facts.qk_nope_head_dim, facts.qk_rope_head_dim)
        query_dim = None if None in both else (both[0] or 0) + (both[1] or 0)
    if scheme is None or heads is None or heads % tp or value_dim is None:
        return []
    if scheme.unclear:
        return [Check("quant_attention", SKIP, "how %s stores attention isn't understood" % scheme.method)]
    row = heads // tp * value_dim
    if scheme.block is not None:
        query = heads // tp * query_dim if query_dim else None
        return [_blocked_attention(facts, scheme.block, tp, row, query, split.refines)]
    said = "attention output %d / %d = %d" % (heads * value_dim, tp, row)
    found = [group_check("attention", said, row, tp, scheme)] if scheme.group else []
    tile = tile_check("attention", said, row, None, tp, scheme, split.refines)
    if tile is not None and not any(check.status == FAIL for check in found):
        found = [tile]
    return found


def _blocked_attention(
    facts: ModelFacts, block: Tuple[int, int], tp: int, row: int, query: Optional[int], refines: bool
) -> Check:
    block_n, block_k = block
    check = "quant_block_attention"
    if tp > 1 and row % block_k:
        detail = "the attention output's %d columns per rank are not a multiple of the stored FP8 block %d"
        return Check(check, FAIL, detail % (row, block_k))
    if query is not None and query % block_n:
        detail = "the query's %d rows per rank are not a multiple of the stored FP8 block %d" % (query, block_n)
        if tp == 1 or (refines and not facts.mla):
            return Check(check, WARN, detail + ", which older versions refuse", "Watch the first start.")
        return Check(check, FAIL, detail)
    if not facts.mla and facts.kv_heads is not None and facts.head_dim is not None:
        kv = max(facts.kv_heads // tp, 1) * facts.head_dim
        if kv % block_n:
            # Newer versions let a merged projection differ (linear.py).
            detail = "the key's %d rows per rank are not a multiple of the stored FP8 block %d" % (kv, block_n)
            if refines:
                return Check(check, WARN, detail + ", which older versions refuse", "Watch the first start.")
            return Check(check, FAIL, detail)
    return Check(check, PASS, "attention per rank fits the FP8 block %d x %d" % (block_n, block_k))


def states(facts: ModelFacts, stored: Stored, split: Split) -> List[Check]:
    """The projections of layers that keep a state instead of a cache."""
    state, tp = facts.linear, split.tp
    if state is None:
        return []
    found: List[Optional[Check]] = []
    if state.family == "mamba2" and state.heads and state.head_dim and state.state_size:
        inner, groups = state.heads * state.head_dim, state.groups or 1
        if state.heads % tp == 0 and groups % tp == 0:
            total = 2 * inner + 2 * groups * state.state_size + state.heads
            said = "the state layers' input projection %d / %d = %d" % (total, tp, total // tp)
            found.append(_columns("state", said, total // tp, tp, stored.of("state_in"), split.refines))
    if state.family == "gated_delta_net" and state.value_heads and state.value_heads % tp == 0:
        gates = 2 * state.value_heads // tp
        found.append(_blocked_gates(state.value_heads // tp, stored.of("state_gates"), split.refines))
        said = "the state layers' gates 2 x %d / %d = %d" % (state.value_heads, tp, gates)
        # Checkpoints that load leave these few columns as they were, not all of them say so: no reason to refuse.
        found.append(_columns("state", said, gates, tp, stored.of("state_gates"), True))
        scheme = stored.of("state_out")
        if scheme is not None and state.value_head_dim:
            total = state.value_heads * state.value_head_dim
            said = "the state layers' output %d / %d = %d" % (total, tp, total // tp)
            found.append(_rows("state", said, total // tp, tp, scheme, split.refines))
    return [check for check in found if check is not None]


def _blocked_gates(rows: int, scheme: Optional[Scheme], refines: bool) -> Optional[Check]:
    """The gates are two small outputs in one projection: each must hold whole blocks, split or not."""
    if scheme is None or scheme.block is None or rows % scheme.block[0] == 0:
        return None
    detail = "the state layers' gates have %d rows each per rank, not a multiple of the stored FP8 block %d"
    detail = detail % (rows, scheme.block[0])
    if refines:
        return Check("quant_block_state", WARN, detail + ", which older versions refuse", "Watch the first start.")
    fix = "Take a checkpoint that leaves linear_attn.in_proj_a and in_proj_b as they were."
    return Check("quant_block_state", FAIL, detail, fix)


def _columns(kind: str, said: str, columns: int, tp: int, scheme: Optional[Scheme], refines: bool) -> Optional[Check]:
    return None if scheme is None else tile_check(kind, said, None, columns, tp, scheme, refines)


def _rows(kind: str, said: str, rows: int, tp: int, scheme: Scheme, refines: bool) -> Optional[Check]:
    if scheme.block is not None:
        if tp == 1 or rows % scheme.block[1] == 0:
            return None
        detail = "%s is not a multiple of the stored FP8 block %d" % (said, scheme.block[1])
        return Check("quant_block_%s" % kind, FAIL, detail)
    found = group_check(kind, said, rows, tp, scheme)
    return found if found.status != PASS else tile_check(kind, said, rows, None, tp, scheme, refines)
