# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nvidia-smi as a program."""
# Runs on hosts, in one file with its package: standard library alone, Python 3.9.

from __future__ import annotations

import sys

from .cli import main


def run() -> None:
    """Run with the process's arguments and end it with the exit code."""
    sys.exit(main(sys.argv[1:]))
