# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM's engine arguments as far as memory depends on them, out of a dict that may hold anything."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

AUTO = -1
# No argument of a real deployment is larger.
_MOST = 2**50
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True)
class EngineArgs:
    """None means that vLLM's default holds. ``unread`` names those that couldn't be read, with what stands there."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    enable_expert_parallel: bool = False
    max_model_len: Optional[int] = None  # AUTO: the largest that fits
    max_num_seqs: Optional[int] = None
    max_num_batched_tokens: Optional[int] = None
    gpu_memory_utilization: Optional[float] = None
    kv_cache_memory_bytes: Optional[int] = None
    kv_cache_dtype: str = "auto"
    block_size: Optional[int] = None
    enforce_eager: bool = False
    enable_prefix_caching: Optional[bool] = None
    hybrid_kv_cache: bool = True
    quantization: Optional[str] = None
    dtype: str = "auto"
    cpu_offload_gb: float = 0.0
    encoder_data_parallel: bool = False
    throughput_mode: bool = False
    speculative_method: Optional[str] = None
    speculative_tokens: int = 0
    speculative_model: Optional[str] = None
    unread: Tuple[str, ...] = ()


def read_args(args: Mapping[str, Any]) -> EngineArgs:
    """Underscores and hyphens mean the same, and short forms too. Never raises: what can't be read is in ``unread``."""
    reader = _Reader(args)
    method, tokens, model = reader.speculation()
    return EngineArgs(
        tensor_parallel_size=reader.whole("tensor_parallel_size", "tp") or 1,
        pipeline_parallel_size=reader.whole("pipeline_parallel_size", "pp") or 1,
        data_parallel_size=reader.whole("data_parallel_size", "dp") or 1,
        decode_context_parallel_size=reader.whole("decode_context_parallel_size", "dcp") or 1,
        enable_expert_parallel=reader.flag("enable_expert_parallel") or False,
        max_model_len=reader.whole("max_model_len", auto=True),
        max_num_seqs=reader.whole("max_num_seqs"),
        max_num_batched_tokens=reader.whole("max_num_batched_tokens"),
        gpu_memory_utilization=reader.share("gpu_memory_utilization"),
        kv_cache_memory_bytes=reader.whole("kv_cache_memory_bytes"),
        kv_cache_dtype=reader.word("kv_cache_dtype") or "auto",
        block_size=reader.whole("block_size"),
        enforce_eager=reader.flag("enforce_eager") or False,
        enable_prefix_caching=reader.flag("enable_prefix_caching"),
        hybrid_kv_cache=not reader.flag("disable_hybrid_kv_cache_manager"),
        quantization=reader.word("quantization", "q"),
        dtype=reader.word("dtype") or "auto",
        cpu_offload_gb=reader.amount("cpu_offload_gb"),
        encoder_data_parallel=reader.word("mm_encoder_tp_mode") == "data",
        throughput_mode=reader.word("performance_mode") == "throughput",
        speculative_method=method,
        speculative_tokens=tokens,
        speculative_model=model,
        unread=tuple(reader.unread),
    )


def whole_number(value: Any) -> Optional[int]:
    """A number as vLLM takes it: 8192, "8192", "8k" (8000), "8K" (8192), "25.6k". None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value == int(value) and abs(value) <= _MOST else None
    if isinstance(value, int):
        return value if abs(value) <= _MOST else None
    if not isinstance(value, str):
        return None
    found = re.fullmatch(r"(\d{1,15})(?:(\.\d{1,9})?([kKmMgGtT]))?", value.strip())
    if found is None:
        return None
    number = float(found.group(1) + (found.group(2) or "")) if found.group(3) else int(found.group(1))
    result = int(number * _SUFFIXES.get(found.group(3) or "", 1))
    return result if result <= _MOST else None


class _Reader:
    def __init__(self, args: Mapping[str, Any]) -> None:
        self.unread: List[str] = []
        self._args: Dict[str, Any] = {}
        for name, value in args.items():
            if isinstance(name, str) and value is not None:
                self._args[name.strip().lstrip("-").replace("-", "_")] = value

    def whole(self, name: str, short: str = "", auto: bool = False) -> Optional[int]:
        value = self._get(name, short)
        if value is None:
            return None
        if auto and (value == -1 or str(value).strip().lower() in ("auto", "-1")):
            return AUTO
        found = whole_number(value)
        if found is None or found < 1:
            self._not_read(name, value)
            return None
        return found

    def share(self, name: str) -> Optional[float]:
        value = self._get(name)
        found = _float(value)
        if value is not None and (found is None or not 0 < found <= 1):
            self._not_read(name, value)
            return None
        return found

    def amount(self, name: str) -> float:
        value = self._get(name)
        found = _float(value)
        if value is not None and (found is None or not 0 <= found <= 2**20):
            self._not_read(name, value)
            return 0.0
        return found or 0.0

    def flag(self, name: str) -> Optional[bool]:
        value = self._get(name)
        if value is None and self._get("no_" + name) is not None:
            other = self.flag("no_" + name)
            return None if other is None else not other
        if value is None or isinstance(value, bool):
            return value
        text = str(value).strip().lower()
        if text in _YES or text in _NO:
            return text in _YES
        self._not_read(name, value)
        return None

    def word(self, name: str, short: str = "") -> Optional[str]:
        value = self._get(name, short)
        if value is None or (isinstance(value, str) and value.strip()):
            return value.strip().lower() if value else None
        self._not_read(name, value)
        return None

    def speculation(self) -> Tuple[Optional[str], int, Optional[str]]:
        value = self._get("speculative_config", "sc")
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                pass
        if value is None or value == {}:
            return None, 0, None
        if not isinstance(value, Mapping):
            self._not_read("speculative_config", value)
            return None, 0, None
        tokens, model, method = (
            whole_number(value.get("num_speculative_tokens")),
            value.get("model"),
            value.get("method"),
        )
        model = model if isinstance(model, str) and model else None
        method = method.strip().lower() if isinstance(method, str) and method.strip() else None
        return method or ("model" if model else "unknown"), min(max(tokens or 1, 1), 1024), model

    def _get(self, name: str, short: str = "") -> Any:
        found = self._args.get(name)
        return self._args.get(short) if found is None and short else found

    def _not_read(self, name: str, value: Any) -> None:
        self.unread.append("%s: %s can't be read, vLLM's default is assumed." % (name, repr(value)[:60]))


def _float(value: Any) -> Optional[float]:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
