# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has to be done, as data. Refusals are raised here, so that check mode and a real run refuse alike."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Callable, List, Optional, Sequence, Tuple

from .._core.errors import GpuFleetError
from .look import Found, Tree, matching
from .request import Asked
from .users import User


@dataclass(frozen=True)
class Plan:
    """The steps, in the order in which they are taken. ``tree`` is what the path leads to afterwards; None: leave all as it is."""

    tree: Optional[str] = None
    discard: Tuple[str, ...] = ()  # half-made: from a run that was killed
    build: bool = False
    link: bool = False
    prune: Tuple[str, ...] = ()
    why: str = ""

    def actions(self, asked: Asked) -> List[str]:
        """The steps in words."""
        said = ["remove %s, which was never finished" % path for path in self.discard]
        if self.build:
            said.append("build an environment with %s in %s%s" % (asked.pinned, self.tree, " (%s)" % self.why if self.why else ""))
        if self.link:
            said.append("let %s lead to %s" % (asked.path, self.tree))
        return said + ["remove %s, which is no longer needed" % path for path in self.prune]


def make_plan(asked: Asked, found: Found, users_of: Callable[[Sequence[str]], List[User]]) -> Plan:
    """What it takes to get from what was found to what is asked. Raises GpuFleetError for what must not be done."""
    if found.kind == "in_the_way":
        raise GpuFleetError(
            "%s is there and is no Python environment: it is left alone. Move it away, or set path to another directory." % asked.path
        )
    if found.kind == "foreign":
        if not found.foreign_faults:
            return Plan()
        raise GpuFleetError(
            "%s is an environment that somebody else made, and not what is asked for (%s): it is left alone. "
            "Set path to another directory, such as %s-%s, or move it away."
            % (asked.path, "; ".join(found.foreign_faults), asked.path, asked.version)
        )
    right = matching(found, asked)
    if right and right[0] == found.current:
        return Plan()
    tree = right[0].path if right else _free_name(asked, found)
    _refuse_if_used(asked, found, users_of)
    return Plan(
        tree=tree,
        discard=found.half_made,
        build=not right,
        link=True,
        prune=tuple(_superfluous(asked, found, tree, users_of)),
        why=_why(found),
    )


def _why(found: Found) -> str:
    current = found.current
    if current is None:
        return ""
    if current.faults:
        return "%s: %s" % (current.path, "; ".join(current.faults))
    return "in the place of %s" % (current.version or "another one")


def _refuse_if_used(asked: Asked, found: Found, users_of: Callable[[Sequence[str]], List[User]]) -> None:
    """What runs must not find another vLLM under its feet: a crash would restart it with a version that nobody has tried."""
    if found.current is None:
        return
    users = users_of([asked.path, os.path.realpath(found.current.path)])
    if users:
        shown = ", ".join(str(user) for user in users[:3]) + (" and %d more" % (len(users) - 3) if len(users) > 3 else "")
        raise GpuFleetError(
            "%s is in use by %s: its vLLM stays %s. Install %s beside it, with path %s-%s, and let the model's entry in the catalogue "
            "say executable: %s-%s/bin/vllm. A swap then changes the version, and goes back to the old one if that fails. "
            "Or stop what runs from it first."
            % (
                asked.path, shown, found.current.version or "as it is", asked.version,
                asked.path, asked.version, asked.path, asked.version,
            ),
            in_use_by=[user._asdict() for user in users],
        )  # fmt: skip


def _superfluous(asked: Asked, found: Found, tree: str, users_of: Callable[[Sequence[str]], List[User]]) -> List[str]:
    """Older environments beyond those to keep, and damaged ones, unless something runs from them."""
    others = [each for each in found.trees if each.path != tree]
    whole = sorted((each for each in others if each.whole), key=lambda each: (each != found.current, -each.finished))
    damaged = [each for each in others if not each.whole]
    gone: List[Tree] = whole[asked.keep:] + damaged
    return [each.path for each in gone if not users_of([each.path])]


def _free_name(asked: Asked, found: Found) -> str:
    taken = {tree.path for tree in found.trees}
    name, number = asked.tree, 2
    while name in taken:
        name, number = "%s-%d" % (asked.tree, number), number + 1
    return name
