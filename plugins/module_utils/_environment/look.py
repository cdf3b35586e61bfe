# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is there: the link, the environments beside it, what was asked of each and whether it still holds."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

from .._core.errors import GpuFleetError
from .metadata import broken_part, distributions, is_environment, python_version
from .request import Asked, canonical, distribution, same_version

# Written last into an environment: one without it is half-made, whatever it looks like.
RECORD = ".gpufleet-environment.json"
_PINNED = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[[^]]*\])?\s*==\s*([^\s;,*]+)\s*(;.*)?$")


@dataclass(frozen=True)
class Tree:
    """An environment. ``declared`` is None for one without a record; ``faults`` says what of the record does not hold any more."""

    path: str
    declared: Optional[Dict[str, Any]]
    version: Optional[str]
    faults: Tuple[str, ...] = ()
    finished: float = 0.0

    @property
    def whole(self) -> bool:
        """Whether it was finished and still is as it was finished."""
        return self.declared is not None and not self.faults


@dataclass(frozen=True)
class Found:
    """A host's state. ``kind`` of the path: ``absent``, ``ours`` (a link to one of our trees), ``foreign``, ``in_the_way``."""

    kind: str
    current: Optional[Tree] = None
    trees: Tuple[Tree, ...] = ()
    half_made: Tuple[str, ...] = ()
    # Of a foreign environment: what keeps it from being what is asked for.
    foreign_faults: Tuple[str, ...] = field(default=())


def look(asked: Asked) -> Found:
    """Look at the path and at the trees beside it. Reads directories and small files, runs nothing."""
    trees, half_made = _trees(asked)
    if not os.path.lexists(asked.path):
        return Found("absent", None, trees, half_made)
    if os.path.islink(asked.path):
        target = os.path.realpath(asked.path)
        for tree in trees:
            if os.path.realpath(tree.path) == target:
                return Found("ours", tree, trees, half_made)
        # A link to a tree of ours that is gone, or was never finished, is ours to set anew.
        if os.path.dirname(target) == os.path.realpath(asked.trees):
            return Found("ours", None, trees, half_made)
    if is_environment(asked.path):
        tree = Tree(asked.path, None, distributions(asked.path).get(canonical(asked.package)))
        return Found("foreign", tree, trees, half_made, tuple(faults(asked.path, asked)))
    if os.path.isdir(asked.path) and not os.path.islink(asked.path) and not _names(asked.path):
        return Found("absent", None, trees, half_made)
    return Found("in_the_way", None, trees, half_made)


def faults(tree: str, asked: Asked) -> List[str]:
    """What keeps an environment from being what is asked for, by its files."""
    found = []
    broken = broken_part(tree)
    if broken is not None:
        found.append(broken)
    installed = distributions(tree)
    version = installed.get(canonical(asked.package))
    if version is None:
        found.append("%s is not installed" % asked.package)
    elif not same_version(version, asked.version):
        found.append("%s is %s, not %s" % (asked.package, version, asked.version))
    for requirement in asked.requirements:
        name = distribution(requirement)
        if not name or ";" in requirement:
            continue  # which of them an installer takes depends on the host
        pinned = _PINNED.match(requirement)
        if name not in installed:
            found.append("%s is not installed" % name)
        elif pinned is not None and not same_version(installed[name], pinned.group(2)):
            found.append("%s is %s, not %s" % (name, installed[name], pinned.group(2)))
    return found


def read_record(tree: str) -> Optional[Dict[str, Any]]:
    """The record of an environment; None where there is none that can be read."""
    try:
        with open(os.path.join(tree, RECORD), encoding="utf-8") as handle:
            record = json.load(handle)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("declared"), dict) else None


def matching(found: Found, asked: Asked) -> List[Tree]:
    """The environments that are what is asked for, the current one first."""
    right = [tree for tree in found.trees if tree.whole and tree.declared == asked.declared()]
    return sorted(right, key=lambda tree: (tree != found.current, -tree.finished))


def python_of(tree: Optional[Tree]) -> Optional[str]:
    """The interpreter's version of an environment."""
    return None if tree is None else python_version(tree.path)


def _trees(asked: Asked) -> Tuple[Tuple[Tree, ...], Tuple[str, ...]]:
    trees: List[Tree] = []
    half_made: List[str] = []
    for name in sorted(_names(asked.trees)):
        path = os.path.join(asked.trees, name)
        if name.startswith(".") or os.path.islink(path) or not os.path.isdir(path):
            continue
        record = read_record(path)
        if record is None:
            half_made.append(path)
            continue
        declared = record["declared"]
        own = Asked(
            path=asked.path,
            version=str(declared.get("version", "")),
            package=str(declared.get("package", "vllm")),
            requirements=tuple(declared.get("requirements", ())),
        )
        installed = distributions(path).get(canonical(own.package))
        finished = os.stat(os.path.join(path, RECORD)).st_mtime
        trees.append(Tree(path, declared, installed, tuple(faults(path, own)), finished))
    return tuple(trees), tuple(half_made)


def _names(directory: str) -> List[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise GpuFleetError("%s is in the way: environments are kept there. Move it away and run again." % directory) from None
    except OSError as exc:
        raise GpuFleetError("Cannot look into %s: %s." % (directory, exc.strerror)) from exc
