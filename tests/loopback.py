# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An HTTP server of the tests' own, on loopback unless another address is given: what it answers is its heir's to say."""

from __future__ import annotations

import http.server
import shutil
import threading
from pathlib import Path
from types import TracebackType
from typing import Dict, Optional, Type, TypeVar, Union

_Heir = TypeVar("_Heir", bound="Loopback")


class Loopback:
    """Answers while it is entered, on a port that is free."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.address = address
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            """One connection."""

            protocol_version = server.protocol

            def do_GET(self) -> None:
                server.answer(self)

            def do_HEAD(self) -> None:
                server.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                """Nobody reads it."""

        self._server = http.server.ThreadingHTTPServer((address, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    # Whether a connection is kept for the next request.
    protocol = "HTTP/1.0"

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    @property
    def root(self) -> str:
        """Its address as a URL, without a path."""
        return "http://%s:%d" % (self.address, self.port)

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        """One request."""
        raise NotImplementedError

    @staticmethod
    def send(
        request: http.server.BaseHTTPRequestHandler, status: int, body: Union[bytes, Path], headers: Optional[Dict[str, str]] = None
    ) -> None:
        """An answer in one piece; a path stands for what its file holds."""
        size = body.stat().st_size if isinstance(body, Path) else len(body)
        request.send_response(status)
        for key, value in {"Content-Length": str(size), **(headers or {})}.items():
            request.send_header(key, value)
        request.end_headers()
        if request.command == "HEAD":
            return
        if isinstance(body, Path):
            with body.open("rb") as stream:
                shutil.copyfileobj(stream, request.wfile, 1 << 20)
        else:
            request.wfile.write(body)

    def release(self) -> None:
        """Let go whoever is kept waiting, for the server to end."""

    def __enter__(self: _Heir) -> _Heir:
        self._thread.start()
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
