# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether vLLM takes the values of the arguments that memory depends on.

What the plan can't read it leaves to vLLM's default. vLLM itself does not: it ends before it loads anything.
"""

from __future__ import annotations

import re
from typing import Any, List, Tuple

from .._memory_plan.layers import draft_unknown
from .._model.parallel import Check
from .asked import SHORT_NAMES, Asked, fail, warn

_SHOWN = 60
_WHOLE = "a whole number from 1 on"
# vllm/config: what each takes.
_WANTED = {
    "max_model_len": "a whole number from 1 on, such as 32768 or 32k, or auto",
    "max_num_seqs": _WHOLE,
    "max_num_batched_tokens": _WHOLE,
    "block_size": "a power of two or a multiple of 16, such as 16",
    "kv_cache_memory_bytes": "a number of bytes, such as 8G",
    "gpu_memory_utilization": "a share above 0 and up to 1, such as 0.9",
    "cpu_offload_gb": "a number of GiB from 0 on",
    "speculative_config": "a dictionary with method, model or both",
}
_SMALL_BLOCKS = (1, 2, 4, 8)
_DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
_CACHE_WORDS = ("auto", "half", "float")


def check_values(asked: Asked, elsewhere: bool = False) -> List[Check]:
    """``argument_values``, where a value can't work; ``draft_model`` and ``hf_overrides``, where something isn't planned.

    ``elsewhere``: nobody can ask the installed vLLM for its arguments' names.
    """
    args = asked.engine
    wrong: List[Tuple[str, str, str]] = []
    for line in args.unread:
        name = line.split(":", 1)[0]
        # The sizes have a check of their own, and no bytes are as good as none given.
        if name.endswith("_parallel_size") or (name == "kv_cache_memory_bytes" and asked.value(name) in (0, "0")):
            continue
        wrong.append((name, shown(asked.value(name)), _WANTED.get(name, "what vLLM's help says")))
    if args.block_size is not None and args.block_size % 16 and args.block_size not in _SMALL_BLOCKS:
        wrong.append(("block_size", shown(asked.value("block_size")), _WANTED["block_size"]))
    if args.dtype not in _DTYPES:
        wrong.append(("dtype", shown(asked.value("dtype")), "one of " + ", ".join(_DTYPES)))
    # Every format says its bits: a word without a number is none of a later version either.
    if args.kv_cache_dtype not in _CACHE_WORDS and not re.search(r"\d", args.kv_cache_dtype):
        wrong.append(("kv_cache_dtype", shown(asked.value("kv_cache_dtype")), "auto, bfloat16, fp8 or another format"))
    seqs, tokens = args.max_num_seqs, args.max_num_batched_tokens
    if seqs is not None and tokens is not None and tokens < seqs:
        wrong.append(("max_num_batched_tokens", str(tokens), "at least max_num_seqs, which is %d" % seqs))
    checks = []
    if wrong:
        detail = "vLLM doesn't take %s" % ", ".join("%s %s" % (name, value) for name, value, _wanted in wrong)
        fix = " ".join("%s has to be %s." % (name, wanted) for name, _value, wanted in wrong)
        checks.append(fail("argument_values", detail, fix))
    if elsewhere:
        checks += _short_names(asked)
    return checks + _not_planned(asked)


def _short_names(asked: Asked) -> List[Check]:
    found = [(short, name) for name, short in SHORT_NAMES.items() if asked.args.get(short) is not None]
    if not found:
        return []
    detail = "vLLM knows %s on the command line only, with one hyphen" % ", ".join(short for short, _name in found)
    return [warn("arguments", detail, " ".join("Write %s out." % name for _short, name in found))]


def _not_planned(asked: Asked) -> List[Check]:
    checks = []
    args = asked.engine
    if args.speculative_model is not None and draft_unknown(args):
        detail = "the weights and the cache of the draft model %s are not part of the plan" % shown(args.speculative_model)
        checks.append(warn("draft_model", detail, "Leave room for them: it is needed on the same GPUs."))
    if asked.value("hf_overrides"):
        detail = "hf_overrides changes what config.json says, and these checks read config.json as it is"
        checks.append(warn("hf_overrides", detail, "Judge by hand what it changes, or change a copy of config.json."))
    return checks


def shown(value: Any) -> str:
    """A value as it may stand in a message."""
    text = value if isinstance(value, str) and value.strip() and " " not in value else repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
