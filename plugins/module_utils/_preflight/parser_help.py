# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The arguments that ``vllm serve`` knows, from its own mouth: ``--help=all``. Ten seconds, so what it says is kept."""

from __future__ import annotations

import json
import os
import re
import tempfile
from typing import FrozenSet, Optional, Tuple

from .._core.errors import GpuFleetError
from .._core.files import WantedFile, apply_change, compare
from .._core.runner import Runner
from .installed import Installation

_DEADLINE_S = 90.0
_NAME = re.compile(r"(?<![\w-])--([a-z][a-z0-9_-]+)")
_FEWEST = 40
_FILE = "vllm-arguments.json"
# Nothing is written beside the sources, no GPU is taken, nobody is told.
_ENVIRONMENT = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
_NOBODY = 65534


def ask(executable: str, account: Optional[Tuple[int, int]], runner: Runner) -> Optional[FrozenSet[str]]:
    """Every long name that the help mentions, in underscore form; None when the command gives no such help.

    It runs as the service's ``account`` (uid, gid), or as nobody: what belongs to that user must not run as root.
    """
    uid, gid = account or (_NOBODY, _NOBODY)
    words = [executable, "serve", "--help=all"]
    with tempfile.TemporaryDirectory(prefix="gpufleet-") as home:
        if os.geteuid() == 0:
            os.chown(home, uid, gid)
            words = ["setpriv", "--reuid=%d" % uid, "--regid=%d" % gid, "--clear-groups", "--no-new-privs"] + words
        done = runner.run(words, timeout=_DEADLINE_S, env={**_ENVIRONMENT, "HOME": home})
    names = frozenset(name.replace("-", "_") for name in _NAME.findall(done.stdout)) if done.ok else frozenset()
    return names if len(names) >= _FEWEST else None


def key_of(executable: str, installation: Optional[Installation]) -> str:
    """What an answer is good for: this version, in this place, as it was last written."""
    paths = [executable]
    if installation is not None and installation.package is not None:
        paths.append(os.path.join(installation.package, "engine", "arg_utils.py"))
    stamps = []
    for path in paths:
        try:
            status = os.stat(path)
            stamps.append("%d.%d" % (status.st_mtime_ns, status.st_size))
        except OSError:
            stamps.append("-")
    return "|".join([executable, (installation.version if installation is not None else None) or "?", *stamps])


def recall(records: str, key: str) -> Optional[FrozenSet[str]]:
    """What was said before; None where nothing is kept for this installation, or what is kept can't be read."""
    try:
        with open(os.path.join(records, _FILE), encoding="utf-8") as handle:
            kept = json.load(handle)
    except (OSError, ValueError, RecursionError):
        return None
    names = kept.get(key) if isinstance(kept, dict) else None
    if not isinstance(names, list) or len(names) < _FEWEST or not all(isinstance(name, str) for name in names):
        return None
    return frozenset(names)


def keep(records: str, key: str, names: FrozenSet[str]) -> None:
    """Keep an answer for the next run, the last of each executable only. A host that has no place for it yet gets none."""
    path = os.path.join(records, _FILE)
    if not os.path.isdir(records) or not os.access(records, os.W_OK):
        return
    try:
        with open(path, encoding="utf-8") as handle:
            found = json.load(handle)
        kept = found if isinstance(found, dict) else {}
    except (OSError, ValueError, RecursionError):
        kept = {}
    executable = key.split("|", 1)[0]
    kept = {old: value for old, value in kept.items() if str(old).split("|", 1)[0] != executable}
    kept[key] = sorted(names)
    text = json.dumps(kept, indent=1, sort_keys=True) + "\n"
    try:
        change = compare(WantedFile(path, text.encode("utf-8")))
        if change is not None:
            apply_change(change)
    except GpuFleetError:
        return  # it is asked again next time, which costs ten seconds and nothing else
