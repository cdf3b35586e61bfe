# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The child process in which whatever may never return is done: the calls of NVML, and looks into other processes.

It needs little to be started, so that it can load what it needs while its parent loads the rest.
"""

from __future__ import annotations

import importlib.util
from typing import Tuple

from .worker import Beat, Handler, Worker


def takes_nvml(backend: str) -> bool:
    """Whether this backend (``auto``, ``nvml``, ``nvidia_smi``) begins with the driver's library on this host."""
    return backend == "nvml" or (backend == "auto" and importlib.util.find_spec("pynvml") is not None)


def start_child(proc_root: str = "/proc", dev_root: str = "/dev", nvml: bool = True) -> Worker:
    """A child that reads for its parent. With ``nvml`` it loads at once what it needs for that."""
    return Worker(lambda beat: _handler(beat, proc_root, dev_root, nvml))


def _handler(beat: Beat, proc: str, dev: str, nvml: bool) -> Handler:
    """What the child does. Its imports are its own: the parent needs neither to know what the child learnt."""
    collector = None
    if nvml:
        from . import nvml as _loaded  # noqa: F401 - before it is asked for, while the parent is busy

    def handle(request: Tuple[object, ...]) -> object:
        nonlocal collector
        if request[0] == "inspect":
            from .._process.inspect import inspect

            _kind, pids, holders, untitled = request
            return inspect(pids, holders, proc, dev, untitled, beat)  # type: ignore[arg-type]  # the parent's request, see Driver.look()
        from .nvml import NvmlCollector, Skips

        if collector is None:
            collector = NvmlCollector(lambda call, index: beat(call if index is None else "%s on GPU %d" % (call, index)))
        _kind, only, processes, depth, skips = request
        return collector.read(only, processes, depth, Skips(skips))  # type: ignore[arg-type]  # the parent's request, see Driver.read()

    return handle
