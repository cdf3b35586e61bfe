# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the lab raises: every message says what is wrong, where, and what to do next."""

from __future__ import annotations


class LabError(Exception):
    """Something in the lab can't be done; the text is for a person."""


class HostCommandError(LabError):
    """A command on a host ended with a status that the caller didn't ask for.

    ``returncode``, ``stdout`` and ``stderr`` are the command's own; 255 from SSH means that the host didn't answer.
    """

    def __init__(self, host: str, command: str, returncode: int, stdout: str, stderr: str) -> None:
        self.host = host
        self.command = command
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr
        parts = [f"{host}: `{command}` ended with status {returncode}"]
        parts += [
            f"{label}:\n{text.rstrip()}" for label, text in (("stdout", stdout), ("stderr", stderr)) if text.strip()
        ]
        super().__init__("\n".join(parts))
