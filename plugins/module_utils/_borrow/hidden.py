# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a command is given in confidence: files that root alone may read, in memory (``/run``), so that a reboot removes them too.

=============  ===========================================  ==========================================================
file           written by                                   removed
=============  ===========================================  ==========================================================
``.secrets``   the module, before there is a record         by the job, when nothing of the borrowing is left to do
``.env``       the job, just before the command is begun    by the job, as soon as systemd has read it
=============  ===========================================  ==========================================================

A job that died comes back and removes both. What a module left behind that died before its record was written, the next one removes.
The secrets stay while the command runs: its output may repeat them, and is told without them.
"""

from __future__ import annotations

import glob
import json
import os
from typing import Dict, Iterable, Mapping, Optional, Sequence

from .._core.errors import GpuFleetError
from .._core.files import make_directory
from .._unit.quote import environment_file_line

PREFIX = "gpufleet-borrow-"
_ENVIRONMENT, _SECRETS = ".env", ".secrets"


def environment_path(unit: str, directory: str) -> str:
    """Where the variables lie that the command is given besides, until it has begun: a command line, and a unit, can be read by all."""
    return _path(unit, directory, _ENVIRONMENT)


def secrets_path(unit: str, directory: str) -> str:
    """Where its secrets lie until the borrowing has ended."""
    return _path(unit, directory, _SECRETS)


def _path(unit: str, directory: str, ending: str) -> str:
    return os.path.join(directory, unit[: -len(".service")] + ending)


def keep_environment(unit: str, directory: str, variables: Mapping[str, str]) -> None:
    """Write them as systemd reads them (``EnvironmentFile=``). Raises GpuFleetError."""
    lines = (environment_file_line(name, variables[name], "env.%s" % name) + "\n" for name in sorted(variables))
    _write(environment_path(unit, directory), "".join(lines), "variables")


def keep_secrets(unit: str, directory: str, secrets: Mapping[str, str]) -> None:
    """Write them for the job, which is told of them in no other way. Raises GpuFleetError."""
    _write(secrets_path(unit, directory), json.dumps(dict(secrets)), "secrets")


def secrets_of(unit: str, directory: str, names: Iterable[str]) -> Optional[Dict[str, str]]:
    """The secrets by name; None where they aren't there any more, or are not the ones of these names."""
    wanted = sorted(names)
    if not wanted:
        return {}
    try:
        with open(secrets_path(unit, directory), encoding="utf-8") as handle:
            found = json.load(handle)
    except (OSError, ValueError):
        return None
    there = isinstance(found, dict) and sorted(found) == wanted and all(isinstance(value, str) for value in found.values())
    return found if there else None


def secrets_for(unit: str, directory: str, names: Iterable[str]) -> Dict[str, str]:
    """The same for whoever is about to begin the command. Raises GpuFleetError where they aren't there."""
    found = secrets_of(unit, directory, names)
    if found is None:
        raise GpuFleetError(
            "The command's secrets are not in %s any more. Run again, so that they are handed over anew." % secrets_path(unit, directory)
        )
    return found


def _write(path: str, text: str, what: str) -> None:
    make_directory(os.path.dirname(path), 0o755, os.geteuid(), os.getegid())
    _forget(path, what)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as handle:
            handle.write(text)
    except OSError as exc:
        raise GpuFleetError(
            "The command's %s could not be written to %s: %s. Make room there, then run again." % (what, path, exc.strerror)
        ) from exc


def forget_environment(unit: str, directory: str) -> None:
    """Remove what systemd has read by now. Raises GpuFleetError where that fails."""
    _forget(environment_path(unit, directory), "variables")


def forget_secrets(unit: str, directory: str) -> None:
    """Remove what the borrowing needed. Raises GpuFleetError where that fails."""
    _forget(secrets_path(unit, directory), "secrets")


def forget_strays(directory: str) -> None:
    """Remove what is left of borrowings that never came to have a record. For whoever holds the host's lock while there is no record."""
    for ending, what in ((_ENVIRONMENT, "variables"), (_SECRETS, "secrets")):
        for path in _strays(directory, ending):
            _forget(path, what)


def _strays(directory: str, ending: str) -> Sequence[str]:
    return sorted(glob.glob(os.path.join(glob.escape(directory), PREFIX + "*" + ending)))


def _forget(path: str, what: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as exc:
        raise GpuFleetError("The command's %s could not be removed: %s: %s. Remove that file." % (what, path, exc.strerror)) from exc
