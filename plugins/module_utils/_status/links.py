# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units whose file somebody made a symbolic link: a mask, or a file that lies elsewhere. What runs behind it must not go unseen."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Collection, Dict, Optional

from .._core.files import read_bytes
from .._service.ownership import OURS
from .._service.ports import Paths
from .._unit.found import ManagedService, parse_managed

_PREFIX, _SUFFIX = "vllm-", ".service"


@dataclass(frozen=True)
class Link:
    """One of them. ``service`` is what the file says that it points at, None for a mask and what is not ours."""

    path: str
    target: str
    service: Optional[ManagedService]

    @property
    def masks(self) -> bool:
        """Whether it is the link by which a unit is masked."""
        return self.target == os.devnull

    @property
    def text(self) -> str:
        """What is to be said of it."""
        if self.masks:
            return "%s is a symbolic link to %s, by which the unit is masked" % (self.path, self.target)
        return "%s is a symbolic link to %s, not the file that this collection writes" % (self.path, self.target)


def find_links(paths: Paths, declared: Collection[str]) -> Dict[str, Link]:
    """By unit, the links that stand for a service of this collection: it is among the units that are ``declared``, its
    configuration is there, or the file behind the link is one of ours. Others' links are not looked at any further."""
    try:
        names = sorted(os.listdir(paths.units))
    except FileNotFoundError:
        return {}
    found: Dict[str, Link] = {}
    for unit in names:
        path = os.path.join(paths.units, unit)
        if not (unit.startswith(_PREFIX) and unit.endswith(_SUFFIX) and os.path.islink(path)):
            continue
        alias = os.path.dirname(os.path.realpath(path)) == os.path.realpath(paths.units)
        if alias and unit not in declared:
            continue  # another name of a unit that is looked at by its own
        service = None if alias else _behind(path)
        config = read_bytes(os.path.join(paths.config, unit[len(_PREFIX) : -len(_SUFFIX)] + ".yaml"))
        if unit in declared or service is not None or (config is not None and config.startswith(OURS)):
            found[unit] = Link(path, os.readlink(path), service)
    return found


def _behind(path: str) -> Optional[ManagedService]:
    if not os.path.isfile(path):
        return None  # a mask, or a link to nothing
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return parse_managed(handle.read(), path)
    except OSError:
        return None  # the link itself is told, and that the service is not known
