# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands as examples give them: taken apart as the shell does, and what of them is not there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import yaml
from ansible.cli.adhoc import AdHocCLI
from ansible.cli.playbook import PlaybookCLI
from ansible.parsing.splitter import parse_kv

from .blocks import ROOT, examples
from .known import NAMESPACE, filters, make_targets, modules, options_of_modules, options_of_roles, playbooks
from .values import wrong_values

CLIS = {"ansible-playbook": PlaybookCLI, "ansible": AdHocCLI}
# Programs of others, whose arguments nobody here can look up.
OTHERS = {
    "ansible-galaxy", "ansible-vault", "cd", "chmod", "cp", "curl", "echo", "export", "git", "journalctl", "jq", "pip", "printf",
    "python3", "rm", "sudo", "systemctl", "taskset", "umask",
}  # fmt: skip
# In an example's text: the name of the file that it shows.
FILES = {found for block in examples("yaml") for found in re.findall(r"^# ([\w.-]+\.yml)\b", block.text, re.M)}


def commands(text: str) -> Iterator[list[str]]:
    """The commands of an example, taken apart as the shell does."""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = shlex.split(line, comments=True)
        while words:
            end = next((at for at, word in enumerate(words) if word in ("&&", "|", ";")), len(words))
            command = [word.strip("()") if at in (0, end - 1) else word for at, word in enumerate(words[:end])]
            # Variables of its own stand before a command, as many as it likes.
            at = next((at for at, word in enumerate(command) if not re.match(r"[A-Za-z_]\w*=", word)), len(command))
            if command[at:]:
                yield command[at:]
            words = words[end + 1 :]


def given(value: str) -> dict[str, Any]:
    """The variables of one ``-e``, as Ansible reads them. A file of variables is one that the pages show."""
    if value.startswith("@"):
        name = value.rsplit("/", 1)[-1].removeprefix("@")
        assert name in FILES, "%s is a file that no example shows" % name
        return {}
    if value.startswith(("{", "[")):
        read: dict[str, Any] = yaml.safe_load(value)
        return read
    pairs: dict[str, Any] = parse_kv(value)
    assert "_raw_params" not in pairs, "%r is no name=value" % value
    return pairs


def problems(words: list[str]) -> list[str]:
    """What of a command is not there."""
    program, rest = words[0].rsplit("/", 1)[-1], words[1:]
    if program in OTHERS:
        return []
    if program == "make":
        return ["make %s" % word for word in rest if "=" not in word and word not in make_targets()]
    if program == "ansible-doc":
        known = set(modules()) | filters()
        return [word for word in rest if "." in word and word.removeprefix(NAMESPACE) not in known]
    if program == "python" and rest[:2] == ["-m", "pytest"]:
        return ["the tests %s" % word for word in rest[2:] if not word.startswith("-") and not (ROOT / word).exists()]
    if program not in CLIS:
        return ["the command %s" % program]
    try:
        cli = CLIS[program](list(words))
        cli.init_parser()
        options = cli.parser.parse_args(rest)
    except SystemExit:
        return ["an option of %s" % program]
    extra = [given(value) for value in options.extra_vars or []]
    if program == "ansible":
        name = options.module_name.removeprefix(NAMESPACE)
        if name == options.module_name:
            return []
        if name not in modules():
            return [name]
        pairs = parse_kv(options.module_args)
        return sorted(set(pairs) - modules()[name]) + wrong_values(pairs, options_of_modules()[name])
    found = [wrong for pairs in extra for wrong in wrong_values(pairs, options_of_roles())]
    for playbook in options.args:
        name = playbook.removeprefix(NAMESPACE).removeprefix("playbooks/")
        if name in FILES:
            continue
        stem = name.removesuffix(".yml")
        if stem not in playbooks():
            found.append("the playbook %s" % playbook)
        else:
            found += ["the variable %s of %s" % (each, stem) for pairs in extra for each in pairs if each not in playbooks()[stem]]
    return found
