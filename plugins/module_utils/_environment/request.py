# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked of a vLLM environment: the options, checked, and their fingerprint."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple
from urllib.parse import unquote, urlsplit

from .._core.errors import GpuFleetError

# A version as PEP 440 writes them, one that can be pinned: no operators, no wildcards.
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*((a|b|rc|\.post|\.dev)[0-9]+)*(\+[A-Za-z0-9]+([._-][A-Za-z0-9]+)*)?\Z")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
_LEADING_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_CREDENTIALS = re.compile(r"://[^/@\s]+@")
FORMAT = 1


@dataclass(frozen=True)
class Asked:
    """The options of one call. ``indexes`` is the main index (None: the host's own) and what is looked at beside it."""

    path: str
    version: str
    package: str = "vllm"
    requirements: Tuple[str, ...] = ()
    constraints: Tuple[str, ...] = ()
    dependencies: bool = True
    python: str = "python3"
    installer: str = "auto"
    index_url: Optional[str] = None
    extra_index_urls: Tuple[str, ...] = ()
    space_mib: int = 16000
    keep: int = 1
    timeout: float = 3600.0
    proof_timeout: float = 300.0

    @property
    def trees(self) -> str:
        """The directory that holds the environments themselves; ``path`` is a link into it."""
        return self.path + ".versions"

    @property
    def pinned(self) -> str:
        """vLLM's own requirement."""
        return "%s==%s" % (self.package, self.version)

    def declared(self) -> Dict[str, Any]:
        """What makes two environments different ones, as the record keeps it. Where the packages come from is none of it."""
        return {
            "format": FORMAT,
            "package": self.package,
            "version": self.version,
            "requirements": sorted(self.requirements),
            "constraints": sorted(self.constraints),
            "dependencies": self.dependencies,
            "python": self.python,
        }

    @property
    def tree(self) -> str:
        """Where the environment itself lies: the same for the same declaration, so that going back finds what still stands."""
        text = json.dumps(self.declared(), sort_keys=True)
        digest = hashlib.sha256(text.encode("utf-8")).hexdigest()[:8]
        return os.path.join(self.trees, "%s-%s" % (self.version, digest))

    def secrets(self) -> List[str]:
        """What must never be shown: the credentials in the indexes' addresses, as written and decoded."""
        found = []
        for url in (self.index_url or "",) + self.extra_index_urls:
            parts = urlsplit(url)
            for value in (parts.password, parts.username if parts.password is None else None):
                if value:
                    found += [value, unquote(value)]
        return sorted(set(found), key=len, reverse=True)


def request(params: Mapping[str, Any]) -> Asked:
    """The module's parameters, checked. Raises GpuFleetError with what to write instead."""
    path = str(params["path"])
    if not os.path.isabs(path) or os.path.normpath(path) == "/":
        raise GpuFleetError("path has to be an absolute directory such as /opt/vllm, not %r." % path)
    version = str(params["version"]).strip()
    if not _VERSION.match(version):
        raise GpuFleetError(
            "version has to be one exact version such as 0.33.0, not %r: what is installed has to be the same everywhere." % version
        )
    if not _NAME.match(params["package"]):
        raise GpuFleetError("package has to be the name of a distribution such as vllm, not %r." % params["package"])
    if params["keep"] < 0 or params["space_mib"] < 0:
        raise GpuFleetError("keep and space_mib can't be negative.")
    if params["timeout"] <= 0 or params["proof_timeout"] <= 0:
        raise GpuFleetError("timeout and proof_timeout have to be more than 0 seconds.")
    return Asked(
        path=os.path.normpath(path),
        version=version,
        package=params["package"],
        requirements=_lines("requirements", params["requirements"]),
        constraints=_lines("constraints", params["constraints"]),
        dependencies=params["dependencies"],
        python=params["python"].strip() or "python3",
        installer=params["installer"],
        index_url=params["index_url"] or None,
        extra_index_urls=tuple(url for url in params["extra_index_urls"] or () if url),
        space_mib=params["space_mib"],
        keep=params["keep"],
        timeout=params["timeout"],
        proof_timeout=params["proof_timeout"],
    )


def _lines(option: str, values: Optional[List[str]]) -> Tuple[str, ...]:
    found = []
    for value in values or []:
        line = " ".join(str(value).split())
        if not line:
            continue
        if _CREDENTIALS.search(line):
            raise GpuFleetError(
                "%s holds an address with credentials in it, which would be kept on the host for everybody to read. "
                "Put the index with its credentials in index_url or extra_index_urls, and name the package alone." % option
            )
        if line.startswith("-"):
            raise GpuFleetError("%s takes packages such as nvidia-ml-py==13.615.71, not the installer's option %r." % (option, line))
        found.append(line)
    return tuple(found)


def distribution(requirement: str) -> str:
    """The name that a requirement is about, in the form that names are compared in (PEP 503). Empty for a bare address."""
    match = _LEADING_NAME.match(requirement)
    if match is None or "://" in requirement.split("@")[0]:
        return ""
    return canonical(match.group(0))


def canonical(name: str) -> str:
    """PEP 503: one spelling for ``nvidia_ml_py``, ``nvidia.ml.py`` and ``NVIDIA-ML-Py``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def same_version(installed: Optional[str], asked: str) -> bool:
    """Whether what is installed is what was asked for. A build's local part (``+cu130``) counts only when it was asked for."""
    if installed is None:
        return False
    if "+" not in asked:
        installed = installed.split("+", 1)[0]
    return _comparable(installed) == _comparable(asked)


def _comparable(version: str) -> str:
    public, plus, local = version.strip().lower().partition("+")
    release = re.match(r"[0-9.]*[0-9]", public)
    if release is not None:
        # 0.33 and 0.33.0 are one version to the installers
        numbers = [str(int(part)) for part in release.group(0).split(".")]
        while len(numbers) > 1 and numbers[-1] == "0":
            numbers.pop()
        public = ".".join(numbers) + public[release.end():]
    return public + plus + re.sub(r"[-_]", ".", local)
