# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""EngineCore: it starts the workers, sizes the KV cache, and schedules requests. It does not watch the API server."""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import dataclass
from typing import Any

from . import log, processes
from .behaviours import Misused, misused
from .plan import Failure, Plan, format_gib
from .processes import Child, Link
from .rank import Rank
from .scheduler import Scheduler
from .worker import Worker

_CORE = (
    (
        "v1/engine/core.py",
        1555,
        "run_engine_core",
        "engine_core = EngineCoreProc(*args, engine_index=dp_rank, **kwargs)",
    ),
    ("v1/engine/core.py", 148, "__init__", "self.model_executor = executor_class(vllm_config)"),
)
_KV = (
    (
        "v1/engine/core.py",
        1555,
        "run_engine_core",
        "engine_core = EngineCoreProc(*args, engine_index=dp_rank, **kwargs)",
    ),
    ("v1/engine/core.py", 162, "__init__", "kv_cache_config = self._initialize_kv_caches(vllm_config)"),
)
_PATIENCE_AFTER_TERM_S = 4.0


@dataclass
class _Handle:
    """A worker as EngineCore sees it."""

    child: Child
    link: Link
    death: int | None  # closing it tells the worker to go

    def let_go(self) -> None:
        """Close the death pipe."""
        if self.death is not None:
            os.close(self.death)
            self.death = None


def worker_patience() -> float:
    """VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS: how long workers may take to leave by themselves."""
    return float(os.environ.get("VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS", "5"))


class EngineCore:
    """One engine's process. api leads to the API server; keep are descriptors that its children keep too."""

    def __init__(self, plan: Plan, data_rank: int, api: Link, keep: list[int]) -> None:
        self._plan = plan
        self._data_rank = data_rank
        self._api = api
        self._api_there = True
        self._keep = keep
        self._workers: list[_Handle] = []
        self._own: Rank | None = None  # with one GPU EngineCore itself holds it
        self._shutdown = "no"  # no, requested, going on
        self._scheduler = Scheduler(1, 1, 16)
        self._dies_at: float | None = None
        self._ready: dict[str, Any] = {}
        self._wake_read, self._wake_write = -1, -1

    def run(self) -> int:
        """Load, tell the API server, serve. The process's exit code."""
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        processes.unblock_signals()
        name = f"EngineCore_DP{self._data_rank}" if self._plan.parallel.data > 1 else "EngineCore"
        processes.set_title(name)
        try:
            self._load()
        except Failure as failure:
            text = log.traceback(failure.frames, failure.last)
            log.error("core.py:1585", "EngineCore failed to start.\n" + text)
            self._end_workers()
            log.raw(f"Process {name}:\n{text}")
            return 1
        except Misused as error:
            self._end_workers()
            misused(error)
        self._api.send(self._ready)
        try:
            return self._serve()
        except Failure as failure:
            text = log.traceback(failure.frames, failure.last)
            log.error("core.py:1587", "EngineCore encountered a fatal error.\n" + text)
            self._end_workers()
            log.raw(f"Process {name}:\n{text}")
            return 1

    def _on_signal(self, number: int, _frame: Any) -> None:
        try:
            if self._plan.behaviours["workers_ignore_sigterm"]:
                return
        except Misused as error:
            misused(error)
        log.info("core.py:1525", f"[shutdown] EngineCore: trigger received signal={signal.Signals(number).name}")
        if self._shutdown == "no":
            self._shutdown = "requested"

    # --- loading

    def _load(self) -> None:
        plan = self._plan
        if self._data_rank == 0:
            log.info(
                "core.py:139",
                f"Initializing a V1 LLM engine (v{plan.version}) with config: model='{plan.model.name}', "
                f"max_seq_len={plan.max_model_len}, tensor_parallel_size={plan.parallel.tensor}, "
                f"pipeline_parallel_size={plan.parallel.pipeline}, data_parallel_size={plan.parallel.data}, "
                f"enforce_eager={plan.arguments.enforce_eager}, kv_cache_dtype={plan.arguments.kv_cache_dtype}, "
                f"served_model_name={plan.served_names[0]}",
            )
        plan.maybe_die("device", "engine")
        self._start_ranks()
        plan.maybe_die("weights", "engine")
        started = time.monotonic()
        plan.maybe_die("profile", "engine")
        available = min(self._call("profile"))
        blocks, block_bytes = self._size_kv_cache(available)
        plan.maybe_die("kv_cache", "engine")
        self._call("init_kv_cache", blocks * block_bytes)
        plan.maybe_die("warmup", "engine")
        self._call("warm_up")
        log.info(
            "core.py:405",
            "init engine (profile, create kv cache, warmup model) took "
            f"{time.monotonic() - started:.2f} s (compilation: {0.6 * (time.monotonic() - started):.2f} s)",
        )
        plan.maybe_die("graphs", "engine")
        self._scheduler = Scheduler(plan.max_num_seqs, blocks, self._block_size)
        self._ready = {"ready": True, "max_model_len": plan.max_model_len, "kv_blocks": blocks}

    def _start_ranks(self) -> None:
        plan = self._plan
        world = plan.parallel.world
        if world == 1:
            self._own = Rank(plan, 0, data_rank=self._data_rank)
            self._own.init_device()
            self._own.load_model()
            return
        log.info(
            "multiproc_executor.py:166",
            "DP group leader: node_rank=0, node_rank_within_dp=0, master_addr=127.0.0.1, mq_connect_ip=127.0.0.1 "
            f"(local), world_size={world}, local_world_size={world}",
        )
        for local_rank in range(world):
            self._start_worker(local_rank)
        unready = {handle.link.fileno(): handle for handle in self._workers}
        poller = select.poll()
        for descriptor in unready:
            poller.register(descriptor, select.POLLIN)
        while unready:
            for descriptor, _event in poller.poll():
                message = unready.pop(descriptor).link.receive()
                poller.unregister(descriptor)
                if message is None:
                    raise Failure(
                        "Exception: WorkerProc initialization failed due to an exception in a background process. "
                        "See stack trace for root cause.",
                        (
                            *_CORE,
                            (
                                "v1/executor/multiproc_executor.py",
                                228,
                                "_init_executor",
                                "self.workers = WorkerProc.wait_for_ready(unready_workers)",
                            ),
                        ),
                    )

    def _start_worker(self, local_rank: int) -> None:
        mine, theirs = Link.pair()
        death_read, death_write = os.pipe()
        worker = Worker(self._plan, local_rank, self._data_rank, theirs, death_read)
        child = processes.fork(f"VllmWorker-{local_rank}", worker.run, [*self._keep, theirs.fileno(), death_read])
        theirs.close()
        os.close(death_read)
        self._workers.append(_Handle(child, mine, death_write))

    def _call(self, step: str, *arguments: Any) -> list[Any]:
        """Let every rank do a step. Raises Failure."""
        if self._own is not None:
            return [getattr(self._own, step)(*arguments)]
        for handle in self._workers:
            handle.link.send({"call": step, "arguments": arguments})
        answers = [self._answer(handle) for handle in self._workers]
        for answer in answers:
            if "error" in answer:
                raise Failure(
                    f"RuntimeError: Worker failed with error '{answer['error']}', please check the stack trace above "
                    "for the root cause",
                    (*_KV, ("v1/executor/multiproc_executor.py", 449, "get_response", "raise RuntimeError(")),
                )
        return [answer["result"] for answer in answers]

    def _answer(self, handle: _Handle) -> dict[str, Any]:
        answer = handle.link.receive()
        if answer is None:
            self._report_dead(handle)
            raise Failure("RuntimeError: cancelled", _KV)
        return answer

    def _report_dead(self, handle: _Handle) -> None:
        handle.child.wait(5)
        log.error(
            "multiproc_executor.py:327",
            f"Worker proc {handle.child.name} died unexpectedly (exit code: {handle.child.exit_code}), "
            "shutting down executor.",
        )

    @property
    def _block_size(self) -> int:
        return int(self._plan.arguments.block_size or (64 if self._plan.model.latent else 16))

    def _size_kv_cache(self, available: int) -> tuple[int, int]:
        """Blocks, and bytes of one block; vLLM's refusals when there is too little. available is bytes per GPU."""
        plan = self._plan
        if available <= 0:
            raise Failure(
                "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
                "initializing the engine (this flag also controls CPU memory reservation on the CPU backend, despite "
                "its name). See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.",
                _KV,
            )
        per_token = plan.model.kv_bytes_per_token(plan.parallel, plan.arguments.kv_cache_dtype)
        block_bytes = per_token * self._block_size
        blocks = available // block_bytes
        per_request = -(-plan.max_model_len // self._block_size)
        if plan.auto_length and per_request > blocks > 0:
            plan.max_model_len = blocks * self._block_size
            per_request = blocks
        if per_request > blocks:
            fits = blocks * self._block_size
            estimate = f"Based on the available memory, the estimated maximum model length is {fits}. " if fits else ""
            raise Failure(
                f"ValueError: To serve at least one request with the model's max seq len ({plan.max_model_len}), "
                f"({format_gib(per_request * block_bytes)} GiB KV cache is needed, which is larger than the available "
                f"KV cache memory ({format_gib(available)} GiB). {estimate}Try increasing `gpu_memory_utilization` "
                "(which also controls CPU memory on the CPU backend) or decreasing `max_model_len` when initializing "
                "the engine. See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.",
                _KV,
            )
        concurrency = blocks / per_request
        log.info(
            "kv_cache_utils.py:1147",
            f"GPU KV cache size: {int(concurrency * plan.max_model_len):,} tokens, Maximum concurrency for "
            f"{plan.max_model_len:,} tokens per request: {concurrency:.2f}x",
        )
        return blocks, block_bytes

    # --- serving

    def _serve(self) -> int:
        dies = self._plan.behaviours["dies_after"]
        if dies is not None:
            seconds = dies["seconds"] if isinstance(dies, dict) else dies
            self._dies_at = time.monotonic() + seconds
        poller = select.poll()
        poller.register(self._api, select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        workers = {handle.child.fileno(): handle for handle in self._workers}
        for descriptor in workers:
            poller.register(descriptor, select.POLLIN)
        while self._goes_on():
            timeout = self._timeout()
            ready = {descriptor for descriptor, _event in poller.poll(timeout)}
            if self._wake_read in ready:
                self._drain_wakeups()
            if self._api_there and self._api.fileno() in ready and not self._take_message():
                # The API server is gone. vLLM's engine doesn't notice, so neither does this one.
                poller.unregister(self._api)
                self._api_there = False
            for descriptor in ready & set(workers):
                self._report_dead(workers[descriptor])
                raise Failure("RuntimeError: Executor failed.")
            self._step()
            if self._dies_at is not None and time.monotonic() >= self._dies_at:
                self._die(dies)
        self._end_workers()
        return 0

    def _timeout(self) -> float | None:
        """Milliseconds until there is something to do; None: block."""
        now = time.monotonic()
        waits = [self._scheduler.seconds_to_step(now)]
        if self._dies_at is not None:
            waits.append(max(self._dies_at - now, 0.0))
        known = [wait for wait in waits if wait is not None]
        return min(known) * 1000 if known else None

    def _drain_wakeups(self) -> None:
        try:
            while os.read(self._wake_read, 512):
                pass
        except BlockingIOError:
            return

    def _take_message(self) -> bool:
        message = self._api.receive()
        if message is None:
            return False
        now = time.monotonic()
        if "add" in message:
            identifier, prompt_tokens, output_tokens = message["add"]
            if self._shutdown != "no":
                self._send([[identifier, 0, "abort"]])
                return True
            self._scheduler.throttle(message.get("throttle"))
            self._scheduler.add(identifier, prompt_tokens, output_tokens, now)
            self._send([])
        elif "abort" in message:
            self._scheduler.abort(message["abort"])
            self._send([])
        elif "orphan" in message:
            self._orphan(message["orphan"])
        else:
            self._utility(message["call"])
        return True

    def _utility(self, call: str) -> None:
        try:
            self._call(call)
            self._api.send({"done": call})
        except Failure as failure:
            self._api.send({"done": call, "error": failure.text})

    def _orphan(self, escape: bool) -> None:
        """Cut the workers loose, then leave without them."""
        for handle in self._workers:
            handle.link.send({"call": "orphan", "escape": escape})
        for handle in self._workers:
            handle.link.receive()
        self._api.send({"done": "orphan"})
        if self._own is not None:
            os.setsid()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            if escape:
                try:
                    processes.leave_cgroup()
                except OSError as error:
                    log.raw(f"vllm stand-in: escape_cgroup: {error}")
            while True:
                signal.pause()
        os._exit(0)

    def _step(self) -> None:
        now = time.monotonic()
        if self._scheduler.seconds_to_step(now) == 0.0:
            made = self._scheduler.step(now)
            self._send([[identifier, count, "length" if last else None] for identifier, count, last in made])

    def _send(self, outputs: list[list[Any]]) -> None:
        if self._api_there:
            # A packet must stay below the socket's buffer.
            for start in range(0, max(len(outputs), 1), 500):
                self._api.send({"out": outputs[start : start + 500], "stats": self._scheduler.stats()})

    def _die(self, dies: Any) -> None:
        lines = dies.get("lines", []) if isinstance(dies, dict) else []
        for line in lines:
            log.error("core.py:1587", line)
        raise Failure("RuntimeError: CUDA error: an illegal memory access was encountered")

    # --- ending

    def _goes_on(self) -> bool:
        """vLLM's handling of a requested shutdown: abort or drain, then leave."""
        if self._shutdown == "no":
            return True
        timeout = int(self._plan.arguments.shutdown_timeout)
        if self._shutdown == "requested":
            mode = "abort" if timeout == 0 else "drain"
            log.info("core.py:1712", f"[shutdown] EngineCore: start mode={mode} timeout={timeout}s")
            if timeout == 0:
                self._send([[identifier, 0, "abort"] for identifier in self._scheduler.abort_all()])
            elif not self._scheduler.idle:
                count = sum(self._scheduler.stats()[key] for key in ("running", "waiting"))
                log.info(
                    "core.py:1732",
                    f"[shutdown] EngineCore: draining in-flight requests count={count} timeout={timeout}s",
                )
            self._shutdown = "going on"
        if not self._scheduler.idle:
            return True
        log.info("core.py:1743", "[shutdown] EngineCore: request processing complete; starting resource teardown")
        return False

    def _end_workers(self) -> None:
        """Close the death pipes, wait, SIGTERM, wait, SIGKILL."""
        if self._own is not None:
            self._own.close()
        if not self._workers:
            return
        for handle in self._workers:
            handle.let_go()
        alive = [handle.child for handle in self._workers if not handle.child.wait(0)]
        log.info("multiproc_executor.py:516", f"[shutdown] Executor: waiting for worker exit count={len(alive)}")
        alive = _still_there(alive, worker_patience())
        if not alive:
            log.info("multiproc_executor.py:523", "[shutdown] Executor: all workers exited gracefully")
            return
        log.warning(
            "multiproc_executor.py:528",
            f"[shutdown] Executor: workers still running after grace period; sending SIGTERM count={len(alive)}",
        )
        for child in alive:
            child.signal(signal.SIGTERM)
        alive = _still_there(alive, _PATIENCE_AFTER_TERM_S)
        if alive:
            log.warning(
                "multiproc_executor.py:538",
                f"[shutdown] Executor: workers still running after SIGTERM; sending SIGKILL count={len(alive)}",
            )
        for child in alive:
            child.signal(signal.SIGKILL)
            child.wait(5)


def _still_there(children: list[Child], seconds: float) -> list[Child]:
    deadline = time.monotonic() + seconds
    return [child for child in children if not child.wait(deadline - time.monotonic())]
