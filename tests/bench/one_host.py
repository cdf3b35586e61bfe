# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A clean lab host to measure on: of the lab that is up, or of one that is brought up for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lab import Host, HostSpec, Lab
from lab.places import state_dir
from lab.record import load


@contextmanager
def one_host() -> Iterator[Host]:
    """gpu01, as fresh from its installation; a lab that was brought up here goes down at the end."""
    was_up = load(state_dir()) is not None
    fleet = Lab.up(hosts=1) if was_up else Lab.up(specs=(HostSpec("gpu01"),))
    host = fleet.hosts["gpu01"]
    try:
        host.reset()
        yield host
    finally:
        if was_up:
            host.reset()
        else:
            fleet.down()
