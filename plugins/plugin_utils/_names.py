# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slips in the names of variables on the command line, which Ansible takes without a word, and does something else."""

from __future__ import annotations

import difflib
from typing import Iterable, List, Sequence

from ansible import context
from ansible.parsing.dataloader import DataLoader
from ansible.utils.vars import load_extra_vars

# So near to a name that it was hardly meant for another variable.
_NEAR = 0.8


def extra_names() -> List[str]:
    """The variables that were set with ``-e``, sorted."""
    if not context.CLIARGS.get("extra_vars"):
        return []
    return sorted(str(name) for name in load_extra_vars(loader=DataLoader()))


def slips(names: Iterable[str], own: Sequence[str], prefix: str = "", options: Sequence[str] = ()) -> List[str]:
    """A sentence for each of ``names`` that is no variable of the playbook, but near to one of its ``own``, or begins with ``prefix``.

    ``options`` are those that begin with the prefix, without it. Other names may be anybody's, such as a variable of the inventory.
    """
    known = [*own, *(prefix + option for option in options)]
    wrong = [name for name in names if name not in known and _ours(name, own, prefix)]
    # What the playbook has a name of its own for may be called as the role calls it.
    theirs = {prefix + name: name for name in own}
    return [_did_you_mean(name, theirs[name]) if name in theirs else unknown(name, known) for name in wrong]


def _ours(name: str, own: Sequence[str], prefix: str) -> bool:
    return bool(prefix and name.startswith(prefix)) or bool(difflib.get_close_matches(name, own, 1, _NEAR))


def unknown(name: str, known: Sequence[str]) -> str:
    """The sentence for a name that is not among the ``known``."""
    close = difflib.get_close_matches(name, known, 1)
    return _did_you_mean(name, close[0]) if close else "there is no variable %s (known: %s)" % (name, ", ".join(known))


def _did_you_mean(name: str, meant: str) -> str:
    return "there is no variable %s; did you mean %s" % (name, meant)
