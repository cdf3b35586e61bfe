# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server on loopback that streams tokens, and does it wrong when told to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Streaming:
    """``behave(number)`` says how the completion of this number goes: ok, http_500, cut, error, short, empty, hang, not_json, no_usage."""

    def __init__(self) -> None:
        self.behave: Callable[[int], str] = lambda number: "ok"
        self.key: "str | None" = None
        self.tokenize = True
        # Of completions that are no streams: whether they are answered, and how many of one token were.
        self.answers = True
        self.proofs = 0
        self.token_s = 0.002
        self.bodies: "list[dict[str, Any]]" = []
        self.busy = 0
        self.most_busy = 0
        self.lock = threading.Lock()
        self.port = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return "http://127.0.0.1:%d" % self.port


@contextmanager
def streaming() -> Iterator[Streaming]:
    """The server while the context lasts."""
    state = Streaming()

    class Handler(_Handler):
        server_state = state

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        state.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: Streaming

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing goes to the tests' output."""

    def do_GET(self) -> None:
        answers = {"/health": {}, "/version": {"version": "0.33.0"}, "/v1/models": {"data": [{"id": "m", "root": "", "max_model_len": 64}]}}
        self._json(200 if self.path in answers else 404, answers.get(self.path, {"detail": "Not Found"}))

    def do_POST(self) -> None:
        state = self.server_state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if state.key is not None and self.headers.get("Authorization") != "Bearer " + state.key and self.path.startswith("/v1"):
            return self._json(401, {"error": "Unauthorized"})
        if self.path == "/tokenize":
            words = body["prompt"].split()
            found = {"tokens": [sum(map(ord, word)) for word in words], "count": len(words)}
            return self._json(200, found) if state.tokenize else self._json(404, {"detail": "Not Found"})
        prompt = body["prompt"]
        # two tokens a word where the prompt is text
        counted = len(prompt) if isinstance(prompt, list) else 2 * len(prompt.split())
        if not body.get("stream"):
            if not state.answers:
                return self._json(500, {"error": {"message": "engine on fire"}})
            state.proofs += body["prompt"] == "Hello"
            return self._json(200, {"choices": [{"text": "x"}], "usage": {"prompt_tokens": counted, "completion_tokens": 1}})
        with state.lock:
            number = len(state.bodies)
            state.bodies.append(body)
            state.busy += 1
            state.most_busy = max(state.most_busy, state.busy)
        try:
            return self._stream(state.behave(number), body, counted)
        finally:
            with state.lock:
                state.busy -= 1

    def _stream(self, how: str, body: "dict[str, Any]", counted: int) -> None:
        if how == "http_500":
            return self._json(500, {"error": {"message": "engine on fire"}})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        made = {"short": 2, "empty": 0, "cut": 2, "error": 1, "hang": 1}.get(how, body["max_tokens"])
        for token in range(made):
            self._event({"choices": [{"text": "x"}]})
            time.sleep(self.server_state.token_s)
        if how == "not_json":
            self._chunk(b"data: {nonsense\n\n")
        if how == "hang":
            time.sleep(1.5)
        if how in ("cut", "hang"):
            self.close_connection = True
            return None
        if how == "error":
            self._event({"error": {"message": "the engine died"}})
        elif how != "no_usage":
            self._event({"choices": [], "usage": {"prompt_tokens": counted, "completion_tokens": made}})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")
        return None

    def _event(self, message: Any) -> None:
        self._chunk(b"data: " + json.dumps(message).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _json(self, status: int, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
