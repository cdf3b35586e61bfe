# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether somebody sits at a shell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._process.shells import is_interactive_shell, of_a_person
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._process.test_rules import process


@pytest.mark.parametrize("words", [
    "bash", "-bash", "rbash", "-su", "busybox ash", "pwsh", "pwsh -NoLogo", "xonsh", "nu", "elvish", "bash -o vi", "bash --rcfile x",
    "fish --init-command X", "zsh -i", "bash -l", "bash -ic x", "/usr/bin/python3 /usr/bin/xonsh", "ksh93",
    "bash --login", "-bash -l", "bash -C", "fish -C x", "bash -li x.sh", "-su -s", "bash -eo pipefail",
    "pwsh -NoExit -File x.ps1", "pwsh -ExecutionPolicy Bypass", "nu -e x", "bash -i -c x", "bash -s",
])
def test_a_shell_that_waits_for_somebodys_input_is_interactive(words: str) -> None:
    assert is_interactive_shell(process(words.split()))


@pytest.mark.parametrize("words", [
    "bash x.sh", "sh -c x", "bash -o pipefail x.sh", "bash -euc x", "busybox sh x", "fish --command x",
    "/usr/bin/python3 /usr/bin/xonsh x.xsh",
    "python3 train.py", "python3", "nginx", "sshd", "bash -o pipefail -c x", "busybox httpd",
    "bash --login -c x", "bash -l x.sh", "bash -lc x",
    "bash -C x.sh", "fish -l x.fish", "fish -C x x.fish", "bash --rcfile x y.sh", "zsh -l x.zsh", "-bash -c x", "-su -c x",
    "bash -l -o vi x.sh",
    "bash -leo pipefail x.sh", "bash --noprofile --norc x.sh", "nu -l x.nu", "pwsh -NonInteractive -File x.ps1", "pwsh -Command x",
    "pwsh -ExecutionPolicy Bypass -File x.ps1", "pwsh -c x",
])
def test_a_shell_that_runs_a_script_is_not(words: str) -> None:
    info = process(words.split())
    assert not is_interactive_shell(info) and not of_a_person(info)
    assert of_a_person(replace(info, terminal=34816))
