# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's hosts as a dynamic inventory."""

from __future__ import annotations

from typing import Any

from lab import keys
from lab.host import Host
from lab.record import Record

GROUP = "gpu_hosts"


def build(found: Record) -> dict[str, Any]:
    """The answer to ``--list``: every host that came up, in the group ``gpu_hosts``."""
    hosts = [Host(found, name) for name, host in sorted(found.hosts.items()) if host.ready]
    common = {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(keys.private_key(found.state)),
        "ansible_ssh_common_args": _common_args(found),
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    return {
        GROUP: {"hosts": [host.name for host in hosts]},
        "_meta": {"hostvars": {host.name: {"ansible_host": host.address, **common} for host in hosts}},
    }


def _common_args(found: Record) -> str:
    settings = {
        "UserKnownHostsFile": str(keys.known_hosts(found.state)),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
    }
    return " ".join(["-F", "/dev/null", *(f"-o {name}={value}" for name, value in settings.items())])
