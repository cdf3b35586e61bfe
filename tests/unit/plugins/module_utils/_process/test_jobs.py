# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs of schedulers: known by their cgroups, by their daemons' units, and by the programs above them."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._process.cgroup import owner_of
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.jobs import SCHEDULERS, job_command, job_label
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.rules import classify
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.types import CgroupOwner
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._process.test_rules import (
    NOBODY,
    PYTHON,
    VLLM,
    process,
)

ALLOC = "1f2e3d4c-aaaa-bbbb-cccc-0123456789ab"
SLOT = "condor_var_lib_condor_execute_slot1_1@gpu01"
YARN = "container_e17_1690000000_0001_01_000002"
# (path, label, command, unit)
JOBS = [
    ("/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", "Slurm's job 7", "scancel 7", "slurmstepd.scope"),
    ("/slurm/uid_1000/job_7/step_0", "Slurm's job 7", "scancel 7", None),
    ("/system.slice/htcondor/" + SLOT, "HTCondor's job " + SLOT, None, None),
    ("/htcondor/" + SLOT, "HTCondor's job " + SLOT, None, None),
    ("/system.slice/condor.service/htcondor/" + SLOT + "/sub", "HTCondor's job " + SLOT, None, "condor.service"),
    ("/batch/" + SLOT, "HTCondor's job " + SLOT, None, None),
    ("/nomad.slice/share.slice/%s.serve.scope" % ALLOC, "Nomad's job " + ALLOC, "nomad alloc stop " + ALLOC, None),
    ("/nomad.slice/reserve.slice/%s.serve.scope" % ALLOC, "Nomad's job " + ALLOC, "nomad alloc stop " + ALLOC, None),
    ("/nomad.slice/share.slice/other.scope", "Nomad's job other", None, None),
    ("/custom.slice/%s.serve.scope" % ALLOC, "Nomad's job " + ALLOC, "nomad alloc stop " + ALLOC, None),
    ("/lsf/cluster1/job.1234.4711.1690000000", "LSF's job 1234", "bkill '1234'", None),
    ("/lsf/cluster1/job.1234[2].4711.1690000000", "LSF's job 1234[2]", "bkill '1234[2]'", None),
    ("/pbs_jobs.service/jobid/12.server", "PBS's job 12.server", "qdel 12.server", "pbs_jobs.service"),
    ("/pbspro.slice/pbspro-12.server.slice", "PBS's job 12.server", "qdel 12.server", None),
    ("/torque/12.server", "PBS's job 12.server", "qdel 12.server", None),
    ("/ocs.slice/ocs8012.42.1.scope", "Grid Engine's job 42", "qdel 42", None),
    ("/UGE/42.1", "Grid Engine's job 42", "qdel 42", None),
    ("/hadoop-yarn/" + YARN, "YARN's job 1690000000_0001", "yarn application -kill application_1690000000_0001", None),
    ("/system.slice/yarn/" + YARN, "YARN's job 1690000000_0001", "yarn application -kill application_1690000000_0001", None),
    ("/oar.slice/oar-u1000.slice/oar-u1000-j42.slice/oar-u1000-j42-s1.scope", "OAR's job 42", "oardel 42", None),
    ("/oar/alice_42", "OAR's job 42", "oardel 42", None),
]


@pytest.mark.parametrize(("path", "label", "command", "unit"), JOBS, ids=[path for path, *_more in JOBS])
def test_a_job_is_known_by_its_cgroup_and_is_no_orphan(path: str, label: str, command: Optional[str], unit: Optional[str]) -> None:
    owner = owner_of("0::%s\n" % path)
    assert owner.unit == unit and owner.runtime in SCHEDULERS and owner.container is not None and owner.runtime is not None
    assert job_label(owner.runtime, owner.container) == label and job_command(owner.runtime, owner.container) == command
    for active in (None, False):
        judged = classify(VLLM[0], owner, active)
        assert (judged.vllm, judged.orphan, judged.protected_by) == (True, False, label)


def test_in_cgroup_v1_a_job_is_in_the_schedulers_own_hierarchies() -> None:
    text = "12:memory:/htcondor/%s\n11:freezer:/htcondor/%s\n1:name=systemd:/system.slice/my-pool.service\n0::/\n" % (SLOT, SLOT)
    owner = owner_of(text)
    assert (owner.unit, owner.container, owner.runtime) == ("my-pool.service", SLOT, "htcondor")


def test_a_container_that_a_job_or_a_scheduler_started_is_told_by_what_stands_first() -> None:
    docker = "docker-%s.scope" % ("ab" * 32)
    assert owner_of("0::/nomad.slice/share.slice/%s\n" % docker).runtime == "docker"
    assert owner_of("0::/slurm/uid_1000/job_7/%s\n" % docker).runtime == "slurm"


@pytest.mark.parametrize("path", [
    "/system.slice/flux.service", "/system.slice/vllm-a.service/job.1", "/system.slice/vllm-htcondor.service/x", "/nomadic/x", "/lsf",
    "/user.slice/user-1000.slice/session-3.scope", "/system.slice/run-r8.scope", "/system.slice/container_1.service", "/age/young",
])
def test_what_is_only_called_alike_is_no_job(path: str) -> None:
    assert owner_of("0::%s\n" % path).container is None


@pytest.mark.parametrize("unit", [
    "slurmd.service", "pbs_jobs.service", "condor.service", "lsfd.service", "nomad.service", "kubelet.service",
])
@pytest.mark.parametrize("active", [None, False, True])
def test_what_is_left_in_a_schedulers_unit_is_its_own(unit: str, active: Optional[bool]) -> None:
    judged = classify(VLLM[0], CgroupOwner(unit=unit), active)
    assert not judged.orphan and judged.kept_by is not None and unit in judged.kept_by


STARTER = process(["condor_starter", "-f"], "condor_starter", "/usr/sbin/condor_starter", pid=40)


@pytest.mark.parametrize(("elder", "words"), [
    (STARTER, "it runs below condor_starter (pid 40: job scheduler); end the job through that"),
    (process(["/usr/bin/nomad", "executor"], "nomad", "/usr/bin/nomad", pid=40), "job scheduler"),
    (process(["/opt/lsf/10.1/etc/res"], "res", "/opt/lsf/10.1/etc/res", pid=40), "job scheduler"),
    (process(["/usr/libexec/flux/flux-shell", "1"], "flux-shell", "/usr/libexec/flux/flux-shell", pid=40), "job scheduler"),
    (process(["/usr/bin/conmon", "-c"], "conmon", "/usr/bin/conmon", pid=40), "container runtime); end it through that"),
    (process(["/usr/bin/kubelet"], "kubelet", "/usr/bin/kubelet", pid=40), "Kubernetes); delete or scale down its pod"),
])
def test_what_runs_below_a_schedulers_program_is_its_own(elder: object, words: str) -> None:
    shell = process(["bash", "job.sh"], "bash", "/usr/bin/bash", pid=41)
    for family in ([elder], [shell, elder], [VLLM[10], shell, elder]):
        judged = classify(VLLM[0], NOBODY, False, family=family)  # type: ignore[arg-type]
        assert not judged.orphan and judged.protected and words in str(judged.kept_by)


def test_other_programs_above_it_answer_for_nothing() -> None:
    for name in ("sshd", "systemd", "sudo", "Xorg", "nvidia-smi"):
        elder = process(["/usr/sbin/" + name], name, "/usr/sbin/" + name, pid=40)
        judged = classify(VLLM[0], NOBODY, False, family=[elder])
        assert judged.orphan and judged.kept_by is None
    mine = process(["python3", "/home/alice/res"], "res", PYTHON, pid=40)
    assert classify(VLLM[0], NOBODY, False, family=[mine]).orphan
    # Inside a container that was started with an init of the runtime's, all are below that.
    init = process(["/sbin/docker-init", "--", "sshd"], "docker-init", "/sbin/docker-init", pid=1)
    assert classify(VLLM[0], NOBODY, False, family=[init]).orphan
    assert not classify(VLLM[0], NOBODY, False, family=[replace(init, pid=40)]).orphan
