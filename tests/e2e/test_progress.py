# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a person sees of a swap while it runs, and that neither a broken connection nor a dead controller fails it."""

from __future__ import annotations

import json
import os
import re
import signal
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.live import LiveSwap
from e2e.playbook import Ran, playbook

from lab import Host, Lab

OLD, NEW = "minimax-m2.5", "kimi-k2.5-int4"
# Several swaps of three hosts in a row, each with its load.
pytestmark = pytest.mark.timeout(900)
LOAD_S = 14.0
STOP_S = 3.0
LINE = r"^{} +\d+ s  .*$"


def swap(model: str, *arguments: str, **more: object) -> Ran:
    return playbook("swap_model", "-e", f"model={model}", *arguments, **more)  # type: ignore[arg-type]


def lines(out: str, host: str) -> list[str]:
    """What was said of one host's progress."""
    return re.findall(LINE.format(re.escape(host)), out, re.M)


@pytest.fixture
def fleet(lab: Lab) -> Iterator[dict[str, Host]]:
    """Three clean hosts whose servers take their time to load."""
    lab.reset()
    for host in lab.hosts.values():
        host.vllm.behave("*", load_seconds=LOAD_S)
    yield lab.hosts


@pytest.fixture
def one(lab: Lab) -> Iterator[Host]:
    """One clean host that serves the old model; the next one takes its time to load."""
    host = lab.hosts["gpu01"]
    host.reset()
    swap(OLD, "-e", "target=gpu01").expect()
    host.vllm.behave("*", load_seconds=LOAD_S)
    yield host


def test_the_terminal_tells_of_each_host_and_nothing_where_output_is_for_machines(fleet: dict[str, Host], tmp_path: Path) -> None:
    three = swap(OLD, "-e", "batch=3").expect()
    for name in fleet:
        said = lines(three.out, name)
        assert 2 <= len(said) <= 14, three.out
        assert any(f"loading {OLD}" in line for line in said), said
        assert any(re.search(r"GPUs \d+(\.\d)? of \d+ GiB", line) for line in said), said
    # A stop that is over within half a second is not worth a line.
    fleet["gpu01"].vllm.behave(OLD, load_seconds=LOAD_S, slow_stop=STOP_S)
    single = swap(NEW, "-e", "target=gpu01").expect()
    said = lines(single.out, "gpu01")
    stop, load = (next((at for at, line in enumerate(said) if text in line), None) for text in ("stopping what serves", "loading kimi"))
    assert stop is not None and load is not None and stop < load, single.out
    assert any("shards" in line for line in said), said
    # A callback of the very name that machines read.
    (tmp_path / "json.py").write_text(textwrap.dedent('''
        import json
        from ansible.plugins.callback import CallbackBase

        DOCUMENTATION = "name: json\\ntype: stdout\\nshort_description: one document\\ndescription: [one document]\\n"

        class CallbackModule(CallbackBase):
            CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "stdout", "json"

            def v2_playbook_on_stats(self, stats):
                print(json.dumps({host: stats.summarize(host) for host in stats.processed}))
    '''))
    env = {"ANSIBLE_STDOUT_CALLBACK": "json", "ANSIBLE_CALLBACK_PLUGINS": str(tmp_path)}
    machine = swap(OLD, "-e", "target=gpu01", env=env).expect()
    assert json.loads(machine.out)["gpu01"]["changed"] == 1, machine.out


def lose_connection(live: LiveSwap, host: Host) -> None:
    """SIGKILL to the shared connection while the change is followed through it.

    Just after a line is printed nothing runs there: what comes next opens a new connection, and nothing was lost.
    """
    end = time.monotonic() + 60
    while "The connection was lost" not in live.out:
        assert time.monotonic() < end, live.out
        host.run("until pgrep -f '[c]hange.pyz attend' > /dev/null; do sleep 0.05; done")
        masters = live.masters()
        assert masters
        for pid in masters:
            os.kill(pid, signal.SIGKILL)
        time.sleep(1.0)  # for the warning to be printed


def test_a_shared_connection_that_is_killed_fails_nobody(one: Host, tmp_path: Path) -> None:
    with LiveSwap(tmp_path, NEW, "-e", "target=gpu01") as live:
        live.wait_for(f"loading {NEW}")
        lose_connection(live, one)
        assert live.end() == 0, live.out
        assert "gpu01: The connection was lost" in live.out and "answers again" in live.out
        assert re.search(r"^gpu01 .*unreachable=0 +failed=0", live.out, re.M), live.out
    assert swap(NEW, "-e", "target=gpu01").expect().changed == {"gpu01": 0}


def test_a_killed_controller_is_followed_by_the_same_command_and_another_swap_is_refused(one: Host, tmp_path: Path) -> None:
    one.vllm.behave("*", load_seconds=5 * LOAD_S)  # two more playbooks have to come before its end, also on a busy machine
    with LiveSwap(tmp_path, NEW, "-e", "target=gpu01") as live:
        live.wait_for(f"loading {NEW}")
        live.kill()
    other = swap("qwen3-0.6b", "-e", "target=gpu01").expect(2)
    said = " ".join(other.out.split())
    assert re.search(r"Another change of this host's services is under way: vllm_service started kimi\S+, begun by \S+", said), other.out
    assert re.search(r"since 20\d\d-", other.out), other.out
    again = swap(NEW, "-e", "target=gpu01", reports=tmp_path / "reports").expect()
    assert again.report is not None
    assert again.report["hosts"]["gpu01"]["job"]["attached"] is True, again.report["hosts"]["gpu01"]
    assert again.report["rows"][0]["after"] == NEW
    assert lines(again.out, "gpu01"), again.out
