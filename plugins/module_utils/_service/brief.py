# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs as they stand in a failed task's result.

Ansible prints all of it. Eight GPUs twice over, each with everything that is known of its processes, are six hundred lines around the
message that somebody has to find at night: what stays is what the memory is, and who has it.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

_GPU = ("index", "uuid", "state", "error", "total_mib", "used_mib", "free_mib")
_PROCESS = ("pid", "name", "user", "unit", "container", "used_mib")


def brief_gpus(gpus: Sequence[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """The same GPUs with the keys of the memory, their processes with those of who it is; what is not known is left out."""
    return [
        {**_known(gpu, _GPU), "processes": [_known(process, _PROCESS) for process in gpu.get("processes", ())]}
        for gpu in gpus
    ]


def _known(of: Mapping[str, Any], names: Sequence[str]) -> Dict[str, Any]:
    return {name: of[name] for name in names if of.get(name) is not None}
