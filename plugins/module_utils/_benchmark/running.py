# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the server that runs is the one that its files declare.

The fingerprint is made of files. A process that was started before one of them was written runs something else, and its figures would
be kept under the name of what it never ran.
"""

from __future__ import annotations

import os
from typing import Optional

from .._core.errors import GpuFleetError
from .._preflight.installed import Installation
from .._service.look import definition_paths, stale_reason
from .._service.ports import Ports
from .fingerprint import model_files
from .target import Target


def refuse_another_server(target: Target, installation: Optional[Installation], ports: Ports) -> None:
    """Raise GpuFleetError where a service's process is older than what its fingerprint is made of."""
    service, status = target.service, target.status
    if service is None or status is None:
        return  # of a server that this collection does not manage, nothing of its files is known
    paths = [*definition_paths(service.name, ports), *target.files]
    if os.path.isdir(target.weights):
        paths += filter(os.path.isfile, model_files(target.weights))
    reason = stale_reason(status, list(dict.fromkeys(paths)), ports.clock.time())
    if status.need_daemon_reload:
        reason = "its unit file was changed since systemd read it"
    elif reason is None and installation is not None and not _same_version(installation.version, target.server_version):
        reason = "it runs vLLM %s, and %s is vLLM %s by now" % (target.server_version, target.executable, installation.version)
    if reason is not None:
        raise GpuFleetError(
            "%s can't be measured: %s. The figures would be kept for something that it does not run. Bring it to its declared state "
            "with gpufleet.vllm.vllm_service, or restart it, then run again." % (service.unit, reason),
            target=target.name,
        )


def _same_version(installed: Optional[str], told: Optional[str]) -> bool:
    """Whether both name one version. What comes after a plus sign is the build, which not every server tells."""
    if not installed or not told:
        return True
    return installed.partition("+")[0].lower() == told.partition("+")[0].lower()
