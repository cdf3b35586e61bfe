# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Running the collection's own core on a host, without Ansible in between."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from lab import Host

ROOT = Path(__file__).resolve().parents[2]
# Not on a host of its own accord, and outside of what the collection writes.
_ARCHIVE = "/root/gpufleet-core.zip"
_PRELUDE = (
    """
import json, sys
sys.path.insert(0, %r)
from core._core.clock import Clock
from core._core.runner import Runner
from core._systemd.journal import Journal
from core._systemd.manager import Systemd
systemd, journal = Systemd(Runner()), Journal(Runner())
given = json.loads(sys.stdin.read())
"""
    % _ARCHIVE
)


def core(host: Host, code: str, **given: Any) -> Any:
    """Run Python on the host's own interpreter with the core as package ``core``; ``result`` is what comes back.

    ``systemd`` and ``journal`` are there; ``given`` holds the arguments. Everything in and out is JSON.
    """
    done = host.run(_command(host, code), input=json.dumps(given), timeout=120)
    return json.loads(done.stdout.rpartition("@@")[2])


def begun(host: Host, code: str, **given: Any) -> subprocess.Popen[str]:
    """The same on its way, over a connection of its own, in a process group of its own; the result stands behind ``@@``."""
    command = host.ssh_command(_command(host, code), shared=False)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as stdin:
        stdin.write(json.dumps(given))
        stdin.seek(0)
        return subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True
        )


def _command(host: Host, code: str) -> list[str]:
    if not host.exists(_ARCHIVE):
        encoded = base64.b64encode(_archive()).decode("ascii")
        host.run(["sh", "-c", "base64 -d > " + _ARCHIVE], input=encoded)
    return ["/usr/bin/python3", "-c", _PRELUDE + code + "\nprint('\\n@@' + json.dumps(result))\n"]


def _archive() -> bytes:
    buffer = io.BytesIO()
    base = ROOT / "plugins" / "module_utils"
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("core/__init__.py", "")
        for path in sorted(base.glob("_*/*.py")):
            archive.write(path, "core/%s" % path.relative_to(base))
    return buffer.getvalue()
