# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Job schedulers: how they name the cgroups of their jobs, and what ends a job. A table, and how it is read.

Many keep a tree of their own, beside all units; there the path is all that tells whose a process is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Optional, Sequence, Tuple


@dataclass(frozen=True)
class Scheduler:
    """One line of the table.

    Each of ``cgroups`` is a pattern of whole components of a path, somewhere in it; its group ``id`` is the job's own name.
    ``number`` is the part of that name (its first group) that people and ``command`` call the job by.
    """

    name: str
    cgroups: Tuple[str, ...]
    number: str = r"(.+)"
    command: Optional[str] = None


_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# What a scheduler puts below a slice of its own, in further slices or not.
_BELOW = r"/(?:[^/]+\.slice/)*(?P<id>(?![^/]+\.slice(?:/|$))[^/]+?)(?:\.(?:scope|service))?"

# By the word for them in CgroupOwner.runtime.
SCHEDULERS: Dict[str, Scheduler] = {
    "slurm": Scheduler("Slurm", (r"(?P<id>job_[0-9]+)",), r"job_(.+)", "scancel %s"),
    "htcondor": Scheduler("HTCondor", (r"(?:ht)?condor/(?P<id>[^/]+)", r"(?P<id>condor_[^/]*slot[0-9][^/]*@[^/]+)")),
    "nomad": Scheduler(
        "Nomad", (r"(?P<id>%s\.[^/]+?)(?:\.scope)?" % _UUID, r"nomad\.slice" + _BELOW, r"nomad/(?P<id>[^/]+)"), r"(%s)" % _UUID,
        "nomad alloc stop %s",
    ),
    "lsf": Scheduler("LSF", (r"lsf/[^/]+/(?P<id>job\.[^/]+)",), r"job\.([0-9]+(?:\[[0-9]+\])?)", "bkill '%s'"),
    "pbs": Scheduler(
        "PBS", (r"(?:pbs_jobs|pbspro|openpbs)(?:\.(?:service|slice))?/(?:jobid/)?(?P<id>[^/]+)", r"torque/(?P<id>[0-9][^/]*)"),
        r"(?:pbspro-)?(.+?)(?:\.slice)?$", "qdel %s",
    ),
    "gridengine": Scheduler(
        "Grid Engine", (r"(?:ocs|gcs|sge|uge|age)\.slice" + _BELOW, r"(?i:sge|uge|age)/(?P<id>[0-9]+\.[^/]+)"),
        r"(?:.*\.)?([0-9]+)\.[^.]+$", "qdel %s",
    ),
    "yarn": Scheduler(
        "YARN", (r"(?P<id>container_(?:e[0-9]+_)?[0-9]+_[0-9]+_[0-9]+_[0-9]+)", r"(?:hadoop-)?yarn/(?P<id>[^/]+)"),
        r"container_(?:e[0-9]+_)?([0-9]+_[0-9]+)_", "yarn application -kill application_%s",
    ),
    "oar": Scheduler(
        "OAR", (r"(?P<id>oar-u[0-9]+-j[0-9]+)(?:-[^/]*)?\.(?:slice|scope)", r"oar/(?P<id>[^/]+_[0-9]+)"), r".*[j_]([0-9]+)$", "oardel %s",
    ),
}


def find_job(parts: Sequence[str]) -> Optional[Tuple[str, str, int]]:
    """(name of the job, its scheduler's word, number of components before it) for the components of a cgroup's path."""
    path = "/".join(parts)
    found = []
    for word, scheduler in SCHEDULERS.items():
        for pattern in scheduler.cgroups:
            match = re.search(r"(?:^|/)%s(?=/|$)" % pattern, path)
            if match:
                found.append((path.count("/", 0, match.start("id")), match.group("id"), word))
    if not found:
        return None
    depth, job, word = min(found, key=lambda each: each[0])
    return job, word, depth


def job_label(word: str, job: str) -> str:
    """The job for people: ``Slurm's job 42``."""
    return "%s's job %s" % (SCHEDULERS[word].name, _number(word, job) or job)


def job_command(word: str, job: str) -> Optional[str]:
    """What ends it; None where its cgroup does not tell enough for that."""
    command, number = SCHEDULERS[word].command, _number(word, job)
    return None if command is None or number is None else command % number


def _number(word: str, job: str) -> Optional[str]:
    match = re.match(SCHEDULERS[word].number, job)
    return None if match is None else match.group(1)
