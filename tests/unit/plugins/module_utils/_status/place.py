# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that is looked at, and what the tests ask of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import GpuProcess
from ansible_collections.gpufleet.vllm.plugins.module_utils._status.host import status_of
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.journal import JournalLine
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._job.host import Host, Reader
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import gpu

DECLARED: dict[str, Any] = {
    "name": "old", "model": "/models/old", "gpus": ["0", "1", "2", "3"], "user": "root", "group": "root", "replace": "conflicting",
    "enabled": True,
}  # fmt: skip


class Looked(Host):
    """A host of which the driver shows whatever a test wants."""

    processes: tuple[GpuProcess, ...] = ()
    journal: tuple[str, ...] | None = ()  # what its services have written; None: it can't be read

    def ports(self) -> Any:
        return replace(super().ports(), open_reader=lambda: _Reader(self), journal=_Journal(self))  # type: ignore[arg-type]


class _Journal:
    def __init__(self, host: Looked) -> None:
        self._host = host

    def lines(self, unit: str, invocation_id: str | None = None, limit: int = 2000) -> list[JournalLine]:
        if self._host.journal is None:
            raise GpuFleetError("no room")
        return [JournalLine(1.0, 100, "vllm", text) for text in self._host.journal]


class _Reader(Reader):
    def __init__(self, host: Looked) -> None:
        super().__init__(host)
        self._read = lambda: [gpu(index, 90000, self._on(host, index)) for index in range(4)]

    def _on(self, host: Looked, index: int) -> tuple[GpuProcess, ...]:
        return host.processes if index == 1 else ()


def status(host: Looked, expected: str | None = None, *entries: dict[str, Any], **revisions: str) -> dict[str, Any]:
    return status_of(entries or [DECLARED], revisions, expected, host.ports())


def broken(host: Looked, expected: str | None, **faults: str) -> dict[str, Any]:
    """With a catalogue of which no entry can be used."""
    return status_of([], {}, expected, host.ports(), faults)


def link(host: Looked, unit: str, target: str | Path) -> Path:
    path = Path(host.paths.units, unit)
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    return path


def kinds(service: dict[str, Any]) -> list[str]:
    return [each["kind"] for each in service["drift"]]
