# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM's log lines: the name and pid of the process first, continuation lines with the same prefix."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable

_name = "APIServer"


def set_process_name(name: str) -> None:
    """Name the process in the lines that it writes from now on: APIServer, EngineCore, Worker_TP0 ..."""
    global _name
    _name = name


def _prefix(level: str, source: str) -> str:
    ours = os.environ.get("VLLM_LOGGING_PREFIX", "")
    return f"{ours}({_name} pid={os.getpid()}) {level} {time.strftime('%m-%d %H:%M:%S')} [{source}] "


_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def _emit(level: str, source: str, message: str) -> None:
    lowest = os.environ.get("VLLM_LOGGING_LEVEL", "INFO").upper()
    if lowest in _LEVELS and _LEVELS.index(level) < _LEVELS.index(lowest):
        return
    prefix = _prefix(level, source)
    # vLLM's formatter ends the lines of a long message with CR LF and repeats the prefix.
    _write(1, prefix + message.replace("\n", "\r\n" + prefix) + "\n")


def _write(descriptor: int, text: str) -> None:
    """All of text in as few writes as possible, so that lines of several processes don't mix."""
    data = text.encode("utf-8", "surrogateescape")
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        # Nobody reads any more (journald restarted, a test's pipe is closed): a server doesn't die of that.
        return


def info(source: str, message: str) -> None:
    """source is "file.py:line" as vLLM prints it."""
    _emit("INFO", source, message)


def warning(source: str, message: str) -> None:
    _emit("WARNING", source, message)


def error(source: str, message: str) -> None:
    _emit("ERROR", source, message)


def raw(text: str, stream: str = "stderr") -> None:
    """A line that carries no prefix: progress bars, uvicorn's lines, tracebacks of a dying process."""
    _write(2 if stream == "stderr" else 1, text if text.endswith("\n") else text + "\n")


Frame = tuple[str, int, str, str]  # file below vllm/, line, function, the line's text


def traceback(frames: Iterable[Frame], last: str) -> str:
    """A traceback through vLLM's files that ends with the line last ("ValueError: ...")."""
    lines = ["Traceback (most recent call last):"]
    root = os.path.join(
        sys.prefix, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages", "vllm"
    )
    for file, line, function, text in frames:
        lines += [f'  File "{root}/{file}", line {line}, in {function}', f"    {text}"]
    lines.append(last)
    return "\n".join(lines)
