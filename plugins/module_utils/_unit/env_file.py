# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading back the secrets file that this room renders: an old server's API key is needed to see that it serves again."""

from __future__ import annotations

import re
from typing import Dict

from .._core.files import read_bytes

_LINE = re.compile(r'^([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"$')


def parse_env_file(text: str) -> Dict[str, str]:
    """The variables of an EnvironmentFile as ``render_env_file`` writes it; lines of another form are passed over."""
    found = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is not None:
            found[match.group(1)] = re.sub(r"\\(.)", r"\1", match.group(2))
    return found


def read_env_file(path: str) -> Dict[str, str]:
    """The same from a file; empty where there is none. Raises GpuFleetError when it cannot be read."""
    raw = read_bytes(path)
    return {} if raw is None else parse_env_file(raw.decode("utf-8", "replace"))
