# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM's endpoints, answered from engines that make tokens of nothing."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

from . import log
from .behaviours import Misused, misused
from .errors import bad, engine_dead, error, invalid, missing, parse, too_small
from .forms import Chat, Completion, Form, pieces, text_of, token_ids
from .metrics import Metrics
from .plan import Plan
from .web import Connection, Request, Response, json_response, json_text

_GUARDED = ("/v1", "/v2", "/inference", "/cohere")


class EngineDead(Exception):
    """The engine is gone: the request gets a 500, and the server ends."""


class Engines(Protocol):
    """What the endpoints need of the server that runs the engines."""

    dead: bool
    stopping: bool

    def submit(self, prompt_tokens: int, output_tokens: int) -> Tokens:
        """Queue a request. Raises EngineDead."""

    def abort(self, tokens: Tokens) -> None:
        """Forget a request whose client is gone."""

    async def call(self, what: str) -> None:
        """Let all engines sleep or wake up. Raises EngineDead."""

    def request_failed(self) -> None:
        """A request met a dead engine."""


class Tokens:
    """The tokens of one request as they come from its engine."""

    def __init__(self, identifier: int, engine: int) -> None:
        self.identifier = identifier
        self.engine = engine
        self.made = 0
        self._queue: asyncio.Queue[tuple[int, str | None]] = asyncio.Queue()

    def put(self, count: int, finish: str | None) -> None:
        self._queue.put_nowait((count, finish))

    async def get(self) -> tuple[int, str | None]:
        """(new tokens, why it ended or None). Raises EngineDead."""
        count, finish = await self._queue.get()
        if finish == "dead":
            raise EngineDead
        return count, finish


class Api:
    """All endpoints of one server."""

    def __init__(self, plan: Plan, engines: Engines, metrics: Metrics) -> None:
        self._plan = plan
        self._engines = engines
        self._metrics = metrics
        self._created = int(time.time())
        keys = plan.arguments.api_key or [os.environ.get("VLLM_API_KEY")]
        self._keys = [hashlib.sha256(key.encode()).digest() for key in keys if key]
        parallel = f"-tp{plan.parallel.tensor}" if plan.parallel.tensor > 1 else ""
        digest = hashlib.sha256(repr((plan.model, plan.parallel, plan.max_model_len)).encode()).hexdigest()
        self._fingerprint = f"vllm-{plan.version}{parallel}-{digest[:8]}"
        self._sleeping = False
        self._said: list[str] | None = None
        self.ready = False
        self._load = 0
        self._routes: dict[tuple[str, str], Callable[[Request, Connection], Any]] = {
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("POST", "/ping"): self._health,
            ("GET", "/version"): self._version,
            ("GET", "/load"): self._load_now,
            ("GET", "/metrics"): self._metrics_text,
            ("GET", "/v1/models"): self._models,
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
        }
        if os.environ.get("VLLM_SERVER_DEV_MODE", "0") == "1":
            self._routes |= {
                ("POST", "/sleep"): self._sleep,
                ("POST", "/wake_up"): self._wake_up,
                ("GET", "/is_sleeping"): self._is_sleeping,
            }

    @property
    def routes(self) -> list[tuple[str, str]]:
        """(path, method) of every endpoint."""
        return [(path, method) for method, path in self._routes]

    async def handle(self, request: Request, connection: Connection) -> Response:
        """Answer one request."""
        try:
            self.say()
            if request.method != "OPTIONS" and request.path.startswith(_GUARDED) and not self._authorised(request):
                return json_response({"error": "Unauthorized"}, 401)
            response = await self._answer(request, connection)
        except EngineDead:
            self._engines.request_failed()
            response = engine_dead()
        except Misused as error:
            misused(error)
        # From vLLM's layer for browsers' origins, which lies behind the one that asks for keys.
        response.headers["vary"] = "Origin"
        return response

    async def _answer(self, request: Request, connection: Connection) -> Response:
        endpoint = self._routes.get((request.method, request.path))
        if endpoint is None:
            methods = sorted(method for method, path in self._routes if path == request.path)
            status, phrase = (405, "Method Not Allowed") if methods else (404, "Not Found")
            refusal = json_response({"detail": phrase}, status)
            if methods:
                refusal.headers["allow"] = ", ".join(methods)
            return refusal
        if not self.ready and request.path != "/v1/models":
            return error("The model is still loading.", "ServiceUnavailableError", 503)
        response: Response = await endpoint(request, connection)
        return response

    def _authorised(self, request: Request) -> bool:
        if not self._keys:
            return True
        scheme, _space, token = request.headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(token.encode("latin-1")).digest()
        matches = [secrets.compare_digest(digest, key) for key in self._keys]
        return scheme.lower() == "bearer" and any(matches)

    def say(self) -> None:
        """Print the behaviour serving_lines, once for each text that it takes."""
        lines = self._plan.behaviours["serving_lines"]
        if lines != self._said:
            self._said = lines
            for line in lines or ():
                log.raw(line, "stdout")

    # --- the server itself

    async def _health(self, _request: Request, connection: Connection) -> Response:
        forced = self._plan.behaviours["health"]
        if forced == "hang":
            await connection.or_gone(asyncio.Event().wait())
        if forced is not None:
            return Response(int(forced))
        if self._plan.behaviours["health_ok_dead_engine"]:
            return Response(200)
        return Response(503 if self._engines.dead else 200)

    async def _version(self, _request: Request, _connection: Connection) -> Response:
        return json_response({"version": self._plan.version})

    async def _load_now(self, _request: Request, _connection: Connection) -> Response:
        return json_response({"server_load": self._load})

    async def _metrics_text(self, _request: Request, _connection: Connection) -> Response:
        return Response(200, self._metrics.render().encode(), "text/plain; version=1.0.0; charset=utf-8")

    @property
    def _names(self) -> list[str]:
        wrong = self._plan.behaviours["wrong_served_name"]
        if not wrong:
            return self._plan.served_names
        return [wrong if isinstance(wrong, str) else "another-model"]

    async def _models(self, _request: Request, _connection: Connection) -> Response:
        cards = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "vllm",
                "root": self._plan.model.name,
                "parent": None,
                "max_model_len": self._plan.max_model_len,
                "permission": [
                    {
                        "id": f"modelperm-{uuid.uuid4().hex[:16]}",
                        "object": "model_permission",
                        "created": self._created,
                        "allow_create_engine": False,
                        "allow_sampling": True,
                        "allow_logprobs": True,
                        "allow_search_indices": False,
                        "allow_view": True,
                        "allow_fine_tuning": False,
                        "organization": "*",
                        "group": None,
                        "is_blocking": False,
                    }
                ],
            }
            for name in self._names
        ]
        return json_response({"object": "list", "data": cards})

    async def _tokenize(self, request: Request, _connection: Connection) -> Response:
        body = parse(request)
        if isinstance(body, Response):
            return body
        text = body.get("prompt")
        if not isinstance(text, str):
            return missing("prompt", body)
        name = body.get("model")
        if name and name not in self._names:
            return self._unknown(name)
        tokens = token_ids(text)
        shown = pieces(text) if body.get("return_token_strs") else None
        return json_response({"count": len(tokens), "max_model_len": self._plan.max_model_len, "tokens": tokens, "token_strs": shown})

    async def _detokenize(self, request: Request, _connection: Connection) -> Response:
        body = parse(request)
        if isinstance(body, Response):
            return body
        if "tokens" not in body:
            return missing("tokens", body)
        tokens, name = body["tokens"], body.get("model")
        if not isinstance(tokens, list):
            return invalid("tokens", "list", tokens)
        for place, token in enumerate(tokens):
            if not isinstance(token, int):
                return invalid(f"tokens.{place}", "integer", token)
            if token < 0:
                return too_small(f"tokens.{place}", 0, token)
        if name and name not in self._names:
            return self._unknown(name)
        return json_response({"prompt": text_of(tokens)})

    async def _sleep(self, request: Request, _connection: Connection) -> Response:
        level = int(request.query.get("level", ["1"])[0])
        if not self._sleeping:
            await self._engines.call("sleep")
            self._sleeping = True
            self._metrics.sleep_level = level
        return json_response({"status": "sleeping", "level": level})

    async def _wake_up(self, request: Request, _connection: Connection) -> Response:
        tags = request.query.get("tags")
        log.info("api_router.py:51", f"wake up the engine with tags: {tags}")
        if self._sleeping:
            await self._engines.call("wake_up")
            self._sleeping = False
            self._metrics.sleep_level = 0
        return json_response({"status": "awake", "tags": tags})

    async def _is_sleeping(self, _request: Request, _connection: Connection) -> Response:
        return json_response({"is_sleeping": self._sleeping})

    # --- completions

    async def _completions(self, request: Request, connection: Connection) -> Response:
        return await self._generate(request, connection, Completion)

    async def _chat(self, request: Request, connection: Connection) -> Response:
        return await self._generate(request, connection, Chat)

    async def _generate(self, request: Request, connection: Connection, form: type[Form]) -> Response:
        body = parse(request)
        if isinstance(body, Response):
            return body
        problem = form.check(body) or self._check(form, body)
        if problem is not None:
            return problem
        mode = self._plan.behaviours["completions"]
        if mode == "hang" or (self._engines.dead and self._plan.behaviours["health_ok_dead_engine"]):
            await connection.or_gone(asyncio.Event().wait())
        if mode == "error":
            return error("Internal server error", "InternalServerError", 500)
        if self._engines.stopping:
            return error("cannot schedule new futures after shutdown", "InternalServerError", 500)
        if self._engines.dead:
            raise EngineDead
        name = body.get("model") or self._names[0]
        answer = form(name, body, self._fingerprint, mode == "empty", request.headers.get("x-request-id"))
        if self._plan.arguments.enable_log_requests:
            rest = f"params: SamplingParams(n={answer.choices}), lora_request: None."
            for each in answer.logged_ids:
                log.info("request_logger.py:65", f"Received request {each}: {rest}")
        streams = [
            self._engines.submit(prompt, answer.length(self._plan.max_model_len - max(answer.prompts)))
            for prompt in answer.prompts
            for _choice in range(answer.choices)
        ]
        if body.get("stream"):
            options = body.get("stream_options") or {}
            usage = bool(options.get("include_usage")) or bool(self._plan.arguments.enable_force_include_usage)
            chunks = self._stream(answer, streams, usage, bool(options.get("continuous_usage_stats")), connection)
            return Response(200, chunks, "text/event-stream; charset=utf-8")
        counts = await self._collect(streams, connection)
        return json_response(answer.whole(counts))

    def _unknown(self, name: str) -> Response:
        text = f"The model `{name}` does not exist. Valid aliases: {', '.join(self._names)}."
        return error(text, "NotFoundError", 404, "model")

    def _check(self, form: type[Form], body: dict[str, Any]) -> Response | None:
        """What is wrong with a request for this model."""
        name = body.get("model")
        if name and name not in self._names:
            return self._unknown(name)
        longest, length = max(form.count_prompts(body)), self._plan.max_model_len
        if longest > length:
            return bad(
                f"This model's maximum context length is {length} tokens. However, your prompt contains "
                f"{'at least ' if longest == length + 1 else ''}{longest} input tokens, which exceeds this limit even "
                "without any output tokens. Please reduce the length of the input prompt.",
                "input_tokens",
                longest,
            )
        if longest == length:
            return bad("max_tokens must be at least 1, got 0.", "max_tokens", 0)
        wanted = form.wanted(body)
        if wanted is not None and wanted > length:
            return bad(
                f"max_tokens={wanted} cannot be greater than max_model_len={length}. Please request fewer output tokens.",
                "max_tokens",
                wanted,
            )
        return None

    async def _collect(self, streams: list[Tokens], connection: Connection) -> list[tuple[int, str]]:
        counts: list[tuple[int, str]] = []
        self._load += 1
        try:
            for tokens in streams:
                made, finish = 0, None
                while finish is None:
                    count, finish = await connection.or_gone(tokens.get())
                    made += count
                counts.append((made, finish))
        finally:
            self._load -= 1
            for tokens in streams[len(counts) :]:
                self._engines.abort(tokens)
        return counts

    async def _stream(
        self, answer: Form, streams: list[Tokens], usage: bool, running_usage: bool, connection: Connection
    ) -> AsyncGenerator[bytes, None]:
        made = [0] * len(streams)
        open_streams = set(range(len(streams)))
        self._load += 1
        try:
            for chunk in answer.opening(len(streams)):
                yield _event(chunk)
            # One after the other in each round: streams of one request run in step.
            for index in itertools.cycle(range(len(streams))):
                if not open_streams:
                    break
                if index not in open_streams:
                    continue
                count, finish = await connection.or_gone(streams[index].get())
                chunk = answer.chunk(index, made[index], count, finish)
                made[index] += count
                if finish is not None:
                    open_streams.discard(index)
                if not open_streams and not usage:
                    chunk["system_fingerprint"] = self._fingerprint
                if running_usage:
                    chunk["usage"] = answer.usage(sum(made), details=False)
                yield _event(chunk)
            if usage:
                closing = {"choices": [], "usage": answer.usage(sum(made), details=False)}
                yield _event(answer.head() | closing | {"system_fingerprint": self._fingerprint})
            yield b"data: [DONE]\n\n"
        except EngineDead:
            content = {"message": "The server had an error while processing your request."}
            yield _event({"error": content | {"type": "InternalServerError", "param": None, "code": 500}})
            yield b"data: [DONE]\n\n"
        finally:
            self._load -= 1
            for index in open_streams:
                self._engines.abort(streams[index])


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json_text(content) + b"\n\n"
