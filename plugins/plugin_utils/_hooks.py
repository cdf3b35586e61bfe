# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The user's files of tasks around each host, looked at before any host is touched: Ansible loads them when their host's turn has come,
and what it cannot load then ends the run in the middle of a fleet."""

from __future__ import annotations

import os
from typing import Any, Iterator, List, Mapping, Optional, Sequence

from ansible.errors import AnsibleError
from ansible.parsing.mod_args import ModuleArgsParser
from ansible.playbook.task import Task

from ._hook_tasks import load_faults

HOOKS = ("before_host", "after_host")
_NESTED = ("block", "rescue", "always")
# Beside a task's keywords and the name of what it does.
_ALSO = ("action", "local_action", "args")


def hook_faults(variables: Mapping[str, Any], loader: Any, collections: Optional[Sequence[str]] = None) -> List[str]:
    """A sentence for each of a host's hooks that can't be run, and for each of its tasks that can't.

    ``variables`` are the host's. ``loader`` reads files as Ansible does. ``collections`` are where short names are looked up besides
    Ansible's own.
    """
    faults: List[str] = []
    for hook in HOOKS:
        try:
            path = variables.get(hook)
        except AnsibleError as exc:
            faults.append("`%s` cannot be read: %s" % (hook, exc.message))
            continue
        if path:
            faults += ["`%s`: %s" % (hook, fault) for fault in _faults_of(str(path), loader, collections)]
    return faults


def has_hooks(variables: Mapping[str, Any]) -> bool:
    """Whether anything is to be run around a host, by its variables. Raises AnsibleError for one that cannot be read."""
    return any(variables.get(hook) for hook in HOOKS)


def _faults_of(path: str, loader: Any, collections: Optional[Sequence[str]]) -> List[str]:
    full = os.path.realpath(path)
    if not os.path.isfile(full):
        return [
            "there is no file %s. Hooks are files on the controller, relative to the directory in which the command runs; "
            "write the path out in an inventory." % full
        ]
    try:
        tasks = loader.load_from_file(full, trusted_as_template=True)
    except AnsibleError as exc:
        return ["%s cannot be read: %s" % (full, exc.message)]
    if not isinstance(tasks, list):
        return ["%s holds no list of tasks." % full]
    # The first tells more of a task; what it does not see is what comes of the file.
    return ["%s: %s" % (full, fault) for fault in _tasks(tasks, collections)] or load_faults(full, loader, collections)


def _tasks(tasks: List[Any], collections: Optional[Sequence[str]]) -> Iterator[str]:
    for number, task in enumerate(tasks, 1):
        if not isinstance(task, Mapping):
            yield "entry %d is no task." % number
            continue
        if any(key in task for key in _NESTED):
            for key in _NESTED:
                yield from _tasks(task.get(key) or [], collections)
            continue
        which = "task %s" % ("%r" % str(task["name"]) if task.get("name") else "%d" % number)
        try:
            action = ModuleArgsParser(dict(task), collection_list=_searched(task.get("collections") or collections)).parse()[0]
        except AnsibleError as exc:
            yield "%s: %s" % (which, str(exc.message).strip())
            continue
        for key in map(str, task):
            if not (key in Task.fattributes or key in _ALSO or key == action or key.startswith("with_")):
                yield "%s: `%s` is no keyword of a task." % (which, key)


def _searched(collections: Optional[Sequence[str]]) -> Optional[List[str]]:
    """Where Ansible looks for a short name: in its own plugins as well, last unless they are named."""
    if not collections:
        return None
    return [*collections, *([] if {"ansible.builtin", "ansible.legacy"} & set(collections) else ["ansible.legacy"])]
