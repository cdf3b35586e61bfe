# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The arguments are held against what the installed version knows; a wrong refusal is as bad as a wrong pass."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.runner import Completed, Runner
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.parallel import Check
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.arguments import check_arguments
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.asked import Asked, Places
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.installed import find_installation
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.parser_source import arguments_of_source
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._preflight.environment import make

HELP = "usage: vllm serve [model_tag] [options]\n" + "".join(f"  --option-{number} X\n" for number in range(50))


class Command(Runner):
    """A vllm command that gives this help, or fails."""

    def __init__(self, text: str = "", rc: int = 0) -> None:
        self.text, self.rc, self.asked = text, rc, 0

    def run(self, argv: Sequence[str], timeout: float = 30.0, stdin: str | None = None, env: Mapping[str, str] | None = None) -> Completed:
        self.asked += 1
        assert list(argv)[-3:][1:] == ["serve", "--help=all"]
        return Completed(tuple(argv), self.rc, self.text, "")


def check(executable: Path, args: dict[str, Any], command: Command | None = None, records: Path | None = None) -> Check:
    places = Places(records=str(records or executable.parent / "nowhere"))
    asked = Asked("/models/x", args=args, executable=str(executable))
    return check_arguments(asked, find_installation(str(executable)), places, command or Command(rc=1), remember=True)


def test_every_way_in_which_vllm_adds_arguments_is_read(tmp_path: Path) -> None:
    make(tmp_path)
    found = arguments_of_source(str(tmp_path / "lib/python3.12/site-packages/vllm"))
    assert found is not None
    assert {"max_model_len", "enable_log_requests", "headless", "api_server_count", "chat_template", "port", "runner"} <= found
    assert not found & {"model_tag", "_private", "asc", "x0"}


@pytest.mark.parametrize("damage", ["", "def broken(:\n", "\0", "x = 1\n"])
def test_source_that_cannot_be_read_whole_is_not_trusted(tmp_path: Path, damage: str) -> None:
    make(tmp_path)
    package = tmp_path / "lib/python3.12/site-packages/vllm"
    (package / "engine/arg_utils.py").write_text(damage, encoding="utf-8")
    assert arguments_of_source(str(package)) is None


@pytest.mark.parametrize(("args", "status", "said", "fix"), [
    ({"max_model_len": 1, "port": 2, "chat_template": "x"}, "pass", "all 3 arguments are known to vLLM 0.33.0", None),
    ({"compilation_config": {"mode": 3}, "no_enable_prefix_caching": True}, "pass", "known", None),
    ({"max_modle_len": 1}, "fail", "max_modle_len is unknown; the nearest is max_model_len", "Correct or remove max_modle_len."),
    ({"swap_space": 4}, "fail", "swap_space was removed from vLLM", "Leave it out"),
    ({"task": "embed"}, "fail", "task was removed", "Use runner"),
    ({"zzz_qqq": 4}, "fail", "zzz_qqq is unknown", "Correct or remove zzz_qqq."),
    ({"enable_prefix": True}, "warn", "enable_prefix is short for enable_prefix_caching", "Write enable_prefix_caching out."),
    ({}, "pass", "no engine arguments", None),
])
def test_each_argument_has_its_word(tmp_path: Path, args: dict[str, Any], status: str, said: str, fix: str | None) -> None:
    command = Command()
    found = check(make(tmp_path), args, command)
    assert (found.status, said in found.detail) == (status, True), found
    assert found.fix is None if fix is None else fix in str(found.fix), found
    assert command.asked == 0, "the source says it all"


@pytest.mark.parametrize("name", ["task", "swap_space", "disable_log_requests", "max_seq_len_to_capture", "num_scheduler_steps",
                                  "guided_decoding_backend"])
def test_removed_flags_are_named_with_what_takes_their_place(tmp_path: Path, name: str) -> None:
    found = check(make(tmp_path), {name: 1})
    assert found.status == "fail" and "removed" in found.detail and found.fix


def test_where_plugins_may_add_arguments_the_command_has_the_last_word(tmp_path: Path) -> None:
    executable = make(tmp_path)
    entry = tmp_path / "lib/python3.12/site-packages/acme-1.0.dist-info/entry_points.txt"
    entry.parent.mkdir()
    entry.write_text("[vllm.general_plugins]\nacme = acme:register\n", encoding="utf-8")
    command = Command(HELP + "  --acme-speed N\n")
    assert check(executable, {"acme_speed": 1}, command).status == "pass"
    assert check(executable, {"acme_sped": 1}, command).status == "fail"
    assert check(executable, {"max_model_len": 1}, Command(rc=1)).status == "pass"


def test_what_the_command_says_is_kept_for_this_version_alone(tmp_path: Path) -> None:
    executable = make(tmp_path / "venv")
    (tmp_path / "venv/lib/python3.12/site-packages/vllm/engine/arg_utils.py").write_text("x = 1\n", encoding="utf-8")
    records = tmp_path / "records"
    command = Command(HELP)
    assert check(executable, {"option_3": 1}, command, records).status == "pass"
    assert not records.exists(), "a host without a place for it gets none"
    records.mkdir()
    for _turn in range(3):
        assert check(executable, {"option_3": 1}, command, records).status == "pass"
    assert command.asked == 2
    kept = json.loads((records / "vllm-arguments.json").read_text(encoding="utf-8"))
    assert len(kept) == 1
    executable.write_text(executable.read_text(encoding="utf-8") + "# another\n", encoding="utf-8")
    check(executable, {"option_3": 1}, command, records)
    assert command.asked == 3
    assert len(json.loads((records / "vllm-arguments.json").read_text(encoding="utf-8"))) == 1, "the old answer goes"


@pytest.mark.parametrize("kept", ["", "[]", "{\"a\": 1}", "nonsense", "\"x\""])
def test_a_damaged_record_is_asked_anew(tmp_path: Path, kept: str) -> None:
    executable = make(tmp_path / "venv")
    (tmp_path / "venv/lib/python3.12/site-packages/vllm/engine/arg_utils.py").unlink()
    (tmp_path / "vllm-arguments.json").write_text(kept, encoding="utf-8")
    command = Command(HELP)
    assert check(executable, {"option_3": 1}, command, tmp_path).status == "pass"
    assert command.asked == 1


def test_nothing_known_is_said_and_no_wrapper_is_run(tmp_path: Path) -> None:
    wrapper = tmp_path / "vllm"
    wrapper.write_text("#!/bin/sh\n", encoding="utf-8")
    command = Command(HELP)
    assert check(wrapper, {"max_model_len": 1}, command).status == "skip"
    found = check(wrapper, {"swap_space": 1}, command)
    assert found.status == "warn" and found.fix
    assert command.asked == 0
