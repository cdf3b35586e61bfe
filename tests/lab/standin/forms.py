# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What completions and chat answers look like, whole and in chunks, and which requests for them are wrong."""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Iterable
from typing import Any, ClassVar

from .errors import bad, invalid, missing
from .web import Response

_WORDS = "the model has been loaded and answers with words that mean nothing at all but count as tokens".split()
# Id -> the piece of text that it was last given for.
_PIECES: dict[int, str] = {}
_CHAT_LENGTH = 24  # tokens of a chat answer that nobody limited


def count_tokens(text: str) -> int:
    """About what a tokenizer makes of it."""
    return max(len(text) // 4, len(text.split()), 1)


def pieces(text: str) -> list[str]:
    """The text as tokens: words with the blank before them, or equal parts of it where the words are too few."""
    count = count_tokens(text)
    words = text.split()
    if len(words) < count:
        size = -(-len(text) // count)
        return [text[place * size : (place + 1) * size] for place in range(count)]
    return [" " + word for word in words[:count]]


def token_ids(text: str) -> list[int]:
    """As many ids as the text has tokens; the same piece of text has the same id."""
    found = pieces(text)
    numbers = [zlib.crc32(piece.encode()) % 30000 + 100 for piece in found]
    _PIECES.update(zip(numbers, found, strict=True))
    return numbers


def text_of(numbers: Iterable[int]) -> str:
    """What ids stand for that this server has given; nothing for any other."""
    return "".join(_PIECES.get(number, "") for number in numbers).removeprefix(" ")


class Form:
    """One answer being made. Subclasses know how completions and chat look."""

    prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]
    natural_length: ClassVar[int]  # of an answer that nobody limited

    def __init__(self, model: str, body: dict[str, Any], fingerprint: str, empty: bool, request_id: str | None = None) -> None:
        """``request_id`` is the client's own name for the request, from its header X-Request-Id."""
        self.id = f"{self.prefix}-{uuid.uuid4().hex[:16] if request_id is None else request_id}"
        self._created = int(time.time())
        self._model = model
        self._fingerprint = fingerprint
        self._empty = empty
        self._wanted = self.wanted(body)
        self.prompts = self.count_prompts(body)
        self.choices = int(body.get("n") or 1)  # for each prompt
        self.echo = str(body["prompt"]) if body.get("echo") and isinstance(body.get("prompt"), str) else ""

    # --- the request

    @classmethod
    def check(cls, body: dict[str, Any]) -> Response | None:
        """What is wrong with the request, if anything."""
        for field in ("max_tokens", "max_completion_tokens", "n"):
            value = body.get(field)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                return invalid(field, "integer", value)
        for field in ("temperature", "top_p"):
            value = body.get(field)
            if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool)):
                return invalid(field, "number", value)
        if body.get("stream_options") and not body.get("stream"):
            return bad("Stream options can only be defined when `stream=True`.", "stream_options")
        wanted = cls.wanted(body)
        if wanted is not None and wanted < 1:
            return bad(f"max_tokens must be at least 1, got {wanted}.", "max_tokens", wanted)
        temperature = float(body.get("temperature") or 0)
        if temperature < 0:
            return bad(f"temperature must be non-negative, got {temperature}.", "temperature", temperature)
        if body.get("n") is not None and body["n"] < 1:
            return bad(f"n must be at least 1, got {body['n']}.")
        return None

    @staticmethod
    def wanted(body: dict[str, Any]) -> int | None:
        """The number of tokens that is asked for."""
        raise NotImplementedError

    @staticmethod
    def count_prompts(body: dict[str, Any]) -> list[int]:
        """Tokens of each prompt."""
        raise NotImplementedError

    @property
    def logged_ids(self) -> list[str]:
        """The names under which --enable-log-requests tells of it."""
        return [self.id]

    def length(self, room: int) -> int:
        """How many tokens to make when room more fit."""
        return min(self.natural_length if self._wanted is None else self._wanted, room)

    # --- the answer

    def text(self, start: int, count: int) -> str:
        """Tokens start to start+count, a word each."""
        if self._empty:
            return ""
        return "".join(" " + _WORDS[index % len(_WORDS)] for index in range(start, start + count))

    def finish(self, reason: str | None) -> str | None:
        """The reason that the client sees: who asked for no number of tokens gets an answer that ends by itself."""
        return "stop" if reason == "length" and self._wanted is None else reason

    def head(self, kind: str | None = None) -> dict[str, Any]:
        """What every object of the answer begins with; chunks unless kind says otherwise."""
        return {"id": self.id, "object": kind or self.chunk_kind, "created": self._created, "model": self._model}

    def usage(self, made: int, details: bool = True) -> dict[str, Any]:
        """Counts of tokens."""
        prompt = sum(self.prompts)
        counts: dict[str, Any] = {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}
        return counts | ({"prompt_tokens_details": None, "completion_tokens_details": None} if details else {})

    def whole(self, counts: list[tuple[int, str]]) -> dict[str, Any]:
        """The answer in one piece, from (tokens, reason) of each choice."""
        choices = [self._choice(index, made, self.finish(reason)) for index, (made, reason) in enumerate(counts)]
        rest = {
            "service_tier": None,
            "system_fingerprint": self._fingerprint,
            "usage": self.usage(sum(made for made, _reason in counts)),
        }
        more = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
        return self.head(self.kind) | {"choices": choices} | rest | self._more() | more

    def opening(self, choices: int) -> list[dict[str, Any]]:
        """The chunks that a streamed answer begins with."""
        return []

    def chunk(self, index: int, start: int, count: int, finish: str | None) -> dict[str, Any]:
        """A chunk of a streamed answer: count tokens of choice index, after start."""
        raise NotImplementedError

    def _choice(self, index: int, made: int, reason: str | None) -> dict[str, Any]:
        raise NotImplementedError

    def _more(self) -> dict[str, Any]:
        return {}


class Completion(Form):
    """/v1/completions"""

    prefix, kind, chunk_kind, natural_length = "cmpl", "text_completion", "text_completion", 16

    @classmethod
    def check(cls, body: dict[str, Any]) -> Response | None:
        """What is wrong with the request, if anything."""
        prompt = body.get("prompt")
        if prompt is None or prompt == []:
            return bad("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
        if not isinstance(prompt, (str, list)):
            return invalid("prompt", "string", prompt)
        return super().check(body)

    @staticmethod
    def wanted(body: dict[str, Any]) -> int | None:
        """The number of tokens that is asked for."""
        value = body.get("max_tokens", 16)
        return value if isinstance(value, int) else None

    @staticmethod
    def count_prompts(body: dict[str, Any]) -> list[int]:
        """Tokens of each prompt."""
        prompt = body["prompt"]
        if isinstance(prompt, str):
            return [count_tokens(prompt)]
        if all(isinstance(item, int) for item in prompt):
            return [len(prompt)]
        return [len(item) if isinstance(item, list) else count_tokens(str(item)) for item in prompt]

    @property
    def logged_ids(self) -> list[str]:
        """One for each prompt."""
        return [f"{self.id}-{index}" for index in range(len(self.prompts))]

    def chunk(self, index: int, start: int, count: int, finish: str | None) -> dict[str, Any]:
        """A chunk of a streamed answer."""
        choice = {
            "index": index,
            "text": ("" if start else self.echo) + self.text(start, count),
            "logprobs": None,
            "finish_reason": self.finish(finish),
            "stop_reason": None,
            "prompt_token_ids": None,
            "token_ids": None,
        }
        return self.head() | {"choices": [choice]}

    def _choice(self, index: int, made: int, reason: str | None) -> dict[str, Any]:
        return {
            "index": index,
            "text": self.echo + self.text(0, made),
            "logprobs": None,
            "finish_reason": reason,
            "stop_reason": None,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "routed_experts": None,
        }


class Chat(Form):
    """/v1/chat/completions"""

    prefix, kind, chunk_kind, natural_length = "chatcmpl", "chat.completion", "chat.completion.chunk", _CHAT_LENGTH

    @classmethod
    def check(cls, body: dict[str, Any]) -> Response | None:
        """What is wrong with the request, if anything."""
        messages = body.get("messages")
        if messages is None:
            return missing("messages", body)
        if not isinstance(messages, list) or not all(isinstance(item, dict) for item in messages):
            return invalid("messages", "list", messages)
        if not messages or not all("role" in item for item in messages):
            return missing("messages.0.role", body)
        return super().check(body)

    @staticmethod
    def wanted(body: dict[str, Any]) -> int | None:
        """The number of tokens that is asked for."""
        value = body.get("max_completion_tokens")
        value = body.get("max_tokens") if value is None else value
        return value if isinstance(value, int) else None

    @staticmethod
    def count_prompts(body: dict[str, Any]) -> list[int]:
        """Tokens of the conversation."""
        total = 3
        for message in body["messages"]:
            content = message.get("content") or ""
            parts = content if isinstance(content, list) else [{"text": content}]
            total += 4 + sum(count_tokens(str(part.get("text", ""))) for part in parts if isinstance(part, dict))
        return [total]

    def opening(self, choices: int) -> list[dict[str, Any]]:
        """The chunks that a streamed answer begins with: one for each choice, with the role."""
        return [
            self.head()
            | {"choices": [self._delta(index, {"role": "assistant", "content": ""}, None)]}
            | {"prompt_token_ids": None, "prompt_text": None}
            for index in range(choices)
        ]

    def chunk(self, index: int, start: int, count: int, finish: str | None) -> dict[str, Any]:
        """A chunk of a streamed answer."""
        choice = self._delta(index, {"content": self.text(start, count)}, self.finish(finish))
        if finish is not None:
            choice["stop_reason"] = None
        return self.head() | {"choices": [choice | {"token_ids": None}]}

    @staticmethod
    def _delta(index: int, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}

    def _choice(self, index: int, made: int, reason: str | None) -> dict[str, Any]:
        message = {"role": "assistant", "content": self.text(0, made).lstrip(), "refusal": None, "annotations": None}
        return {
            "index": index,
            "message": message | {"audio": None, "function_call": None, "reasoning": None},
            "logprobs": None,
            "finish_reason": reason,
            "stop_reason": None,
            "token_ids": None,
            "routed_experts": None,
        }

    def _more(self) -> dict[str, Any]:
        return {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
