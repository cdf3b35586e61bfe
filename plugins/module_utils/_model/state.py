# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state that layers without a KV cache keep for each request: what sets its size."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from .types import LinearState
from .values import part, positive, size, text


def linear_state(config: Mapping[str, Any], model_type: Optional[str]) -> Optional[LinearState]:
    """None where no such layers are described, or not in a way that is known."""
    for reader in (_delta_net, _kimi, _short_conv, _recurrent, _lightning):
        found = reader(config, model_type)
        if found is not None:
            return found
    return _mamba(config, model_type)


def _delta_net(config: Mapping[str, Any], model_type: Optional[str]) -> Optional[LinearState]:
    if positive(config.get("linear_num_value_heads")) is None:
        return None
    return LinearState(
        "gated_delta_net",
        key_heads=positive(config.get("linear_num_key_heads")),
        value_heads=positive(config.get("linear_num_value_heads")),
        key_head_dim=positive(config.get("linear_key_head_dim")),
        value_head_dim=positive(config.get("linear_value_head_dim")),
        conv_kernel=positive(config.get("linear_conv_kernel_dim")),
        dtype=text(config.get("mamba_ssm_dtype")),
    )


def _kimi(config: Mapping[str, Any], model_type: Optional[str]) -> Optional[LinearState]:
    inner = part(config, "linear_attn_config")
    if not inner:
        return None
    heads, dim = positive(inner.get("num_heads")), positive(inner.get("head_dim"))
    return LinearState(
        "kimi_delta",
        key_heads=heads,
        value_heads=heads,
        key_head_dim=dim,
        value_head_dim=dim,
        conv_kernel=positive(inner.get("short_conv_kernel_size")),
    )


def _short_conv(config: Mapping[str, Any], model_type: Optional[str]) -> Optional[LinearState]:
    kernel = positive(config.get("conv_L_cache"))
    if kernel is None:
        return None
    return LinearState("short_conv", conv_kernel=kernel, inner_size=positive(config.get("conv_dim")) or _hidden(config))


def _recurrent(config: Mapping[str, Any], model_type: Optional[str]) -> Optional[LinearState]:
    width = positive(config.get("lru_width"))
    if width is None:
        return None
    return LinearState("recurrent", conv_kernel=positive(config.get("conv1d_width")), inner_size=width)


def _lightning(config: Mapping[str, Any], model_type: Optional[str]) -> Optional[LinearState]:
    listed = isinstance(config.get("attn_type_list"), list)
    if not listed and (model_type or "") not in ("minimax_text_01", "bailing_moe_linear", "bailing_moe_v2_5"):
        return None
    heads, dim = size(config, "attention_heads"), size(config, "head_dim")
    return LinearState("lightning", heads=heads, head_dim=dim, key_head_dim=dim, value_head_dim=dim)


def _mamba(config: Mapping[str, Any], model_type: Optional[str]) -> Optional[LinearState]:
    names = ("mamba_d_state", "ssm_state_size", "state_size")
    state = next((positive(config[name]) for name in names if config.get(name) is not None), None)
    if state is None:
        return None
    heads = _first(config, "mamba_n_heads", "mamba_num_heads", "n_mamba_heads")
    if heads is None and model_type in ("mamba2", "codestral_mamba"):
        heads = positive(config.get("num_heads"))
    dim = _first(config, "mamba_d_head", "mamba_head_dim", "mamba_headdim")
    if dim is None and heads is not None:
        dim = positive(config.get("head_dim"))
    hidden, expand = _hidden(config), _first(config, "mamba_expand", "expand")
    inner = _first(config, "mamba_d_ssm", "mamba_intermediate_size")
    if inner is None and model_type in ("mamba", "falcon_mamba"):
        inner = positive(config.get("intermediate_size"))
    if inner is None and model_type == "nemotron_h" and heads and dim:
        inner = heads * dim
    if inner is None and hidden and expand:
        inner = hidden * expand
    if heads is None and dim and inner and inner % dim == 0:
        heads = inner // dim
    if dim is None and heads and inner and inner % heads == 0:
        dim = inner // heads
    return LinearState(
        "mamba2" if heads and dim else "mamba1",
        conv_kernel=_first(config, "mamba_d_conv", "conv_kernel", "d_conv"),
        state_size=state,
        heads=heads,
        head_dim=dim,
        groups=_first(config, "mamba_n_groups", "n_groups", "mamba_ngroups"),
        inner_size=inner,
        dtype=text(config.get("mamba_ssm_cache_dtype") or config.get("mamba_ssm_dtype")),
    )


def _first(config: Mapping[str, Any], *names: str) -> Optional[int]:
    return next((positive(config[name]) for name in names if config.get(name) is not None), None)


def _hidden(config: Mapping[str, Any]) -> Optional[int]:
    return size(config, "hidden_size")
