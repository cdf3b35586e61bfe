# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the GPUs are there and answer."""

from __future__ import annotations

from typing import List, Sequence

from .._model.parallel import Check
from .asked import Seen, fail, passed, warn


def check_gpus(selection: Sequence[str], seen: Seen) -> List[Check]:
    """``selection`` is what was asked for: indices, UUIDs, PCI ids."""
    if not seen.gpus:
        return []
    bad = [gpu for gpu in seen.gpus if gpu.state != "ok"]
    if bad:
        detail = "; ".join("GPU %d is in state %s (%s)" % (gpu.index, gpu.state, gpu.error or "no detail") for gpu in bad)
        return [fail("gpus", detail, "Leave them out of gpus, or repair them first.")]
    names = ", ".join(str(gpu.index) for gpu in seen.gpus)
    checks = [passed("gpus", "GPU %s %s" % (names, "as given in gpu_facts" if seen.elsewhere else
                                            "answers" if len(seen.gpus) == 1 else "answer"))]
    if len(selection) > len(seen.gpus):
        detail = "gpus names a GPU more than once (%s), and each counts once: GPU %s" % (", ".join(map(str, selection))[:200], names)
        checks.append(warn("gpus_twice", detail, "Name each GPU once."))
    if seen.elsewhere:
        return checks
    reading = seen.snapshot
    if reading is not None and reading.pci_count is not None and reading.count is not None and reading.count < reading.pci_count:
        # Indices move up when one is missing: the service would come up on fewer or on other cards than were meant.
        named = all(each.upper().startswith(("GPU-", "MIG-")) or ":" in each for each in selection)
        detail = "the driver shows %d GPUs, but %d are on the PCI bus" % (reading.count, reading.pci_count)
        fix = "Look in dmesg for the one that is missing. To go on without it, give GPUs by UUID."
        checks.append(warn("gpu_missing", detail, fix) if named else fail("gpu_missing", detail, fix))
    kinds = sorted({gpu.name for gpu in seen.gpus if gpu.name})
    if len(kinds) > 1:
        detail = "the service's GPUs are of different kinds: %s" % ", ".join(kinds)
        checks.append(warn("gpu_kinds", detail, "The smallest decides for all; choose GPUs of one kind."))
    return checks
