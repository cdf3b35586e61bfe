# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `make docs` writes itself: the page of a playbook, and antsibull-docs' pages made fit for the site."""

from __future__ import annotations

import re
from pathlib import Path

from tree import ROOT

import docs

HEAD = """---
# Does it, here | there.
#
#   ansible-playbook gpufleet.vllm.x -i inventory.yml
#
# model       which one (required). With more
#             to say
# before_host a file
#
# More can be given, see the role.

- name: A play
  hosts: all
"""


def test_a_playbooks_page_comes_from_its_head() -> None:
    assert docs.playbook_page("x", HEAD).splitlines() == [
        "# x playbook", "", "In full `gpufleet.vllm.x`.", "", "Does it, here | there.", "",
        "```shell", "ansible-playbook gpufleet.vllm.x -i inventory.yml", "```", "",
        "| variable | |", "|---|---|", "| `model` | which one (required). With more to say |", "| `before_host` | a file |", "",
        "More can be given, see the role.",
    ]  # fmt: skip


def test_a_playbooks_page_has_what_it_reads_of_its_roles_variables() -> None:
    page = docs.playbook_page("swap_model", (ROOT / "playbooks" / "swap_model.yml").read_text(encoding="utf-8"))
    of_role = page.split("It also reads, of the role [vllm_swap](vllm_swap_role.rst):\n")[1]
    shown = re.findall(r"^\| `(\w+)` \|", of_role, re.M)
    assert shown == ["vllm_swap_enabled", "vllm_swap_replace", "vllm_swap_reconnect_timeout", "vllm_swap_plan_only"]
    assert "as `replace` of `vllm_service` has it" in of_role
    # What a playbook sets itself is nobody's to set.
    assert "gpu_reclaim_accept" not in docs.playbook_page("x", (ROOT / "playbooks" / "gpu_cleanup.yml").read_text(encoding="utf-8"))


def test_a_page_of_the_reference_has_a_short_title_and_no_second_contents() -> None:
    title = "gpufleet.vllm.vllm_swap role -- Make it serve"
    text = "%s\n%s\n\n.. contents::\n   :local:\n   :depth: 2\n\n.. _here:\n" % (title, "+" * len(title))
    assert docs.tidy(text) == "vllm_swap role\n++++++++++++++\n\n\n.. _here:\n"


def test_a_page_that_shows_an_error_is_found(tmp_path: Path) -> None:
    (tmp_path / "good.html").write_text("<p>in Furo</p>", encoding="utf-8")
    (tmp_path / "bad.html").write_text('<div class="system-message">x</div>', encoding="utf-8")
    assert docs.spoilt(tmp_path) == ["bad.html"]
