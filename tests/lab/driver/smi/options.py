# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nvidia-smi's command line: which switches there are, and how it refuses others."""
# Runs on hosts, in one file with its package: standard library alone, Python 3.9.

from __future__ import annotations

from typing import Dict, List, Optional

from .driver import Ended

# Switch -> its one name here; those in _VALUED take a value, joined with "=" or as the next argument.
_SWITCHES: Dict[str, str] = {
    "-h": "help",
    "--help": "help",
    "--version": "version",
    "-L": "list",
    "--list-gpus": "list",
    "-q": "query",
    "--query": "query",
    "-x": "xml",
    "--xml-format": "xml",
    "-r": "reset",
    "--gpu-reset": "reset",
    "--help-query-gpu": "help_gpu",
    "--help-query-compute-apps": "help_apps",
    "-i": "id",
    "--id": "id",
    "-d": "display",
    "--display": "display",
    "-l": "loop",
    "--loop": "loop",
    "-lms": "loop_ms",
    "--loop-ms": "loop_ms",
    "-f": "file",
    "--filename": "file",
    "-pm": "persistence",
    "--persistence-mode": "persistence",
    "-c": "compute_mode",
    "--compute-mode": "compute_mode",
    "--query-gpu": "query_gpu",
    "--query-compute-apps": "query_apps",
    "--format": "format",
}

_VALUED = {
    "id",
    "display",
    "loop",
    "loop_ms",
    "file",
    "persistence",
    "compute_mode",
    "query_gpu",
    "query_apps",
    "format",
}

_HELP = "Please run 'nvidia-smi -h' for help.\n\n"


def parse(arguments: List[str]) -> Dict[str, Optional[str]]:
    """The switches that were given, by name, with their values. Raises Ended 2."""
    given: Dict[str, Optional[str]] = {}
    position = 0
    while position < len(arguments):
        switch, joined, value = arguments[position].partition("=")
        position += 1
        name = _SWITCHES.get(switch)
        if name is None:
            if not switch.startswith("-"):
                raise Ended(2, "Invalid combination of input arguments. " + _HELP)
            raise Ended(2, "ERROR: Option %s is not recognized. %s" % (switch, _HELP))
        if name not in _VALUED:
            given[name] = None
            continue
        if not joined:
            if position == len(arguments):
                raise Ended(2, "ERROR: Option %s requires an argument. %s" % (switch, _HELP))
            value = arguments[position]
            position += 1
        given[name] = value
    return given


def csv_format(text: Optional[str]) -> Dict[str, bool]:
    """Whether a query prints its header and units. Raises Ended 2."""
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    if "csv" not in words:
        raise Ended(2, "ERROR: You have to specify format of the data while using query switch. " + _HELP)
    for word in words:
        if word not in ("csv", "noheader", "nounits"):
            raise Ended(2, '"%s" is not a recognized format option. %s' % (word, _HELP))
    return {"header": "noheader" not in words, "units": "nounits" not in words}
