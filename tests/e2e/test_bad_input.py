# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a user can get wrong is said once, clearly, before anything is touched."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from e2e.playbook import playbook

from lab import Host, Lab

UNIT_FILES = "ls /etc/systemd/system/vllm-* /etc/vllm 2>/dev/null; systemctl list-units --all --plain --no-legend 'vllm-*'"


def catalogue(**entry: object) -> str:
    """Extra variables with a catalogue of one entry of the tests' own."""
    return json.dumps({"model": "mine", "vllm_models": {"mine": entry}})


def refused(host: Host, *arguments: str) -> str:
    """What the user reads when the swap is refused; nothing on the host may have changed."""
    before = host.run(UNIT_FILES, check=False).stdout
    done = playbook("swap_model", "--limit", f"localhost,{host.name}", *arguments).expect(rc=2)
    assert host.run(UNIT_FILES, check=False).stdout == before == ""
    assert "Traceback" not in done.out, done.out
    return " ".join(done.out.split())


@pytest.fixture(scope="module")
def clean(lab: Lab) -> Host:
    """One host on which nothing was deployed; no test of this file may change that."""
    chosen = lab.hosts["gpu01"]
    chosen.reset()
    return chosen


CATALOGUE_FAULTS = {
    "no model": ([], ["no model was given", "-e model=", "kimi-k2.5-int4", "minimax-m2.5"]),
    "unknown model": (["-e", "model=kimi-k2.5"], ["'kimi-k2.5' is not in the catalogue", "did you mean 'kimi-k2.5-int4'?", "qwen3-0.6b"]),
    "no host": (["-e", "model=qwen3-0.6b", "-e", "target=gpu_hots"], ["No host matches", "gpu_hots", "ansible-inventory --graph"]),
    "unknown key": (["-e", catalogue(path="/models/MiniMax-M2.5", gpu=[0])], ["'gpu'", "did you mean 'gpus'?", "Allowed: path, repo"]),
    "wrong type": (["-e", catalogue(path="/models/MiniMax-M2.5", port="eight")], ["vllm_models['mine'].port", "whole number"]),
    "no path": (["-e", catalogue(gpus=[0])], ["needs `path`", "`repo`"]),
    "an argument that has its own key": (
        ["-e", catalogue(path="/models/MiniMax-M2.5", args={"port": 9000})], ["args.port", "`port`"],
    ),
    "a secret as an argument": (
        ["-e", catalogue(path="/models/MiniMax-M2.5", args={"api_key": "s3cr3t"})], ["args.api_key", "VLLM_API_KEY"],
    ),
}


@pytest.mark.parametrize("fault", CATALOGUE_FAULTS)
def test_a_faulty_request_is_refused_by_the_controller(clean: Host, fault: str) -> None:
    arguments, said = CATALOGUE_FAULTS[fault]
    text = refused(clean, *arguments)
    for part in said:
        assert part in text, text
    assert "s3cr3t" not in text


HOST_FAULTS = {
    "model directory absent": (catalogue(path="/models/Nobody", gpus=[0]), ["/models/Nobody does not exist", "nothing was touched"]),
    "vLLM absent": (
        catalogue(path="/models/Qwen3-0.6B", gpus=[0], executable="/opt/other/bin/vllm"), ["/opt/other/bin/vllm does not exist"],
    ),
    "GPU absent": (catalogue(path="/models/Qwen3-0.6B", gpus=[0, 8]), ["GPU '8' is not on this host", "This host has: 0"]),
    "too few GPUs": (
        catalogue(path="/models/MiniMax-M2.5", gpus=[0, 1], args={"tensor_parallel_size": 4}), ["needs 4 GPUs, the service has 2"],
    ),
    "an argument of vLLM that is ours": (
        catalogue(path="/models/Qwen3-0.6B", gpus=[0], unit_options={"Service": "Nice=5"}), ["unit_options"],
    ),
}


@pytest.mark.parametrize("fault", HOST_FAULTS)
def test_what_the_host_cannot_do_is_refused_before_anything_is_stopped(clean: Host, fault: str) -> None:
    variables, said = HOST_FAULTS[fault]
    text = refused(clean, "-e", variables)
    for part in said:
        assert part in text, text


@contextmanager
def _no_driver(host: Host) -> Iterator[list[str]]:
    host.gpu.preset("no_driver")
    try:
        yield []
    finally:
        host.gpu.clear()


@contextmanager
def _no_gpu(host: Host) -> Iterator[list[str]]:
    host.gpu.scenario(gpus=[])
    try:
        yield []
    finally:
        host.gpu.clear()


@contextmanager
def _no_root(host: Host) -> Iterator[list[str]]:
    host.run(
        "useradd --create-home walker && mkdir -p ~walker/.ssh && cp /root/.ssh/authorized_keys ~walker/.ssh/ "
        "&& chown -R walker ~walker/.ssh && chmod 700 ~walker/.ssh"
    )
    try:
        yield ["-e", "ansible_user=walker", "-e", "ansible_become=false"]
    finally:
        host.run("userdel --force --remove walker 2>/dev/null", check=False)


@contextmanager
def _no_systemd(host: Host) -> Iterator[list[str]]:
    host.enter(["mount", "-t", "tmpfs", "none", "/run/systemd"])
    try:
        yield []
    finally:
        host.enter(["umount", "/run/systemd"])


Provoked = Callable[[Host], AbstractContextManager[list[str]]]
STATES: dict[str, tuple[Provoked, list[str]]] = {
    "no driver": (_no_driver, ["GPUs of this host cannot be read", "no_driver"]),
    "no GPU": (_no_gpu, ["shows no GPU on this host"]),
    "no root": (_no_root, ["needs root", "become: true"]),
    "no systemd": (_no_systemd, ["systemd is not running", "PID 1"]),
}


@pytest.mark.parametrize("state", STATES)
def test_a_host_that_cannot_be_managed_says_why(clean: Host, state: str) -> None:
    provoke, said = STATES[state]
    with provoke(clean) as arguments:
        done = playbook("swap_model", "--limit", f"localhost,{clean.name}", "-e", "model=qwen3-0.6b", *arguments).expect(rc=2)
    text = " ".join(done.out.split())
    for part in said:
        assert part in text, text
    assert "Traceback" not in text
    assert clean.run(UNIT_FILES, check=False).stdout == ""
