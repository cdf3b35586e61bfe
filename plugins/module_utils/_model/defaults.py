# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a configuration means by what it leaves out.

transformers writes of a nested text configuration only what differs from its class's defaults: a field that isn't there
has that value. Source: the configuration classes of transformers 4.40 to 4.57.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

_NAMES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_SIZES: Dict[str, Tuple[int, int, int, int, int]] = {
    "gemma3_text": (262208, 2304, 9216, 26, 8),
    "llama": (32000, 4096, 11008, 32, 32),
    "mistral": (32000, 4096, 14336, 32, 32),
    "qwen2": (151936, 4096, 22016, 32, 32),
}
_MORE: Dict[str, Dict[str, Any]] = {
    "gemma3_text": {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
    "llama": {"max_position_embeddings": 2048, "tie_word_embeddings": False},
    # Its class has a window of 4096 too; copies without nulls leave it out where there is none, and none needs more.
    "mistral": {"num_key_value_heads": 8, "max_position_embeddings": 131072, "tie_word_embeddings": False},
    "qwen2": {"num_key_value_heads": 32, "max_position_embeddings": 32768, "tie_word_embeddings": False},
}
# Types without grouped heads, or whose classes take the attention heads where no KV heads are given.
_AS_MANY_KV_HEADS = (
    "aquila baichuan bart bert blip_2_qformer bloom codegen cohere cohere2 decilm deepseek dbrx exaone falcon falcon3 gemma "
    "glm gpt2 gpt_bigcode gpt_neo gpt_neox gptj granite internlm internlm2 jais llama mbart minicpm minicpm3 mistral "
    "mixtral mpt nemotron olmo olmo2 olmoe opt orion persimmon phi phi3 phi3small phimoe qwen qwen2 qwen2_moe roberta "
    "refinedweb refinedwebmodel solar stablelm stablelm_epoch starcoder2 whisper xlm-roberta xverse chatglm deepseek_v2 "
    "deepseek_v3 seed_oss olmo3 telechat"
).split()

# Types whose head is the embedding unless they say otherwise: PretrainedConfig's default, which their classes keep.
_TIED = (
    "bloom cohere cohere2 falcon gemma gemma2 gemma3_text gemma3n_text gpt2 gpt_bigcode gpt_neo mpt opt starcoder2 xglm"
).split()


def tied(model_type: Any) -> bool:
    """Whether a model of this type has its embedding for a head where nothing is said about it."""
    return isinstance(model_type, str) and model_type.lower() in _TIED


def with_defaults(inner: Mapping[str, Any]) -> Mapping[str, Any]:
    """A nested text configuration with what its type means by what isn't there. Others are as they were."""
    kind = inner.get("model_type")
    if not isinstance(kind, str) or kind not in _SIZES:
        return inner
    return {**dict(zip(_NAMES, _SIZES[kind])), **_MORE[kind], **inner}


def heads_for_keys(model_type: Any) -> bool:
    """Whether a model of this type has as many KV heads as attention heads where nothing is said about them.

    Bare configurations without a type mean it too. Of a type that isn't known it can't be said: its field may go by
    another name.
    """
    return not isinstance(model_type, str) or not model_type or model_type.lower() in _AS_MANY_KV_HEADS
