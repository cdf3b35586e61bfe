# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A vLLM server over HTTP, asked directly: no proxy of the environment ever stands in between."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple

from .._core.errors import GpuFleetError
from .metrics import parse_metrics

if TYPE_CHECKING:
    import http.client

# A reply is a model list or one token; anything much larger isn't a vLLM server.
_LIMIT = 16 * 1024 * 1024
_WILDCARDS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}


class ServerError(GpuFleetError):
    """The server gave no answer, or one that can't be what was asked for. ``status`` is HTTP's, None where no reply told one."""

    def __init__(self, msg: str, status: Optional[int] = None) -> None:
        super().__init__(msg)
        self.status = status


class NoAnswer(ServerError):
    """It said nothing at all: a server that is busy, and one that hangs, look the same."""


@dataclass(frozen=True)
class Reply:
    """One HTTP reply. ``body`` is the JSON value when it is JSON, else the text."""

    status: int
    body: Any

    @property
    def message(self) -> str:
        """What the server says is wrong, in one line."""
        body = self.body
        if isinstance(body, Mapping):
            error = body.get("error", body)
            text = error.get("message") or error.get("detail") if isinstance(error, Mapping) else error
            return str(text or body.get("message") or body)[:500]
        return " ".join(str(body).split())[:500]


@dataclass(frozen=True)
class CompletionResult:
    """How one real one-token request ended.

    ``ok`` is proof that the engine computes. ``kind`` says what was asked: ``completion``, ``chat``, ``embedding``,
    ``pooling``, or ``none`` where the model serves none of them and said so: then ``ok`` is true, since nothing was
    wrong, and ``detail`` says that nothing could be proven. ``status`` is the last HTTP status, None without a reply.
    """

    ok: bool
    kind: str
    status: Optional[int]
    seconds: float
    detail: str = ""


# What proves that the engine computes, in the order tried: kind, path, body, key of the reply that must be there.
_PROOFS: Tuple[Tuple[str, str, Dict[str, Any], str], ...] = (
    ("completion", "/v1/completions", {"prompt": "Hello", "max_tokens": 1, "temperature": 0}, "choices"),
    (
        "chat",
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "temperature": 0},
        "choices",
    ),
    ("embedding", "/v1/embeddings", {"input": "Hello"}, "data"),
    ("pooling", "/pooling", {"input": "Hello"}, "data"),
)


class Server:
    """One server. Every call has its own time limit in seconds, over connecting and reading together."""

    def __init__(self, host: str, port: int, api_key: Optional[str] = None, tls: bool = False) -> None:
        """``host`` is the address that the service is bound to; a wildcard is asked over loopback."""
        self.host = connect_address(host)
        self.port = port
        self._api_key = api_key
        self._tls = tls

    @property
    def url(self) -> str:
        """The base URL, for people."""
        host = "[%s]" % self.host if ":" in self.host else self.host
        return "%s://%s:%d" % ("https" if self._tls else "http", host, self.port)

    def health(self, timeout: float = 5.0) -> Optional[int]:
        """The status of ``/health``; None while nothing listens. Raises NoAnswer when it doesn't answer in time."""
        try:
            return self.request("GET", "/health", timeout).status
        except ConnectionRefusedError:
            return None

    def listens(self, timeout: float = 1.0) -> bool:
        """Whether somebody listens there: asked for without a request, which costs next to nothing."""
        try:
            with socket.create_connection((self.host, self.port), timeout):
                return True
        except (OSError, ValueError):  # ValueError: no name that could be looked up
            return False

    def models(self, timeout: float = 5.0) -> List[str]:
        """The names in ``/v1/models``."""
        reply = self._get("/v1/models", timeout)
        data = reply.get("data") if isinstance(reply, Mapping) else None
        if not isinstance(data, list):
            raise ServerError("%s/v1/models is no list of models: %.200r." % (self.url, reply))
        return [str(item["id"]) for item in data if isinstance(item, Mapping) and "id" in item]

    def version(self, timeout: float = 5.0) -> str:
        """What ``/version`` says."""
        reply = self._get("/version", timeout)
        if not isinstance(reply, Mapping) or "version" not in reply:
            raise ServerError("%s/version names no version: %.200r." % (self.url, reply))
        return str(reply["version"])

    def metrics(self, timeout: float = 5.0) -> Dict[str, float]:
        """The ``vllm:`` metrics, each summed over its labels, without the prefix."""
        return parse_metrics(str(self._get("/metrics", timeout)))

    def complete(self, model: str, timeout: float = 60.0) -> CompletionResult:
        """One real one-token request, in whichever form the model serves. Never raises for what the server does."""
        start = time.monotonic()
        unsupported: List[str] = []
        status: Optional[int] = None
        for kind, path, body, key in _PROOFS:
            left = timeout - (time.monotonic() - start)
            try:
                reply = self.request("POST", path, max(left, 0.1), dict(body, model=model))
            except (ServerError, ConnectionRefusedError) as exc:
                return CompletionResult(False, kind, None, time.monotonic() - start, str(exc))
            status = reply.status
            if is_unsupported(reply):
                unsupported.append("%s: %s" % (path, reply.message))
                continue
            seconds = time.monotonic() - start
            if status != 200:
                return CompletionResult(False, kind, status, seconds, "HTTP %d: %s" % (status, reply.message))
            answer = reply.body.get(key) if isinstance(reply.body, Mapping) else None
            if not answer:
                detail = "HTTP 200 without %s: %s" % (key, reply.message)
                return CompletionResult(False, kind, status, seconds, detail)
            return CompletionResult(True, kind, status, seconds)
        detail = "the model serves neither completions nor embeddings, so nothing was computed (%s)" % unsupported[-1]
        return CompletionResult(True, "none", status, time.monotonic() - start, detail)

    def request(self, method: str, path: str, timeout: float, body: Optional[Mapping[str, Any]] = None) -> Reply:
        """One request. Raises ConnectionRefusedError while nothing listens, NoAnswer for every other silence."""
        import http.client  # a quarter of what a change loads before its first step, and not needed until a server is asked

        headers = {"Accept": "application/json", "Connection": "close"}
        if self._api_key:
            headers["Authorization"] = "Bearer " + self._api_key
        payload = None
        if body is not None:
            payload = json.dumps(body).encode("utf-8")
            headers["Content-Type"] = "application/json"
        connection = self._connection(timeout)
        end = time.monotonic() + timeout
        try:
            connection.request(method, path, body=payload, headers=headers)
            response = connection.getresponse()
            raw = _read(response, connection, end)
        except ConnectionRefusedError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as exc:
            raise NoAnswer("%s%s gave no answer: %s." % (self.url, path, _why(exc, timeout))) from exc
        finally:
            connection.close()
        text = raw.decode("utf-8", "replace")
        try:
            return Reply(response.status, json.loads(text))
        except ValueError:
            return Reply(response.status, text)

    def _get(self, path: str, timeout: float) -> Any:
        try:
            reply = self.request("GET", path, timeout)
        except ConnectionRefusedError as exc:
            raise NoAnswer("%s%s gave no answer: nothing listens there." % (self.url, path)) from exc
        if reply.status != 200:
            raise ServerError("%s%s answered HTTP %d: %s" % (self.url, path, reply.status, reply.message), reply.status)
        return reply.body

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        import http.client

        if self._tls:
            import ssl

            # The server of this very host, addressed by number: its certificate is for a name.
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=context)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)


def connect_address(host: str) -> str:
    """Where a server bound to ``host`` is reached from the same machine."""
    return _WILDCARDS.get(host.strip("[]"), host.strip("[]"))


def is_unsupported(reply: Reply) -> bool:
    """Whether the reply means "this model has no such endpoint", as against "no such model" or a fault.

    vLLM doesn't register the routes that a model's tasks don't need (404 ``Not Found``), or answers 400/501 "does
    not support ..."; a wrong model name is a 404 as well, but says that the model does not exist.
    """
    text = reply.message.lower()
    if reply.status in (404, 405):
        return "does not exist" not in text
    if reply.status in (400, 501):
        return "not support" in text or "not implemented" in text or "chat template" in text
    return False


def _read(response: http.client.HTTPResponse, connection: http.client.HTTPConnection, end: float) -> bytes:
    """The body, never past ``end``: a socket's own time-out begins again with every byte."""
    parts: List[bytes] = []
    size = 0
    while True:
        left = end - time.monotonic()
        if left <= 0:
            raise socket.timeout("timed out")
        if connection.sock is not None:
            connection.sock.settimeout(left)
        part = response.read1(65536)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
        if size > _LIMIT:
            raise ValueError("more than %d bytes" % _LIMIT)


def _why(exc: Exception, timeout: float) -> str:
    if isinstance(exc, socket.timeout):
        return "nothing within %.1f s" % timeout
    return str(exc) or type(exc).__name__
