# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A place where nothing of the project is known but its installed tarball, and Ansible's commands in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BIN = Path(sys.executable).parent


class CommandFailed(AssertionError):
    """A command ended otherwise than it should have; the message is the command and all that it said."""


class Installed:
    """A tarball, installed into a collections path that was empty. ``home`` is the directory for all of it, still to be made."""

    def __init__(self, tarball: Path, home: Path) -> None:
        self.collections = home / "collections"
        self._cwd = home / "cwd"
        self._cwd.mkdir(parents=True)
        config = home / "ansible.cfg"
        config.write_text("[defaults]\n", encoding="utf-8")
        self._settings = {
            "ANSIBLE_COLLECTIONS_PATH": str(self.collections),
            "ANSIBLE_CONFIG": str(config),
            "ANSIBLE_HOME": str(home / "ansible"),
            "ANSIBLE_NOCOLOR": "1",
            # Ansible looks for collections where Python has its packages too.
            "ANSIBLE_COLLECTIONS_SCAN_SYS_PATH": "false",
        }
        if self.collections.exists():
            raise CommandFailed("%s is not empty" % self.collections)
        self.run("ansible-galaxy", "collection", "install", "--offline", str(tarball), "-p", str(self.collections))

    def run(self, program: str, *arguments: str, rc: int = 0, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run one of Ansible's programs in an empty directory.

        CommandFailed for another exit status than ``rc``, a deprecation, or no end in ``timeout`` seconds.
        """
        env = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "PYTHONPATH"))}
        try:
            done = subprocess.run(
                [str(BIN / program), *arguments],
                cwd=self._cwd, env={**env, **self._settings}, timeout=timeout, check=False,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            heard = (late.stdout or b"").decode(errors="replace")
            raise CommandFailed("%s %s did not end in %d s\n%s" % (program, " ".join(arguments), timeout, heard)) from late
        said = "%s %s\n%s%s" % (program, " ".join(arguments), done.stdout, done.stderr)
        if done.returncode != rc:
            raise CommandFailed("exit status %d, not %d: %s" % (done.returncode, rc, said))
        if "[DEPRECATION" in said:
            raise CommandFailed("a deprecation: %s" % said)
        return done

    def verify(self) -> None:
        """Hold the installed files against their checksums, with Ansible's own command."""
        done = self.run("ansible-galaxy", "collection", "verify", "--offline", "gpufleet.vllm")
        if "Successfully verified" not in done.stdout:
            raise CommandFailed("nothing was verified: %s%s" % (done.stdout, done.stderr))
