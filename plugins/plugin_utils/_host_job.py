# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting for a task that Ansible runs as a job of the host (``async``), until it ends or nobody works on it any more.

Ansible itself asks the job's file alone. That lies on a disk and says "not finished" for ever when a power cut or the OOM killer ended the
job, so that the wait goes on to the end of ``async``, for hours. Here the host is asked for the job's processes as well: Ansible's
wrapper stays as long as the module runs, and has the job's name in its command line. The wrapper may be killed alone: the module measures
on then, and holds the host's lock (``module_utils/_core/host_lock.py``), which is asked for before anybody is called dead.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from typing import Any, Callable, Mapping, Optional

from ansible.errors import AnsibleConnectionFailure

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.host_lock import LOCK_FILE

# About what a server takes to boot.
UNREACHED_S = 600.0
# Ansible's wrapper ends the job at the end of its time, and then has to say so.
_GRACE_S = 60.0
# A list of processes that isn't there by then never comes: a process that hangs in a driver can hold up whoever reads of it.
_LIST_S = 20
# The file of a job that goes on holds less than this, and begins with it.
_HEAD_CHARS = 300
_GOES_ON = '"started"'
_NAME = re.compile(r"^j\d+")
# What a benchmark's note in the lock says of itself begins with this.
_PURPOSE = "vllm_benchmark"
# A note is shorter.
_NOTE_BYTES = 4096

# What runs a command on the host: its standard output. Raises AnsibleConnectionFailure.
Ask = Callable[[str], str]


class JobLost(Exception):
    """The job will never tell what came of it. Its text is a message for the user."""


def command_of(job: str, results_file: str) -> str:
    """What to ask the host: who works on the job, and only then what its file says, since a job writes its file before it ends.

    Raises ValueError for what is no name of a job of Ansible's.
    """
    name = _NAME.match(job)
    if name is None:
        raise ValueError("%r is no job of Ansible's" % job)
    # Neither grep nor the shell, nor the sudo around it, may find the name in its own command line: neither in the pattern nor in the path.
    number = name.group(0)[1:]
    pattern = "[j]%s" % number
    path = shlex.quote(results_file).replace("j" + number, "j''" + number)
    return "found=$(timeout %d grep -ls '%s' /proc/[0-9]*/cmdline); echo \"$? $found\" | head -n 1; head -c %d %s" % (
        _LIST_S, pattern, _HEAD_CHARS, path)


def state_of(answer: str) -> str:
    """``ended`` (its result is there), ``works``, or ``lost``: not ended, and nobody works on it."""
    first, _newline, head = answer.partition("\n")
    if head.strip() and _GOES_ON not in head:
        return "ended"
    # 1 is grep's word for having read all and found nothing. Any other status says nothing: the next answer will.
    return "lost" if first.split() == ["1"] else "works"


def holder_command(lock: str = LOCK_FILE) -> str:
    """What to ask the host: the note in its lock, where the process that the note names holds the lock; nothing where it doesn't.

    The kernel's list is asked, as a holder that was killed leaves its note behind. The lock itself is never taken for that.
    """
    path = shlex.quote(lock)
    pid = "pid=$(printf %s \"$note\" | sed -n 's/^{\"pid\": *\\([0-9][0-9]*\\).*/\\1/p')"
    held = "grep -q \"^[0-9]*: FLOCK .* $pid [0-9a-f]*:[0-9a-f]*:$(stat -L -c %%i %s) \" /proc/locks" % path
    return "note=$(head -c %d %s 2>/dev/null); %s; if [ -n \"$pid\" ] && %s; then printf '%%s\\n' \"$note\"; fi" % (
        _NOTE_BYTES, path, pid, held)


def who_measures(answer: str) -> Optional[str]:
    """The benchmark that the answer to ``holder_command`` tells of, by process id and what it is; None where it tells of none."""
    try:
        note = json.loads(answer)
    except ValueError:
        return None
    purpose = str(note.get("purpose")) if isinstance(note, dict) else ""
    if not purpose.startswith(_PURPOSE):
        return None  # a change of services may have begun since: that is no benchmark
    return "pid %s (%s)" % (note.get("pid"), purpose[:200])


def _lost(measures: Optional[str]) -> JobLost:
    """What to tell of a job that has no wrapper any more; ``measures`` is who holds the lock all the same."""
    if measures is None:
        return JobLost(
            "The benchmark ended before it could tell what it found, and nobody works on it any more: it was killed, by the OOM "
            "killer, a power cut or somebody. Look at `journalctl -k -b` on the host, then run again: what it left is removed then."
        )
    return JobLost(
        "The task's process on the host was killed, by the OOM killer or somebody, so this run will not hear what its benchmark finds. "
        "A benchmark still measures there: %s. Wait until it has ended, then run again: a result that is kept on the host then is told "
        "in place of a new one, unless `force` measures anew. Who was killed may stand in `journalctl -k -b` on the host." % measures
    )


def wait(
    ask: Ask, reset: Callable[[], None], started: Mapping[str, Any], limit: float, poll: float,
    told: Optional[Callable[[float], None]] = None, clock: Any = time,
) -> None:
    """Return when the job has ended and its result can be fetched. Raises JobLost, and AnsibleConnectionFailure when the host can't be
    reached for UNREACHED_S. ``limit`` and ``poll`` are seconds; ``told`` is called after each look with the seconds that went by."""
    command = command_of(str(started["ansible_job_id"]), str(started["results_file"]))
    begun = reached = clock.monotonic()
    while True:
        clock.sleep(poll)
        now = clock.monotonic()
        try:
            state = state_of(ask(command))
            measures = who_measures(ask(holder_command())) if state == "lost" else None
            reached = now
        except AnsibleConnectionFailure:
            # A lost connection ends nothing on the host.
            if now - reached > UNREACHED_S:
                raise
            reset()
            continue
        if state == "ended":
            return
        if state == "lost":
            raise _lost(measures)
        if now - begun > limit + _GRACE_S:
            raise JobLost(
                "The benchmark has not ended within the %d s that this task gives it. Look at what it does on the host, then run again "
                "with fewer levels or a longer async." % limit
            )
        if told is not None:
            told(now - begun)
