# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Debian mirror and proxy that this machine's apt is set up with, read so that debootstrap can use the same."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lab.errors import LabError

MIRROR_VARIABLE = "GPUFLEET_LAB_MIRROR"
_SUITES = frozenset(("bookworm", "trixie", "forky", "sid", "stable", "oldstable", "testing", "unstable"))
_SCHEMES = ("http", "https", "file")


@dataclass(frozen=True)
class Source:
    """One apt source: where it is, which suites and components it gives."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]


def parse_one_line(text: str) -> Iterator[Source]:
    """The sources in a ``sources.list`` in the one-line form."""
    for raw in text.splitlines():
        line = re.sub(r"\[[^\]]*\]", "", raw.split("#", 1)[0])
        words = line.split()
        if len(words) >= 3 and words[0] == "deb":
            yield Source(words[1], (words[2],), tuple(words[3:]))


def parse_deb822(text: str) -> Iterator[Source]:
    """The sources in a ``*.sources`` file; disabled ones are left out."""
    for paragraph in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        last = ""
        for line in paragraph.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace():
                fields[last] = f"{fields.get(last, '')} {line.strip()}"
            elif ":" in line:
                last, _colon, value = line.partition(":")
                last = last.strip().lower()
                fields[last] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false", "0"):
            continue
        for uri in fields.get("uris", "").split():
            yield Source(uri, tuple(fields.get("suites", "").split()), tuple(fields.get("components", "").split()))


def _resolve(uri: str) -> str | None:
    """A plain mirror address for a source's URI: ``mirror+file:`` names a file whose first line is one."""
    if uri.startswith("mirror+file:"):
        listing = Path(urlsplit(uri.removeprefix("mirror+")).path)
        if not listing.is_file():
            return None
        for line in listing.read_text(encoding="utf-8").splitlines():
            words = line.split("#", 1)[0].split()
            if words:
                uri = words[0]
                break
    return uri.rstrip("/") if urlsplit(uri).scheme in _SCHEMES else None


def debian_mirror(root: Path = Path("/"), environment: Mapping[str, str] | None = None) -> str | None:
    """The Debian mirror that apt here uses, or None where apt knows none (debootstrap then takes its own default).

    ``GPUFLEET_LAB_MIRROR`` goes before everything.
    """
    environment = os.environ if environment is None else environment
    if environment.get(MIRROR_VARIABLE):
        return environment[MIRROR_VARIABLE].rstrip("/")
    apt = root / "etc/apt"
    sources: list[Source] = []
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".sources":
            sources.extend(parse_deb822(text))
        elif path.suffix == ".list":
            sources.extend(parse_one_line(text))
    for source in sources:
        if "main" in source.components and _SUITES.intersection(source.suites):
            mirror = _resolve(source.uri)
            if mirror is not None:
                return mirror
    return None


def _apt_setting(name: str) -> str:
    result = subprocess.run(
        ["apt-config", "shell", "VALUE", name], capture_output=True, text=True, check=False, timeout=30
    )
    if result.returncode != 0:
        raise LabError(f"apt-config can't read {name}: {result.stderr.strip()}")
    words = shlex.split(result.stdout)
    return words[0].partition("=")[2] if words else ""


def proxy_environment(mirror: str | None) -> dict[str, str]:
    """Environment variables that make debootstrap's downloads take the proxy that apt takes for ``mirror``."""
    host = urlsplit(mirror).hostname if mirror else None
    result: dict[str, str] = {}
    for scheme in ("http", "https"):
        proxy = (_apt_setting(f"Acquire::{scheme}::Proxy::{host}") if host else "") or _apt_setting(
            f"Acquire::{scheme}::Proxy"
        )
        detect = _apt_setting(f"Acquire::{scheme}::Proxy-Auto-Detect")
        if not proxy and detect:
            answer = subprocess.run(
                [*shlex.split(detect), mirror or f"{scheme}://"],
                capture_output=True,
                text=True,
                check=False,
                timeout=30,
            )
            proxy = answer.stdout.strip()
        if proxy and proxy.upper() != "DIRECT":
            result[f"{scheme}_proxy"] = proxy
    return result
