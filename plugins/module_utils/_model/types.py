# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of one model. ``None``, or an empty tuple, where the files don't say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from .quantisation import Quantisation

# What a layer keeps of the tokens it has seen. FULL: all of them. SLIDING: the last ``sliding_window``. CHUNKED: those
# since the last multiple of ``attention_chunk_size``. LINEAR: a state of fixed size. BOTH: as FULL and as LINEAR.
FULL, SLIDING, CHUNKED, LINEAR, BOTH, NONE = "full", "sliding", "chunked", "linear", "full_and_linear", "none"


@dataclass(frozen=True)
class AttentionLayer:
    """One layer, as far as its KV cache goes.

    ``key_dim`` and ``value_dim`` are the dimensions of one head, ``kv_heads`` the KV heads before they are split. For
    latent attention the model's ``kv_lora_rank`` and ``qk_rope_head_dim`` say what is kept instead.
    ``owns_cache`` is False for a layer that reads the cache of an earlier one. ``attentions``: how many the layer has, each
    with a cache.
    """

    kind: str
    kv_heads: Optional[int] = None
    key_dim: Optional[int] = None
    value_dim: Optional[int] = None
    owns_cache: bool = True
    attentions: int = 1


@dataclass(frozen=True)
class LinearState:
    """What sets the size of the state that a LINEAR layer keeps for each request.

    ``family`` is ``gated_delta_net`` (Qwen3-Next), ``kimi_delta``, ``mamba1``, ``mamba2``, ``lightning`` (MiniMax-Text),
    ``short_conv`` (LFM2) or ``recurrent`` (RecurrentGemma). The sizes are the whole model's, before they are split.
    """

    family: str
    key_heads: Optional[int] = None
    value_heads: Optional[int] = None
    key_head_dim: Optional[int] = None
    value_head_dim: Optional[int] = None
    conv_kernel: Optional[int] = None
    state_size: Optional[int] = None
    heads: Optional[int] = None
    head_dim: Optional[int] = None
    groups: Optional[int] = None
    inner_size: Optional[int] = None
    dtype: Optional[str] = None


@dataclass(frozen=True)
class ModelFacts:
    """Sizes of one model; ``None`` where the files don't say.

    ``expert_width`` is the intermediate size of one routed expert, ``shared_width`` of all shared experts together,
    ``dense_width`` of the layers without experts (``None`` too when there are none). Where experts differ in width,
    ``expert_width`` is None and ``expert_widths`` has all of them.
    """

    path: str
    source: str  # the file read: config.json, params.json, or the .gguf that stands alone
    architectures: Tuple[str, ...] = ()
    model_type: Optional[str] = None
    hidden_size: Optional[int] = None
    layers: Optional[int] = None
    attention_heads: Optional[int] = None
    kv_heads: Optional[int] = None
    head_dim: Optional[int] = None
    vocab_size: Optional[int] = None
    max_position_embeddings: Optional[int] = None
    derived_length: Optional[int] = None  # what vLLM makes of it (ask ``length.length_limit``)
    length_unclear: bool = False  # there is a scaling of positions that isn't understood
    dense_width: Optional[int] = None
    expert_width: Optional[int] = None
    shared_width: Optional[int] = None
    experts: Optional[int] = None
    mla: bool = False
    kv_lora_rank: Optional[int] = None
    q_lora_rank: Optional[int] = None
    qk_nope_head_dim: Optional[int] = None
    qk_rope_head_dim: Optional[int] = None
    v_head_dim: Optional[int] = None
    encoder_heads: Tuple[Tuple[str, int], ...] = ()  # vision and audio encoders: (name, attention heads)
    dtype: Optional[str] = None
    quantisation: Optional[Quantisation] = None
    # Where experts stand: one entry for each layer, whether it has routed experts. Empty when that isn't known.
    expert_widths: Tuple[int, ...] = ()
    experts_unclear: bool = False  # there is something about their number that isn't one
    layer_has_experts: Tuple[bool, ...] = ()
    # What layers keep: one entry for each layer, in order. Empty when that isn't known.
    attention_layers: Tuple[AttentionLayer, ...] = ()
    sliding_window: Optional[int] = None  # tokens
    attention_chunk_size: Optional[int] = None  # tokens
    global_head_dim: Optional[int] = None  # of the FULL layers, where it isn't head_dim
    num_kv_shared_layers: int = 0  # the last ones, which read the cache of earlier ones
    index_head_dim: Optional[int] = None  # sparse attention's indexer keeps one key of this size per token and layer
    linear: Optional[LinearState] = None
    num_nextn_predict_layers: int = 0  # in the checkpoint, loaded only for speculation
    tie_word_embeddings: Optional[bool] = None
    is_encoder_decoder: bool = False

    @property
    def moe(self) -> bool:
        """Whether the model has routed experts."""
        return bool(self.experts and self.experts > 1)

    @property
    def layer_kinds(self) -> Tuple[str, ...]:
        """What each layer keeps: FULL, SLIDING, CHUNKED, LINEAR, BOTH or NONE."""
        return tuple(layer.kind for layer in self.attention_layers)

    def count(self, *kinds: str) -> int:
        """How many layers are of these kinds. Ask only when ``attention_layers`` isn't empty."""
        return sum(layer.kind in kinds for layer in self.attention_layers)
