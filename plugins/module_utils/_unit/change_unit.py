# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unit that carries out a change of services and survives whoever began it, as text.

It is started by hand for each change, again by systemd when it is killed, and at every boot; without a change that was begun
and not finished its condition keeps it from running.
"""

from __future__ import annotations

from .quote import exec_command
from .render import HEADER

CHANGE_UNIT = "gpufleet-change.service"
RECORD = "record.json"
# A roll-back takes as long as the old server's load. A host that shuts down is not held up by it: the job leaves at once then.
_STOP_S = 7200
# A job that is killed again and again is left alone; whoever runs the module next starts it once more.
_STARTS = 5
_STARTS_WITHIN_S = 600


def render_change_unit(program: str, directory: str, python: str = "/usr/bin/python3") -> str:
    """The unit file. ``directory`` is where the record of a change lies while it is not finished."""
    lines = [
        "[Unit]",
        "Description=gpufleet.vllm: a change of this host's vLLM services",
        "ConditionPathExists=%s/%s" % (directory, RECORD),
        # Ordering only: a host without these services goes on all the same.
        "After=network-online.target nvidia-fabricmanager.service nvidia-persistenced.service",
        "StartLimitIntervalSec=%d" % _STARTS_WITHIN_S,
        "StartLimitBurst=%d" % _STARTS,
        "",
        "[Service]",
        "Type=exec",
        "ExecStart=%s %s run" % (exec_command(python, "python"), program),
        "Restart=on-failure",
        "RestartSec=1",
        "KillMode=mixed",
        "TimeoutStopSec=%d" % _STOP_S,
        # The record holds the secrets of the service.
        "UMask=0077",
        "LimitCORE=0",
        # Who brings the server back must not be the one that is chosen when memory runs out.
        "OOMScoreAdjust=-500",
        "SyslogIdentifier=gpufleet-change",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return HEADER + "\n".join(lines) + "\n"
