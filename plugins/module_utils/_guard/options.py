# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guard's command line."""

from __future__ import annotations

import argparse
from typing import Callable, List, Optional, Sequence, TypeVar

from .._gpu.reader import LONGEST_CALL_S
from .exit_codes import NAMES
from .port import host_trouble
from .wait import Need

T = TypeVar("T")

# How long the guard waits at most: nearly four months.
_LONGEST_S = 10**7


class Options:
    """The command line, checked. Times are seconds."""

    def __init__(self, parsed: argparse.Namespace) -> None:
        self.unit: str = parsed.unit
        self.gpus: List[str] = parsed.gpus
        self.indices: List[int] = parsed.indices
        self.need = Need(parsed.utilization, parsed.margin_mib)
        self.timeout: float = parsed.timeout
        self.settle: float = parsed.settle
        self.call_timeout: float = parsed.call_timeout
        self.port: Optional[int] = parsed.port
        self.host: str = parsed.host
        self.backend: str = parsed.backend
        self.lock_dir: Optional[str] = parsed.lock_dir


def read_options(argv: Sequence[str]) -> Options:
    """The options. Raises SystemExit, after argparse has said why (0: it was asked for help)."""
    return Options(_parser().parse_args(list(argv)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu-guard",
        description="Wait until the GPU memory that a vLLM service will ask for is free, and stays free.",
        epilog="Exit status: %s." % ", ".join("%d %s" % each for each in sorted(NAMES.items())),
        # with a width it need not ask for the terminal's, for which it would load shutil and every compressor
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=120),
    )
    parser.add_argument("--unit", required=True, type=_unit, help="the unit that is about to start")
    parser.add_argument("--gpus", required=True, type=_gpus, help="its GPUs: indices, UUIDs or PCI ids, separated by commas, or all")
    parser.add_argument("--indices", type=_indices, default=[], help="the indices that these GPUs must have, in the same order")
    parser.add_argument("--utilization", required=True, type=_share, help="gpu_memory_utilization of the service, over 0 to 1")
    parser.add_argument("--margin-mib", type=_natural, default=0, help="MiB that must be free on each GPU besides (default: 0)")
    parser.add_argument("--timeout", type=_seconds, default=300.0, help="seconds to wait in all (default: %(default)g)")
    parser.add_argument("--settle", type=_seconds, default=1.0,
                        help="seconds during which the memory must stay free (default: %(default)g)")
    parser.add_argument("--call-timeout", type=_call_seconds, default=30.0,
                        help="seconds that one call of the driver may take (default: %(default)g)")
    parser.add_argument("--port", type=_port, help="the port that the service will bind")
    parser.add_argument("--host", type=_host, default="0.0.0.0", help="the address that the service will bind")
    parser.add_argument("--lock-dir", help="where each unit has a directory for its claim on GPUs, so that they start one after the other")
    parser.add_argument("--backend", choices=["auto", "nvml", "nvidia_smi"], default="auto", help="how to read the driver")
    return parser


def _unit(text: str) -> str:
    if not text or "/" in text or text in (".", ".."):
        raise argparse.ArgumentTypeError("%r is no name of a unit" % text)
    return text


def _host(text: str) -> str:
    trouble = host_trouble(text)
    if trouble is not None:
        raise argparse.ArgumentTypeError("%r can be no address: %s" % (text[:80], trouble))
    return text


def _gpus(text: str) -> List[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise argparse.ArgumentTypeError("names no GPU")
    return words


def _indices(text: str) -> List[int]:
    return [_natural(word) for word in _gpus(text)]


def _number(text: str, kind: Callable[[str], T], what: str) -> T:
    # by itself, argparse would name the function that did not like it
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError("must be %s, not %r" % (what, text[:40])) from None


def _share(text: str) -> float:
    value = _number(text, float, "a number")
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("must be over 0 and at most 1, not %s" % text)
    return value


def _natural(text: str) -> int:
    value = _number(text, int, "a whole number")
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative, but is %s" % text)
    return value


def _seconds(text: str) -> float:
    value = _number(text, float, "a number")
    if not 0 <= value <= _LONGEST_S:
        raise argparse.ArgumentTypeError("must be 0 to %d seconds, not %s" % (_LONGEST_S, text))
    return value


def _call_seconds(text: str) -> float:
    value = _number(text, float, "a number")
    if not 0 < value <= LONGEST_CALL_S:
        raise argparse.ArgumentTypeError("must be over 0 and at most %d seconds, not %s" % (LONGEST_CALL_S, text))
    return value


def _port(text: str) -> int:
    value = _number(text, int, "a whole number")
    if not 0 < value < 65536:
        raise argparse.ArgumentTypeError("must be 1 to 65535, not %s" % text)
    return value
