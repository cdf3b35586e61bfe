# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment that the unit gives the server, apart from the secrets."""

from __future__ import annotations

import posixpath
from typing import Dict

from .quote import number_text
from .spec import ServiceSpec

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def unit_environment(spec: ServiceSpec) -> Dict[str, str]:
    """Every ``Environment=`` of the unit, sorted by name. What the user gave wins over what is set here."""
    home = spec.home_path
    found = {
        # Indices in the order of the PCI bus, as the driver and the guard count; CUDA's own order is by speed.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "HOME": home,
        "USER": spec.user,
        "LOGNAME": spec.user,
        # Every cache under a directory of this service alone: two services that share a compile cache corrupt it,
        # and one poisoned by another model can be thrown away without touching a neighbour's.
        "VLLM_CACHE_ROOT": posixpath.join(home, "cache/vllm"),
        "HF_HOME": posixpath.join(home, "huggingface"),
        "TORCHINDUCTOR_CACHE_DIR": posixpath.join(home, "cache/torchinductor"),
        "TRITON_CACHE_DIR": posixpath.join(home, "cache/triton"),
        "XDG_CACHE_HOME": posixpath.join(home, "cache"),
        # ninja stands beside vllm in its virtual environment and nvcc in CUDA's directory: kernels are compiled at
        # start, and systemd's own PATH has neither.
        "PATH": ":".join([posixpath.dirname(spec.executable), "/usr/local/cuda/bin", _SYSTEM_PATH]),
        # Only when set explicitly do the workers get a window to clean up in.
        "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": number_text(spec.worker_timeout_s),
        # Log lines reach the journal when they are written, not when a buffer is full.
        "PYTHONUNBUFFERED": "1",
    }
    if spec.visible_devices:
        found["CUDA_VISIBLE_DEVICES"] = spec.visible_devices
    if spec.local_model:
        found["HF_HUB_OFFLINE"] = "1"
    found.update(spec.env)
    return {name: found[name] for name in sorted(found)}
