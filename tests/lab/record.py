# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of what a lab has started: written before each thing is made, so that ``down`` finds all of it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lab.errors import LabError
from lab.places import lab_id
from lab.plan import HostSpec

_VERSION = 1
FILE = "lab.json"
DRAFT = ".lab.json.new"


def boot_id() -> str:
    """Changes with each boot of this machine: a record from another boot describes nothing that still runs."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


@dataclass
class HostRecord:
    """One host: what it is, its number (its address follows from it), whether it has ever come up."""

    spec: HostSpec
    number: int
    ready: bool = False


@dataclass
class Record:
    """Everything that a lab has started, by the name that it is found under."""

    state: Path
    boot: str
    network: str | None = None
    bridge: str | None = None
    models: str | None = None
    # Control groups by name: the directories in each hierarchy.
    groups: dict[str, list[str]] = field(default_factory=dict)
    hosts: dict[str, HostRecord] = field(default_factory=dict)

    @property
    def lab_id(self) -> str:
        """The id that the names of the lab's things carry."""
        return lab_id(self.state)

    def save(self) -> None:
        """Write the record, whole or not at all."""
        data: dict[str, Any] = {
            "version": _VERSION,
            "id": self.lab_id,
            "boot": self.boot,
            "network": self.network,
            "bridge": self.bridge,
            "models": self.models,
            "groups": self.groups,
            "hosts": {name: asdict(host) for name, host in self.hosts.items()},
        }
        self.state.mkdir(parents=True, exist_ok=True)
        draft = self.state / DRAFT
        with draft.open("w", encoding="utf-8") as handle:
            handle.write(json.dumps(data, indent=1) + "\n")
            handle.flush()
            os.fsync(handle.fileno())
        draft.replace(self.state / FILE)


def load(state: Path) -> Record | None:
    """The record in ``state``; None where no lab is."""
    path = state / FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise LabError(f"{path} is damaged ({error}): remove it once no lab host runs any more") from None
    if data.get("version") != _VERSION or data.get("id") != lab_id(state):
        raise LabError(
            f"{path} was written by another version of the lab, or for another directory: take it down with that"
        )
    return Record(
        state=state,
        boot=data["boot"],
        network=data["network"],
        bridge=data["bridge"],
        models=data.get("models"),
        groups=data["groups"],
        hosts={
            name: HostRecord(HostSpec.from_dict(host["spec"]), host["number"], host["ready"])
            for name, host in data["hosts"].items()
        },
    )
