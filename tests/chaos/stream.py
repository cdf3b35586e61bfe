# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests without a pause against a model that is being drained: none that was accepted may be lost."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from chaos.sight import PORT
from lab import Host

# Of one request, by turns; the stand-in is told to make tokens slowly, so that each takes a while, and some are always under way.
TOKENS = (24, 240)
TOKENS_PER_S = 24.0


@dataclass
class Stream:
    """Clients that ask one after the other, half of them for streams. ``answers`` counts how each request ended. They are
    taken elsewhere as soon as the file ``taken_out`` is there, as a load balancer does.

    ``whole``: every token came, with a finish reason of a finished request. ``refused``: nothing listened, the server said so
    with a status from 429 on before the first token, or the connection broke and the server never had the request: a listening
    socket that is closed resets what the kernel still kept in its queue. Everything else is ``lost``, with what was seen in ``lost``.

    What the server had, its own log says: it has to run with ``enable_log_requests``, and each request has a name of its own.
    """

    host: Host
    model: str
    taken_out: Path | None = None
    clients: int = 6
    answers: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    _broken: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._client, args=(number,), daemon=True) for number in range(self.clients)]

    def __enter__(self) -> Stream:
        for thread in self._threads:
            thread.start()
            time.sleep(1.0 / self.clients)  # not in step
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Send nothing more, wait for what was sent, and ask the server's log about the connections that broke."""
        self._end.set()
        for thread in self._threads:
            thread.join(60)
        broken, self._broken = self._broken, {}
        log = self.host.journal(f"vllm-{self.model}.service", "--output=cat")
        assert "Received request " in log, f"{self.model} does not log its requests"
        for name, detail in broken.items():
            if f"Received request cmpl-{name}-0:" in log:
                self.lost.append(detail)
                self.answers["lost"] += 1
            else:
                self.answers["refused"] += 1

    def _client(self, number: int) -> None:
        for tokens in itertools.cycle(TOKENS):
            if self._end.is_set() or (self.taken_out is not None and self.taken_out.exists()):
                return
            name = uuid.uuid4().hex
            how, detail = self._ask(name, tokens, stream=number % 2 == 0)
            with self._lock:
                if how == "broken":
                    self._broken[name] = detail
                else:
                    self.answers[how] += 1
                if how == "lost":
                    self.lost.append(detail)
            if how in ("refused", "broken"):
                self._end.wait(0.05)

    def _ask(self, name: str, tokens: int, stream: bool) -> tuple[str, str]:
        connection = http.client.HTTPConnection(self.host.address, PORT, timeout=60)
        sent = False
        try:
            connection.connect()
            body = json.dumps({"model": self.model, "prompt": "Hello", "max_tokens": tokens, "stream": stream})
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json", "X-Request-Id": name})
            sent = True
            response = connection.getresponse()
            text = response.read().decode()
        except (OSError, http.client.HTTPException) as exc:
            if isinstance(exc, ConnectionRefusedError) or not sent:
                return "refused", ""
            return "broken", f"{type(exc).__name__}: {exc}"
        finally:
            connection.close()
        if response.status == 404 or response.status >= 429:
            return "refused", ""  # another model serves already, or the server takes no more work
        if response.status != 200:
            return "lost", f"HTTP {response.status}: {text[:200]}"
        return ("whole", "") if is_whole(text, tokens, stream) else ("lost", f"{'stream' if stream else 'answer'}: ...{text[-300:]}")


def is_whole(text: str, tokens: int, stream: bool) -> bool:
    """Whether every token came and the server called it finished."""
    if not stream:
        answer = json.loads(text)
        choice, made = answer["choices"][0], answer["usage"]["completion_tokens"]
        return made == tokens and choice["finish_reason"] in ("length", "stop")
    events = [line[len("data: ") :] for line in text.splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        return False
    chunks = [json.loads(event) for event in events[:-1]]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk.get("choices")]
    return bool(reasons) and reasons[-1] in ("length", "stop")
