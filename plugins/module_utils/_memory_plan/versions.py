# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What differs between versions of vLLM and between GPUs, each in one place with where it stands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional, Sequence, Tuple

from .arguments import EngineArgs
from .types import MIB, Gpu

GIB = 1024 * MIB

# The sampler's warm-up, bytes for each of max_num_seqs x vocabulary. Up to 0.18 top-p sorts the logits: half precision
# logits, their float32 copy, sorted values and 64-bit indices, probabilities, their sums and masks: 39, as eleven starts
# measured (1.4 to 7.5 GiB). From 0.19 a Triton kernel cuts in place (topk_topp_sampler.py) and what is left is logits
# twice (2 + 4), probabilities (4) and noise (4).
_SAMPLER_SORTS, _SAMPLER_IN_PLACE = 39, 14


@dataclass(frozen=True)
class Behaviour:
    """How one version of vLLM behaves. An unknown version is taken for a new one, but its sampler for an old one."""

    utilization: float  # gpu_memory_utilization when nothing is said (config/cache.py)
    sampler_bytes: Tuple[int, int, int]  # least, likely, most
    graphs_in_budget: bool  # VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS (envs.py)
    tokens_from_concurrency: bool  # how "GPU KV cache size" is computed (kv_cache_utils.py)
    batches_in_flight: int  # whose tokens a sliding window must keep (config/vllm.py, max_in_flight_tokens)
    hybrid_prefix_caching: bool  # on by default for models with linear attention (engine/arg_utils.py)
    latent_block: int  # what blocks of hybrids with latent attention are a multiple of (platforms/interface.py)
    latent_padded: bool  # the first engine kept latent attention's 576 values in rows of 640
    states_refused: (
        bool  # fewer blocks than max_num_seqs end the start; 0.18 captured fewer graphs (config/compilation.py)
    )
    own_cache_dtype: bool  # kv_cache_dtype auto takes the one that the checkpoint was made for (attention/layer.py)
    mxfp4_triton: bool  # MXFP4 experts through Triton on Hopper rather than Marlin


def behaviour(version: Optional[str]) -> Behaviour:
    """The behaviour of a version such as "0.19.1rc1.dev71+g1234567"; of None, or what is no version, with care."""
    parsed = parse_version(version)
    known = parsed or (9, 0)
    in_place = _SAMPLER_IN_PLACE
    sampler = (in_place, _SAMPLER_SORTS, _SAMPLER_SORTS)
    if parsed is not None:
        # Some versions warm up a second way of sampling, which some cards do by sorting: hence the upper end.
        sampler = (in_place, in_place, 24) if known >= (0, 19) else (36, _SAMPLER_SORTS, 42)
    return Behaviour(
        utilization=0.92 if known >= (0, 21) else 0.9,
        sampler_bytes=sampler,
        graphs_in_budget=known >= (0, 21),
        tokens_from_concurrency=known >= (0, 20),
        batches_in_flight=2 if known >= (0, 26) else 1,
        hybrid_prefix_caching=known >= (0, 27),
        latent_block=128 if known >= (0, 20) else 64,
        latent_padded=known < (0, 8),
        states_refused=known != (0, 18),
        own_cache_dtype=known >= (0, 11),
        mxfp4_triton=known >= (0, 11),
    )


def parse_version(version: Optional[str]) -> Optional[Tuple[int, int]]:
    """(major, minor), or None."""
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})(?=\W|rc|a\d|b\d|dev|post|$)", (version or "").strip())
    return (int(found.group(1)), int(found.group(2))) if found else None


def cuda_total(gpu: Gpu) -> Optional[int]:
    """Bytes that CUDA reports as total, from which vLLM takes its share.

    That is NVML's total without what the driver keeps for itself: where it doesn't say how much that is, 0.45 to 0.75
    GiB on cards from 24 to 141 GB, less on small ones. Unified memory has no such part.
    """
    if gpu.total_mib is None or not 0 < gpu.total_mib <= 2**30:
        return None
    kept = min(576, gpu.total_mib // 40)
    if gpu.reserved_mib is not None and 0 <= gpu.reserved_mib < gpu.total_mib // 4:
        kept = gpu.reserved_mib
    if gpu.memory_type == "unified":
        kept = 0
    return (gpu.total_mib - kept) * MIB


def smallest(gpus: Sequence[Gpu]) -> Optional[Gpu]:
    """The GPU that decides; None when there is none, or one of unknown size."""
    if not gpus or any(cuda_total(gpu) is None for gpu in gpus):
        return None
    return min(gpus, key=lambda gpu: cuda_total(gpu) or 0)


def max_num_seqs(args: EngineArgs, gpu: Optional[Gpu], tokens: int) -> int:
    """As given, or vLLM's default for the device (engine/arg_utils.py, get_batch_defaults)."""
    if args.max_num_seqs is not None:
        return args.max_num_seqs
    found = 1024 if _large(gpu) else 256
    return min(found * (2 if args.throughput_mode else 1), tokens)


def max_num_batched_tokens(args: EngineArgs, gpu: Optional[Gpu]) -> int:
    """As given, or the default of ``vllm serve`` for the device."""
    if args.max_num_batched_tokens is not None:
        return args.max_num_batched_tokens
    found = 2048
    if _large(gpu):
        found = 16384 if gpu is not None and (cuda_total(gpu) or 0) >= 160 * GIB else 8192
    return found * (2 if args.throughput_mode else 1)


def hopper(gpu: Optional[Gpu]) -> bool:
    """Whether it is of that generation, by its name."""
    return gpu is not None and re.search(r"\bG?H(20|100|200|800)\b", gpu.name.upper()) is not None


def _large(gpu: Optional[Gpu]) -> bool:
    if gpu is None:
        return False
    return (cuda_total(gpu) or 0) >= 70 * GIB and "a100" not in gpu.name.lower()
