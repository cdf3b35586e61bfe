# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A service's name as the names of its unit and files."""

from __future__ import annotations

import re

from .._core.errors import GpuFleetError

# Unit names are at most 255 characters with their suffix and the drop-in directory's ".d".
_MAX_LENGTH = 128
_SAFE = re.compile(r"^[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?\Z")


def slug(name: str) -> str:
    """``name`` in lower case with every run of other characters than ``a-z0-9._`` as one hyphen.

    Raises GpuFleetError for what can't be made safe: nothing left, too long, or not a text. ``@`` never survives:
    it would make the unit a template instance.
    """
    if not isinstance(name, str):
        raise GpuFleetError("name: a service's name must be text, not %r." % (name,))
    text = re.sub(r"[^a-z0-9._]+", "-", name.lower())
    text = re.sub(r"\.{2,}", ".", text).strip("-._")
    if not text or not _SAFE.match(text):
        raise GpuFleetError("name: %r can't be made a unit's name. Use letters, digits, '.', '-' or '_'." % (name,))
    if len(text) > _MAX_LENGTH:
        raise GpuFleetError("name: %r is too long for a unit's name (at most %d characters). Choose a shorter one." % (name, _MAX_LENGTH))
    return text


def unit_name(name: str) -> str:
    """``vllm-<slug>.service``."""
    return "vllm-%s.service" % slug(name)
