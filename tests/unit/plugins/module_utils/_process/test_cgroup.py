# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose a process is, by the texts of /proc/PID/cgroup that hosts have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._process.cgroup import owner_of, systemd_path
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.types import CgroupOwner

ID = "3f6d0c7e5a1b4c2d8e9f00112233445566778899aabbccddeeff001122334455"

V1 = """12:pids:/system.slice/vllm-a.service
11:memory:/system.slice/vllm-a.service
3:cpu,cpuacct:/system.slice/vllm-a.service
1:name=systemd:/system.slice/vllm-a.service
"""
HYBRID = V1 + "0::/system.slice/vllm-a.service\n"


def v2(path: str) -> CgroupOwner:
    """The owner of a process in this cgroup on a host of today."""
    return owner_of("0::%s\n" % path)


@pytest.mark.parametrize("text", [V1, HYBRID, "0::/system.slice/vllm-a.service\n"], ids=["v1", "hybrid", "v2"])
def test_a_service_is_found_in_every_form_of_cgroups(text: str) -> None:
    assert owner_of(text) == CgroupOwner(unit="vllm-a.service", slice="system.slice")


def test_a_hierarchy_that_says_nothing_is_passed_over() -> None:
    assert owner_of("1:name=systemd:/\n0::/system.slice/x.service\n").unit == "x.service"
    assert owner_of("4:memory:/system.slice/y.service\n1:name=systemd:/\n0::/\n").unit == "y.service"


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/system.slice/vllm-a.service", "vllm-a.service"),
        ("/system.slice/vllm-a.service/worker-3", "vllm-a.service"),  # cgroups that the service made itself
        ("/system.slice/system-vllm.slice/vllm@a.service", "vllm@a.service"),
        ("/gpu.slice/gpu-jobs.slice/train.service", "train.service"),
        ("/system.slice/vllm-a.service (deleted)", "vllm-a.service"),
        ("/system.slice/run-r83.scope", "run-r83.scope"),
        ("/../../system.slice/outer.service", "outer.service"),  # seen from inside a cgroup namespace
        ("/system.slice/_cgroup.service", "cgroup.service"),
        ("/", None),
        ("/init.scope", None),
        ("/some/dir", None),
    ],
)
def test_the_unit_is_the_outermost_one(path: str, unit: "str | None") -> None:
    owner = v2(path)
    assert (owner.unit, owner.user_unit, owner.container) == (unit, False, None)


def test_a_login_session_is_no_unit_that_one_could_stop() -> None:
    owner = v2("/user.slice/user-1000.slice/session-12.scope")
    assert owner == CgroupOwner(uid=1000, slice="user-1000.slice", scope="session-12.scope", session="12")


def test_a_unit_of_a_user_is_the_users() -> None:
    owner = v2("/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service")
    assert (owner.unit, owner.user_unit, owner.uid, owner.slice) == ("vllm.service", True, 1000, "app.slice")
    scope = v2("/user.slice/user-7.slice/user@7.service/app.slice/tmux-spawn-1.scope")
    assert (scope.unit, scope.user_unit, scope.uid) == ("tmux-spawn-1.scope", True, 7)
    manager = v2("/user.slice/user-7.slice/user@7.service/init.scope")
    assert (manager.unit, manager.user_unit, manager.scope) == (None, False, "init.scope")


@pytest.mark.parametrize(
    ("path", "container", "runtime", "unit"),
    [
        ("/system.slice/docker-%s.scope" % ID, ID, "docker", None),
        ("/docker/%s" % ID, ID, "docker", None),
        ("/user.slice/user-1.slice/user@1.service/app.slice/docker-%s.scope" % ID, ID, "docker", None),
        ("/machine.slice/libpod-%s.scope/container" % ID, ID, "podman", None),
        ("/machine.slice/libpod-conmon-%s.scope" % ID, ID, "podman", None),
        ("/user.slice/user-1.slice/user@1.service/user.slice/libpod-%s.scope" % ID, ID, "podman", None),
        ("/libpod_parent/libpod-%s" % ID, ID, "podman", None),
        ("/system.slice/llm.service/libpod-payload-%s" % ID, ID, "podman", "llm.service"),  # a quadlet
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podab.slice/cri-containerd-%s.scope" % ID,
            ID, "containerd", None,
        ),
        ("/system.slice/containerd.service/kubepods-podab.slice:cri-containerd:%s" % ID, ID, "containerd", "containerd.service"),
        ("/system.slice/nerdctl-%s.scope" % ID, ID, "containerd", None),
        ("/kubepods.slice/kubepods-podab.slice/crio-%s.scope" % ID, ID, "cri-o", None),
        ("/kubepods/burstable/podab/%s" % ID, ID, "kubernetes", None),
        ("/%s" % ID, ID, "unknown", None),
        ("/lxc.payload.web", "web", "lxc", None),
        ("/lxc/web/init.scope", "web", "lxc", None),
        ("/machine.slice/systemd-nspawn@gpu\\x2dbox.service/payload/system.slice/vllm-a.service", "gpu-box", "systemd-nspawn", None),
        ("/machine.slice/machine-gpu01.scope/payload/init.scope", "gpu01", "systemd-nspawn", None),
        ("/machine.slice/machine-qemu\\x2d1\\x2dwin.scope/libvirt/emulator", "1-win", "libvirt", None),
        ("/system.slice/slurmstepd.scope/job_77/step_0/user/task_0", "job_77", "slurm", "slurmstepd.scope"),
        ("/slurm/uid_1000/job_77/step_0", "job_77", "slurm", None),
    ],
)
def test_containers_and_machines_are_known_by_their_cgroups(path: str, container: str, runtime: str, unit: "str | None") -> None:
    owner = v2(path)
    assert (owner.container, owner.runtime, owner.unit) == (container, runtime, unit)


def test_the_containers_own_systemd_means_nothing_outside() -> None:
    owner = v2("/system.slice/docker-%s.scope/system.slice/sshd.service" % ID)
    assert (owner.unit, owner.scope) == (None, "docker-%s.scope" % ID)


@given(st.text(max_size=200))
def test_any_text_is_read_without_an_error(text: str) -> None:
    owner = owner_of(text)
    assert owner.unit is None or "/" not in owner.unit
    assert isinstance(systemd_path(text), str)


@given(st.lists(st.sampled_from(["system.slice", "x.service", "user@5.service", "docker", ID, "session-1.scope", "..", ""]), max_size=8))
def test_any_path_of_known_parts_is_read(parts: "list[str]") -> None:
    owner = v2("/" + "/".join(parts))
    assert not (owner.user_unit and owner.uid is None)
