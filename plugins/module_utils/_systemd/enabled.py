# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a unit starts at boot, as it stands on disk."""

from __future__ import annotations

import glob
import os

_PLACES = (("etc/systemd/system", "enabled"), ("run/systemd/system", "enabled-runtime"))


def enabled_state(unit: str, told: str, root: str = "/") -> str:
    """systemd's ``UnitFileState`` with what it may have missed put right.

    The property is remembered from the first time somebody asked until the next daemon-reload, so it is wrong after an
    enable or disable without one. Only these states are looked up again; masked, static and the like stand as told.
    """
    if told not in ("enabled", "enabled-runtime", "disabled"):
        return told
    for place, state in _PLACES:
        for kind in ("wants", "requires"):
            pattern = os.path.join(root, place, "*." + kind, glob.escape(unit))
            if any(os.path.islink(path) for path in glob.iglob(pattern)):
                return state
    return "disabled"
