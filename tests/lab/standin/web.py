# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP/1.1 over asyncio's streams, as little of it as the stand-in's clients need, with keep-alive and streaming."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from . import log

_MAX_BODY = 64 * 1024 * 1024
_KEEP_ALIVE_S = 65.0


@dataclass(frozen=True)
class Request:
    """One request; header names in lower case."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Response:
    """One answer; a body that is an iterator is sent in chunks as it comes."""

    status: int = 200
    body: bytes | AsyncGenerator[bytes, None] = b""
    content_type: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


def json_text(content: Any) -> bytes:
    """content as JSON in the form of vLLM's answers: without blanks, letters beyond ASCII as they are."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def json_response(content: Any, status: int = 200) -> Response:
    """content as JSON."""
    return Response(status, json_text(content), "application/json")


class BadRequest(Exception):
    """The bytes are no request that can be answered any other way."""


class Disconnected(Exception):
    """The client is gone while its answer was being made."""


class Connection:
    """One client's connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handle: Callable[[Request, Connection], Awaitable[Response]],
        access_log: bool,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handle = handle
        self._access_log = access_log
        self._early = b""  # what came while an answer was awaited: the begin of the next request
        self._watch: asyncio.Task[bytes] | None = None
        self.busy = False

    async def serve(self) -> None:
        """Answer requests until the client leaves."""
        try:
            while await self._one():
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, BadRequest):
            pass
        except Disconnected:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Drop the connection, whatever goes on in it."""
        if self._watch is not None:
            self._watch.cancel()
        transport = self._writer.transport
        if not transport.is_closing():
            transport.abort() if self.busy else self._writer.close()

    async def or_gone(self, awaited: Awaitable[Any]) -> Any:
        """The result of awaited. Raises Disconnected when the client leaves first."""
        task = asyncio.ensure_future(awaited)
        if self._watch is None:
            self._watch = asyncio.ensure_future(self._reader.read(1))
        try:
            await asyncio.wait({task, self._watch}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            self._early += self._watch.result()
            self._watch = None
            if not self._early:
                raise Disconnected
            return await task
        finally:
            if not task.done():
                task.cancel()

    async def _read_head(self) -> bytes:
        if self._watch is not None:
            self._early += await asyncio.wait_for(self._watch, _KEEP_ALIVE_S)
            self._watch = None
            if not self._early:
                return b""
        early, self._early = self._early, b""
        try:
            rest = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), _KEEP_ALIVE_S)
        except asyncio.IncompleteReadError as error:
            if not error.partial and not early:
                return b""
            raise
        return early + rest

    async def _one(self) -> bool:
        head = await self._read_head()
        if not head:
            return False
        self.busy = True
        lines = head.decode("latin-1").split("\r\n")
        try:
            method, target, version = lines[0].split(" ")
        except ValueError as error:
            await self._send(Response(400, b"Invalid HTTP request received.", "text/plain"), keep=False)
            raise BadRequest from error
        headers = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if colon:
                headers[name.strip().lower()] = value.strip()
        keep = headers.get("connection", "").lower() != "close" and version == "HTTP/1.1"
        body = await self._read_body(headers)
        parts = urlsplit(target)
        request = Request(method, unquote(parts.path), parse_qs(parts.query), headers, body)
        response = await self._handle(request, self)
        if self._access_log:
            peer = self._writer.get_extra_info("peername") or ("", 0)
            client = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and peer[0] else ""
            phrase = HTTPStatus(response.status).phrase
            log.raw(f'INFO:     {client} - "{method} {target} {version}" {response.status} {phrase}', "stdout")
        await self._send(response, keep, head_only=method == "HEAD")
        self.busy = False
        return keep

    async def _read_body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("expect", "").lower() == "100-continue":
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if headers.get("transfer-encoding", "").lower() == "chunked":
            chunks = []
            while size := int((await self._reader.readline()).split(b";")[0], 16):
                chunks.append(await self._reader.readexactly(size))
                await self._reader.readline()
            while (await self._reader.readline()).strip():
                pass
            return b"".join(chunks)
        try:
            length = int(headers.get("content-length", "0"))
        except ValueError as error:
            raise BadRequest from error
        if not 0 <= length <= _MAX_BODY:
            raise BadRequest
        return await self._reader.readexactly(length) if length else b""

    async def _send(self, response: Response, keep: bool, head_only: bool = False) -> None:
        lines = [
            f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}",
            f"date: {formatdate(usegmt=True)}",
            "server: uvicorn",
        ]
        if isinstance(response.body, bytes):
            lines.append(f"content-length: {len(response.body)}")
        if response.content_type:
            lines.append(f"content-type: {response.content_type}")
        lines += [f"{name}: {value}" for name, value in response.headers.items()]
        if not isinstance(response.body, bytes):
            lines.append("transfer-encoding: chunked")
        if not keep:
            lines.append("connection: close")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        if isinstance(response.body, bytes):
            self._writer.write(head if head_only else head + response.body)
        else:
            self._writer.write(head)
            async with contextlib.aclosing(response.body) as chunks:
                async for chunk in chunks:
                    self._writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                    await self._writer.drain()
            self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()
