# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an exception of the hub's library means. Names and status codes are read, not classes: the library's versions differ in those."""

from __future__ import annotations

import errno
from typing import Any, Dict, Iterator, List, Optional

# What a second try may mend. Everything else is the same again, or makes it worse (an account locked, a rate limit).
RETRIED = ("unreachable", "stalled", "hub_down", "rate_limited", "truncated", "range")

_BY_NAME = (
    ("GatedRepoError", "gated"),
    ("DisabledRepoError", "forbidden"),
    ("RepositoryNotFoundError", "repo_missing"),
    ("RevisionNotFoundError", "revision_missing"),
    ("EntryNotFoundError", "file_missing"),
    ("OfflineModeIsEnabled", "offline"),
    ("HFValidationError", "bad_name"),
    ("FileMetadataError", "not_a_hub"),
    ("JSONDecodeError", "not_a_hub"),
)
_CONNECTION = ("ConnectError", "ConnectionError", "NetworkError", "ProtocolError", "ReadError", "ProxyError", "SSLError",
               "ChunkedEncodingError", "RequestError", "TransportError")  # fmt: skip


def classify(error: BaseException) -> Dict[str, Any]:
    """``kind`` (as :mod:`.explain` has them), ``status`` (HTTP, or None) and ``detail`` (one line) of a failure."""
    chain = list(_chain(error))
    status = next((found for found in map(_status, chain) if found is not None), None)
    return {"kind": _kind(chain, status), "status": status, "detail": _line(error)}


def _kind(chain: List[BaseException], status: Optional[int]) -> str:
    for error in chain:
        for name, kind in _BY_NAME:
            # A file that is missing on disk is told by a class that derives from the remote one.
            if name in _names(error) and "LocalEntryNotFoundError" not in _names(error):
                return kind
    for error in chain:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return "no_space"
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EROFS, errno.EPERM) and status is None:
            return "not_writable"
    if status is not None:
        return _by_status(status)
    text = " ".join(str(error) for error in chain)
    if "CERTIFICATE_VERIFY_FAILED" in text or "certificate verify failed" in text:
        return "certificate"
    # requests calls a silence in the midst of a file a lost connection.
    if "timed out" in text or any("Timeout" in name for error in chain for name in _names(error)):
        return "stalled"
    for error in chain:
        if any(name in _CONNECTION for name in _names(error)):
            return "unreachable"
    if "Consistency check failed" in text:
        return "truncated"
    if any(isinstance(error, ImportError) for error in chain):
        return "no_library"
    return "unknown"


def _by_status(status: int) -> str:
    if status in (401, 403, 404):
        return {401: "bad_token", 403: "forbidden", 404: "repo_missing"}[status]
    if status in (408, 429):
        return "rate_limited"
    if status == 416:
        return "range"
    return "hub_down" if status >= 500 else "refused"


def _chain(error: Optional[BaseException]) -> Iterator[BaseException]:
    seen: List[int] = []
    while error is not None and id(error) not in seen:
        seen.append(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _names(error: BaseException) -> List[str]:
    return [kind.__name__ for kind in type(error).__mro__]


def _status(error: BaseException) -> Optional[int]:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) and status >= 400 else None


def _line(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return ("%s: %s" % (type(error).__name__, words))[:400]
