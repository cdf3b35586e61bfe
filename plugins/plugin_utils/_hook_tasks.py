# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file of tasks as Ansible loads it in the middle of a play, with all that it imports and, where that can be told, includes.

What Ansible finds wrong only then takes its host out of the run, whatever rescues it, and with the last host of a batch the run itself.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set

from ansible.errors import AnsibleError
from ansible.playbook.block import Block
from ansible.playbook.helpers import load_list_of_blocks
from ansible.playbook.play import Play
from ansible.playbook.role_include import IncludeRole
from ansible.playbook.task import Task
from ansible.playbook.task_include import TaskInclude
from ansible.vars.manager import VariableManager


def load_faults(path: str, loader: Any, collections: Optional[Sequence[str]] = None) -> List[str]:
    """A sentence for each thing that keeps the tasks in the file ``path`` from being loaded. ``loader`` reads files as Ansible does."""
    names: Dict[str, Any] = {"name": "hooks", "hosts": "all", "collections": list(collections or [])}
    manager = VariableManager(loader=loader)
    return list(dict.fromkeys(_File(path, loader, manager, Play.load(names, variable_manager=manager, loader=loader), set()).faults()))


class _File:
    """One file of tasks; ``seen`` are those that were looked into."""

    def __init__(self, path: str, loader: Any, manager: Any, play: Any, seen: Set[str]) -> None:
        self._path = path
        self._loader = loader
        self._manager = manager
        self._play = play
        self._seen = seen

    def faults(self) -> Iterator[str]:
        """What is wrong with it, and with what it includes."""
        if self._path in self._seen:
            return
        self._seen.add(self._path)
        around = TaskInclude.load({"include_tasks": self._path}, block=Block(play=self._play), loader=self._loader)
        try:
            content = self._loader.load_from_file(self._path, trusted_as_template=True) or []
            blocks = load_list_of_blocks(
                content, play=self._play, parent_block=around.build_parent_block(), variable_manager=self._manager, loader=self._loader
            )
        except AnsibleError as exc:
            yield "%s: Ansible can't load its tasks: %s" % (self._path, _one_line(exc))
            return
        for task in _tasks_in(blocks):
            yield from self._of_task(task)

    def _of_task(self, task: Any) -> Iterator[str]:
        which = "%s: task %r" % (self._path, task.get_name())
        # Whether it comes to one with a condition, and where a template leads, is not known before its host's turn.
        certain = not task.when and task.loop is None
        if isinstance(task, IncludeRole):
            if certain and not _templated(task._role_name):
                try:
                    task.get_block_list(play=self._play, variable_manager=self._manager, loader=self._loader)
                except AnsibleError as exc:
                    yield "%s: its role can't be loaded: %s" % (which, _one_line(exc))
        elif isinstance(task, TaskInclude):
            target = str(task.args.get("_raw_params") or task.args.get("file") or "")
            if certain and target and not _templated(target):
                found = self._found(target)
                if found is None:
                    yield "%s: there is no file %s to include, neither there nor beside this file." % (which, target)
                else:
                    yield from _File(found, self._loader, self._manager, self._play, self._seen).faults()
        else:
            for name in [task.notify] if isinstance(task.notify, str) else task.notify or []:
                if not _templated(name) and str(name) not in self._handlers():
                    yield "%s: it notifies %r, and no handler has that name: a file of tasks brings none along." % (which, str(name))

    def _found(self, target: str) -> Optional[str]:
        places = [os.path.dirname(self._path), self._loader.get_basedir()]
        paths = [os.path.realpath(os.path.join(place, target)) for place in places]
        return next((path for path in paths if os.path.isfile(path)), None)

    def _handlers(self) -> Set[str]:
        """By any name. Those of roles that a file imports are the play's by then."""
        found: Set[str] = set()
        for handler in _tasks_in(self._play.handlers):
            found |= {str(handler.name), handler.get_name(), *map(str, getattr(handler, "listen", None) or [])}
        return found


def _tasks_in(entries: Sequence[Any]) -> Iterator[Any]:
    for entry in entries:
        if isinstance(entry, Block):
            yield from _tasks_in([*entry.block, *entry.rescue, *entry.always])
        elif isinstance(entry, Task):
            yield entry


def _templated(text: Any) -> bool:
    return "{" in str(text)


def _one_line(exc: AnsibleError) -> str:
    text = " ".join(str(exc.message).split())
    return text if text.endswith((".", "!", "?")) else text + "."
