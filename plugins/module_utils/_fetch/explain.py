# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a failure at the hub is called to people: what is wrong, where, what to do next."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from .._core.errors import GpuFleetError
from .request import Asked

_KEPT = "What was fetched so far stays in %(partial)s: run again, and it goes on from there."
_MESSAGES: Dict[str, str] = {
    "gated": "%(repo)s is gated: its owner has to grant access first. Ask for it on the model's page at %(hub)s, then give token "
    "one of the "
    "account that was granted it%(had_token)s.",
    "repo_missing": "%(hub)s has no model %(repo)s, or hides it from this caller%(had_token)s. Correct repo, or give token one that "
    "may read it.",
    "revision_missing": "%(repo)s at %(hub)s has no revision %(revision)s. Look at the model's history there and correct revision.",
    "file_missing": "%(hub)s lists a file of %(repo)s that it does not have. If it is a mirror, let it catch up; else correct revision.",
    "bad_token": "%(hub)s does not take the credentials for %(repo)s%(had_token)s. Give token one that is valid; it was not tried again.",
    "forbidden": "%(hub)s refuses %(repo)s to the one who asks%(had_token)s. Give token one whose rights include reading this model; it "
    "was not tried again.",
    "refused": "%(hub)s refused the request for %(repo)s (HTTP %(status)s). Read `detail`.",
    "rate_limited": "%(hub)s limits how much is asked of it, and still did after %(retries)d tries (HTTP %(status)s). Run again "
    "later, or give a "
    "token: it raises the limit. " + _KEPT,
    "hub_down": "%(hub)s has trouble of its own (HTTP %(status)s), and still had after %(retries)d tries. " + _KEPT,
    "unreachable": "%(hub)s can't be reached, or breaks off, and still did after %(retries)d tries. Check the host's way out "
    "(endpoint, proxy, "
    "DNS). " + _KEPT,
    "stalled": "%(hub)s sent nothing for %(stall)d s, and not after %(retries)d more tries either. " + _KEPT,
    "certificate": "The certificate of %(hub)s is not trusted here. Install its authority's certificate on the host, or correct endpoint.",
    "truncated": "%(hub)s sends another number of bytes than it promises, and still did after %(retries)d tries. If a mirror or "
    "proxy is between, "
    "look there. " + _KEPT,
    "range": "%(hub)s can't go on in the middle of a file, and did not serve it whole in %(retries)d tries either. " + _KEPT,
    "no_space": "The file system of %(path)s is full. Make room. " + _KEPT,
    "not_writable": "Nothing can be written beside %(path)s. Correct the rights, or set path to another directory.",
    "offline": "huggingface_hub was told not to use the network. Unset HF_HUB_OFFLINE for this host's tasks.",
    "bad_name": "%(repo)s is no name of a model. It is OWNER/NAME, such as MiniMaxAI/MiniMax-M2.5.",
    "not_a_hub": "What answers at %(hub)s is no model hub. Correct endpoint, or look at the proxy in between.",
    "no_library": "%(python)s has no huggingface_hub. Set python to the interpreter of an environment with vLLM in it.",
    "timeout": "Fetching %(repo)s took longer than the %(timeout)d s of timeout. " + _KEPT,
    "died": "The program that fetches %(repo)s ended without an answer. Read `detail`. " + _KEPT,
    "unknown": "Fetching %(repo)s from %(hub)s failed. Read `detail`. " + _KEPT,
}


def failure(asked: Asked, answer: Mapping[str, Any]) -> GpuFleetError:
    """The error for what the driver answered. Its result has ``kind``, ``status`` and ``detail``."""
    kind = str(answer.get("kind"))
    detail = str(answer.get("detail") or "")
    for secret in asked.secrets():
        detail = detail.replace(secret, "***")
    message = _MESSAGES.get(kind, _MESSAGES["unknown"]) % {
        "repo": asked.repo, "hub": asked.hub, "revision": asked.revision, "path": asked.path, "partial": asked.partial,
        "python": asked.python, "status": answer.get("status"), "retries": asked.retries, "stall": asked.stall_timeout,
        "timeout": asked.timeout, "had_token": " (the token that was given is not enough)" if asked.token else " (no token was given)",
    }  # fmt: skip
    return GpuFleetError(message, kind=kind, status=answer.get("status"), detail=detail)
