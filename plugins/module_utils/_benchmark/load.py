# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The load generator of the tool ``builtin``: a program of one file, which any interpreter that has ``requests`` can run.

Standard input is one JSON object (see ``Order``), standard output one as well. It keeps a number of requests busy at a time, each as a
stream, and tells the times of each. It imports nothing of this collection: it is sent to whichever interpreter of the host can run it.

Prompts have the wanted length to the token without a tokenizer here: the server's own ``/tokenize`` says which ids ordinary words
have, and a prompt is made of ids. Where there is no such endpoint a prompt is made of words, and their number is adjusted by what the
server counts. Each prompt begins with tokens of this run alone, so that nothing of it is in the server's prefix cache.
"""

from __future__ import annotations

import http.client
import importlib
import json
import multiprocessing
import os
import random
import sys
import threading
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

# A process spends this on some ten thousand pieces a second; more streams than these get a process of their own.
_STREAMS_PER_PROCESS = 32
# What requests, urllib3 and the socket raise: all errors of requests are OSErrors.
_ERRORS = (OSError, ValueError, http.client.HTTPException)
# The first block of a prompt decides about all others in the prefix cache.
_OWN_TOKENS = 8
_CONNECT_S = 10.0
_ERROR_CHARS = 300
_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand part place case "
    "week company system program question work government number night point home water room mother area money story fact month lot "
    "right study book eye job word business issue side kind head house service friend father power hour game line end member law car "
    "city community name president team minute idea kid body information back parent face others level office door health person art "
    "war history party result change morning reason research girl guy moment air teacher force education red green blue river stone"
).split()


class Order:
    """What is to be done, read from standard input. Times are seconds; ``verify`` is whether a certificate must be good."""

    def __init__(self, given: Dict[str, Any]) -> None:
        self.url = str(given["url"]).rstrip("/")
        self.model = str(given["model"])
        self.headers = {"Authorization": "Bearer %s" % given["api_key"]} if given.get("api_key") else {}
        self.verify = bool(given.get("verify", True))
        self.concurrency = int(given["concurrency"])
        self.requests = int(given["requests"])
        self.warmup = int(given["warmup"])
        self.input_tokens = int(given["input_tokens"])
        self.output_tokens = int(given["output_tokens"])
        self.seed = "%s/%s" % (given["seed"], given["concurrency"])
        self.nonce = str(given["nonce"])
        self.timeout = float(given["timeout"])


class Refused(Exception):
    """The run can't begin: the server does not answer as it should."""


def session_of(order: Order) -> Any:
    """Connections that are kept, and that no proxy or password file of the environment stands in between."""
    session = importlib.import_module("requests").Session()
    session.trust_env = False
    session.verify = order.verify
    session.headers.update(order.headers)
    return session


# -- prompts -----------------------------------------------------------------------------------------------------------


class Prompts:
    """Prompts by number: the same numbers, seed and nonce give the same prompts. ``how`` is ``token_ids`` or ``words``."""

    def __init__(self, order: Order, pool: List[Any], how: str, length: int) -> None:
        self.how = how
        self._order = order
        self._pool = pool
        self._length = length

    def __call__(self, kind: str, number: int) -> Any:
        own = random.Random("%s/%s/%s" % (self._order.nonce, kind, number)).choices(self._pool, k=_OWN_TOKENS)
        rest = random.Random("%s/%s/%s" % (self._order.seed, kind, number)).choices(self._pool, k=self._length)
        chosen = (own + rest)[: self._length]
        return chosen if self.how == "token_ids" else " ".join(chosen)


def make_prompts(order: Order, session: Any) -> Prompts:
    """Ask the server how to make prompts of the wanted length. Raises Refused."""
    ids = _token_ids(order, session)
    if ids:
        return Prompts(order, ids, "token_ids", order.input_tokens)
    length = order.input_tokens
    for attempt in range(4):
        prompts = Prompts(order, _WORDS, "words", length)
        counted = _count(order, session, prompts("probe", attempt))
        if counted == order.input_tokens or not counted:
            break
        length = max(1, round(length * order.input_tokens / counted))
    return Prompts(order, _WORDS, "words", length)


def _token_ids(order: Order, session: Any) -> List[int]:
    """Ids of ordinary words, none of which means anything special to the model; empty where the server does not tell."""
    body = {"model": order.model, "prompt": " " + " ".join(_WORDS), "add_special_tokens": False}
    try:
        reply = session.post(order.url + "/tokenize", json=body, timeout=(_CONNECT_S, order.timeout))
        answer = reply.json() if reply.status_code == 200 else None
    except _ERRORS as exc:
        raise Refused("%s/tokenize gave no answer: %s" % (order.url, exc)) from exc
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        return []
    return sorted(set(tokens))


def _count(order: Order, session: Any, prompt: Any) -> Optional[int]:
    body = {"model": order.model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    try:
        reply = session.post(order.url + "/v1/completions", json=body, timeout=(_CONNECT_S, order.timeout))
        answer = reply.json() if reply.status_code == 200 else None
    except _ERRORS as exc:
        raise Refused("%s/v1/completions gave no answer: %s" % (order.url, exc)) from exc
    if answer is None:
        raise Refused("%s/v1/completions answered HTTP %d: %s" % (order.url, reply.status_code, reply.text[:_ERROR_CHARS]))
    usage = answer.get("usage") if isinstance(answer, dict) else None
    return (usage or {}).get("prompt_tokens")


# -- one request -------------------------------------------------------------------------------------------------------


def ask(order: Order, session: Any, prompt: Any) -> Dict[str, Any]:
    """One request as a stream: its times in seconds, its tokens as the server counts them, or ``error`` with ``kind``."""
    body = {
        "model": order.model,
        "prompt": prompt,
        "max_tokens": order.output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    found: Dict[str, Any] = {"start": time.monotonic()}
    try:
        with session.post(order.url + "/v1/completions", json=body, stream=True, timeout=(_CONNECT_S, order.timeout)) as reply:
            if reply.status_code != 200:
                found.update(kind="http_%d" % reply.status_code, error="HTTP %d: %s" % (reply.status_code, reply.text[:_ERROR_CHARS]))
            else:
                _follow(reply, found, found["start"] + order.timeout)
    except _ERRORS as exc:
        found.update(kind=_kind(exc), error="%s: %s" % (type(exc).__name__, str(exc)[:_ERROR_CHARS]))
    found["end"] = found.pop("last", None) or time.monotonic()
    return found


def _follow(reply: Any, found: Dict[str, Any], end: float) -> None:
    gaps: List[float] = []
    last: Optional[float] = None
    pieces, done = 0, False
    for when, data in _events(reply):
        if when > end:
            found.update(kind="timeout", error="the answer was not complete in time")
            return
        if data == "[DONE]":
            done = True
            continue
        message = json.loads(data)
        if "error" in message:
            found.update(kind="server_error", error=str(message["error"])[:_ERROR_CHARS])
            return
        if message.get("choices"):
            pieces += 1
            if last is None:
                found["ttft"] = when - found["start"]
            else:
                gaps.append(when - last)
            last = when
        if message.get("usage"):
            found["output_tokens"] = message["usage"].get("completion_tokens")
            found["input_tokens"] = message["usage"].get("prompt_tokens")
    found.update(gaps=gaps, last=last)
    if not done:
        found.update(kind="cut", error="the stream ended before [DONE], after %d pieces" % pieces)
    elif last is None:
        found.update(kind="empty", error="the stream ended without a token")
    elif found.get("output_tokens") is None:
        # The piece is what can be counted: a token each, unless the server puts several into one.
        found.update(output_tokens=pieces, counted="pieces")


def _events(reply: Any) -> Iterator[Tuple[float, str]]:
    """(when it came, the data) of each server-sent event."""
    chunked = "chunked" in reply.headers.get("Transfer-Encoding", "").lower()
    rest = b""
    # What is not chunked would be waited for to its end.
    for piece in reply.iter_content(chunk_size=None if chunked else 1):
        now = time.monotonic()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield now, line[5:].strip().decode("utf-8", "replace")


def _kind(exc: BaseException) -> str:
    names = {base.__name__ for base in type(exc).__mro__}
    text = "%s %s" % (type(exc).__name__, exc)
    if "Timeout" in names or "timed out" in text.lower():
        return "timeout"
    if "ChunkedEncodingError" in names or "IncompleteRead" in text or "Connection broken" in text or "RemoteDisconnected" in text:
        return "cut"
    if "ConnectionError" in names:
        return "connection"
    return "cut" if isinstance(exc, ValueError) else "other"


# -- many requests -----------------------------------------------------------------------------------------------------


def _streams(order: Order, prompts: Prompts, kind: str, count: int, threads: int, counter: Any) -> List[Dict[str, Any]]:
    """Keep ``threads`` requests busy until ``count`` are begun by all processes together."""
    told: List[Dict[str, Any]] = []

    def one_after_the_other() -> None:
        session = session_of(order)
        while True:
            with counter.get_lock():
                number = counter.value
                counter.value += 1
            if number >= count:
                return
            told.append(ask(order, session, prompts(kind, number)))  # appending is atomic

    workers = [threading.Thread(target=one_after_the_other, daemon=True) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return told


def _process(pipe: Any, order: Order, prompts: Prompts, threads: int, counters: Tuple[Any, Any], together: Any) -> None:
    _streams(order, prompts, "warmup", order.warmup, threads, counters[0])
    together.wait()
    pipe.send(_streams(order, prompts, "counted", order.requests, threads, counters[1]))
    pipe.close()


def run(order: Order) -> Dict[str, Any]:
    """``requests`` (what ask() tells of each), ``prompts`` (how they were made), ``processes``. Raises Refused."""
    prompts = make_prompts(order, session_of(order))
    count = max(1, min(os.cpu_count() or 1, -(-order.concurrency // _STREAMS_PER_PROCESS)))
    context = multiprocessing.get_context("fork")
    counters = (context.Value("q", 0), context.Value("q", 0))
    together = context.Barrier(count)
    children = []
    for number in range(count):
        threads = order.concurrency // count + (1 if number < order.concurrency % count else 0)
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_process, args=(theirs, order, prompts, threads, counters, together), daemon=True)
        child.start()
        theirs.close()
        children.append((child, ours))
    told: List[Dict[str, Any]] = []
    for child, ours in children:
        try:
            told += ours.recv()
        except EOFError:
            raise Refused("a process of the load generator ended before it had told what it did") from None
        child.join()
    return {"requests": told, "prompts": prompts.how, "processes": count}


def main() -> int:
    """Exit status 0 with the answer, 3 when ``requests`` is missing, 4 when the run can't begin; the answer says why."""
    order = Order(json.load(sys.stdin))
    try:
        importlib.import_module("requests")
    except ImportError as exc:
        return _answered({"refused": "%s has no library requests: %s" % (sys.executable, exc)}, 3)
    if not order.verify:
        # The server of this very host, addressed by number: its certificate is for a name, and saying so for each request is no news.
        importlib.import_module("urllib3").disable_warnings()
    try:
        return _answered(run(order), 0)
    except Refused as exc:
        return _answered({"refused": str(exc)}, 4)


def _answered(answer: Dict[str, Any], status: int) -> int:
    sys.stdout.write(json.dumps(answer) + "\n")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
