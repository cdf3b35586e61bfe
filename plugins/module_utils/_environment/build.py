# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Building an environment: beside what is there, proven before it counts, gone without a trace when it fails."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any, Dict, List, Optional

from .._core.clock import Deadline
from .._core.errors import GpuFleetError
from .._core.files import sync_directory
from .._core.runner import Completed, Runner
from .failures import explain, scrub
from .installers import Installer
from .interpreter import Interpreter
from .look import faults
from .metadata import distributions
from .request import Asked, canonical, same_version

# How the scratch directory of a build is called.
SCRATCH = ".build-"


def build(asked: Asked, tree: str, interpreter: Interpreter, installer: Installer, runner: Runner, deadline: Deadline) -> Dict[str, Any]:
    """Make the environment in ``tree``, which must not exist, and prove it; returns what its record is to say.

    Raises GpuFleetError with the reason, and then nothing is left of it. Its place is final: an environment can't be moved.
    """
    temporary = tempfile.mkdtemp(prefix=SCRATCH, dir=asked.trees)
    before = os.umask(0o022)  # a stricter one of root's would lock the services' user out
    try:
        variables = installer.environment(asked, temporary)
        _must(asked, "make an environment", runner.run(installer.make_environment(interpreter, tree), deadline.remaining, env=variables))
        for lines, dependencies in _steps(asked):
            log = os.path.join(temporary, "pip.log")
            command = installer.install(tree, _file(temporary, lines), _constraints(asked, temporary), dependencies, log)
            _must(asked, "install %s" % asked.pinned, runner.run(command, deadline.remaining, env=variables), log)
        return _prove(asked, tree, interpreter, installer, runner, temporary)
    except BaseException:
        shutil.rmtree(tree, ignore_errors=True)
        raise
    finally:
        os.umask(before)
        shutil.rmtree(temporary, ignore_errors=True)


def point(path: str, tree: str) -> None:
    """Let ``path`` lead to ``tree``, in one step: at every moment there is an environment under it, the old one or the new."""
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, ".%s.gpufleet-link" % name)
    try:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        os.symlink(tree, temporary)
        if os.path.isdir(path) and not os.path.islink(path):
            os.rmdir(path)  # an empty one: the plan has seen to it
        os.rename(temporary, path)
        sync_directory(directory)
    except OSError as exc:
        raise GpuFleetError("Cannot let %s lead to %s: %s. The new environment stands; run again." % (path, tree, exc.strerror)) from exc


def _steps(asked: Asked) -> List[Any]:
    """What is installed together. Without vLLM's own dependencies the requirements have to bring them, so they come first."""
    if asked.dependencies:
        return [([asked.pinned, *asked.requirements], True)]
    return ([(list(asked.requirements), True)] if asked.requirements else []) + [([asked.pinned], False)]


def _file(directory: str, lines: List[str]) -> str:
    fd, path = tempfile.mkstemp(suffix=".txt", dir=directory)
    with os.fdopen(fd, "w", encoding="utf-8") as handle:
        handle.write("\n".join(lines) + "\n")
    return path


def _constraints(asked: Asked, directory: str) -> Optional[str]:
    return _file(directory, list(asked.constraints)) if asked.constraints else None


def _must(asked: Asked, what: str, done: Completed, log: str = "") -> None:
    if done.ok:
        return
    if done.timed_out:
        raise GpuFleetError(
            "Cannot %s for %s: it took longer than the %d s of timeout. Run again with a longer one: what was downloaded whole is taken "
            "from the installer's cache." % (what, asked.path, asked.timeout),
            kind="timeout", evidence=_tail(done, asked),
        )  # fmt: skip
    failure = explain(_unread_indexes(log) + done.stdout + "\n" + done.stderr, asked.secrets(), asked.version)
    raise GpuFleetError(
        "Cannot %s for %s: %s. %s" % (what, asked.path, failure.summary, failure.advice),
        kind=failure.kind, evidence=failure.evidence,
    )  # fmt: skip


def _unread_indexes(log: str) -> str:
    """The lines of pip's log that say why an index could not be read: on its output an unread index looks like an empty one."""
    try:
        with open(log, encoding="utf-8", errors="replace") as handle:
            lines = [line for line in handle if "Could not fetch URL" in line or "Status code" in line]
    except OSError:
        return ""
    return "".join(lines[:5])


def _prove(
    asked: Asked, tree: str, interpreter: Interpreter, installer: Installer, runner: Runner, temporary: str
) -> Dict[str, Any]:
    """Run the installed command once: imports that fail, fail here and not at a service's start."""
    wrong = faults(tree, asked)
    if wrong:
        raise GpuFleetError(
            "%s was installed for %s, but what is there is not what was asked for: %s. Correct requirements or constraints."
            % (asked.pinned, asked.path, "; ".join(wrong)),
            kind="not_as_asked",
        )
    command = [os.path.join(tree, "bin", "vllm"), "--version"]
    # What it writes to a home while it starts is nobody's to keep.
    variables = {"HOME": temporary, "XDG_CACHE_HOME": temporary, "XDG_CONFIG_HOME": temporary, "VLLM_CACHE_ROOT": temporary,
                 "PYTHONPATH": "", "PYTHONHOME": "", "VLLM_NO_USAGE_STATS": "1", "TMPDIR": temporary}  # fmt: skip
    done = runner.run(command, asked.proof_timeout, env=variables)
    words = done.stdout.split()
    if not done.ok or not any(same_version(word, asked.version) for word in words):
        how = "gave no answer in %d s" % asked.proof_timeout if done.timed_out else "ended with %s" % done.rc
        raise GpuFleetError(
            "%s was installed for %s, but does not run: `vllm --version` %s%s. Read `evidence`; a missing library of the system, or "
            "packages that don't go together, are the usual reasons."
            % (asked.pinned, asked.path, how, "" if not done.ok else " and said %r" % done.stdout.strip()[-100:]),
            kind="does_not_run", evidence=_tail(done, asked),
        )  # fmt: skip
    return {
        "declared": asked.declared(),
        "version": distributions(tree)[canonical(asked.package)],
        "python": interpreter.version,
        "interpreter": interpreter.path,
        "installer": installer.name,
    }


def _tail(done: Completed, asked: Asked) -> List[str]:
    text = scrub(done.stdout + "\n" + done.stderr, asked.secrets())
    return [line.rstrip()[:300] for line in text.splitlines() if line.strip()][-15:]
