# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan as data. Sizes are MiB (1024 x 1024 bytes) of one GPU unless a name says otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Tuple

if TYPE_CHECKING:
    from .._model.checkpoint import Checkpoint

MIB = 1024 * 1024

FITS, TIGHT, DOES_NOT_FIT, UNKNOWN = "fits", "tight", "does_not_fit", "unknown"


@dataclass(frozen=True)
class Range:
    """A part that can only be estimated: the least, the likely and the most, in MiB."""

    low: int
    likely: int
    high: int

    def to_dict(self) -> Dict[str, int]:
        """For results and tables."""
        return {"low": self.low, "likely": self.likely, "high": self.high}


@dataclass(frozen=True)
class Gpu:
    """One GPU of the service, as the driver describes it.

    ``total_mib`` is NVML's total; ``reserved_mib`` what the driver keeps for itself, where it says so; ``memory_type``
    is discrete, unified or mig.
    """

    total_mib: Optional[int]
    name: str = ""
    memory_type: str = "discrete"
    reserved_mib: Optional[int] = None


@dataclass(frozen=True)
class CheckpointBytes:
    """Bytes of the checkpoint's tensors: all of them, and by role where that is known.

    ``roles`` has all of embedding, head, experts, encoder, nextn that the checkpoint has, or nothing: then what is split
    and what isn't is taken from the model's sizes. ``float32``: bytes stored as such, None where that isn't known.
    """

    total: int
    roles: Mapping[str, int] = field(default_factory=dict)
    float32: Optional[int] = None


def checkpoint_bytes(found: Checkpoint) -> Optional[CheckpointBytes]:
    """What the plan needs of a checkpoint as it was read; None when that isn't complete, so that its sizes say nothing."""
    if not found.complete or found.total_bytes <= 0:
        return None
    return CheckpointBytes(found.total_bytes, dict(found.role_bytes), found.dtype_bytes.get("F32", 0))


@dataclass(frozen=True)
class MemoryPlan:
    """What a start of vLLM will need. A figure that can't be known is None, and ``unknown`` says why.

    ``weights_mib_per_gpu``: the rank with most. ``kv_mib_per_token_per_gpu``: what one more token of one request takes;
    None where layers share one pool (hybrids), as there it isn't one number. ``kv_tokens``: as vLLM prints it.
    ``max_concurrency``: requests of max_model_len that fit at once. ``warmup_mib``: the sampler's, on the last stage.
    ``needed_mib_per_gpu``: the least with which one request of max_model_len runs. ``free_mib_needed``: what must be
    free when vLLM starts.
    """

    verdict: str
    reasons: Tuple[str, ...] = ()
    advice: Tuple[str, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    weights_mib_per_gpu: Optional[int] = None
    kv_mib_per_token_per_gpu: Optional[float] = None
    kv_tokens: Optional[int] = None
    max_concurrency: Optional[float] = None
    warmup_mib: Optional[int] = None
    needed_mib_per_gpu: Optional[int] = None
    free_mib_needed: Optional[int] = None
    # What the figures were made of.
    weights_source: Optional[str] = None  # checkpoint | estimate
    max_model_len: Optional[int] = None
    max_num_seqs: Optional[int] = None
    budget_mib: Optional[int] = None  # utilisation x total as CUDA reports it
    kv_cache_mib: Optional[int] = None
    kv_blocks: Optional[int] = None
    kv_block_size: Optional[int] = None
    hybrid: bool = False
    parts: Mapping[str, Range] = field(default_factory=dict)  # activation, non_torch, cuda_graphs, kv_cache
    # What would fit. Empty or None where nothing does, or it can't be known.
    largest_max_model_len: Optional[int] = None
    largest_max_num_seqs: Optional[int] = None
    tensor_parallel_sizes: Tuple[int, ...] = ()

    def to_dict(self) -> Dict[str, Any]:
        """The result's ``plan``: exactly these names."""
        return {
            "weights_mib_per_gpu": self.weights_mib_per_gpu,
            "kv_mib_per_token_per_gpu": self.kv_mib_per_token_per_gpu,
            "kv_tokens": self.kv_tokens,
            "max_concurrency": self.max_concurrency,
            "warmup_mib": self.warmup_mib,
            "needed_mib_per_gpu": self.needed_mib_per_gpu,
            "free_mib_needed": self.free_mib_needed,
        }

    def suggest(self) -> Dict[str, Any]:
        """The sizes that fit by memory alone; whether they are valid is not known here."""
        return {
            "tensor_parallel_size": list(self.tensor_parallel_sizes),
            "max_model_len": self.largest_max_model_len,
            "max_num_seqs": self.largest_max_num_seqs,
        }
