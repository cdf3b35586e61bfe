# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Running commands with a deadline, as a port."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence, Tuple

# How long a killed command may take to be reaped before it is abandoned: a process in state D (a hung driver call)
# does not die of SIGKILL, and waiting for it would hang us with it.
_REAP_S = 1.0


@dataclass(frozen=True)
class Completed:
    """How a command ended.

    ``rc`` is the exit status, negative for death by a signal, ``None`` when it ran past its deadline
    (``timed_out``). ``abandoned`` means that it did not even die of SIGKILL and was left behind. A command that could
    not be started has ``rc`` 127 (not found) or 126 (not executable), as a shell would say.
    """

    argv: Tuple[str, ...]
    rc: Optional[int]
    stdout: str
    stderr: str
    timed_out: bool = False
    abandoned: bool = False

    @property
    def ok(self) -> bool:
        """Whether the command ended with exit status 0."""
        return self.rc == 0


def _child(argv: Tuple[str, ...], **options: Any) -> "subprocess.Popen[bytes]":
    # The job and the guard are programs of the host and have no AnsibleModule, and its run_command() knows no deadline.
    return subprocess.Popen(argv, **options)  # pylint: disable=ansible-bad-function


class Runner:
    """Runs a command of the host, without a shell, in the C locale, never longer than its deadline."""

    # Descriptors that commands inherit. With a lock among them it stays held while a command runs whose caller was killed.
    pass_fds: Tuple[int, ...] = ()

    def run(
        self,
        argv: Sequence[str],
        timeout: float = 30.0,
        stdin: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
    ) -> Completed:
        """Run ``argv`` for at most ``timeout`` seconds.

        ``env`` is added to the environment. Output is decoded as UTF-8 with replacement. Never raises for what
        the command does; see :class:`Completed`.
        """
        argv = tuple(argv)
        full_env = dict(os.environ)
        full_env.update({"LC_ALL": "C", "LANGUAGE": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""})
        # `su` without a hyphen leaves root without these, and half of what runs here lives in them.
        full_env["PATH"] = full_env.get("PATH", "/usr/bin:/bin") + ":/usr/local/sbin:/usr/sbin:/sbin"
        full_env.update(env or {})
        try:
            child = _child(
                argv,
                stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=full_env,
                start_new_session=True,
                close_fds=True,
                pass_fds=self.pass_fds,
            )
        except FileNotFoundError as exc:
            return Completed(argv, 127, "", str(exc))
        except OSError as exc:
            return Completed(argv, 126, "", str(exc))
        try:
            out, err = child.communicate(stdin.encode("utf-8") if stdin is not None else None, timeout=timeout)
        except subprocess.TimeoutExpired:
            return self._give_up(argv, child)
        return Completed(argv, child.returncode, _text(out), _text(err))

    @staticmethod
    def leave(argv: Sequence[str]) -> None:
        """Start ``argv`` and let it go on by itself, without input. Raises OSError when it cannot be started."""
        _child(tuple(argv), stdin=subprocess.DEVNULL)

    @staticmethod
    def _give_up(argv: Tuple[str, ...], child: "subprocess.Popen[bytes]") -> Completed:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it ended between the deadline and now
        # What was not written by now stays unwritten, and communicate() forgets the pipe that it was for.
        if child.stdin is not None:
            child.stdin.close()
        try:
            out, err = child.communicate(timeout=_REAP_S)
        except subprocess.TimeoutExpired as exc:
            for pipe in (child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()
            return Completed(argv, None, _text(exc.stdout), _text(exc.stderr), timed_out=True, abandoned=True)
        return Completed(argv, None, _text(out), _text(err), timed_out=True)


def _text(raw: Optional[bytes]) -> str:
    return (raw or b"").decode("utf-8", "replace")
