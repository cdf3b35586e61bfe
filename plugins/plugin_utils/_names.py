# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slips in the names of variables on the command line, which Ansible takes without a word, and does something else."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Dict, Iterable, List, Mapping, Optional, Sequence

import yaml

from ._readers import Readers, extra_variables, may_be_others, way_out

# So near to a name that it was hardly meant for another variable.
_NEAR = 0.8
_ROLES = Path(__file__).resolve().parents[2] / "roles"


def extra_names() -> List[str]:
    """The variables that were set with ``-e``, sorted."""
    return sorted(extra_variables())


def refusals(found: Mapping[str, str], readers: Readers) -> List[str]:
    """The sentences of ``found``, by name, without those for names that something else reads, and what to do where that can't be seen."""
    left = {name: sentence for name, sentence in found.items() if not readers.read(name)}
    others = [name for name in left if may_be_others(name)]
    return [*left.values(), *([way_out(others)] if others else [])]


def slips(names: Iterable[str], own: Sequence[str], prefix: str = "", options: Sequence[str] = ()) -> Dict[str, str]:
    """A sentence for each of ``names`` that looks like a slip: what is asked for with it would not be done, unless something else reads it.

    A slip is no variable of the playbook, but near to one of its ``own``, or begins with ``prefix``, or is one of the ``options``
    without the prefix that makes it a variable. ``options`` are without it. Other names may be anybody's, such as a variable that the
    inventory makes use of.
    """
    return slips_of_roles(names, own, {prefix: options} if prefix else {})


def slips_of_roles(names: Iterable[str], own: Sequence[str], roles: Mapping[str, Sequence[str]]) -> Dict[str, str]:
    """The same for a playbook with several roles: ``roles`` has the options of each by its prefix, which they are without."""
    variables = {prefix + option for prefix, options in roles.items() for option in options}
    found = {name: _slip(name, own, roles) for name in names if name not in own and name not in variables}
    return {name: sentence for name, sentence in found.items() if sentence is not None}


def _slip(name: str, own: Sequence[str], roles: Mapping[str, Sequence[str]]) -> Optional[str]:
    bare = [prefix + name for prefix, options in roles.items() if name in options]
    if bare:
        # What the playbook has a name of its own for may be called as the module calls it.
        return _did_you_mean(name, " or ".join(bare))
    prefix = next((prefix for prefix in roles if name.startswith(prefix)), None)
    if prefix is None and not difflib.get_close_matches(name, own, 1, _NEAR):
        return None
    if prefix is not None and name[len(prefix):] in own:
        # And as the role calls it.
        return _did_you_mean(name, name[len(prefix):])
    others = [prefix + option for option in roles[prefix]] if prefix is not None else []
    return unknown(name, [*own, *others])


def options_of_role(role: str) -> List[str]:
    """The options of a role of this collection, without its prefix, as its argument specification has them. Raises OSError."""
    text = (_ROLES / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8")
    variables = yaml.safe_load(text)["argument_specs"]["main"]["options"]
    return [str(name)[len(role) + 1:] for name in variables]


def unknown(name: str, known: Sequence[str]) -> str:
    """The sentence for a name that is not among the ``known``."""
    close = difflib.get_close_matches(name, known, 1)
    return _did_you_mean(name, close[0]) if close else "there is no variable %s (known: %s)" % (name, ", ".join(known))


def _did_you_mean(name: str, meant: str) -> str:
    return "there is no variable %s; did you mean %s" % (name, meant)
