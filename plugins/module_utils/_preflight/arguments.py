# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the installed vLLM knows the arguments that are given."""

from __future__ import annotations

import difflib
from typing import FrozenSet, List, Optional, Sequence

from .._core.runner import Runner
from .._model.parallel import Check
from .account import ids_of
from .asked import Asked, Places, fail, passed, skip, warn
from .installed import Installation, has_plugins, shebang
from .parser_help import ask, keep, key_of, recall
from .parser_source import arguments_of_source
from .removed import REMOVED

# What is known of an argument's way through the parser: the file's keys that the parser itself never sees.
_ALWAYS = frozenset(["config", "model_tag"])


def check_arguments(
    asked: Asked, installation: Optional[Installation], places: Places, runner: Runner, remember: bool
) -> Check:
    """One check, ``arguments``. ``remember`` lets an answer of the command be kept for the next run.

    The source is read first. The command itself, which takes ten seconds, is asked only where the source can't be read, or where
    something in the environment may have added arguments.
    """
    given = sorted({name.split(".", 1)[0] for name in asked.args} - _ALWAYS)
    if not given:
        return passed("arguments", "no engine arguments are given")
    known = arguments_of_source(installation.package) if installation is not None and installation.package else None
    if known is not None and not _unknown(given, known):
        return passed("arguments", "%s known to %s" % (_count(given), _name(installation)))
    told = None
    if known is None or installation is None or has_plugins(installation):
        told = _from_the_command(asked, installation, places, runner, remember)
    if known is None and told is None:
        return _not_known(given, asked)
    everything = (known or frozenset()) | (told or frozenset())
    unknown = _unknown(given, everything)
    if not unknown:
        return passed("arguments", "%s known to %s" % (_count(given), _name(installation)))
    return _verdict(unknown, everything, _name(installation))


def _from_the_command(
    asked: Asked, installation: Optional[Installation], places: Places, runner: Runner, remember: bool
) -> Optional[FrozenSet[str]]:
    if "python" not in (shebang(asked.executable) or ""):
        return None  # somebody's own wrapper: who knows what it would start
    key = key_of(asked.executable, installation)
    told = recall(places.records, key)
    if told is None:
        told = ask(asked.executable, ids_of(asked.user, asked.group), runner)
        if told is not None and remember:
            keep(places.records, key, told)
    return told


def _unknown(given: Sequence[str], known: FrozenSet[str]) -> List[str]:
    return [name for name in given if name not in known and not (name.startswith("no_") and name[3:] in known)]


def _verdict(unknown: Sequence[str], known: FrozenSet[str], who: str) -> Check:
    texts, fixes, refused = [], [], False
    for name in unknown:
        longer = [other for other in known if other.startswith(name)]
        if len(longer) == 1:
            texts.append("%s is short for %s" % (name, longer[0]))
            fixes.append("Write %s out." % longer[0])
            continue
        refused = True
        if name in REMOVED:
            texts.append("%s was removed from vLLM" % name)
            fixes.append(REMOVED[name] + ".")
            continue
        nearest = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
        texts.append("%s is unknown%s" % (name, "; the nearest is %s" % nearest[0] if nearest else ""))
        fixes.append("Correct or remove %s." % name)
    detail, fix = "%s: %s" % (who, ", ".join(texts)), " ".join(fixes)
    return fail("arguments", detail, fix) if refused else warn("arguments", detail, fix)


def _not_known(given: Sequence[str], asked: Asked) -> Check:
    removed = [name for name in given if name in REMOVED]
    if removed:
        detail = "newer versions of vLLM no longer know %s, and the installed one could not be asked" % ", ".join(removed)
        return warn("arguments", detail, " ".join(REMOVED[name] + "." for name in removed))
    return skip("arguments", "what arguments %s knows could not be found out" % asked.executable)


def _count(given: Sequence[str]) -> str:
    return "1 argument is" if len(given) == 1 else "all %d arguments are" % len(given)


def _name(installation: Optional[Installation]) -> str:
    if installation is None or installation.version is None:
        return "the installed vLLM"
    return "vLLM %s" % installation.version
