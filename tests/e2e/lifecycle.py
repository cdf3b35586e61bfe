# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lifecycle matrix of vllm_service: every state from every state of systemd.

Each cell: check mode touches nothing and says what the run then does; the run ends as the table says, with at most one
reload; the run again changes nothing, restarts nothing and reloads nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from e2e.direct import SMALL, UNIT, service, thrice

from lab import Host

HOLD_START, HOLD_STOP = "/run/hold-start", "/run/hold-stop"
FILE = f"/etc/systemd/system/{UNIT}"
# The holds make the states that only last for moments last.
OPTIONS = {
    "Service": {
        "RestartSec": "300",
        "ExecStartPre": f"/bin/sh -c 'while test -e {HOLD_START}; do sleep 0.05; done'",
        "ExecStop": f"/bin/sh -c 'while test -e {HOLD_STOP}; do sleep 0.05; done'",
    }
}
DECLARED: dict[str, Any] = {**SMALL, "unit_options": OPTIONS, "secrets": {"VLLM_API_KEY": "sk-a b"}}


def _until(host: Host, **wanted: str) -> None:
    end = time.monotonic() + 20
    while True:
        seen = host.systemctl_show(UNIT, list(wanted))
        if seen == wanted:
            return
        assert time.monotonic() < end, f"{seen}, not {wanted}\n{host.journal(UNIT, '--lines', '40')}"
        time.sleep(0.05)


def _apply(host: Host, state: str) -> None:
    done = service(host, **{**DECLARED, "state": state})
    assert not done["failed"], done


def _present(host: Host) -> None:
    _apply(host, "present")


def _active(host: Host) -> None:
    _apply(host, "started")


def _nothing(host: Host) -> None:
    pass


def _activating(host: Host) -> None:
    _present(host)
    host.run(f"touch {HOLD_START}; systemctl start --no-block {UNIT}")
    _until(host, ActiveState="activating", SubState="start-pre")


def _deactivating(host: Host) -> None:
    _active(host)
    host.run(f"touch {HOLD_STOP}; systemctl stop --no-block {UNIT}")
    _until(host, ActiveState="deactivating")


def _dying(host: Host, exit_code: int) -> None:
    _present(host)
    host.vllm.behave("small", die_at_load={"phase": "config", "process": "api", "exit_code": exit_code})


def _auto_restart(host: Host) -> None:
    _dying(host, 1)
    host.run(["systemctl", "start", UNIT])
    _until(host, ActiveState="activating", SubState="auto-restart")


def _failed(host: Host) -> None:
    _dying(host, 2)
    host.run(["systemctl", "start", UNIT])
    _until(host, ActiveState="failed", Result="exit-code")


def _start_limit(host: Host) -> None:
    _dying(host, 2)
    # The first start that is refused at once; Result stays that of the failure before it.
    ended = f"while systemctl is-active -q {UNIT}; do sleep 0.1; done"
    host.run(f"for i in 1 2 3 4 5; do systemctl start {UNIT} || exit 0; {ended}; done; exit 1")
    _until(host, ActiveState="failed")


def _masked(host: Host) -> None:
    _present(host)
    host.run(f"rm {FILE}; systemctl mask {UNIT}; systemctl daemon-reload")
    _until(host, LoadState="masked")


def _masked_while_it_runs(host: Host) -> None:
    _active(host)
    host.run(f"rm {FILE}; systemctl mask {UNIT}; systemctl daemon-reload")
    _until(host, LoadState="masked", ActiveState="active")


def _without_its_file(host: Host) -> None:
    _active(host)
    host.run(f"rm -r {FILE} {FILE}.d; systemctl daemon-reload")
    _until(host, LoadState="not-found", ActiveState="active")


def _file_gone_unread(host: Host) -> None:
    _active(host)
    host.run(f"rm {FILE}")


def _all_files_gone(host: Host) -> None:
    _active(host)
    host.run(f"rm -r {FILE} {FILE}.d /etc/vllm/small.*; systemctl daemon-reload")
    _until(host, LoadState="not-found", ActiveState="active")


def _config_gone(host: Host) -> None:
    _present(host)
    host.run("rm /etc/vllm/small.yaml")


def _engine_died(host: Host) -> None:
    """vLLM ends with status 0 then."""
    _active(host)
    host.run(f"systemctl kill --kill-whom=main -s TERM {UNIT}")
    _until(host, ActiveState="activating", SubState="auto-restart", Result="success")


# What a run comes to:
#   same       nothing is done, no process is touched
#   starts     it is done, and a new process serves in the end
#   waits      nothing is done but to wait until what is on its way up serves
#   keeps      files are written, no process is touched
#   stops      no process in the end
#   gone       no process and no file in the end
#   refused    it fails, says what to do, and nothing is touched
STATES = ("started", "restarted", "present", "stopped", "absent")
DOWN = "starts starts same same gone"
UP = "same starts same stops gone"
MATRIX: dict[str, tuple[Callable[[Host], None], str, str]] = {
    "not there": (_nothing, "starts starts keeps same same", ""),
    "inactive": (_present, DOWN, ""),
    "active": (_active, UP, ""),
    "activating": (_activating, "waits starts same stops gone", HOLD_START),
    "deactivating": (_deactivating, "starts starts same stops gone", HOLD_STOP),
    "auto-restart": (_auto_restart, "starts starts same stops gone", ""),
    "engine died": (_engine_died, "starts starts same stops gone", ""),
    "failed": (_failed, DOWN, ""),
    "start limit hit": (_start_limit, DOWN, ""),
    "masked": (_masked, "refused refused refused same gone", ""),
    "masked while it runs": (_masked_while_it_runs, "refused refused refused stops gone", ""),
    "running without its file": (_without_its_file, "starts starts keeps stops gone", ""),
    "running, file gone, not read again": (_file_gone_unread, "starts starts keeps stops gone", ""),
    "running without any of its files": (_all_files_gone, "starts starts keeps stops gone", ""),
    "file without its configuration": (_config_gone, "starts starts keeps same gone", ""),
}
CELLS = [(state, name) for name in MATRIX for state in STATES]
NAMES = [f"{state}-from-{name.replace(' ', '-')}" for state, name in CELLS]


def wipe(machine: Host) -> None:
    """Take every trace of the service away; what belongs to no service stays."""
    machine.run(
        f"rm -f {HOLD_START} {HOLD_STOP}; systemctl kill -s KILL {UNIT} 2>/dev/null; rm -rf {FILE} {FILE}.d /etc/vllm/small.*;"
        f"systemctl daemon-reload; systemctl stop {UNIT}; systemctl reset-failed {UNIT} 2>/dev/null; true"
    )
    machine.vllm.clear()
    machine.vllm.behave("*", load_seconds=0.1)


def hold_to(host: Host, state: str, name: str) -> None:
    """One cell: ``state`` asked for on a host in the state that ``name`` stands for."""
    provoke, expected, release = MATRIX[name]
    wanted = expected.split()[STATES.index(state)]
    wipe(host)
    provoke(host)
    host.vllm.behave("small", die_at_load=None)
    seen = thrice(host, release="" if wanted == "same" else release, **{**DECLARED, "state": state})
    before, after, end = seen["before"]["unit"], seen["after"]["unit"], seen["end"]["unit"]
    planned, done, again = seen["planned"], seen["done"], seen["again"]

    assert seen["still"] == seen["before"], "check mode changed something"
    for part in ("failed", "changed", "actions", "files", "diff"):
        assert planned.get(part) == done.get(part), f"check mode said otherwise: {part}"
    assert done["failed"] == (wanted == "refused"), done.get("msg")
    assert done["changed"] == (wanted in ("starts", "keeps", "stops", "gone")), done["actions"]
    unit_files = [entry["path"] for entry in done["files"] if "/etc/systemd/" in entry["path"]]
    assert seen["reloads"] == [1 if unit_files else 0, 0]
    _ended(wanted, before, after, done)
    if wanted == "gone":
        left = [entry[0] for entry in seen["after"]["files"] if "small" in entry[0] and not entry[0].startswith("/var/lib/")]
        assert left == ([FILE] if name.startswith("masked") else []), "only the administrator's mask stays"
    if state != "restarted" and wanted != "refused":
        assert not again["failed"] and not again["changed"] and again["actions"] == [], again
        assert end == after, "the run again touched the unit"


def _ended(wanted: str, before: dict[str, str], after: dict[str, str], done: dict[str, Any]) -> None:
    """Hold the unit against what the run had to come to."""
    process = ("ActiveState", "SubState", "InvocationID", "MainPID", "NRestarts")
    if wanted in ("starts", "waits"):
        assert done["ready"] and done["served_models"] == ["small"], done
        assert (after["ActiveState"], after["SubState"], after["NRestarts"]) == ("active", "running", "0")
        assert (after["InvocationID"] == before["InvocationID"]) == (wanted == "waits")
        assert after["NeedDaemonReload"] == "no"
    elif wanted in ("same", "keeps", "refused"):
        assert [after[name] for name in process] == [before[name] for name in process]
    else:
        assert after["MainPID"] == "0" and after["ActiveState"] in (("inactive", "failed") if wanted == "stops" else ("inactive",))
    if wanted == "refused":
        assert "systemctl unmask" in done["msg"] and "Nothing was touched" in done["msg"]
