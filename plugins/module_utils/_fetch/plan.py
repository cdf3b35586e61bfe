# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is there, and what has to be done, as data."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Callable, List, Optional, Tuple

from .._core.errors import GpuFleetError
from .manifest import File, Manifest, Record, missing, read_record, wrong
from .request import Asked

# Beside a growing directory's files: what is unfinished. Its presence says that the directory is ours.
WORK = ".gpufleet-fetch"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_CONFIGURATIONS = ("config.json", "params.json")


@dataclass(frozen=True)
class Found:
    """The state of the path. ``kind``: ``absent``, ``ours`` (with its record), ``foreign``, ``in_the_way``.

    ``put_back``: a run was killed between the two renames of an exchange, and the model lies under its other name.
    ``left_over``: one was killed after them, and what the model took the place of lies there yet.
    """

    kind: str
    directory: str
    record: Optional[Record] = None
    put_back: bool = False
    left_over: bool = False


@dataclass(frozen=True)
class Plan:
    """The steps. ``manifest`` None: nothing has to be done. ``reuse`` is taken over from the directory that is there."""

    manifest: Optional[Manifest] = None
    reuse: Tuple[File, ...] = ()
    adopt: bool = False
    note: bool = False
    exchange: bool = False
    why: str = ""

    @property
    def fetch(self) -> List[File]:
        """What has to come from elsewhere."""
        if self.manifest is None or self.adopt or self.note:
            return []
        kept = {each.path for each in self.reuse}
        return [each for each in self.manifest.files if each.path not in kept]

    def actions(self, asked: Asked) -> List[str]:
        """The steps in words."""
        if self.manifest is None:
            return []
        if self.adopt:
            return ["take %s as %s: all its files are right" % (asked.path, origin(asked, self.manifest.commit))]
        if self.note:
            return ["note that %s is %s" % (asked.path, origin(asked, self.manifest.commit))]
        files = self.fetch
        size = sum(each.size for each in files)
        said = "fetch %d files, %d MiB, of %s" % (len(files), -(-size // (1 << 20)), origin(asked, self.manifest.commit))
        return [said + (" (%s)" % self.why if self.why else ""), "let it become %s" % asked.path]


def origin(asked: Asked, commit: Optional[str]) -> str:
    """Where it comes from, in words."""
    if asked.source is not None:
        return asked.source
    return "%s at %s" % (asked.repo, commit or asked.revision)


def look(asked: Asked) -> Found:
    """Look at the path. Nothing is read but the record."""
    if not os.path.lexists(asked.path):
        record = read_record(asked.old)
        if record is not None:
            return Found("ours", asked.old, record, put_back=True)
        return Found("absent", asked.path)
    if not os.path.isdir(asked.path):
        return Found("in_the_way", asked.path)
    record = read_record(asked.path)
    if record is not None:
        return Found("ours", asked.path, record, left_over=read_record(asked.old) is not None)
    return Found("foreign" if os.listdir(asked.path) else "absent", asked.path)


def make_plan(asked: Asked, found: Found, info: Callable[[str], Manifest]) -> Plan:
    """What it takes. ``info`` asks where the model comes from, and is asked only when what is here does not say enough.

    Raises GpuFleetError for what must not be done.
    """
    if asked.repo is None and asked.source is None:
        _as_it_is(asked, found)
        return Plan()
    if found.kind == "in_the_way":
        raise GpuFleetError("%s is there and is no directory: it is left alone. Move it away, or set path to another one." % asked.path)
    if found.kind == "foreign":
        return _foreign(asked, found, info(asked.revision))
    if os.path.lexists(asked.partial) and not os.path.isdir(os.path.join(asked.partial, WORK)):
        raise GpuFleetError("%s is there, and is needed to fetch into: it is left alone. Move it away and run again." % asked.partial)
    if found.record is None:
        return Plan(info(asked.revision))
    return _ours(asked, found, found.record, info)


def _ours(asked: Asked, found: Found, record: Record, info: Callable[[str], Manifest]) -> Plan:
    if (asked.repo or record.repo) != record.repo or (asked.source or record.source) != record.source:
        raise GpuFleetError(
            "%s holds %s, not %s: it is left alone. Give every model a path of its own."
            % (asked.path, record.repo or record.source, asked.repo or asked.source),
            kind="other_model",
        )
    damaged = wrong(found.directory, record.files) if asked.verify == "full" else missing(found.directory, record.files)
    same = (record.include, record.exclude) == (asked.include, asked.exclude)
    stands = same and not asked.refresh and (asked.repo is None or asked.revision in (record.revision, record.commit))
    if stands and not damaged:
        return Plan()
    manifest = Manifest(record.commit, record.files) if stands else info(asked.revision)
    bad = {each.path for each in damaged}
    here = {each for each in record.files if each.path not in bad}
    reuse = tuple(each for each in manifest.files if _as_recorded(each) in here)
    if len(reuse) == len(manifest.files) and len(manifest.files) == len(record.files):
        if manifest.commit == record.commit and same and asked.revision == record.revision:
            return Plan()  # looked for a newer one, and there is none
        return Plan(manifest, note=True)
    why = "%d of its files are missing or damaged" % len(damaged) if damaged else "in the place of %s" % (record.commit or "what is there")
    return Plan(manifest, reuse, exchange=True, why=why)


def _as_recorded(file: File) -> File:
    """A file of a hub's list, as the record keeps it: with one hash."""
    return replace(file, git=None) if file.sha256 else file


def _foreign(asked: Asked, found: Found, manifest: Manifest) -> Plan:
    """What somebody else put there is taken when it is the very model, to the last byte, and never touched when it is not."""
    other = wrong(found.directory, manifest.files)
    if other or not all(each.sha256 or each.git for each in manifest.files):
        shown = ", ".join(each.path for each in other[:3]) + (" and %d more" % (len(other) - 3) if len(other) > 3 else "")
        raise GpuFleetError(
            "%s was made by somebody else, and is not %s (%s): it is left alone. Move it away, set path to another directory, or "
            "leave repo and source out to take it as it is."
            % (asked.path, origin(asked, manifest.commit), "other or missing: %s" % shown if other else "there are no hashes to tell by"),
            kind="not_ours",
        )
    return Plan(manifest, adopt=True)


def _as_it_is(asked: Asked, found: Found) -> None:
    if found.kind == "in_the_way" and asked.path.endswith(".gguf") and os.path.isfile(asked.path):
        return
    if found.kind == "absent":
        raise GpuFleetError("There is no model at %s, and neither repo nor source says where it comes from. Give one." % asked.path)
    if found.kind == "in_the_way":
        raise GpuFleetError("%s is neither a directory nor a GGUF file. Correct path." % asked.path)
    names = os.listdir(found.directory)
    if not any(name in _CONFIGURATIONS for name in names) and not any(name.endswith(".gguf") for name in names):
        raise GpuFleetError(
            "%s holds no model: it has no config.json. Correct path, or say with repo where the model comes from." % asked.path
        )
    if not any(name.endswith(_WEIGHTS) for name in names):
        raise GpuFleetError(
            "%s holds no weights. Complete it, or say with repo where the model comes from, and set another path." % asked.path
        )
