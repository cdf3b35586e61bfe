# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What went wrong with a request, in one word that can be counted, whatever tool reports it in whatever words."""

from __future__ import annotations

import re
from http import HTTPStatus

# kind -> what is found in the text of it, the first that fits wins. A tool's text is a reason phrase or a traceback.
_WORDS = (
    ("timeout", r"time-?d? ?out|TimeoutError|ReadTimeout|ConnectTimeout"),
    ("cut", r"ClientPayloadError|IncompleteRead|ChunkedEncodingError|TransferEncodingError|RemoteProtocolError|ServerDisconnected"
            r"|peer closed|Connection broken|InvalidChunkLength|incomplete chunked"),
    ("connection", r"ConnectionRefused|ClientConnectorError|ConnectError|ConnectionReset|Connection refused|Connection reset"
                   r"|Cannot connect|ConnectionError|ClientOSError|ReadError"),
    ("empty", r"Never received a valid chunk|no iterations|without a token"),
    ("short", r"fewer tokens|of \d+ tokens"),
    ("server_error", r"EngineDead|InternalServerError|had an error while processing"),
)
_STATUS = re.compile(r"\b(?:HTTP|status|error)[ :'\"a-z_]*\b([45]\d\d)\b", re.IGNORECASE)
_PHRASES = {status.phrase.lower(): status.value for status in HTTPStatus if status.value >= 400}


def kind_of_error(text: str) -> str:
    """``http_500``, ``timeout``, ``connection``, ``cut`` (a stream that ends in the middle), ``empty``, ``short``,
    ``server_error`` (told inside a stream), or ``other``."""
    line = " ".join(text.split())
    if line.lower() in _PHRASES:
        return "http_%d" % _PHRASES[line.lower()]
    status = _STATUS.search(line)
    if status is not None:
        return "http_" + status.group(1)
    for kind, words in _WORDS:
        if re.search(words, line, re.IGNORECASE):
            return kind
    return "other"


def example_of(text: str) -> str:
    """An error's text as one line that fits into a table: of a traceback the last line, which names it."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return (lines[-1] if lines else "")[:300]
