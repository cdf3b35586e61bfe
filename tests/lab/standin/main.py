# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program: `vllm serve MODEL ...`, from its words to the running process tree."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
from argparse import Namespace
from typing import Any, NoReturn

from . import arguments, devices, log, model, processes
from .behaviours import Behaviours, Death, Misused, misused
from .plan import Failure, Plan, count_start

_CONFIG = (
    ("entrypoints/cli/main.py", 117, "main", "args.dispatch_function(args)"),
    ("entrypoints/cli/serve.py", 156, "cmd", "uvloop.run(run_server(args))"),
    ("entrypoints/launchers/api_server/entry.py", 176, "run_server", "await run_server_worker(listen_address, sock"),
    ("entrypoints/launchers/api_server/entry.py", 85, "build_async_engine_client_from_engine_args", "vllm_config = "),
)
_SETUP = (
    ("entrypoints/cli/main.py", 117, "main", "args.dispatch_function(args)"),
    ("entrypoints/cli/serve.py", 156, "cmd", "uvloop.run(run_server(args))"),
    ("entrypoints/launchers/api_server/entry.py", 175, "run_server", "listen_address, sock = setup_server(args"),
    ("entrypoints/launchers/launcher.py", 378, "setup_server", "sock = create_server_socket(sock_addr, reuse_port="),
)
_PLATFORM = (
    ("entrypoints/cli/main.py", 105, "main", "cmd.subparser_init(subparsers).set_defaults(dispatch_function=cmd.cmd)"),
    ("config/device.py", 55, "__post_init__", "raise RuntimeError("),
)


def _give_up(frames: tuple[log.Frame, ...], last: str, code: int = 1) -> NoReturn:
    log.raw(log.traceback(frames, last))
    sys.exit(code)


def main() -> NoReturn:
    """Run what the command line says."""
    try:
        _main(sys.argv[1:])
    except Misused as error:
        misused(error)


def _main(words: list[str]) -> NoReturn:
    table = arguments.flag_table()
    behaviours = Behaviours([])
    version = behaviours["version"] or table["version"]
    try:
        found = devices.visible()
    except devices.NoDriver:
        # As vLLM: without a platform not even its command line can be built.
        _give_up(
            _PLATFORM,
            "RuntimeError: Failed to infer device type, please set the environment variable "
            "`VLLM_LOGGING_LEVEL=DEBUG` to turn on verbose logging to help debug the issue.",
        )
    try:
        options = arguments.parse(words, table, version)
    except (ValueError, AssertionError, OSError, AttributeError, LookupError, TypeError) as error:
        _give_up(_PLATFORM[:1], f"{type(error).__name__}: {error}")
    names = options.served_model_name or [options.model]
    behaviours = Behaviours(names)
    version = behaviours["version"] or table["version"]
    if options.enable_auto_tool_choice and not options.tool_call_parser:
        _give_up(_PLATFORM[:1], "TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser")
    time.sleep(behaviours["import_seconds"])
    _serve(options, table, behaviours, names, version, found)


def _serve(
    options: Namespace,
    table: dict[str, Any],
    behaviours: Behaviours,
    names: list[str],
    version: str,
    found: list[devices.Device],
) -> NoReturn:
    _take_signals(behaviours)
    log.info("startup.py:38", f"vLLM server version {version}, serving model {options.model}")
    log.info("startup.py:96", f"non-default args: {arguments.non_default(options, table)}")
    try:
        sock, address = _bind(options)
    except OSError as error:
        _give_up(_SETUP, f"{type(error).__name__}: {error}")
    try:
        plan = _settle(options, behaviours, names, version, found)
        plan.maybe_die("config", "api")
    except model.Refused as refused:
        _give_up(_CONFIG, str(refused))
    except Failure as failure:
        code = behaviours.death.exit_code if behaviours.death else None
        _give_up(_CONFIG, failure.last, 1 if code is None else code)
    gc.collect()
    gc.freeze()  # the collector's marks would copy pages that all processes share
    tracker, tracker_pipe = processes.start_resource_tracker()
    engines = _start_engines(plan, tracker_pipe)
    from . import server  # asyncio is the API server's alone: the other processes stay small

    handles = [server.Engine(child, link) for child, link in engines]
    code = server.serve(plan, sock, address, handles)
    os.close(tracker_pipe)
    tracker.wait(1)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _take_signals(behaviours: Behaviours) -> None:
    """SIGTERM and SIGINT before the event loop takes them: an interrupted start that has no engines yet."""

    def interrupt(_number: int, _frame: Any) -> None:
        if behaviours["ignore_sigterm"]:
            return
        log.raw(log.traceback(_CONFIG, "KeyboardInterrupt: terminated"))
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupt)


def _bind(options: Namespace) -> tuple[socket.socket, str]:
    if options.uds:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(options.uds)
        return sock, f"unix:{options.uds}"
    host = options.host or ""
    v6 = ":" in host
    sock = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, options.port))
    scheme = "https" if options.ssl_keyfile and options.ssl_certfile else "http"
    shown = f"[{host}]" if v6 else host or "0.0.0.0"
    return sock, f"{scheme}://{shown}:{options.port}"


def _settle(
    options: Namespace, behaviours: Behaviours, names: list[str], version: str, found: list[devices.Device]
) -> Plan:
    """Check the configuration in vLLM's order. Raises model.Refused, and Failure for a start that has to fail."""
    described = model.read(options.model)
    log.info("model.py:744", f"Resolved architecture: {described.architecture}")
    longer = os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") == "1"
    length = described.derived_length(options.max_model_len, longer)
    log.info("model.py:2170", f"Using max model len {length}")
    model.check_utilisation(options.gpu_memory_utilization)
    parallel = model.Parallel(
        tensor=options.tensor_parallel_size,
        pipeline=options.pipeline_parallel_size,
        data=options.data_parallel_size,
        expert=options.enable_expert_parallel,
    )
    for field, value in (
        ("tensor_parallel_size", parallel.tensor),
        ("pipeline_parallel_size", parallel.pipeline),
        ("data_parallel_size", parallel.data),
    ):
        model.check_positive("ParallelConfig", field, value)
    model.check_world(parallel, len(found))
    big = bool(found) and found[0].total_mib >= 70 * 1024 and "a100" not in found[0].name.lower()
    sequences = (1024 if big else 256) if options.max_num_seqs is None else options.max_num_seqs
    model.check_positive("SchedulerConfig", "max_num_seqs", sequences)
    log.info("scheduler.py:310", f"Chunked prefill is enabled with max_num_batched_tokens={8192 if big else 2048}.")
    described.check_heads(parallel)
    return Plan(
        arguments=options,
        model=described,
        parallel=parallel,
        devices=found,
        behaviours=behaviours,
        served_names=names,
        version=version,
        max_model_len=length,
        max_num_seqs=sequences,
        death=_death(behaviours, names[0]),
        load_seconds=behaviours["load_seconds"],
        auto_length=options.max_model_len == -1,
    )


def _death(behaviours: Behaviours, name: str) -> Death | None:
    nth = behaviours["crash_at_nth_start"]
    if nth is not None:
        try:
            number = count_start(name, behaviours.epoch)
        except OSError as error:
            raise Misused(f"crash_at_nth_start: starts can't be counted: {error}") from error
        if number in ([nth] if isinstance(nth, int) else nth):
            return Death(error=f"RuntimeError: CUDA error: unspecified launch failure (start {number})")
    return behaviours.death


def _start_engines(plan: Plan, tracker_pipe: int) -> list[tuple[processes.Child, processes.Link]]:
    """Fork one EngineCore for each data parallel rank, with SIGTERM held back until the event loop can take it."""
    from .engine import EngineCore

    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    engines = []
    for data_rank in range(plan.parallel.data):
        mine, theirs = processes.Link.pair()
        core = EngineCore(plan, data_rank, theirs, [tracker_pipe])
        name = f"EngineCore_DP{data_rank}" if plan.parallel.data > 1 else "EngineCore"
        child = processes.fork(name, core.run, [theirs.fileno(), tracker_pipe])
        theirs.close()
        engines.append((child, mine))
    return engines
