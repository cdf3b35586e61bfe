# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks of a run: those of this collection, with the variables that they document, and what the others are written in terms of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, NamedTuple, Set, Tuple

from . import _terms

_HERE = Path(__file__).resolve().parents[2] / "playbooks"
_COLLECTION = "gpufleet.vllm."
_PLAYBOOK = "import_playbook"
_TASKS = ("import_tasks", "include_tasks")
# What brings more into a file of tasks than is written there.
_BRINGS = (*_TASKS, "import_role", "include_role", "include_vars", "template")

# The variables in the head of each playbook, in its order.
OWN: Dict[str, Tuple[str, ...]] = {
    "benchmark": ("target", "service", "profile", "baseline", "once_per", "slow_percent", "report_dir", "query"),
    "borrow_gpus": ("command", "gpus", "target", "batch", "report_dir", "query"),
    "deploy": ("model", "target", "batch", "report_dir"),
    "fleet_status": ("target", "model", "fail_on_drift", "report_dir", "query"),
    "gpu_cleanup": ("target", "scope", "report_dir", "query"),
    "swap_model": ("model", "target", "batch", "before_host", "after_host", "report_dir"),
}


class Run(NamedTuple):
    """What a run is made of."""

    # The variables that its playbooks of this collection document.
    documented: FrozenSet[str]
    # The expressions in its other playbooks and their files of tasks; those of roles are not looked for.
    expressions: Tuple[str, ...]


def read_run(arguments: Any) -> Run:
    """What is run, by the playbooks that were named on the command line.

    A playbook that can't be read, such as one of another collection or one whose name is a template, may import any of this collection.
    """
    ours: Set[str] = set()
    expressions: List[str] = []
    # Without a command line of ansible-playbook nothing is known of the run.
    waiting = [(_PLAYBOOK, str(word), Path.cwd()) for word in arguments] if isinstance(arguments, (list, tuple)) else []
    if not waiting:
        ours.update(OWN)
    seen: Set[Path] = set()
    while waiting:
        kind, word, beside = waiting.pop()
        path = (beside / word).resolve()
        if path in seen:
            continue
        seen.add(path)
        if _name_of_ours(word, path) in OWN:
            ours.add(_name_of_ours(word, path))
            continue
        file = _terms.read(path)
        if file is not None:
            expressions += file.expressions()
            waiting += [(key, value, path.parent) for key, value in file.keys() if value and key in (_PLAYBOOK, *_TASKS)]
        elif kind == _PLAYBOOK:
            ours.update(OWN)
    return Run(frozenset(name for playbook in ours for name in OWN[playbook]), tuple(expressions))


def hook_reads(name: str, hook: Any) -> bool:
    """Whether ``hook``, a file of tasks for each host, may read the variable: also where it can't be looked into, or brings others in."""
    file = _terms.read(Path(hook)) if isinstance(hook, str) else None
    if file is None or any(key in _BRINGS for key, _value in file.keys()):
        return True
    return _terms.names_it(name, file.expressions())


def _name_of_ours(word: str, path: Path) -> str:
    """The name of a playbook of this collection; empty for any other."""
    if word.startswith(_COLLECTION):
        return re.sub(r"\.ya?ml$", "", word[len(_COLLECTION):])
    return path.stem if path.parent == _HERE else ""
