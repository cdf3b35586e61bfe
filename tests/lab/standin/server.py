# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API server's process after its engines are started: it waits for them, serves, and shuts down as vLLM does."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import socket
import ssl
import time
from typing import Any

from . import log, processes
from .api import Api, EngineDead, Tokens
from .behaviours import EXIT_MISUSED, Misused, before_exit, misused
from .engine import worker_patience
from .metrics import Metrics
from .plan import Plan
from .processes import Child, Link
from .web import Connection, Request, Response

_MAIN = (
    ("entrypoints/cli/main.py", 117, "main", "args.dispatch_function(args)"),
    ("entrypoints/cli/serve.py", 156, "cmd", "uvloop.run(run_server(args))"),
    ("entrypoints/launchers/api_server/entry.py", 176, "run_server", "await run_server_worker(listen_address, sock"),
    ("v1/engine/core_client.py", 699, "__init__", "with launch_core_engines("),
)
_START_CLEANUP_S = 5.0  # how long engines may take to leave when a start is given up


class StartFailed(Exception):
    """An engine ended before it was ready."""


class Interrupted(Exception):
    """SIGTERM came before the server was ready."""


class Engine:
    """An EngineCore as the API server sees it."""

    def __init__(self, child: Child, link: Link) -> None:
        self.child = child
        self.link = link
        self.ready = False


class Server:
    """The API server. sock is bound already; it listens when the engines are ready."""

    def __init__(self, plan: Plan, sock: socket.socket, address: str, engines: list[Engine]) -> None:
        self._plan = plan
        self._sock = sock
        self._address = address
        self._engines = engines
        self._metrics = Metrics(plan.served_names[0], len(engines))
        self._api = Api(plan, self, self._metrics)
        self._connections: set[Connection] = set()
        self._requests: dict[int, Tokens] = {}
        self._sent_at: dict[int, tuple[float, float | None]] = {}
        self._next_id = 0
        self._calls: list[asyncio.Future[None]] = []
        self._stop = asyncio.Event()
        self._failed = asyncio.Event()
        self._exit_now = asyncio.Event()
        self._changed = asyncio.Event()
        self.stopping = False
        self._ready_at = 0.0
        self.dead = False

    # --- life

    async def run(self) -> int:
        """Serve until the end. The exit code. Raises StartFailed and Interrupted before it is ready."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        processes.unblock_signals()  # held back since the engines were forked
        for position, engine in enumerate(self._engines):
            loop.add_reader(engine.link, self._on_message, position)
            loop.add_reader(engine.child, self._on_engine_end, position)
        listening = await self._listen() if self._plan.behaviours["models_early"] else None
        await self._until_ready()
        self._api.ready = True
        self._ready_at = time.monotonic()
        self._announce()
        if listening is None:
            listening = await self._listen()
        bound = "socket %r" % (self._sock.getsockname(),)
        log.raw(f"INFO:     Uvicorn running on {bound} (Press CTRL+C to quit)")
        self._api.say()
        code = await self._until_the_end()
        listening.close()
        log.raw("INFO:     Shutting down")
        for connection in list(self._connections):
            connection.close()
        log.raw("INFO:     Waiting for application shutdown.\nINFO:     Application shutdown complete.")
        if self.dead:
            log.raw(f"INFO:     Finished server process [{os.getpid()}]")
        if self._plan.arguments.uds:
            self._unlink_socket()
        return code

    def _unlink_socket(self) -> None:
        try:
            os.unlink(self._plan.arguments.uds)
        except FileNotFoundError:
            return

    async def _listen(self) -> asyncio.Server:
        arguments = self._plan.arguments
        context = None
        if arguments.ssl_keyfile and arguments.ssl_certfile:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(arguments.ssl_certfile, arguments.ssl_keyfile)
        if arguments.uds:
            return await asyncio.start_unix_server(self._accept, sock=self._sock, ssl=context, backlog=2048)
        return await asyncio.start_server(self._accept, sock=self._sock, ssl=context, backlog=2048)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        access = not self._plan.arguments.disable_uvicorn_access_log
        connection = Connection(reader, writer, self._handle, access)
        self._connections.add(connection)
        try:
            await connection.serve()
        finally:
            self._connections.discard(connection)

    async def _handle(self, request: Request, connection: Connection) -> Response:
        return await self._api.handle(request, connection)

    def _on_signal(self) -> None:
        try:
            if self._plan.behaviours["ignore_sigterm"]:
                return
        except Misused as error:
            misused(error)
        if not self._stop.is_set():
            if self._api.ready:
                log.info("launcher.py:240", "[shutdown] API server: shutdown triggered")
            self._stop.set()
            self._changed.set()

    async def _until_ready(self) -> None:
        while not all(engine.ready for engine in self._engines):
            if self._failed.is_set():
                raise StartFailed
            if self._stop.is_set():
                raise Interrupted
            self._changed.clear()
            await self._changed.wait()

    def _announce(self) -> None:
        log.info("entry.py:135", "Supported tasks: ['generate']")
        log.info("entry.py:139", f"Starting vLLM server on {self._address}")
        log.info("launcher.py:172", "Available routes are:")
        for path, method in self._api.routes:
            log.info("launcher.py:182", f"Route: {path}, Methods: {method}")
        log.raw(
            f"INFO:     Started server process [{os.getpid()}]\nINFO:     Waiting for application startup.\n"
            "INFO:     Application startup complete."
        )

    async def _until_the_end(self) -> int:
        stop = asyncio.ensure_future(self._stop.wait())
        dead = asyncio.ensure_future(self._watch_engines())
        await asyncio.wait({stop, dead}, return_when=asyncio.FIRST_COMPLETED)
        if not stop.done():
            stop.cancel()
            dies = self._plan.behaviours["dies_after"]
            return int(dies.get("exit_code", 0)) if isinstance(dies, dict) else 0
        dead.cancel()
        try:
            await asyncio.sleep(self._plan.behaviours["slow_stop"])
            if self._plan.behaviours["orphan_workers"]:
                await self._orphan()
                return 0
        except Misused as error:
            misused(error)
        await self._stop_engines()
        return 0

    async def _watch_engines(self) -> None:
        """Return when the engine is dead and the server shall end: at its next look, or when a request met it."""
        await self._failed.wait()
        period = self._plan.behaviours["watchdog_seconds"]
        while True:
            try:
                # It looks at fixed intervals since the server was ready.
                rest = period - (time.monotonic() - self._ready_at) % period if period else 0
                await asyncio.wait_for(self._exit_now.wait(), rest)
            except TimeoutError:
                pass
            try:
                unnoticed = self._plan.behaviours["health_ok_dead_engine"]
            except Misused as error:
                misused(error)
            if not unnoticed and os.environ.get("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "0") != "1":
                return
            self._exit_now.clear()

    async def _stop_engines(self) -> None:
        timeout = int(self._plan.arguments.shutdown_timeout)
        mode = "abort" if timeout == 0 else "drain"
        log.info("launcher.py:256", f"[shutdown] API server: stopping engine client mode={mode} timeout={timeout}s")
        log.info("core_client.py:792", f"[shutdown] MPClient: start timeout={timeout}s")
        grace = float(timeout)
        if timeout == 0 and "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS" in os.environ:
            grace = worker_patience()
            log.info(
                "utils.py:349",
                f"[shutdown] EngineCore process manager: using {grace}s cleanup grace after immediate request abort",
            )
        self.stopping = True
        loop = asyncio.get_running_loop()
        for engine in self._engines:
            loop.remove_reader(engine.child)
        # In a thread: requests go on meanwhile.
        await loop.run_in_executor(None, processes.end_processes, [each.child for each in self._engines], grace)
        log.info("core_client.py:799", "[shutdown] MPClient: complete")
        log.info("launcher.py:265", "[shutdown] API server: engine client stopped")
        await self._finish_answers()
        log.info("launcher.py:268", "[shutdown] API server: signalling HTTP server shutdown")

    async def _finish_answers(self) -> None:
        """Let what the engines said last reach the clients."""
        for position in range(len(self._engines)):
            while self._on_message(position):
                pass
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline and not self._requests and any(each.busy for each in self._connections):
            await asyncio.sleep(0.01)

    async def _orphan(self) -> None:
        """Let the engines go without their workers; whatever still runs is left alone."""
        self.stopping = True
        escape = self._plan.behaviours["escape_cgroup"]
        done = [self._call_engine(engine, {"orphan": escape}) for engine in self._engines]
        await asyncio.wait(done, timeout=5)

    # --- engines

    def _call_engine(self, engine: Engine, message: dict[str, Any]) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        self._calls.append(future)
        if not engine.link.send(message):
            future.set_exception(EngineDead())
        return future

    def _on_message(self, position: int) -> bool:
        """Take what an engine says; False: there was nothing."""
        engine = self._engines[position]
        if not processes.readable(engine.link):
            return False
        message = engine.link.receive()
        if message is None:
            asyncio.get_running_loop().remove_reader(engine.link)
            return False
        if "ready" in message:
            self._plan.max_model_len = message["max_model_len"]
            engine.ready = True
            self._changed.set()
        elif "done" in message:
            future = self._calls.pop(0)
            if not future.done():
                if "error" in message:
                    future.set_exception(EngineDead())
                else:
                    future.set_result(None)
        else:
            self._metrics.stats[position] = message["stats"]
            for identifier, count, finish in message["out"]:
                self._on_tokens(position, identifier, count, finish)
        return True

    def _on_tokens(self, position: int, identifier: int, count: int, finish: str | None) -> None:
        tokens = self._requests.get(identifier)
        if tokens is None:
            return
        now = time.monotonic()
        sent, last = self._sent_at[identifier]
        histograms = self._metrics.histograms[position]
        if last is None:
            histograms["time_to_first_token_seconds"].observe(now - sent)
        elif count:
            histograms["inter_token_latency_seconds"].observe((now - last) / count)
        self._sent_at[identifier] = (sent, now)
        self._metrics.counters[position]["generation_tokens"] += count
        tokens.made += count
        if finish is not None:
            del self._requests[identifier], self._sent_at[identifier]
            self._metrics.finished[position][finish] += 1
            histograms["e2e_request_latency_seconds"].observe(now - sent)
            histograms["request_generation_tokens"].observe(tokens.made)
        tokens.put(count, finish)

    def _on_engine_end(self, position: int) -> None:
        loop = asyncio.get_running_loop()
        while self._on_message(position):
            pass
        loop.remove_reader(self._engines[position].child)
        if self.stopping:
            return
        self._failed.set()
        self._changed.set()
        if not self._api.ready:
            return
        log.warning("core_client.py:839", "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup")
        self.dead = True
        for engine in self._engines:
            loop.remove_reader(engine.child)
        processes.end_processes([engine.child for engine in self._engines], 0)
        if self._plan.behaviours["health_ok_dead_engine"]:
            return
        log.error(
            "async_llm.py:801",
            "AsyncLLM output_handler failed.\n"
            + log.traceback(
                (("v1/engine/async_llm.py", 757, "output_handler", "outputs = await engine_core.get_output_async()"),),
                "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
                "See stack trace (above) for the root cause.",
            ),
        )
        for tokens in self._requests.values():
            self._metrics.finished[tokens.engine]["error"] += 1
            tokens.put(0, "dead")
        self._requests.clear()
        for future in self._calls:
            if not future.done():
                future.set_exception(EngineDead())
        self._calls.clear()

    def clean_up(self) -> None:
        """End the engines of a start that is given up."""
        processes.end_processes([engine.child for engine in self._engines], _START_CLEANUP_S)

    # --- what the endpoints ask for

    def submit(self, prompt_tokens: int, output_tokens: int) -> Tokens:
        """Queue a request at the next engine. Raises EngineDead."""
        self._next_id += 1
        position = self._next_id % len(self._engines)
        tokens = Tokens(self._next_id, position)
        message = {
            "add": [tokens.identifier, prompt_tokens, output_tokens],
            "throttle": self._plan.behaviours["throttle"],
        }
        self._requests[tokens.identifier] = tokens
        self._sent_at[tokens.identifier] = (time.monotonic(), None)
        if not self._engines[position].link.send(message):
            del self._requests[tokens.identifier], self._sent_at[tokens.identifier]
            raise EngineDead
        self._metrics.counters[position]["prompt_tokens"] += prompt_tokens
        self._metrics.histograms[position]["request_prompt_tokens"].observe(prompt_tokens)
        return tokens

    def abort(self, tokens: Tokens) -> None:
        """Forget a request whose client is gone."""
        if self._requests.pop(tokens.identifier, None) is not None:
            self._sent_at.pop(tokens.identifier, None)
            self._metrics.finished[tokens.engine]["abort"] += 1
            self._engines[tokens.engine].link.send({"abort": tokens.identifier})

    async def call(self, what: str) -> None:
        """Let all engines sleep or wake up. Raises EngineDead."""
        if self.dead:
            raise EngineDead
        for future in [self._call_engine(engine, {"call": what}) for engine in self._engines]:
            await future

    def request_failed(self) -> None:
        """A request met a dead engine: the server ends at once."""
        self._exit_now.set()


def serve(plan: Plan, sock: socket.socket, address: str, engines: list[Engine]) -> int:
    """Run the API server to its end. The process's exit code; a negative one is the signal to die of."""
    server: Server | None = None

    async def main() -> int:
        nonlocal server
        server = Server(plan, sock, address, engines)
        before_exit.extend([functools.partial(processes.kill_tree, engine.child) for engine in engines])
        return await server.run()

    try:
        return asyncio.run(main())
    except OSError as error:
        # Another server that was loading too has the port by now: only listening tells.
        processes.end_processes([engine.child for engine in engines], 0)
        log.raw(log.traceback(_MAIN[:3], f"{type(error).__name__}: {error}"))
        return 1
    except StartFailed:
        assert server is not None
        server.clean_up()
        log.raw(
            log.traceback(
                (*_MAIN, ("v1/engine/utils.py", 1473, "wait_for_engine_startup", "raise RuntimeError(")),
                "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
            )
        )
        if any(engine.child.exit_code == EXIT_MISUSED for engine in engines):
            return EXIT_MISUSED
        death = plan.death
        return 1 if death is None or death.exit_code is None else death.exit_code
    except Interrupted:
        assert server is not None
        server.clean_up()
        log.raw(
            log.traceback(
                (
                    *_MAIN,
                    ("entrypoints/launchers/api_server/entry.py", 171, "_interrupt_init", "raise KeyboardInterrupt("),
                ),
                "KeyboardInterrupt: terminated",
            )
        )
        return -signal.SIGINT
