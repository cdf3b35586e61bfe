# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What carries out a change by itself on a host: a program, made of the sources that the module runs, and its unit."""

from __future__ import annotations

import os
from typing import List

from .._core.files import WantedFile
from .._unit.change_unit import CHANGE_UNIT, render_change_unit
from .ports import Paths
from .program import build_program


def runner_files(paths: Paths) -> List[WantedFile]:
    """Both files as they should be."""
    unit = render_change_unit(paths.program, paths.change)
    return [
        WantedFile(paths.program, build_program(), mode=0o755, opaque=True),
        WantedFile(os.path.join(paths.units, CHANGE_UNIT), unit.encode("utf-8")),
    ]
