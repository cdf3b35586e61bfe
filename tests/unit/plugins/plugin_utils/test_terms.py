# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The expressions in variables and files, and the names that they read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._terms import YamlFile, names_it, of_variables, read


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("{{ user }}", True),
        ("{{user|default('x')}}", True),
        ("{% if user is defined %}x{% endif %}", True),
        ("{{ lookup('ansible.builtin.vars', 'user') }}", True),
        ("{{ hostvars['gpu01'].user }}", True),
        ("{{ {'a': {'b': 1}} | combine(user) }}", True),
        ("{{ user_name }}", False),
        ("{{ the_user }}", False),
        ("{{ item.user }}", False),
        ("the user of {{ host }}", False),
        ("user", False),
    ],
)
def test_a_template_reads_the_variables_that_stand_in_its_braces(text: str, reads: bool) -> None:
    assert names_it("user", of_variables({"a": {"b": [text]}})) == reads


@pytest.mark.parametrize(
    ("task", "reads"),
    [
        ("when: path is defined", True),
        ("when: [ready, path is file]", True),
        ("assert: {that: path}", True),
        ("debug: {var: path}", True),
        ("debug: {msg: '{{ path }}'}", True),
        ("copy: {dest: '{{ item.path }}', path: /x}", False),
        ("vars: {secret: !vault path}", False),
        ("debug: {msg: path}", False),
    ],
)
def test_a_task_reads_what_stands_in_its_templates_and_conditions(task: str, reads: bool) -> None:
    assert names_it("path", YamlFile("- hosts: all\n  tasks:\n    - " + task).expressions()) == reads


@pytest.mark.parametrize("content", [b"$ANSIBLE_VAULT;1.1;AES256\n3132\n", b"\xff\xfe", b"a: [", None])
def test_what_cannot_be_read_is_none(tmp_path: Path, content: "bytes | None") -> None:
    path = tmp_path / "tasks.yml"
    if content is not None:
        path.write_bytes(content)
    assert read(path) is None
