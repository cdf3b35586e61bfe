# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked of a model's directory: the options, checked."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, List, Mapping, Optional, Tuple
from urllib.parse import urlsplit

from .._core.errors import GpuFleetError

PUBLIC_HUB = "https://huggingface.co"
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?\Z")
_REMOTE = re.compile(r"[A-Za-z0-9_][\w.@%-]*:/.+\Z")


@dataclass(frozen=True)
class Asked:
    """The options of one call."""

    path: str
    repo: Optional[str] = None
    revision: str = "main"
    source: Optional[str] = None
    ssh_user: Optional[str] = None
    endpoint: Optional[str] = None
    token: Optional[str] = None
    python: str = "/opt/vllm/bin/python"
    include: Tuple[str, ...] = ()
    exclude: Tuple[str, ...] = ()
    verify: str = "size"
    refresh: bool = False
    transfer: str = "http"
    workers: int = 4
    retries: int = 5
    retry_delay: float = 2.0
    stall_timeout: float = 60.0
    timeout: float = 86400.0
    min_free_mib: int = 1024

    @property
    def partial(self) -> str:
        """Where it grows until it is complete."""
        return self.path + ".partial"

    @property
    def old(self) -> str:
        """Where a directory of ours waits for the moment in which another takes its name."""
        return self.path + ".old"

    @property
    def hub(self) -> str:
        """The hub's address as people may see it."""
        parts = urlsplit(self.endpoint or PUBLIC_HUB)
        return "%s://%s%s" % (parts.scheme, parts.netloc.rsplit("@", 1)[-1], parts.path)

    def wants(self, path: str) -> bool:
        """Whether a file of the model is to be had, by the patterns."""
        if self.include and not any(fnmatchcase(path, pattern) for pattern in self.include):
            return False
        return not any(fnmatchcase(path, pattern) for pattern in self.exclude)

    def secrets(self) -> List[str]:
        """What must never be shown."""
        password = urlsplit(self.endpoint or "").password
        return [each for each in (self.token, password) if each]


def request(params: Mapping[str, Any]) -> Asked:
    """The module's parameters, checked. Raises GpuFleetError with what to write instead."""
    path = str(params["path"])
    if not os.path.isabs(path) or os.path.normpath(path) == "/":
        raise GpuFleetError("path has to be an absolute directory such as /models/Qwen3-0.6B, not %r." % path)
    repo = params["repo"] or None
    if repo is not None and not _REPO.match(repo):
        raise GpuFleetError("repo has to be OWNER/NAME, such as MiniMaxAI/MiniMax-M2.5, not %r." % repo)
    source = params["source"] or None
    if source is not None and not os.path.isabs(source) and not _REMOTE.match(source):
        raise GpuFleetError(
            "source has to be an absolute directory on the host, or one of another host such as mirror01:/models/Qwen3-0.6B, not %r."
            % source
        )
    endpoint = (params["endpoint"] or "").rstrip("/") or None
    if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
        raise GpuFleetError("endpoint has to be the address of a hub, such as https://hub.example.com, not %r." % endpoint)
    for name, least in (("workers", 1), ("retries", 0), ("retry_delay", 0), ("stall_timeout", 1), ("timeout", 1), ("min_free_mib", 0)):
        if params[name] < least:
            raise GpuFleetError("%s has to be at least %d, not %s." % (name, least, params[name]))
    # A model may lie behind a link: what grows beside it has to be on the same file system.
    path = os.path.realpath(path) if os.path.islink(path) else os.path.normpath(path)
    if source is not None and os.path.isabs(source) and os.path.realpath(source) == os.path.realpath(path):
        raise GpuFleetError("source is path itself, %s. Leave source out: what is there is taken as it is." % path)
    return Asked(
        path=path, repo=repo, revision=params["revision"] or "main", source=source, ssh_user=params["ssh_user"] or None,
        endpoint=endpoint, token=params["token"] or None,
        python=params["python"], include=tuple(params["include"] or ()), exclude=tuple(params["exclude"] or ()),
        verify=params["verify"], refresh=params["refresh"], transfer=params["transfer"], workers=params["workers"],
        retries=params["retries"], retry_delay=params["retry_delay"], stall_timeout=params["stall_timeout"],
        timeout=params["timeout"], min_free_mib=params["min_free_mib"],
    )  # fmt: skip
