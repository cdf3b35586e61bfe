# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run has to have before it begins, so that it can tell at its end what came of it."""

from __future__ import annotations

import os
import re
from typing import Any, Iterable, List, Mapping, Optional, Sequence

from ansible.playbook.block import Block
from ansible.playbook.play import Play
from ansible.playbook.task import Task

from . import _names, _readers
from ._report import ReportError

# Of the tags of a play, this one says of no part that it runs.
_ALWAYS = "always"
# Ansible's own words for all that has a tag.
_ANY = ("all", "tagged")
_SIZE = "['\"]?[1-9][0-9]*%?['\"]?"
_BATCH = re.compile(r"(%s|\[ *%s *(, *%s *)*\])\Z" % (_SIZE, _SIZE, _SIZE))


def check_directory(directory: str, make: bool) -> None:
    """Raises ReportError when no report can be written to ``directory``.

    A relative directory is taken from the current one. One that is missing is made with ``make``, and else it is looked whether it could
    be. One that is there stays as it is, whoever has it: its mode and its owner are not ours.
    """
    path = os.path.abspath(os.path.expanduser(directory))
    try:
        nearest = _nearest(path)
        why = _fault(nearest)
        if why is None and make and nearest != path:
            os.makedirs(path, exist_ok=True)
            why = _fault(path)
    except OSError as exc:
        why = "%s: %s" % (exc.filename or path, exc.strerror)
    if why is not None:
        raise ReportError("No report can be written to %s (%s). Give another `report_dir`, or correct this one." % (path, why))


def check_batch(batch: Any) -> None:
    """Raises ReportError when ``batch`` is nothing that Ansible's ``serial`` takes: its own error would come after half of the plays."""
    # What -e batch=[1,4] gives is text, and so is what a list of numbers and percentages is written as.
    if not _BATCH.match(str(batch)):
        raise ReportError(
            "batch is '%s'. It takes a number of hosts from 1 on, a percentage such as '25%%', or a list of them, one for each batch, "
            "such as -e '{\"batch\": [1, 4, \"25%%\"]}'." % (batch,)
        )


def check_query(query: Any) -> None:
    """Raises ReportError when ``query`` can't be asked of a report."""
    # Loaded only here: it brings all that can be asked of a clean-up, and few runs have a query.
    from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _cleanup

    for fault in _cleanup.fault_of_query(query):
        text = fault.rstrip(".") + "."
        raise ReportError(text)


def _nearest(path: str) -> str:
    """The path itself, or what is there of the way to it. Raises OSError."""
    while True:
        try:
            os.lstat(path)
            return path
        except (FileNotFoundError, NotADirectoryError):
            path = os.path.dirname(path)


def _fault(path: str) -> Optional[str]:
    if not os.path.isdir(path):
        return "%s is no directory" % path
    # Asked of the system: who may write where is more than a mode.
    if not os.access(path, os.W_OK | os.X_OK):
        return "this user can't write to %s" % path
    return None


def parts_that_run(parts: Sequence[str], tags: Iterable[Any], only: Sequence[str], skip: Sequence[str]) -> List[str]:
    """Those of ``parts``, the tags of plays, that a run with ``--tags only --skip-tags skip`` does not leave out.

    ``tags`` are those of a task in a play of the same playbook with the tag `always`. What else it has, whoever imports the playbook has
    given to all of its plays. `always` among the parts is what is left without the others: it counts where it is asked for, and a slip in
    ``--tags`` asks for nothing.
    """
    others = [str(tag) for tag in tags if str(tag) != _ALWAYS]
    asked = not set(only).isdisjoint([*_ANY, *others, *parts])
    return [part for part in parts if _runs([*others, part], only, skip) and (part != _ALWAYS or asked)]


def _runs(tags: List[str], only: Sequence[str], skip: Sequence[str]) -> bool:
    task = Task(block=Block(play=Play()))  # to be asked of its tags, each has to be somewhere
    task.tags = tags
    return bool(task.evaluate_tags(list(only), list(skip), {}))


def check_names(names: Iterable[str]) -> None:
    """Raises ReportError when a variable of the play begins as those of this collection's roles do, and none has it.

    Roles judge what the inventory says, and each playbook what the command line does. What whoever imports a playbook sets for its plays
    is in neither.
    """
    ours = sorted(name for name in names if name.startswith(_readers.OURS))
    if not ours:
        return
    # Read only here: few runs have any.
    options = {"%s_%s" % (prefix[:-1], option) for prefix in _readers.OURS for option in _names.options_of_role(prefix[:-1])}
    slips = [_names.unknown(name, sorted(options)) for name in ours if name not in options]
    if slips:
        raise ReportError("Among the variables that this play is given %s. Correct the name and run again." % "; ".join(slips))


# What a play's own keywords are written with: they see the command line and an import's `vars`, and no inventory.
_KEYWORDS = ("target", "batch")


def check_keywords(written: Mapping[str, Mapping[str, Any]], seen: Iterable[str]) -> None:
    """Raises ReportError when the inventory says which hosts, or how many at a time: it would be passed over.

    ``written`` are the variables of each host as the inventory has them, ``seen`` those that plays have.
    """
    known = set(seen)
    for name in _KEYWORDS:
        hosts = [host for host, variables in written.items() if name in variables] if name not in known else []
        if hosts:
            raise ReportError(
                "`%s` is a variable of the inventory (%s), where Ansible does not look when it chooses hosts. Say it with -e %s=…, or with "
                "the `vars` of import_playbook, and take it out of the inventory." % (name, hosts[0], name)
            )


def check_parts(parts: Sequence[str], running: Sequence[str]) -> None:
    """Raises ReportError when of ``parts`` nothing is run: such a run would find nothing wrong whatever there is."""
    if parts and not running:
        raise ReportError(
            "The tags of this run leave out all that a host is asked for. Run without --tags and --skip-tags, or add `--tags %s`."
            % parts[0]
        )
