# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a result depends on, in parts that a report can compare, and the two digests made of them.

The *fingerprint* is of everything that can move a result on this host: as long as it is the same a result stands. The *deployment*
leaves out what tells one host of a fleet from the next (which GPUs exactly, when files were written), so that hosts with the same
deployment can be held against each other.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .._core.errors import GpuFleetError

# Small files of a model that say what it is: their content counts, of the weights only name, size and time.
_TOLD_BY_CONTENT = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".py")
_CONTENT_LIMIT = 32 << 20
# One of these names one card or one slice of one: another host has others.
_CARD = re.compile(
    r"\b(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Part:
    """One thing that the result depends on. ``value`` is for people; ``exact`` and ``shared`` are what the digests are made of."""

    name: str
    value: Any
    exact: Any = None
    shared: Any = None

    @property
    def for_fingerprint(self) -> Any:
        """What counts on this host."""
        return self.value if self.exact is None else self.exact

    @property
    def for_deployment(self) -> Any:
        """What counts for the comparison of hosts."""
        return self.for_fingerprint if self.shared is None else self.shared


@dataclass(frozen=True)
class Fingerprint:
    """The parts with their digests, 32 hexadecimal digits each."""

    parts: Tuple[Part, ...]

    @property
    def digest(self) -> str:
        """Of everything that can move a result on this host."""
        return digest([[part.name, part.for_fingerprint] for part in self.parts])

    @property
    def deployment(self) -> str:
        """Of everything but what tells hosts of one kind apart."""
        return digest([[part.name, part.for_deployment] for part in self.parts])

    def to_result(self) -> List[Dict[str, Any]]:
        """The parts as they stand in a result: ``name``, ``value`` for people, ``digest`` to compare by."""
        return [{"name": part.name, "value": part.value, "digest": digest(part.for_fingerprint)[:12]} for part in self.parts]


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, cut to 32 digits: the same value gives the same on every host and Python."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode("utf-8")).hexdigest()[:32]


def changed_parts(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """What differs between the parts of two results: ``name``, ``before``, ``after`` (None where a result hasn't the part)."""
    old = {str(part.get("name")): part for part in before}
    new = {str(part.get("name")): part for part in after}
    found = []
    for name in list(old) + [name for name in new if name not in old]:
        one, other = old.get(name, {}), new.get(name, {})
        if one.get("digest") != other.get("digest"):
            found.append({"name": name, "before": one.get("value"), "after": other.get("value")})
    return found


# -- the parts ---------------------------------------------------------------------------------------------------------


def files_part(name: str, paths: Sequence[str]) -> Part:
    """The content of text files (unit, drop-ins, configuration). Raises GpuFleetError where one can't be read."""
    texts = {path: _text(path) for path in paths}
    short = {os.path.basename(path): digest(text)[:12] for path, text in texts.items()}
    shared = {path: _CARD.sub("(a GPU)", text) for path, text in texts.items()}
    return Part(name, short, exact=texts, shared=shared)


def model_files(path: str) -> List[str]:
    """What is in a model's directory, as paths, in order. Raises GpuFleetError."""
    try:
        return [os.path.join(path, name) for name in sorted(os.listdir(path))]
    except OSError as exc:
        raise GpuFleetError("Cannot look into the model's directory %s: %s." % (path, exc.strerror)) from exc


def model_part(path: str) -> Part:
    """A model directory: its configuration by content, its weights by name, size and time. Raises GpuFleetError."""
    contents: Dict[str, str] = {}
    sizes: Dict[str, int] = {}
    times: Dict[str, int] = {}
    for name in map(os.path.basename, model_files(path)):
        try:
            status = os.stat(os.path.join(path, name))
            if not stat.S_ISREG(status.st_mode):
                continue
            if name.endswith(_TOLD_BY_CONTENT) and status.st_size <= _CONTENT_LIMIT:
                contents[name] = _digest_of_file(os.path.join(path, name))
            else:
                sizes[name], times[name] = status.st_size, status.st_mtime_ns
        except OSError as exc:
            raise GpuFleetError("Cannot read %s in the model's directory %s: %s." % (name, path, exc.strerror)) from exc
    text = "%s, %d files, %d MiB of weights" % (path, len(contents) + len(sizes), sum(sizes.values()) >> 20)
    shared = {"path": path, "contents": contents, "sizes": sizes}
    return Part("model", text, exact=dict(shared, times=times), shared=shared)


def gpus_part(gpus: Sequence[Mapping[str, Any]]) -> Part:
    """The server's GPUs: ``index``, ``uuid``, ``name``, ``total_mib`` of each."""
    exact = [{name: gpu.get(name) for name in ("index", "uuid", "name", "total_mib")} for gpu in gpus]
    shared = sorted("%s, %s MiB" % (gpu.get("name"), gpu.get("total_mib")) for gpu in gpus)
    kinds = {kind: shared.count(kind) for kind in shared}
    return Part("gpus", ["%d x %s" % (count, kind) for kind, count in kinds.items()], exact=exact, shared=shared)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError as exc:
        raise GpuFleetError("Cannot read %s: %s." % (path, exc.strerror)) from exc


def _digest_of_file(path: str) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as handle:
        for piece in iter(lambda: handle.read(1 << 20), b""):
            found.update(piece)
    return found.hexdigest()


def plain_parts(values: Mapping[str, Optional[Any]]) -> List[Part]:
    """Parts that are their own value. One that is not known counts as well: when it becomes known that is a change."""
    return [Part(name, value) for name, value in values.items()]
