# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver against the CUDA that torch was built for.

Source: NVIDIA's CUDA compatibility guide. A program runs on every driver of its own CUDA's major version or a later one; on an
older one only with the forward compatibility package, and only on data centre GPUs.
"""

from __future__ import annotations

import glob
import os
import re
from typing import Mapping, Optional, Tuple

from .._gpu.types import Snapshot
from .._model.parallel import Check
from .asked import Places, fail, passed, skip, warn
from .installed import Installation

_VERSION = re.compile(r"^(\d+)(?:\.(\d+))?")
# CUDA's major version -> the first driver that runs programs built with any release of it.
MINIMUM_DRIVER = {11: 450, 12: 525, 13: 580}


def check_cuda(snapshot: Optional[Snapshot], installation: Optional[Installation], env: Mapping[str, str], places: Places) -> Check:
    """One check, ``cuda``. What isn't known is skipped."""
    torch = installation.torch if installation is not None else None
    if torch is None:
        where = "the environment of the executable" if installation is None else installation.prefix
        return skip("cuda", "no torch was found in %s, so the driver can't be held against it" % where)
    if torch.cuda is None:
        if torch.hip is not None:
            return skip("cuda", "torch %s is built for ROCm %s" % (torch.version, torch.hip))
        detail = "torch %s is built without CUDA: no GPU would be used" % torch.version
        return warn("cuda", detail, "Install vLLM with a CUDA build of torch.")
    built = _numbers(torch.cuda)
    if snapshot is None or built is None:
        return skip("cuda", "torch is built for CUDA %s; the driver is not known" % torch.cuda)
    said = "torch %s is built for CUDA %s, the driver %s has CUDA %s" % (
        torch.version or "", torch.cuda, snapshot.driver_version or "?", snapshot.cuda_version or "?"
    )
    has = _numbers(snapshot.cuda_version)
    if has is None:
        driver, least = _numbers(snapshot.driver_version), MINIMUM_DRIVER.get(built[0])
        if driver is None or least is None:
            return skip("cuda", said)
        too_old = driver[0] < least
    else:
        too_old = has[0] < built[0]
    if not too_old:
        if has is not None and has[0] == built[0] and has[1] < built[1]:
            said += "; an older release of the same major version will do, but for kernels compiled at run time with newer tools"
        return passed("cuda", said)
    least_text = "%d" % MINIMUM_DRIVER[built[0]] if built[0] in MINIMUM_DRIVER else "of CUDA %d" % built[0]
    fix = "Install a driver %s or newer, or a vLLM built for CUDA %s." % (least_text, has[0] if has else "of this driver")
    package = forward_compatibility(built, env, places)
    if package is not None:
        return warn("cuda", "%s; %s may bridge that, on data centre GPUs only" % (said, package), fix)
    return fail("cuda", said, fix)


def forward_compatibility(built: Tuple[int, int], env: Mapping[str, str], places: Places) -> Optional[str]:
    """The libcuda of a forward compatibility package that the server would find, None where there is none."""
    searched = [part for part in str(env.get("LD_LIBRARY_PATH", "")).split(":") if part]
    searched += [os.path.join(places.cuda, name, "compat") for name in ("cuda-%d.%d" % built, "cuda-%d" % built[0], "cuda")]
    for directory in searched:
        found = sorted(glob.glob(os.path.join(glob.escape(directory), "libcuda.so.*")))
        if found:
            return found[0]
    return None


def _numbers(text: Optional[str]) -> Optional[Tuple[int, int]]:
    match = _VERSION.match(text or "")
    return (int(match.group(1)), int(match.group(2) or 0)) if match is not None else None
