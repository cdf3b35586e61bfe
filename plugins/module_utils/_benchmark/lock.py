# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nobody moves the servers of a host while one of them is measured, and nobody measures while they are moved.

A benchmark holds the lock that a change of services and a clean-up take (``_core/host_lock.py``), from before the first request until
the result is kept. So a swap or a clean-up that begins meanwhile is refused with who measures and since when, as a second benchmark
is. A change that runs as a job of the host holds no lock, but its record is there from before its first step: it is looked for under the
lock. When this process dies, however it dies, the kernel lets the lock go and the load generator dies with us.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator

from .._core.host_lock import HostLock
from .._job import underway
from .._job.store import Store
from .._service.ports import Ports


@contextmanager
def undisturbed(ports: Ports, name: str) -> Iterator[None]:
    """Have this host to ourselves. Raises GpuFleetError, with who has it, when that can't be."""
    with HostLock(ports.paths.run, "vllm_benchmark of %s" % name, doing="measures a server of this host"):
        refuse_while_changing(ports)
        yield


def refuse_while_changing(ports: Ports) -> None:
    """Raise GpuFleetError while a change of this host's services is under way. Looks only."""
    found = Store(ports.paths.change, ports.paths.run).load()
    if found is not None:
        raise underway.refusal(found, ports)
