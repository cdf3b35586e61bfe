# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM's endpoints: what they answer, in vLLM's forms, from an engine that makes tokens of nothing."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

from . import log
from .behaviours import Misused, misused
from .metrics import Metrics
from .plan import Plan
from .web import Connection, Request, Response, json_response

_GUARDED = ("/v1", "/v2", "/inference", "/cohere")
_WORDS = " the model has been loaded and answers with words that mean nothing at all but count as tokens".split(" ")[1:]
_CHAT_LENGTH = 24  # tokens of a chat answer that nobody limited


class EngineDead(Exception):
    """The engine is gone: the request gets a 500, and the server ends."""


class Engines(Protocol):
    """What the endpoints need of the server that runs the engines."""

    dead: bool

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


def _error(message: str, kind: str, status: int, param: str | None = None) -> Response:
    return json_response({"error": {"message": message, "type": kind, "param": param, "code": status}}, status)


def _engine_dead() -> Response:
    return _error("The server had an error while processing your request.", "InternalServerError", 500)


def _missing(field: str, body: Any) -> Response:
    detail = {
        "type": "missing",
        "loc": f"body.{field}",
        "msg": "Field required",
        "input": f"<dict of {len(body)} items>",
    }
    return _error(f"1 validation error:\n  {detail}", "Bad Request", 400, f"body.{field}")


def _invalid(field: str, expected: str, value: Any) -> Response:
    detail = {"type": f"{expected}_type", "loc": f"body.{field}", "msg": f"Input should be a valid {expected}"}
    return _error(f"1 validation error:\n  {detail | {'input': value}}", "Bad Request", 400, f"body.{field}")


def _count_tokens(text: str) -> int:
    """About what a tokenizer makes of it."""
    return max(len(text) // 4, len(text.split()), 1)


class Api:
    """All endpoints of one server."""

    def __init__(self, plan: Plan, engines: Engines, metrics: Metrics) -> None:
        self._plan = plan
        self._engines = engines
        self._metrics = metrics
        self._created = int(time.time())
        keys = plan.arguments.api_key or [os.environ.get("VLLM_API_KEY")]
        self._keys = [hashlib.sha256(key.encode()).digest() for key in keys if key]
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
            return await self._answer(request, connection)
        except EngineDead:
            self._engines.request_failed()
            return _engine_dead()
        except Misused as error:
            misused(error)

    async def _answer(self, request: Request, connection: Connection) -> Response:
        self.say()
        if request.method != "OPTIONS" and request.path.startswith(_GUARDED) and not self._authorised(request):
            return json_response({"error": "Unauthorized"}, 401)
        endpoint = self._routes.get((request.method, request.path))
        if endpoint is None:
            known = any(path == request.path for _method, path in self._routes)
            status, phrase = (405, "Method Not Allowed") if known else (404, "Not Found")
            return _error(phrase, phrase, status)
        if not self.ready and request.path != "/v1/models":
            return _error("The model is still loading.", "ServiceUnavailableError", 503)
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
                        "id": f"modelperm-{uuid.uuid4().hex}",
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

    async def _sleep(self, request: Request, _connection: Connection) -> Response:
        level = int(request.query.get("level", ["1"])[0])
        if not self._sleeping:
            await self._engines.call("sleep")
            self._sleeping = True
        return json_response({"status": "sleeping", "level": level})

    async def _wake_up(self, request: Request, _connection: Connection) -> Response:
        tags = request.query.get("tags")
        log.info("api_router.py:51", f"wake up the engine with tags: {tags}")
        if self._sleeping:
            await self._engines.call("wake_up")
            self._sleeping = False
        return json_response({"status": "awake", "tags": tags})

    async def _is_sleeping(self, _request: Request, _connection: Connection) -> Response:
        return json_response({"is_sleeping": self._sleeping})

    # --- completions

    async def _completions(self, request: Request, connection: Connection) -> Response:
        return await self._generate(request, connection, _Completion)

    async def _chat(self, request: Request, connection: Connection) -> Response:
        return await self._generate(request, connection, _Chat)

    async def _generate(self, request: Request, connection: Connection, form: type[_Form]) -> Response:
        body = _parse(request)
        if isinstance(body, Response):
            return body
        problem = form.check(body)
        if problem is not None:
            return problem
        name = body.get("model") or self._names[0]
        if name not in self._names:
            aliases = ", ".join(self._names)
            return _error(
                f"The model `{name}` does not exist. Valid aliases: {aliases}.", "NotFoundError", 404, "model"
            )
        prompts = form.prompts(body)
        room = self._plan.max_model_len - max(prompts)
        if room < 1:
            return _error(
                f"This model's maximum context length is {self._plan.max_model_len} tokens. However, your prompt "
                f"contains {max(prompts)} input tokens, which exceeds this limit even without any output tokens. "
                "Please reduce the length of the input prompt.",
                "BadRequestError",
                400,
                "input_tokens",
            )
        wanted = form.wanted(body)
        length = min(wanted if wanted is not None else form.natural_length, room)
        finish = "stop" if wanted is None else "length"
        mode = self._plan.behaviours["completions"]
        if mode == "hang" or self._plan.behaviours["health_ok_dead_engine"]:
            await connection.or_gone(asyncio.Event().wait())
        if mode == "error":
            return _error("Internal server error", "InternalServerError", 500)
        if self._engines.dead:
            raise EngineDead
        answer = form(name, prompts, int(body.get("n") or 1), finish, mode == "empty")
        answer.echo = bool(body.get("echo")) and isinstance(body.get("prompt"), str)
        answer.prompt_text = str(body.get("prompt", ""))
        streams = [
            self._engines.submit(prompt, max(length, 1)) for prompt in prompts for _choice in range(answer.choices_per)
        ]
        if body.get("stream"):
            options = body.get("stream_options") or {}
            usage = bool(options.get("include_usage")) or bool(self._plan.arguments.enable_force_include_usage)
            chunks = self._stream(answer, streams, usage, bool(options.get("continuous_usage_stats")), connection)
            return Response(200, chunks, "text/event-stream; charset=utf-8")
        counts = await self._collect(streams, connection)
        return json_response(answer.whole(counts))

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
        self, answer: _Form, streams: list[Tokens], usage: bool, running_usage: bool, connection: Connection
    ) -> AsyncGenerator[bytes, None]:
        made = [0] * len(streams)
        open_streams = set(range(len(streams)))
        self._load += 1
        try:
            for index in answer.opening(len(streams)):
                yield _event(answer.first_chunk(index))
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
                if running_usage:
                    chunk["usage"] = answer.usage(sum(made))
                elif usage:
                    chunk["usage"] = None
                yield _event(chunk)
            if usage:
                yield _event(answer.head() | {"choices": [], "usage": answer.usage(sum(made))})
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
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def _parse(request: Request) -> dict[str, Any] | Response:
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        return _error("Unsupported Media Type: Only 'application/json' is allowed", "Unsupported Media Type", 415)
    try:
        body = json.loads(request.body)
    except ValueError as error:
        detail = {"type": "json_invalid", "loc": "body", "msg": "JSON decode error", "ctx": {"error": str(error)}}
        return _error(f"1 validation error:\n  {detail}", "Bad Request", 400, "body")
    return body if isinstance(body, dict) else _invalid("", "dictionary", body)


class _Form:
    """How a kind of answer looks; subclasses for completions and chat."""

    prefix = ""
    kind = ""
    chunk_kind = ""
    natural_length = 16

    def __init__(self, model: str, prompts: list[int], choices_per: int, finish: str, empty: bool) -> None:
        self._id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = model
        self._prompts = prompts
        self.choices_per = choices_per
        self._finish = finish
        self._empty = empty
        self.echo = False
        self.prompt_text = ""

    @classmethod
    def check(cls, body: dict[str, Any]) -> Response | None:
        """What is wrong with the request, if anything."""
        for field in ("max_tokens", "max_completion_tokens", "n"):
            value = body.get(field)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                return _invalid(field, "integer", value)
        for field in ("temperature", "top_p"):
            value = body.get(field)
            if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool)):
                return _invalid(field, "number", value)
        wanted = cls.wanted(body)
        if wanted is not None and wanted < (0 if body.get("echo") else 1):
            return _error(f"max_tokens must be at least 1, got {wanted}.", "BadRequestError", 400, "max_tokens")
        if body.get("temperature") is not None and body["temperature"] < 0:
            return _error(
                f"temperature must be non-negative, got {body['temperature']}.", "BadRequestError", 400, "temperature"
            )
        if body.get("n") is not None and body["n"] < 1:
            return _error(f"n must be at least 1, got {body['n']}.", "BadRequestError", 400, "n")
        if body.get("stream_options") and not body.get("stream"):
            return _error(
                "Stream options can only be defined when `stream=True`.", "BadRequestError", 400, "stream_options"
            )
        return None

    @staticmethod
    def wanted(body: dict[str, Any]) -> int | None:
        """The number of tokens that is asked for."""
        raise NotImplementedError

    @staticmethod
    def prompts(body: dict[str, Any]) -> list[int]:
        """Tokens of each prompt."""
        raise NotImplementedError

    def text(self, start: int, count: int) -> str:
        """Tokens start to start+count, a word each."""
        if self._empty:
            return ""
        return "".join(" " + _WORDS[index % len(_WORDS)] for index in range(start, start + count))

    def finish(self, reason: str | None) -> str | None:
        """The reason that the client sees."""
        return self._finish if reason == "length" else reason

    def head(self, chunk: bool = True) -> dict[str, Any]:
        """What every object of the answer begins with."""
        kind = self.chunk_kind if chunk else self.kind
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def usage(self, made: int) -> dict[str, Any]:
        """Counts of tokens."""
        prompt = sum(self._prompts)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + made,
            "completion_tokens": made,
            "prompt_tokens_details": None,
        }

    def opening(self, choices: int) -> range:
        """The choices that begin with a chunk of their own."""
        return range(0)

    def first_chunk(self, index: int) -> dict[str, Any]:
        """That chunk."""
        raise NotImplementedError

    def chunk(self, index: int, start: int, count: int, finish: str | None) -> dict[str, Any]:
        """A chunk of a streamed answer."""
        raise NotImplementedError

    def whole(self, counts: list[tuple[int, str]]) -> dict[str, Any]:
        """The answer in one piece."""
        raise NotImplementedError


class _Completion(_Form):
    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    @classmethod
    def check(cls, body: dict[str, Any]) -> Response | None:
        prompt = body.get("prompt")
        if prompt is None:
            return _error(
                "Either prompt or prompt_embeds must be provided and non-empty.", "BadRequestError", 400, "prompt"
            )
        if not isinstance(prompt, (str, list)) or (isinstance(prompt, list) and not prompt):
            return _invalid("prompt", "string", prompt)
        return super().check(body)

    @staticmethod
    def wanted(body: dict[str, Any]) -> int | None:
        value = body.get("max_tokens", 16)
        return value if isinstance(value, int) else None

    @staticmethod
    def prompts(body: dict[str, Any]) -> list[int]:
        prompt = body["prompt"]
        if isinstance(prompt, str):
            return [_count_tokens(prompt)]
        if all(isinstance(item, int) for item in prompt):
            return [len(prompt)]
        return [len(item) if isinstance(item, list) else _count_tokens(str(item)) for item in prompt]

    def chunk(self, index: int, start: int, count: int, finish: str | None) -> dict[str, Any]:
        choice = {
            "index": index,
            "text": (self.prompt_text if self.echo and not start else "") + self.text(start, count),
            "logprobs": None,
            "finish_reason": self.finish(finish),
            "stop_reason": None,
        }
        return self.head() | {"choices": [choice]}

    def whole(self, counts: list[tuple[int, str]]) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "text": (self.prompt_text if self.echo else "") + self.text(0, made),
                "logprobs": None,
                "finish_reason": self.finish(reason),
                "stop_reason": None,
                "prompt_logprobs": None,
            }
            for index, (made, reason) in enumerate(counts)
        ]
        made = sum(count for count, _reason in counts)
        rest = {"service_tier": None, "system_fingerprint": None, "usage": self.usage(made), "kv_transfer_params": None}
        return self.head(chunk=False) | {"choices": choices} | rest


class _Chat(_Form):
    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"
    natural_length = _CHAT_LENGTH

    @classmethod
    def check(cls, body: dict[str, Any]) -> Response | None:
        messages = body.get("messages")
        if messages is None:
            return _missing("messages", body)
        if not isinstance(messages, list) or not all(isinstance(item, dict) for item in messages):
            return _invalid("messages", "list", messages)
        if not messages or not all("role" in item for item in messages):
            return _missing("messages.0.role", body)
        return super().check(body)

    @staticmethod
    def wanted(body: dict[str, Any]) -> int | None:
        value = body.get("max_completion_tokens")
        value = body.get("max_tokens") if value is None else value
        return value if isinstance(value, int) else None

    @staticmethod
    def prompts(body: dict[str, Any]) -> list[int]:
        total = 3
        for message in body["messages"]:
            content = message.get("content") or ""
            parts = content if isinstance(content, list) else [{"text": content}]
            total += 4 + sum(_count_tokens(str(part.get("text", ""))) for part in parts if isinstance(part, dict))
        return [total]

    def opening(self, choices: int) -> range:
        return range(choices)

    def first_chunk(self, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        return self.head() | {"choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]}

    def chunk(self, index: int, start: int, count: int, finish: str | None) -> dict[str, Any]:
        choice = {
            "index": index,
            "delta": {"content": self.text(start, count)},
            "logprobs": None,
            "finish_reason": self.finish(finish),
            "stop_reason": None,
        }
        return self.head() | {"choices": [choice]}

    def whole(self, counts: list[tuple[int, str]]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = [
            {
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": self.text(0, made).lstrip(),
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "tool_calls": [],
                    "reasoning": None,
                },
                "logprobs": None,
                "finish_reason": self.finish(reason),
                "stop_reason": None,
                "token_ids": None,
            }
            for index, (made, reason) in enumerate(counts)
        ]
        made = sum(count for count, _reason in counts)
        rest = {"service_tier": None, "system_fingerprint": None, "usage": self.usage(made), "prompt_logprobs": None}
        return self.head(chunk=False) | {"choices": choices} | rest
