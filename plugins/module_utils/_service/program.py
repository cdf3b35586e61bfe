# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that carries out a change, ``change.pyz``, as bytes. It is the same wherever it is made of the same sources."""

from __future__ import annotations

from .._core.zipapp import build

# Until the host goes down.
UNPACKED = "/run/gpufleet/code"


def build_program() -> bytes:
    """The zipapp's bytes. Raises GpuFleetError when a source can't be had (bytecode-only installations)."""
    return build("_job.main", "gpufleet_change", UNPACKED)
