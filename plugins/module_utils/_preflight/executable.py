# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the server's command can be run at all."""

from __future__ import annotations

import os
import re
from typing import List, Optional

from .._model.parallel import Check
from .asked import Asked, fail, passed, skip, warn
from .installed import Installation, shebang

_NUMBERS = re.compile(r"^(\d+)\.(\d+)")
# Before this vLLM had other engines, other arguments and other rules than those that are checked here.
_OLDEST = (0, 8)


def usable_version(installation: Optional[Installation]) -> Optional[str]:
    """The version that figures may be made for; None where it isn't known, as for a build that calls itself 0.1.dev1."""
    version = installation.version if installation is not None else None
    match = _NUMBERS.match(version or "")
    if match is None or ("dev" in str(version) and (int(match.group(1)), int(match.group(2))) < _OLDEST):
        return None
    return version


def check_executable(asked: Asked, installation: Optional[Installation]) -> List[Check]:
    """The command, its interpreter, and which vLLM it starts."""
    path = asked.executable
    if not os.path.isfile(path):
        return [fail("executable", "%s does not exist" % path, "Install vLLM there, or set executable.")]
    if not os.access(path, os.X_OK):
        return [fail("executable", "%s is not executable" % path, "Correct its mode, or set executable.")]
    interpreter = shebang(path)
    if interpreter is not None and not os.path.isfile(interpreter):
        detail = "%s is to be run by %s, which does not exist" % (path, interpreter)
        return [fail("executable", detail, "A virtual environment can't be moved, and needs its Python: make it anew, or set executable.")]
    checks = [passed("executable", "%s is there" % path)]
    checks.append(_version(path, installation))
    return checks


def _version(path: str, installation: Optional[Installation]) -> Check:
    if installation is None:
        return skip("vllm_version", "%s belongs to no Python environment with vLLM's files in it" % path)
    if installation.version is None:
        return skip("vllm_version", "the vLLM in %s does not say its version" % installation.prefix)
    match = _NUMBERS.match(installation.version)
    detail = "vLLM %s in %s" % (installation.version, installation.prefix)
    # A build from a checkout without tags calls itself 0.1.dev1.
    development = "dev" in installation.version
    if match is not None and not development and (int(match.group(1)), int(match.group(2))) < _OLDEST:
        return warn("vllm_version", detail + " is older than what these checks know", "Install vLLM %d.%d or newer." % _OLDEST)
    return passed("vllm_version", detail)
