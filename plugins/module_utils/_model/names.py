# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The names that sizes go by in models' configurations. The first one found counts."""

from __future__ import annotations

from typing import Dict, Tuple

# More layers than any model has: nothing is built from a number beyond it.
MOST_LAYERS = 4096

NAMES: Dict[str, Tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"),
    "kv_heads": (
        "num_key_value_heads",
        "num_kv_heads",
        "n_head_kv",
        "kv_n_heads",
        "n_kv_heads",
        "multi_query_group_num",
        "num_query_groups",
        "num_attention_groups",
    ),
    "head_dim": ("head_dim", "kv_channels"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_position_embeddings": (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "seq_length",
        "n_ctx",
        "max_sequence_length",
    ),
    "dense_width": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff", "hidden_dim"),
    # Where none of these stands, a model with experts means them by its intermediate size.
    "expert_width": ("moe_intermediate_size", "moe_ffn_hidden_size", "expert_ffn_hidden_size", "expert_hidden_dim"),
    "shared_width": (
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
    ),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts"),
    "shared_experts": ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "kv_lora_rank": ("kv_lora_rank",),
    "q_lora_rank": ("q_lora_rank",),
    "qk_nope_head_dim": ("qk_nope_head_dim",),
    "qk_rope_head_dim": ("qk_rope_head_dim",),
    "v_head_dim": ("v_head_dim",),
}

# Where multimodal models keep their language model.
TEXT_CONFIGS: Tuple[str, ...] = (
    "text_config",
    "llm_config",
    "language_config",
    "language_model_config",
    "thinker_config",
    "language_model",
)

# Encoders beside the language model.
ENCODERS: Tuple[str, ...] = (
    "vision_config",
    "vit_config",
    "visual",
    "audio_config",
    "audio_encoder_config",
    "vision_encoder",
)

# The types of models whose layers follow a rule that their configuration may leave unsaid.
ARCHITECTURES: Dict[str, str] = {
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Gemma3nForCausalLM": "gemma3n_text",
    "Gemma3nForConditionalGeneration": "gemma3n",
    "Cohere2ForCausalLM": "cohere2",
    "GptOssForCausalLM": "gpt_oss",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Phi3ForCausalLM": "phi3",
    "Starcoder2ForCausalLM": "starcoder2",
    "MambaForCausalLM": "mamba",
    "Mamba2ForCausalLM": "mamba2",
    "FalconMambaForCausalLM": "falcon_mamba",
    "FalconH1ForCausalLM": "falcon_h1",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
