# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model directory says about the model, read from ``config.json`` in the shapes that people have.

Nothing is guessed: a field that is missing, or isn't the kind of value it should be, is ``None``, and whoever needs
it says that the check can't be made.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from .._core.errors import GpuFleetError
from .names import ENCODERS, NAMES, TEXT_CONFIGS
from .quantisation import Quantisation, read_quantisation

# No config.json of a model comes near this; something else must have got there.
_LIMIT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class ModelFacts:
    """Sizes of one model; ``None`` where the files don't say.

    ``expert_width`` is the intermediate size of one routed expert, ``shared_width`` of all shared experts together,
    ``dense_width`` of the layers without experts (``None`` too when there are none).
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

    @property
    def moe(self) -> bool:
        """Whether the model has routed experts."""
        return bool(self.experts and self.experts > 1)


def read_model(path: str) -> ModelFacts:
    """Read a model directory. GpuFleetError when it isn't there, has no configuration, or one that can't be read."""
    if not os.path.isdir(path):
        what = "is a file" if os.path.exists(path) else "does not exist"
        raise GpuFleetError("The model directory %s %s." % (path, what))
    config_path = os.path.join(path, "config.json")
    if os.path.lexists(config_path):
        extra = _first_json(path, ("hf_quant_config.json", "quantize_config.json"))
        return facts_from_config(_load(config_path), path, extra)
    params_path = os.path.join(path, "params.json")
    if os.path.lexists(params_path):
        return facts_from_config(_load(params_path), path, None, "params.json")
    gguf = sorted(name for name in _listing(path) if name.endswith(".gguf"))
    if gguf:
        return ModelFacts(path, gguf[0])
    raise GpuFleetError(
        "The model directory %s holds no config.json (nor params.json nor a .gguf file). Is the download complete?"
        % path
    )


def facts_from_config(
    config: Mapping[str, Any],
    path: str = "",
    quantisation_file: Optional[Mapping[str, Any]] = None,
    source: str = "config.json",
) -> ModelFacts:
    """The same from a configuration already read. Never raises for what stands in it."""
    text = text_config(config)
    heads = _size(text, "attention_heads")
    hidden = _size(text, "hidden_size")
    head_dim = _size(text, "head_dim")
    if head_dim is None and heads and hidden and hidden % heads == 0:
        head_dim = hidden // heads
    kv_lora_rank = _size(text, "kv_lora_rank")
    experts = _size(text, "experts")
    raw_quantisation = _quantisation_dict(config, text, quantisation_file)
    return ModelFacts(
        path=path,
        source=source,
        architectures=_names(config.get("architectures") or text.get("architectures")),
        model_type=_text(config.get("model_type") or text.get("model_type")),
        hidden_size=hidden,
        layers=_size(text, "layers"),
        attention_heads=heads,
        kv_heads=1 if kv_lora_rank else _kv_heads(text, heads),
        head_dim=head_dim,
        vocab_size=_size(text, "vocab_size") or _size(config, "vocab_size"),
        max_position_embeddings=_size(text, "max_position_embeddings"),
        dense_width=_dense_width(text, experts),
        expert_width=_expert_width(text, experts),
        shared_width=_shared_width(text, experts),
        experts=experts,
        mla=kv_lora_rank is not None,
        kv_lora_rank=kv_lora_rank,
        q_lora_rank=_size(text, "q_lora_rank"),
        qk_nope_head_dim=_size(text, "qk_nope_head_dim"),
        qk_rope_head_dim=_size(text, "qk_rope_head_dim"),
        v_head_dim=_size(text, "v_head_dim"),
        encoder_heads=_encoder_heads(config),
        dtype=_text(text.get("torch_dtype") or text.get("dtype") or config.get("torch_dtype") or config.get("dtype")),
        quantisation=read_quantisation(raw_quantisation),
    )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model: multimodal models nest it, some of them twice."""
    current = config
    for _depth in range(3):
        if _own_size(current, "attention_heads") is not None:
            return current
        inner = next((current[name] for name in TEXT_CONFIGS if isinstance(current.get(name), Mapping)), None)
        if inner is None:
            return current
        current = inner
    return current


def _kv_heads(text: Mapping[str, Any], heads: Optional[int]) -> Optional[int]:
    if text.get("multi_query") is True and text.get("new_decoder_architecture") is not True:
        return 1
    found = _size(text, "kv_heads")
    if found is None and any(name in text and text[name] is not None for name in NAMES["kv_heads"]):
        return None  # it is said, but not in a form that we know: not the same as "as many as heads"
    return heads if found is None else found


def _dense_width(text: Mapping[str, Any], experts: Optional[int]) -> Optional[int]:
    width = _size(text, "dense_width")
    if not experts:
        return width
    first_dense = text.get("first_k_dense_replace")
    if _positive(text.get("intermediate_size_mlp")):
        return _positive(text["intermediate_size_mlp"])
    has_dense = (
        bool(_positive(first_dense))
        or bool(isinstance(text.get("mlp_only_layers"), list) and text["mlp_only_layers"])
        or (_positive(text.get("decoder_sparse_step")) or 1) > 1
    )
    return width if has_dense else None


def _expert_width(text: Mapping[str, Any], experts: Optional[int]) -> Optional[int]:
    if not experts:
        return None
    width = _size(text, "expert_width")
    if width is not None:
        return width
    if any(text.get(name) is not None for name in NAMES["expert_width"]):
        return None
    return _size(text, "dense_width")


def _shared_width(text: Mapping[str, Any], experts: Optional[int]) -> Optional[int]:
    if not experts:
        return None
    width = _size(text, "shared_width")
    if width is not None:
        return width
    count, each = _size(text, "shared_experts"), _expert_width(text, experts)
    return count * each if count and each else None


def _encoder_heads(config: Mapping[str, Any]) -> Tuple[Tuple[str, int], ...]:
    found = []
    outer = [config] + [config[name] for name in TEXT_CONFIGS if isinstance(config.get(name), Mapping)]
    for part in outer:
        for name in ENCODERS:
            encoder = part.get(name)
            if isinstance(encoder, Mapping):
                heads = _size(encoder, "attention_heads") or _positive(encoder.get("encoder_attention_heads"))
                if heads:
                    found.append((name, heads))
    return tuple(dict(found).items())


def _quantisation_dict(
    config: Mapping[str, Any], text: Mapping[str, Any], extra: Optional[Mapping[str, Any]]
) -> Optional[Mapping[str, Any]]:
    for part in (config, text):
        for name in ("quantization_config", "compression_config"):
            if isinstance(part.get(name), Mapping) and part[name]:
                found: Mapping[str, Any] = part[name]
                return found
    return extra


def _size(part: Mapping[str, Any], what: str) -> Optional[int]:
    """One size by any of its names, also in the nested parts that some old architectures have."""
    found = _own_size(part, what)
    if found is None:
        for nested in ("attn_config", "ffn_config", "moe"):
            if isinstance(part.get(nested), Mapping):
                found = _own_size(part[nested], what)
                if found is not None:
                    return found
    return found


def _own_size(part: Mapping[str, Any], what: str) -> Optional[int]:
    for name in NAMES[what]:
        if part.get(name) is not None:
            return _positive(part[name])
    return None


def _positive(value: Any) -> Optional[int]:
    """A size: a whole number from 1 to 2^40. Anything else isn't one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and not value.is_integer():
        return None
    return int(value) if 1 <= value <= 2**40 else None


def _text(value: Any) -> Optional[str]:
    return value if isinstance(value, str) and value else None


def _names(value: Any) -> Tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _load(path: str) -> Dict[str, Any]:
    try:
        if os.path.getsize(path) > _LIMIT_BYTES:
            raise GpuFleetError("%s is larger than any model's configuration." % path)
        with open(path, encoding="utf-8-sig") as handle:
            found = json.load(handle)
    except OSError as exc:
        raise GpuFleetError("%s can't be read: %s." % (path, exc.strerror)) from exc
    except (ValueError, RecursionError) as exc:
        raise GpuFleetError("%s is no JSON (%s). Is the download complete?" % (path, exc)) from exc
    if not isinstance(found, dict):
        raise GpuFleetError("%s holds no object: a model's configuration is needed there." % path)
    return found


def _first_json(path: str, names: Sequence[str]) -> Optional[Mapping[str, Any]]:
    for name in names:
        file_path = os.path.join(path, name)
        if os.path.isfile(file_path):
            return _load(file_path)
    return None


def _listing(path: str) -> Sequence[str]:
    try:
        return os.listdir(path)
    except OSError as exc:
        raise GpuFleetError("The model directory %s can't be read: %s." % (path, exc.strerror)) from exc
