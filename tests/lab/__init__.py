# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab: real systemd hosts on one Linux machine, with a simulated GPU driver.

``Lab`` and ``Host`` are the interface for tests; ``python3 -m lab`` is the command line. Both names are imported
on first use, so that the small programs below this package (the driver process, for one) start quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.errors import LabError
    from lab.fleet import Lab
    from lab.host import Host
    from lab.plan import HostSpec

__all__ = ["Host", "HostSpec", "Lab", "LabError"]

_HOMES = {"Lab": "lab.fleet", "Host": "lab.host", "HostSpec": "lab.plan", "LabError": "lab.errors"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
