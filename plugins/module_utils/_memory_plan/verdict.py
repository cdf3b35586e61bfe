# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether it fits, in words: the verdict, its reasons with numbers, and what to do."""

from __future__ import annotations

from typing import List, Tuple

from .arguments import AUTO
from .cache import Cache
from .estimate import BEST, LIKELY, WORST, Estimate
from .types import DOES_NOT_FIT, FITS, MIB, TIGHT, UNKNOWN
from .weights import Weights

# A warm-up that is worth a word.
_LARGE_WARMUP_MIB = 2048
# vLLM's own default on smaller GPUs.
USUAL_SEQS = 256


def verdict(found: Estimate) -> Tuple[str, Tuple[str, ...]]:
    """One of fits, tight, does_not_fit, unknown; and why."""
    if isinstance(found.weights, str):
        return UNKNOWN, ("The weights' size can't be known: %s." % found.weights,)
    if found.kv[LIKELY] <= 0:
        return DOES_NOT_FIT, (_no_room(found, found.weights),) + _warmup_line(found)
    if isinstance(found.cache, str):
        return UNKNOWN, ("The KV cache's size can't be known: %s." % found.cache,)
    if found.max_model_len is None and found.args.max_model_len != AUTO:
        return UNKNOWN, ("max_model_len isn't given, and %s doesn't say it." % found.given.facts.source,)
    return _with_cache(found, found.weights, found.cache)


def repeats(found: Estimate) -> bool:
    """Whether the sampler's warm-up finds room once more, after the KV cache has taken its share.

    The warm-up runs again then, on memory that is in pieces: what lies outside of the share has to take it.
    """
    warmup = found.over.warmup_bytes
    return warmup < _LARGE_WARMUP_MIB * MIB // 2 or warmup <= found.outside


def _with_cache(found: Estimate, weights: Weights, cache: Cache) -> Tuple[str, Tuple[str, ...]]:
    if not found.fits(BEST):
        return DOES_NOT_FIT, (_too_small(found, cache),) + _warmup_line(found)
    if not found.states_fit(LIKELY) and found.given.how.states_refused:
        return DOES_NOT_FIT, (_few_states(found),) + _warmup_line(found)
    reasons: List[str] = []
    if not found.states_fit(WORST):
        reasons.append(_few_states(found))
    if not found.fits(LIKELY):
        reasons.append(_too_small(found, cache))
    elif not found.fits(WORST):
        reasons.append(
            "About %d MiB are left for the KV cache, at worst %d MiB; one request of %d tokens needs %d MiB."
            % (_mib(found.kv[LIKELY]), _mib(found.kv[WORST]), found.max_model_len or 1, _request(found, cache))
        )
    if not repeats(found):
        reasons.append(
            "The sampler's warm-up runs again when the KV cache has taken its share: it needs about %d MiB for "
            "max_num_seqs %d x vocabulary %d, and %d MiB lie outside of the share. That is how a start runs out of memory."
            % (
                _need(found.over.warmup_bytes),
                found.seqs,
                found.given.facts.vocab_size or 0,
                max(_mib(found.outside), 0),
            )
        )
    graphs_outside = not found.given.how.graphs_in_budget
    if graphs_outside and found.given.total - found.budget < found.over.graphs.likely * MIB:
        reasons.append(
            "CUDA graphs come on top of gpu_memory_utilization in this version: about %d MiB, and %d MiB are left."
            % (found.over.graphs.likely, _mib(found.given.total - found.budget))
        )
    if found.given.facts.vocab_size is None:
        line = "%s doesn't say how large the vocabulary is: what the sampler's warm-up takes isn't known."
        reasons.append(line % found.given.facts.source)
    if reasons:
        return TIGHT, tuple(reasons) + _warmup_line(found)
    line = "Weights %d MiB, about %d MiB of KV cache per GPU." % (_need(weights.most), _mib(found.kv[LIKELY]))
    return FITS, (line,) + _warmup_line(found)


def _warmup_line(found: Estimate) -> Tuple[str, ...]:
    warmup, seqs = _need(found.over.warmup_bytes), found.seqs
    if warmup < _LARGE_WARMUP_MIB or seqs <= USUAL_SEQS:
        return ()
    line = "The sampler's warm-up takes about %d MiB for max_num_seqs %d x vocabulary %d; with max_num_seqs %d it is %d MiB."
    return (
        line
        % (
            warmup,
            seqs,
            found.given.facts.vocab_size or 0,
            USUAL_SEQS,
            _need(found.over.warmup_bytes * USUAL_SEQS / seqs),
        ),
    )


def _no_room(found: Estimate, weights: Weights) -> str:
    over = found.over
    if weights.most > found.budget:
        line = "The weights alone take %d MiB of a GPU, and vLLM may use %d MiB of it."
        return line % (_need(weights.most), _mib(found.budget))
    line = (
        "Nothing is left for the KV cache: weights %d MiB, activations about %d MiB, libraries about %d MiB%s, "
        "and vLLM may use %d MiB of each GPU."
    )
    graphs = ", CUDA graphs about %d MiB" % over.graphs.likely if found.given.how.graphs_in_budget else ""
    values = (_need(weights.most), over.activation.likely, over.non_torch.likely, graphs, _mib(found.budget))
    return line % values


def _too_small(found: Estimate, cache: Cache) -> str:
    if found.args.kv_cache_memory_bytes is not None and found.held(BEST) > found.given.total:
        line = "kv_cache_memory_bytes and what else is needed come to %d MiB, and the GPU has %d MiB."
        return line % (_mib(found.held(BEST)), _mib(found.given.total))
    length = found.max_model_len or 1
    line = "One request of max_model_len %d needs %d MiB of KV cache per GPU, and about %d MiB are left."
    return line % (length, _request(found, cache), max(_mib(found.kv[LIKELY]), 0))


def _few_states(found: Estimate) -> str:
    line = (
        "max_num_seqs %d is more than the blocks of the cache: about %d, at worst %d. Layers that keep a state need one "
        "block for each request while CUDA graphs are captured."
    )
    return line % (found.seqs, found.blocks[LIKELY], found.blocks[WORST])


def _request(found: Estimate, cache: Cache) -> int:
    return _need(cache.request_bytes(found.max_model_len or 1))


def _mib(size: float) -> int:
    return int(size // MIB)


def _need(size: float) -> int:
    return int(-(-size // MIB))
