# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tools have in common: what is measured, a place to write to, and how another program is run for it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from .._core.errors import GpuFleetError
from .._core.runner import Completed, Runner
from .account import account_of
from .profile import Profile
from .result import Sample
from .sweep import PREFIX, hold

# How much of a failed tool's last words is passed on.
_SAID_LINES = 12
_SAID_CHARS = 1500


@dataclass(frozen=True)
class Aim:
    """The server that is measured. ``gpus`` is how many it has, None where that isn't known; ``user`` is who runs the tools.

    ``tokenizer`` is a directory or a repository's name, ``tokenizer_mode`` and ``trusted`` (whether code that comes with it may be run)
    are what the server itself was started with. ``request_timeout`` is for one request, ``level_timeout`` for all of one
    level, both in seconds.
    """

    url: str
    model: str
    tokenizer: str
    api_key: Optional[str] = field(default=None, repr=False)
    verify: bool = True
    gpus: Optional[int] = None
    user: Optional[str] = None
    request_timeout: float = 600.0
    level_timeout: float = 3600.0
    tokenizer_mode: Optional[str] = None
    trusted: bool = False


@dataclass(frozen=True)
class Measured:
    """What a tool tells of one level: each counted request, the seconds that all of them took, and the command that was run."""

    samples: Tuple[Sample, ...]
    duration: Optional[float]
    command: Tuple[str, ...]
    about: Mapping[str, Any] = field(default_factory=dict)


class Tool:
    """A load generator. ``name`` is the one of the module's option, ``untried`` what only a real run shows of it, in a sentence."""

    name = ""
    untried: Optional[str] = None

    def version(self) -> Optional[str]:
        """The tool's own version. Raises GpuFleetError when the tool can't be used on this host, and says what to do about it."""
        raise NotImplementedError

    def measure(self, profile: Profile, concurrency: int, nonce: int) -> Measured:
        """Put one level of the load on the server. ``nonce`` makes its prompts ones that the server has not seen.

        Raises GpuFleetError when the tool has told nothing that could be judged.
        """
        raise NotImplementedError


class Workplace:
    """A directory that belongs to the user of the tools alone and is gone afterwards, and programs that run in it."""

    def __init__(self, runner: Runner, user: Optional[str], directory: str) -> None:
        self._runner = runner
        self._user = user
        self.directory = directory

    def path(self, name: str) -> str:
        """Of a file in it."""
        return os.path.join(self.directory, name)

    def write(self, name: str, text: str) -> str:
        """A file that only the user of the tools can read; returns its path."""
        path = self.path(name)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as handle:
            handle.write(text)
        account = account_of(self._user)
        if account is not None:
            os.chown(path, account.pw_uid, account.pw_gid)
        return path

    def run(self, argv: Sequence[str], timeout: float, env: Mapping[str, str], stdin: Optional[str] = None) -> Completed:
        """Run a program as the user of the tools. It dies with us, asks no proxy, and sees no GPU."""
        own = {
            "HOME": self.directory,
            "TMPDIR": self.directory,
            "XDG_CACHE_HOME": self.path("cache"),
            "HF_HOME": self.path("hf"),
            "VLLM_CACHE_ROOT": self.path("vllm"),
            "TORCHINDUCTOR_CACHE_DIR": self.path("inductor"),
            "TRITON_CACHE_DIR": self.path("triton"),
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "NO_PROXY": "*",
            "no_proxy": "*",
        }
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            own[name] = own[name.upper()] = ""
        own.update(env)
        return self._runner.run(list(as_user(self._user)) + list(argv), timeout=timeout, env=own, stdin=stdin)


@contextmanager
def workplace(runner: Runner, user: Optional[str]) -> Iterator[Workplace]:
    """A workplace for the length of one level."""
    try:
        directory = tempfile.mkdtemp(prefix=PREFIX)
        held = hold(directory)
        account = account_of(user)
        if account is not None:
            os.chown(directory, account.pw_uid, account.pw_gid)
    except OSError as exc:
        raise GpuFleetError("Cannot make a directory for the benchmark in %s: %s." % (tempfile.gettempdir(), exc.strerror)) from exc
    try:
        yield Workplace(runner, user, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(held)


# /proc shows the namespace's own processes, so that a tool finds itself there.
_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--"]


def as_user(user: Optional[str]) -> List[str]:
    """What to put before a command so that it runs as ``user`` and dies with us, and whatever it has started dies with it.

    The signal of a parent's death reaches one process, and GuideLLM's workers outlive theirs. So, where we are root, the command is
    the first process of a PID namespace (pid_namespaces(7)): when that one ends, the kernel ends all the others in it.
    """
    account = account_of(user)
    words = ["setpriv", "--pdeathsig", "KILL"]
    if account is None:
        return words + ["--"] + (_NAMESPACE if os.geteuid() == 0 else [])
    # To change the user takes the signal away that unshare has asked for, so it is asked for once more.
    inner = [*words, "--reuid", str(account.pw_uid), "--regid", str(account.pw_gid), "--init-groups", "--"]
    return words + ["--"] + _NAMESPACE + inner


def said(done: Completed) -> str:
    """How a program ended, with its last words."""
    how = "ran past its time" if done.timed_out else "ended with exit status %s" % done.rc
    lines = [line for line in (done.stderr.strip() or done.stdout.strip()).splitlines() if line.strip() and "nanobind" not in line]
    return "%s: %s" % (how, " | ".join(lines[-_SAID_LINES:])[-_SAID_CHARS:] or "it said nothing")


def failed(tool: str, concurrency: int, done: Completed, why: str) -> GpuFleetError:
    """The error for a level of which a tool tells nothing."""
    return GpuFleetError(
        "%s told nothing of concurrency %d (%s). It %s. Run the command by hand to see all of it."
        % (tool, concurrency, why, said(done)),
        command=shlex.join(done.argv), rc=done.rc,
    )


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """A result file; None where there is none or it is no JSON object."""
    try:
        with open(path, encoding="utf-8") as handle:
            found = json.load(handle)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def number(value: Any) -> Optional[float]:
    """A number of a tool's file; None for anything else."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def count(value: Any) -> Optional[int]:
    """A whole number of a tool's file; None for anything else."""
    found = number(value)
    return None if found is None else int(found)
