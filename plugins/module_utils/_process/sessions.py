# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a login session still has somebody logged in. Its scope alone does not tell: it stays while any process lives."""

from __future__ import annotations

from typing import Optional


def session_state(session: str, run_root: str = "/run") -> Optional[str]:
    """logind's word for a session: ``online``, ``active``, ``closing`` (the user is gone, processes stayed); None if it has none."""
    try:
        with open("%s/systemd/sessions/%s" % (run_root, session.replace("/", "_")), encoding="utf-8") as handle:
            for line in handle:
                key, _equals, value = line.strip().partition("=")
                if key == "STATE":
                    return value
    except OSError:
        return None
    return None
