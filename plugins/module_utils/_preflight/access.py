# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the service's user can read the model and run the server, and whether the unit's sandbox hides them."""

from __future__ import annotations

import os
from typing import List, Optional, Sequence

from .._model.parallel import Check
from .asked import Asked, fail, passed, skip, warn
from .installed import shebang
from .readable import Refused, refused

# What systemd's ProtectHome= and PrivateTmp= put out of a service's sight.
_HOMES = ("/home/", "/root/", "/run/user/")
_TEMPORARY = ("/tmp/", "/var/tmp/")
_SHOWN = 3


def check_access(asked: Asked) -> List[Check]:
    """Two checks: ``model_access`` where the model is a directory or a file of this host, ``executable_access``."""
    checks = []
    model = asked.model
    if model.startswith("/") and os.path.isdir(model):
        checks.append(_one("model_access", asked, [model, *_files(model)], "%s and every file in it" % model))
    elif model.startswith("/") and os.path.isfile(model):
        checks.append(_one("model_access", asked, [model], model))
    if os.path.isfile(asked.executable):
        interpreter = shebang(asked.executable)
        paths = [asked.executable] + ([interpreter] if interpreter is not None and os.path.isfile(interpreter) else [])
        checks.append(_one("executable_access", asked, paths, " and ".join(paths)))
    return checks


def _files(directory: str) -> List[str]:
    """What vLLM may open: every file of the directory itself, links followed. Directories below belong to other formats."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    return [path for path in (os.path.join(directory, name) for name in names if not name.startswith(".")) if os.path.isfile(path)]


def _one(check: str, asked: Asked, paths: Sequence[str], said: str) -> Check:
    hidden = _hidden(asked, paths)
    if hidden is not None:
        return hidden if hidden.id == check else Check(check, hidden.status, hidden.detail, hidden.fix)
    found = refused(paths, asked.user, asked.group)
    if found is None:
        return skip(check, "%s could not be tried as the user %s: the file system gave no answer in time" % (paths[0], asked.user))
    if not found:
        return passed(check, "%s can be read by the user %s" % (said, asked.user))
    texts = ["%s (%s: %s)" % (each.path, each.culprit, each.reason) if each.culprit != each.path else "%s (%s)" % (each.path, each.reason)
             for each in found[:_SHOWN]]
    more = " and %d more" % (len(found) - _SHOWN) if len(found) > _SHOWN else ""
    detail = "the user %s can't read %s%s" % (asked.user, ", ".join(texts), more)
    if any(_has_access_list(each.culprit) for each in found if not each.tried):
        return warn(check, detail + ", by the mode bits alone", "Make sure that its list of access rights lets %s in." % asked.user)
    return fail(check, detail, _fix(found, asked.user))


def _fix(found: Sequence[Refused], user: str) -> str:
    culprits = sorted({each.culprit for each in found})
    if len(culprits) == 1:
        return "Let %s in: chmod o+rX %s, or make the group of it %s's." % (user, culprits[0], user)
    return "Let %s in: chmod -R o+rX %s." % (user, os.path.dirname(found[0].path))


def _hidden(asked: Asked, paths: Sequence[str]) -> Optional[Check]:
    """A path that seems to be elsewhere but really is where the unit can't look."""
    for path in paths:
        real = os.path.realpath(path)
        for hides, places, setting in ((asked.hides_home, _HOMES, "ProtectHome"), (asked.hides_tmp, _TEMPORARY, "PrivateTmp")):
            if hides and real.startswith(places):
                detail = "%s really is %s, which the service can't see (%s=yes in its unit)" % (path, real, setting)
                value = "read-only" if setting == "ProtectHome" else "no"
                fix = "Put it elsewhere, or set unit_options: {Service: {%s: %s}}." % (setting, value)
                return fail("", detail, fix)
    return None


def _has_access_list(path: str) -> bool:
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except OSError:
        return False
