# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guard as one executable file."""

from __future__ import annotations

from .._core.zipapp import build

# Until the host goes down.
UNPACKED = "/run/gpufleet/guard-code"


def build_guard() -> bytes:
    """The zipapp's bytes. Raises GpuFleetError when a source can't be had (bytecode-only installations)."""
    return build("_guard.main", "gpufleet_guard", UNPACKED)


def sent_along() -> object:
    """Never called, and loads nothing so: what Ansible sends to a host is what is imported anywhere in the text."""
    from . import main

    return main
