# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a stand-in server does beside serving: the one table of its behaviours, and where they are read from.

A behaviour comes from the environment (`STANDIN_LOAD_SECONDS=5`, values as JSON or as plain text), or from the
scenario file, `/run/vllm-standin/scenario.json` unless STANDIN_SCENARIO names another:

    {"*": {"load_seconds": 1.0}, "kimi-k2.5-int4": {"ignore_sigterm": true}}

The keys are served model names; "*" is for all. The file wins over the environment, and a name wins over "*".
Tests rewrite the file while servers run. What the column "read" says: at "start" once, when the server starts;
"live" at the moment when it matters. A behaviour, a value or a file that is not understood ends the server at once,
with exit code 3 and a message.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from . import log

DEFAULT_SCENARIO = "/run/vllm-standin/scenario.json"
ENV_PREFIX = "STANDIN_"
SETTINGS = ("STANDIN_SCENARIO", "STANDIN_STATE_DIR")  # variables that are no behaviours
PHASES = ("config", "device", "weights", "profile", "kv_cache", "warmup", "graphs")
EXIT_MISUSED = 3


class Misused(Exception):
    """The environment or the scenario file asks for something that doesn't exist."""


@dataclass(frozen=True)
class Behaviour:
    """One row of the table. kinds: what a value may be, as JSON types or a key of _CHECKS."""

    name: str
    kinds: tuple[str, ...]
    default: Any
    read: str
    says: str


_TABLE = (
    # --- start
    Behaviour("version", ("text",), None, "start", "the version it gives; default: that of flags.json"),
    Behaviour("import_seconds", ("number",), 0.0, "start", "time before anything is printed, when SIGTERM just kills"),
    Behaviour("load_seconds", ("number",), 2.0, "start", "time from the first line to ready, spread over the phases"),
    Behaviour("never_ready", ("bool",), False, "start", "loads for ever: weights are read, then nothing more happens"),
    Behaviour(
        "die_at_load",
        ("bool", "death"),
        None,
        "start",
        'dies while loading: {"phase": one of PHASES, "process": "api"|"engine"|"worker", "lines": [texts to print],'
        ' "error": the exception\'s last line, "exit_code": of the server, "signal": dies of this signal instead,'
        ' "rank": of the worker, default every one, "raw": print the lines without prefix}; the config phase is the'
        " API server's, which in the others dies of signals alone",
    ),
    Behaviour(
        "crash_at_nth_start",
        ("integer", "integers"),
        None,
        "start",
        "these starts, counted from 1, die while loading; counted in STANDIN_STATE_DIR, else in vLLM's cache directory",
    ),
    Behaviour("oom_load", ("bool",), False, "start", "CUDA out of memory while the weights are read"),
    Behaviour("oom_warmup", ("bool",), False, "start", "CUDA out of memory in the sampler's warm-up"),
    Behaviour("fp8_block", ("bool",), False, "start", "refuses the model as FP8 blocks that tensor parallelism splits"),
    Behaviour("needs_ninja", ("bool",), False, "start", "runs ninja from PATH, as FlashInfer's compilation does"),
    Behaviour("needs_home", ("bool",), True, "start", "asks who the user is and writes to the caches, as vLLM does"),
    Behaviour("poison_cache", ("bool",), False, "start", "leaves a compile cache on which every later start dies"),
    Behaviour("worker_mib", ("integer",), None, "start", "what each worker holds at the end of the load, MiB"),
    Behaviour("models_early", ("bool",), False, "start", "listens from the start; /v1/models answers before the load"),
    # --- serving
    Behaviour(
        "wrong_served_name", ("bool", "text"), None, "live", "the model is served under another name (true: any)"
    ),
    Behaviour("health", ("health",), None, "live", "what /health answers whatever is true: 200, 500, 503 or hang"),
    Behaviour("health_ok_dead_engine", ("bool",), False, "live", "an engine's death goes unnoticed: /health 200, requests hang"),
    Behaviour("completions", ("completions",), "ok", "live", "what completions do: ok, hang, error (500), empty"),
    Behaviour(
        "throttle",
        ("throttle",),
        None,
        "live",
        'speed: {"tokens_per_s": of one request, "max_tokens_per_s": of all together, "ttft_s": first token after}',
    ),
    Behaviour(
        "serving_lines", ("texts",), None, "live", "printed once when ready or, if set later, at the next request"
    ),
    Behaviour("watchdog_seconds", ("number",), 5.0, "start", "how often the server looks whether its engine lives"),
    Behaviour(
        "dies_after",
        ("number", "dies"),
        None,
        "start",
        'the engine dies after this time of serving: seconds, or {"seconds": s, "exit_code": of the server, default 0,'
        ' "lines": [texts]}',
    ),
    Behaviour("sleep_keeps_memory", ("bool",), False, "live", "/sleep answers 200 and gives nothing back"),
    # --- stop
    Behaviour("ignore_sigterm", ("bool",), False, "live", "the server ignores SIGTERM and SIGINT"),
    Behaviour("slow_stop", ("number",), 0.0, "live", "seconds between SIGTERM and the beginning of the shutdown"),
    Behaviour("workers_ignore_sigterm", ("bool",), False, "live", "EngineCore and workers ignore SIGTERM"),
    Behaviour(
        "orphan_workers",
        ("bool",),
        False,
        "live",
        "at SIGTERM the server ends and its workers live on, in sessions of their own, deaf to SIGTERM",
    ),
    Behaviour(
        "escape_cgroup", ("bool",), False, "live", "with orphan_workers: they leave the unit's cgroup (needs root)"
    ),
)

TABLE: Mapping[str, Behaviour] = {row.name: row for row in _TABLE}


@dataclass(frozen=True)
class Death:
    """die_at_load, read."""

    phase: str = "weights"
    process: str = "worker"
    lines: tuple[str, ...] = ()
    error: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    rank: int | None = None
    raw: bool = False


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_object(value: Any, checks: Mapping[str, Any]) -> bool:
    return isinstance(value, dict) and all(key in checks and checks[key](item) for key, item in value.items())


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "bool": lambda value: isinstance(value, bool),
    "text": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": _is_integer,
    "integers": lambda value: isinstance(value, list) and all(_is_integer(item) for item in value),
    "texts": _is_texts,
    "health": lambda value: value in (200, 500, 503, "hang"),
    "completions": lambda value: value in ("ok", "hang", "error", "empty"),
    "throttle": lambda value: _is_object(
        value,
        {
            "tokens_per_s": lambda item: _is_number(item) and item > 0,
            "max_tokens_per_s": lambda item: _is_number(item) and item > 0,
            "ttft_s": _is_number,
        },
    ),
    "dies": lambda value: (
        _is_object(value, {"seconds": _is_number, "exit_code": _is_integer, "lines": _is_texts}) and "seconds" in value
    ),
    "death": lambda value: _is_object(value, _DEATH) and _comes_to_pass(value),
}

_DEATH: dict[str, Callable[[Any], bool]] = {
    "phase": lambda item: item in PHASES,
    "process": lambda item: item in ("api", "engine", "worker"),
    "lines": _is_texts,
    "error": lambda item: isinstance(item, str),
    "exit_code": _is_integer,
    "signal": _is_integer,
    "rank": _is_integer,
    "raw": lambda item: isinstance(item, bool),
}


def _comes_to_pass(value: Mapping[str, Any]) -> bool:
    """There is no engine and no worker before the configuration is read, and the API server only waits for them afterwards."""
    if value.get("process") == "api":
        return bool(value.get("phase", Death.phase) == "config" or "signal" in value)
    return bool(value.get("phase", Death.phase) != "config")


def check(name: str, value: Any, where: str) -> None:
    """Raises Misused unless name is a behaviour and value one that it can have. null stands for the default."""
    if name not in TABLE:
        raise Misused(f"{where}: no behaviour is called {name!r}; there are: {', '.join(sorted(TABLE))}")
    row = TABLE[name]
    if value is not None and not any(_CHECKS[kind](value) for kind in row.kinds):
        raise Misused(f"{where}: {name} can't be {value!r} (it is {' or '.join(row.kinds)}): {row.says}")


def _from_environment() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variable, text in os.environ.items():
        if not variable.startswith(ENV_PREFIX) or variable in SETTINGS:
            continue
        name = variable[len(ENV_PREFIX) :].lower()
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if name in TABLE and TABLE[name].kinds == ("bool",) and value in (0, 1):
            value = bool(value)
        if name in TABLE and TABLE[name].kinds == ("text",):
            value = text
        check(name, value, f"environment variable {variable}")
        found[name] = value
    return found


class Behaviours:
    """The behaviours of one server. at_start() freezes those that are read at the start."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._environment = _from_environment()
        self.path = os.environ.get("STANDIN_SCENARIO", DEFAULT_SCENARIO)
        self._stamp: tuple[int, int, int] | None = None
        self._file: dict[str, Any] = {}
        self.epoch = ""
        self._refresh()
        self._start = {name: self._get(name) for name, row in TABLE.items() if row.read == "start"}

    def __getitem__(self, name: str) -> Any:
        """The value that holds now. Raises Misused when the file has become wrong."""
        if TABLE[name].read == "start":
            return self._start[name]
        self._refresh()
        return self._get(name)

    @property
    def death(self) -> Death | None:
        """die_at_load as an object."""
        value = self["die_at_load"]
        if not value:
            return None
        if value is True:
            return Death()
        return Death(
            phase=value.get("phase", Death.phase),
            process=value.get("process", Death.process),
            lines=tuple(value.get("lines", ())),
            error=value.get("error"),
            exit_code=value.get("exit_code"),
            signal=value.get("signal"),
            rank=value.get("rank"),
            raw=value.get("raw", False),
        )

    def _get(self, name: str) -> Any:
        for source in (self._file, self._environment):
            if source.get(name) is not None:
                return source[name]
        return TABLE[name].default

    def _refresh(self) -> None:
        try:
            state = os.stat(self.path)
        except FileNotFoundError:
            self._stamp, self._file = None, {}
            return
        except OSError as error:
            raise Misused(f"{self.path}: {error}") from error
        stamp = (state.st_mtime_ns, state.st_ino, state.st_size)
        if stamp == self._stamp:
            return
        self._file = self._read()
        self._stamp = stamp

    def _read(self) -> dict[str, Any]:
        try:
            with open(self.path, encoding="utf-8") as file:
                scenario = json.load(file)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise Misused(f"{self.path}: {error}") from error
        return self._merge(validated(scenario, self.path))

    def _merge(self, scenario: dict[str, Any]) -> dict[str, Any]:
        self.epoch = str(scenario.get("_epoch", ""))
        merged = dict(scenario.get("*", {}))
        for name in reversed(self._names):
            merged.update(scenario.get(name, {}))
        return merged


def validated(scenario: Any, where: str) -> dict[str, Any]:
    """The scenario itself. Raises Misused unless it is {model: {behaviour: value}}."""
    if not isinstance(scenario, dict):
        raise Misused(f"{where}: not an object of models")
    for model, behaviours in scenario.items():
        if model == "_epoch":
            continue
        if not isinstance(behaviours, dict):
            raise Misused(f"{where}: {model}: not an object of behaviours")
        for name, value in behaviours.items():
            check(name, value, f"{where}: {model}")
    return scenario


before_exit: list[Callable[[], object]] = []  # what a misused process still has to do: to end its children


def misused(error: Misused) -> NoReturn:
    """Say what is wrong, loudly, and end this process at once."""
    log.raw(f"vllm stand-in: {error}")
    for clean_up in before_exit:
        clean_up()
    os._exit(EXIT_MISUSED)
