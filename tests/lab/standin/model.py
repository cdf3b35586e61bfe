# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model directory says: sizes from config.json, weights from its safetensors files, and vLLM's refusals."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NESTED = ("text_config", "llm_config", "language_config")
_KV_BYTES = {"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "fp8_ds_mla": 1, "int8": 1, "float32": 4}


class Refused(Exception):
    """vLLM refuses this model or configuration; the text is the last line of vLLM's traceback."""


def _invalid(config: str, text: str, kind: str = "value_error", field: str = "") -> Refused:
    """The last lines of a pydantic error as vLLM's configuration classes raise it."""
    where = f"\n{field}" if field else ""
    value = "Value error, " if kind == "value_error" else ""
    return Refused(
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {config}{where}\n  {value}{text} "
        f"[type={kind}, input_value=ArgsKwargs((), {{'model': ...}}), input_type=ArgsKwargs]\n"
        f"    For further information visit https://errors.pydantic.dev/2.14/v/{kind}"
    )


@dataclass(frozen=True)
class Parallel:
    """How one engine is split over GPUs."""

    tensor: int
    pipeline: int
    data: int
    expert: bool

    @property
    def world(self) -> int:
        """GPUs of one engine."""
        return self.tensor * self.pipeline


@dataclass(frozen=True)
class Model:
    """One model as its files describe it."""

    name: str  # what vLLM was given: a path
    architecture: str
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    max_positions: int | None
    dtype_bytes: int
    latent: tuple[int, int] | None  # MLA: kv_lora_rank, qk_rope_head_dim
    experts: int
    expert_intermediate: int
    shared_intermediate: int
    dense_layers: int  # how many layers have a dense MLP (all, without experts)
    block: tuple[int, int] | None  # stored FP8 blocks: n, k
    group: int | None  # group size of GPTQ or AWQ
    unquantised: tuple[str, ...]  # modules that are stored without quantisation
    weight_files: tuple[str, ...]
    weight_bytes: int

    def derived_length(self, asked: int | None, allow_longer: bool) -> int:
        """max_model_len as vLLM derives it; asked None or -1: the model's own. Raises Refused."""
        own = self.max_positions or 2048
        if asked is None or asked == -1:
            return own
        if asked > own and not allow_longer:
            raise _invalid(
                "ModelConfig",
                f"User-specified max_model_len ({asked}) is greater than the derived max_model_len "
                f"(max_position_embeddings={float(own)} or model_max_length=None in model's config.json). To allow "
                "overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1. "
                "VLLM_ALLOW_LONG_MAX_MODEL_LEN must be used with extreme caution. If the model uses relative position "
                "encoding (RoPE), positions exceeding derived_max_model_len lead to nan. If the model uses absolute "
                "position encoding, positions exceeding derived_max_model_len will cause a CUDA array out-of-bounds "
                "error.",
            )
        return asked

    def check_heads(self, parallel: Parallel) -> None:
        """Raises Refused unless the attention heads divide."""
        if self.heads % parallel.tensor:
            raise _invalid(
                "VllmConfig",
                f"Total number of attention heads ({self.heads}) must be divisible by tensor parallel size "
                f"({parallel.tensor}).",
            )

    def check_split(self, parallel: Parallel) -> None:
        """What a worker finds when it builds its part of the model. Raises Refused."""
        tensor = parallel.tensor
        if self.latent is None and (self.kv_heads % tensor if tensor < self.kv_heads else tensor % self.kv_heads):
            raise Refused("AssertionError")
        if self.block is not None:
            for problem in self._block_problems(parallel, *self.block):
                raise Refused(f"ValueError: {problem}")
        if self.group:
            for size in self._row_inputs(parallel):
                if size % self.group:
                    raise Refused(
                        "ValueError: The input size is not aligned with the quantized weight shape. "
                        "This can be caused by too large tensor parallel size."
                    )

    def _row_inputs(self, parallel: Parallel) -> list[int]:
        """Input sizes per rank of the matrices that are split by rows."""
        sizes = [] if self._plain("self_attn") or self.latent else [self.heads * self.head_dim // parallel.tensor]
        if self.dense_layers and not self._plain("mlp"):
            sizes.append(self.intermediate // parallel.tensor)
        if self.shared_intermediate and not self._plain("shared_experts"):
            sizes.append(self.shared_intermediate // parallel.tensor)
        if self.experts and not parallel.expert:
            sizes.append(self.expert_intermediate // parallel.tensor)
        return sizes

    def _plain(self, module: str) -> bool:
        return any(module in name for name in self.unquantised)

    def _block_problems(self, parallel: Parallel, block_n: int, block_k: int) -> Iterator[str]:
        tensor = parallel.tensor
        if not self._plain("self_attn") and self.latent is None:
            own = max(self.kv_heads // tensor, 1) * self.head_dim
            for size in (self.heads * self.head_dim // tensor, own):
                if size % block_n:
                    yield _column(size, block_n)
            if tensor > 1 and self.heads * self.head_dim // tensor % block_k:
                yield _row(self.heads * self.head_dim // tensor, block_k)
        for size, there in (
            (self.intermediate, self.dense_layers and not self._plain("mlp")),
            (self.shared_intermediate, not self._plain("shared_experts")),
        ):
            if there and size:
                if size // tensor % block_n:
                    yield _column(size // tensor, block_n)
                if tensor > 1 and size // tensor % block_k:
                    yield _row(size // tensor, block_k)
        if self.experts:
            size = self.expert_intermediate // (1 if parallel.expert else tensor)
            if size % block_n:
                yield (
                    f"The output_size of gate's and up's weight = {size} is not divisible by weight quantization "
                    f"block_n = {block_n}."
                )
            if tensor > 1 and size % block_k:
                yield (
                    f"The input_size of down's weight = {size} is not divisible by weight quantization "
                    f"block_k = {block_k}."
                )

    def weights_mib(self, parallel: Parallel) -> int:
        """Weights per GPU in MiB; experts, nearly all of a model that has them, go to all ranks of all engines."""
        ranks = parallel.world * (parallel.data if parallel.expert and self.experts else 1)
        return -(-self.weight_bytes // (ranks * 1024 * 1024))

    def kv_bytes_per_token(self, parallel: Parallel, cache_dtype: str) -> int:
        """KV cache per token on the GPU that needs most, in bytes."""
        size = _KV_BYTES.get(cache_dtype, self.dtype_bytes)
        layers = -(-self.layers // parallel.pipeline)
        if self.latent is not None:
            return layers * sum(self.latent) * size
        return 2 * layers * max(self.kv_heads // parallel.tensor, 1) * self.head_dim * size


def _column(size: int, block: int) -> str:
    return f"Weight output_partition_size = {size} is not divisible by weight quantization block_n = {block}."


def _row(size: int, block: int) -> str:
    return f"Weight input_size_per_partition = {size} is not divisible by weight quantization block_k = {block}."


def read(name: str) -> Model:
    """The model in directory name. Raises Refused with vLLM's words when there is none."""
    directory = Path(name)
    if not directory.is_dir():
        raise Refused(_not_found(name))
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _invalid(
            "ModelConfig",
            f"Invalid repository ID or local directory specified: '{name}'.\n"
            "Please verify the following requirements:\n1. Provide a valid Hugging Face repository ID.\n"
            "2. Specify a local directory that contains a recognized configuration file.\n"
            "   - For Hugging Face models: ensure the presence of a 'config.json'.\n"
            "   - For Mistral models: ensure the presence of a 'params.json'.\n",
        ) from None
    except PermissionError as error:
        raise Refused(f"PermissionError: [Errno 13] Permission denied: '{error.filename}'") from None
    except ValueError:
        raise Refused(
            f"OSError: It looks like the config file at '{directory / 'config.json'}' is not a valid JSON file."
        ) from None
    return _from_config(name, directory, config)


def _not_found(name: str) -> str:
    offline = os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        kind = "huggingface_hub.errors.HFValidationError" if offline else "OSError"
        return (
            f"{kind}: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{name}'. "
            "Use `repo_type` argument if needed."
        )
    if offline:
        return (
            "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the "
            "specified revision on the local disk and outgoing traffic has been disabled. To enable repo look-ups and "
            "downloads online, pass 'local_files_only=False' as input."
        )
    return (
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the "
        "cached files.\nCheck your internet connection or see how to run the library in offline mode at "
        "'https://huggingface.co/docs/transformers/installation#offline-mode'."
    )


def _number(config: dict[str, Any], *names: str, default: int = 0) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return int(value)
    return default


def _from_config(name: str, directory: Path, config: dict[str, Any]) -> Model:
    text = next((config[key] for key in _NESTED if isinstance(config.get(key), dict)), config)
    heads = _number(text, "num_attention_heads", "n_head", "n_heads", default=1)
    hidden = _number(text, "hidden_size", "n_embd", "d_model", default=heads)
    layers = _number(text, "num_hidden_layers", "n_layer", "n_layers", default=1)
    latent = _number(text, "kv_lora_rank")
    experts = _number(text, "num_local_experts", "num_experts", "n_routed_experts")
    intermediate = _number(text, "intermediate_size", "n_inner", "ffn_hidden_size", default=4 * hidden)
    expert_size = _number(text, "moe_intermediate_size", default=intermediate)
    shared = _number(text, "shared_expert_intermediate_size", "shared_intermediate_size")
    quantisation = config.get("quantization_config") or text.get("quantization_config") or {}
    method = str(quantisation.get("quant_method", ""))
    block = quantisation.get("weight_block_size")
    files = tuple(sorted(file.name for file in directory.glob("*.safetensors")))
    dtype = str(text.get("torch_dtype") or text.get("dtype") or config.get("torch_dtype") or "bfloat16")
    return Model(
        name=name,
        architecture=(config.get("architectures") or text.get("architectures") or ["LlamaForCausalLM"])[0],
        heads=heads,
        kv_heads=_number(text, "num_key_value_heads", "num_kv_heads", default=heads) or heads,
        head_dim=_number(text, "head_dim") or hidden // heads,
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        vocabulary=_number(text, "vocab_size", default=32000),
        max_positions=_number(text, "max_position_embeddings", "n_positions", "max_seq_len", default=0) or None,
        dtype_bytes=4 if dtype == "float32" else 2,
        latent=(latent, _number(text, "qk_rope_head_dim")) if latent else None,
        experts=experts,
        expert_intermediate=expert_size if experts else 0,
        shared_intermediate=shared or _number(text, "n_shared_experts") * expert_size if experts else 0,
        dense_layers=_number(text, "first_k_dense_replace") if experts else layers,
        block=(int(block[0]), int(block[1])) if method == "fp8" and block else None,
        group=_number(quantisation, "group_size", "q_group_size") if method in ("gptq", "awq") else None,
        unquantised=tuple(quantisation.get("modules_to_not_convert") or quantisation.get("ignore") or ()),
        weight_files=files,
        weight_bytes=_weight_bytes(directory, files),
    )


def _weight_bytes(directory: Path, files: tuple[str, ...]) -> int:
    try:
        index = json.loads((directory / "model.safetensors.index.json").read_text(encoding="utf-8"))
        return int(index["metadata"]["total_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return sum((directory / file).stat().st_size for file in files)


def check_world(parallel: Parallel, gpus: int) -> None:
    """Raises Refused when the engines need more GPUs than are visible."""
    if parallel.world > gpus:
        raise _invalid(
            "ParallelConfig",
            f"World size ({parallel.world}) is larger than the number of available GPUs ({gpus}) in this node. If this "
            "is intentional and you are using:\n- ray, set '--distributed-executor-backend ray'.\n"
            "- multiprocessing, set '--nnodes' appropriately.",
        )


def check_utilisation(value: float) -> None:
    """Raises Refused outside of what gpu_memory_utilization may be."""
    if not 0 < value <= 1:
        bound = "less than or equal to 1" if value > 1 else "greater than 0"
        kind = "less_than_equal" if value > 1 else "greater_than"
        raise _invalid("CacheConfig", f"Input should be {bound}", kind, "gpu_memory_utilization")


def check_positive(config: str, field: str, value: int) -> None:
    """Raises Refused unless value is at least 1."""
    if value < 1:
        raise _invalid(config, "Input should be greater than or equal to 1", "greater_than_equal", field)
