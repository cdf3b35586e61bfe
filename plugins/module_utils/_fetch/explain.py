# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a failure at the hub is called to people: what is wrong, where, what to do next."""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping

from .._core.errors import GpuFleetError
from .request import Asked

# What may have left files to go on from, and what is said where it has, and where it has not.
_KEEPS = ("rate_limited", "hub_down", "unreachable", "stalled", "truncated", "range", "no_space", "timeout", "died", "unknown")
_KEPT = "What was fetched so far stays in %(partial)s: run again, and it goes on from there."
_NOTHING = "Nothing was fetched so far: run again later."
_MESSAGES: Dict[str, str] = {
    "gated": "%(repo)s is gated: its owner has to grant access first. Ask for it on the model's page at %(hub)s, then give token "
    "one of the account that was granted it%(had_token)s.",
    "repo_missing": "%(hub)s has no model %(repo)s, or hides it from this caller%(had_token)s. Correct repo, or give token one that "
    "may read it.",
    "revision_missing": "%(repo)s at %(hub)s has no revision %(revision)s. Look at the model's history there and correct revision.",
    "file_missing": "%(hub)s lists a file of %(repo)s that it does not have. If it is a mirror, let it catch up; else correct revision.",
    "bad_token": "%(hub)s does not take the credentials for %(repo)s%(had_token)s. Give token one that is valid; it was not tried again.",
    "forbidden": "%(hub)s refuses %(repo)s to the one who asks%(had_token)s. Give token one whose rights include reading this model; it "
    "was not tried again.",
    "refused": "%(hub)s refused the request for %(repo)s (HTTP %(status)s). Read `detail`.",
    "rate_limited": "%(hub)s limits how much is asked of it, and still did after %(tries)s (HTTP %(status)s). Wait, or give a token: "
    "it raises the limit.",
    "hub_down": "%(hub)s has trouble of its own (HTTP %(status)s), and still had after %(tries)s. Wait until it is over.",
    "unreachable": "%(hub)s can't be reached, or breaks off, and still did after %(tries)s. Check the host's way out (endpoint, proxy, "
    "DNS).",
    "stalled": "%(hub)s sent nothing for %(stall)d s (%(tries)s without getting any further). Check the host's way out.",
    "certificate": "The certificate of %(hub)s is not trusted here. Install its authority's certificate on the host, or correct endpoint.",
    "truncated": "%(hub)s sends another number of bytes than it promises, and still did after %(tries)s. If a mirror or proxy is between, "
    "look there.",
    "range": "%(hub)s can't go on in the middle of a file, and did not serve it whole in %(tries)s either. If a mirror or proxy is "
    "between, look there.",
    "no_space": "The file system of %(path)s is full. Make room.",
    "not_writable": "Nothing can be written beside %(path)s. Correct the rights, or set path to another directory.",
    "offline": "huggingface_hub was told not to use the network. Unset HF_HUB_OFFLINE for this host's tasks.",
    "bad_name": "%(repo)s is no name of a model. It is OWNER/NAME, such as MiniMaxAI/MiniMax-M2.5.",
    "not_a_hub": "What answers at %(hub)s is no model hub. Correct endpoint, or look at the proxy in between.",
    "no_library": "%(python)s can't import huggingface_hub (%(detail)s). Set python to the interpreter of an environment with vLLM in it, "
    "or mend this one.",
    "timeout": "Fetching %(repo)s took longer than the %(timeout)d s of timeout. Allow it more time.",
    "died": "The program that fetches %(repo)s ended without an answer. Read `detail`.",
    "unknown": "Fetching %(repo)s from %(hub)s failed. Read `detail`.",
}


def failure(asked: Asked, answer: Mapping[str, Any]) -> GpuFleetError:
    """The error for what the driver answered. Its result has ``kind``, ``status`` and ``detail``."""
    kind = str(answer.get("kind"))
    detail = str(answer.get("detail") or "")
    for secret in asked.secrets():
        detail = detail.replace(secret, "***")
    words = {
        "repo": asked.repo, "hub": asked.hub, "revision": asked.revision, "path": asked.path, "partial": asked.partial,
        "python": asked.python, "status": answer.get("status"), "stall": asked.stall_timeout, "timeout": asked.timeout,
        "tries": "1 try" if asked.retries == 0 else "%d tries" % (asked.retries + 1), "detail": detail.rstrip("."),
        "had_token": " (the token that was given is not enough)" if asked.token else " (no token was given)",
    }  # fmt: skip
    message = _MESSAGES.get(kind, _MESSAGES["unknown"]) % words
    if kind in _KEEPS or kind not in _MESSAGES:
        message += " " + (_KEPT % words if _has_files(asked.partial) else _NOTHING)
    return GpuFleetError(message, kind=kind, status=answer.get("status"), detail=detail)


def _has_files(directory: str) -> bool:
    """Whether there is a file to go on from; what is not there has none."""
    return any(os.path.getsize(os.path.join(where, name)) for where, _directories, names in os.walk(directory) for name in names)
