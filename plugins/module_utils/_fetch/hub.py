# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hub as a port: asks by way of :mod:`.hub_driver`, run by the interpreter of vLLM's environment."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from typing import Any, Dict, List

from .._core.clock import Deadline
from .._core.errors import GpuFleetError
from .._core.runner import Completed, Runner
from .._core.zipapp import build
from . import hub_driver
from .explain import failure
from .manifest import File, Manifest, safe
from .request import Asked

# By way of an import: Ansible sends to a host only what is imported.
_PROGRAM = "_fetch." + hub_driver.__name__.rsplit(".", 1)[-1]


class Hub:
    """What a hub has, and how it comes here."""

    def __init__(self, asked: Asked, runner: Runner, deadline: Deadline) -> None:
        self._asked = asked
        self._runner = runner
        self._deadline = deadline

    def info(self, revision: str) -> Manifest:
        """The files of a revision that are wanted. Raises GpuFleetError."""
        found = self._ask({"do": "info", "revision": revision}, min(600.0, self._deadline.remaining))
        try:
            files = [File(safe(each["path"]), each["size"] or 0, each["sha256"], each["git"]) for each in found["files"]]
        except ValueError as exc:
            raise GpuFleetError("In %s at %s %s." % (self._asked.repo, self._asked.hub, exc), kind="not_a_hub") from exc
        wanted = tuple(each for each in files if self._asked.wants(each.path))
        if not wanted:
            raise GpuFleetError(
                "%s at %s has no file that include and exclude leave. Correct them, or repo." % (self._asked.repo, revision),
                kind="no_files",
            )
        return Manifest(found["commit"], wanted)

    def fetch(self, manifest: Manifest, files: List[File], directory: str, parts: str) -> None:
        """Fetch files of a commit into a directory; ``parts`` is where unfinished ones wait. Raises GpuFleetError."""
        os.makedirs(parts, exist_ok=True)
        listed = [{"path": each.path, "size": each.size} for each in files]
        request = {"do": "fetch", "commit": manifest.commit, "files": listed, "directory": directory, "parts": parts}
        self._ask(request, self._deadline.remaining)

    def _ask(self, request: Dict[str, Any], timeout: float) -> Dict[str, Any]:
        asked = self._asked
        if not os.access(asked.python, os.X_OK):
            raise GpuFleetError(
                "%s is not there, and models are fetched with the huggingface_hub of vLLM's environment. Install vLLM first "
                "(role vllm_install), or set python to an interpreter that has it." % asked.python,
                kind="no_python",
            )
        request.update(
            repo=asked.repo, endpoint=asked.endpoint, token=asked.token, retries=asked.retries, delay=asked.retry_delay,
            workers=asked.workers, stall_timeout=asked.stall_timeout, xet=asked.transfer == "xet",
        )  # fmt: skip
        scratch = tempfile.mkdtemp(prefix="gpufleet-fetch-")
        try:
            program = os.path.join(scratch, "hub.pyz")
            with open(program, "wb") as handle:
                handle.write(build(_PROGRAM, "gpufleet_fetch"))
            done = self._runner.run(
                [asked.python, "-I", program], timeout, stdin=json.dumps(request), env=self._variables(scratch)
            )
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        answer = self._answer(done)
        if not answer.get("ok"):
            raise failure(asked, answer)
        return answer

    def _answer(self, done: Completed) -> Dict[str, Any]:
        if done.timed_out:
            return {"kind": "timeout"}
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        try:
            answer = json.loads(lines[-1])
        except (IndexError, ValueError):
            return {"kind": "died", "detail": "exit %s: %s" % (done.rc, " ".join(done.stderr.split())[-400:])}
        return answer if isinstance(answer, dict) else {"kind": "died"}

    def _variables(self, scratch: str) -> Dict[str, str]:
        variables = {
            # Nothing of root's own settings for the hub counts here, and nothing is left in root's home.
            "HF_HOME": scratch,
            "HF_HUB_OFFLINE": "0",
            "TRANSFORMERS_OFFLINE": "0",
            "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
            "HF_TOKEN": "",
            "HUGGING_FACE_HUB_TOKEN": "",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_HUB_DOWNLOAD_TIMEOUT": str(max(1, int(self._asked.stall_timeout))),
            "HF_HUB_ETAG_TIMEOUT": str(max(1, int(self._asked.stall_timeout))),
        }
        if self._asked.endpoint:
            variables["HF_ENDPOINT"] = self._asked.endpoint
        return variables
