# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_reclaim run on a lab host as a task would run it, and the host put right afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from e2e.playbook import ROOT

from lab import Host


def reclaim(host: Host, *flags: str, **parameters: Any) -> dict[str, Any]:
    """Run the module on a host as a task would, with short times unless given; its result, with ``failed``."""
    arguments = {"settle": 0.3, "grace": 3, "timeout": 25, **parameters}
    command = [
        str(Path(sys.executable).parent / "ansible"), host.name, "-i", "inventories/lab", "-m", "gpufleet.vllm.gpu_reclaim",
        "-a", json.dumps(arguments), *flags,
    ]
    env = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=180, check=False)
    head, _arrow, body = done.stdout.rpartition(f"{host.name} | ")[2].partition("=> ")
    assert body, f"{done.stdout}\n{done.stderr}"
    result: dict[str, Any] = json.JSONDecoder().raw_decode(body)[0]
    result["failed"] = "FAILED" in head
    result["shown"], result["warned"] = done.stdout, " ".join(done.stderr.split())
    assert result["failed"] == (done.returncode != 0), done.stdout + done.stderr
    assert "DEPRECATION" not in done.stderr, done.stderr
    return result


def put_right(host: Host) -> None:
    """End everything that a test started (it holds a GPU or is a unit of its own), and put the driver's scenario back."""
    host.vllm.clear()
    host.run(
        "rm -f /var/lib/systemd/linger/*; systemctl stop 'user@*.service' 'vllm-*' 'old-*.service' 'job-*.scope' 'docker-*.scope'"
        " 'session-99.scope' 'neighbour*' 'train*' 'slurm*' 2>/dev/null;"
        " for fd in /proc/[0-9]*/fd; do readlink $fd/* 2>/dev/null | grep -q '^/dev/nvidia' && kill -9 $(basename $(dirname $fd)); done;"
        " rm -f /dev/shm/* /run/*.out; rm -rf /run/systemd/system/train* /run/systemd/system/neighbour* /etc/systemd/system/vllm-m.service;"
        " systemctl daemon-reload; systemctl reset-failed; true"
    )
    host.gpu.clear()
