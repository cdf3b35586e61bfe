# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A package index of the tests' own: wheels and sdists of a few lines, served on loopback as the real indexes serve theirs.

The real pip and the real uv install from it. What it serves calls itself vllm, and prints a version.
"""

from __future__ import annotations

import base64
import hashlib
import html
import http.server
import io
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple
from urllib.parse import quote, unquote

from loopback import Loopback

_RUNS = '''
import sys
__version__ = "%(version)s"


def main() -> None:
    print("%(version)s")
'''
# What a package that was built against another library does on its first import.
_CRASHES = 'raise ImportError("libcudart.so.13: cannot open shared object file: No such file or directory")\n'
_HANGS = "import time\n\n\ndef main() -> None:\n    time.sleep(600)\n"
_LIES = 'def main() -> None:\n    print("0.1.0")\n'
BODIES = {"runs": _RUNS, "crashes": _CRASHES, "hangs": _HANGS, "lies": _LIES}

_BACKEND = '''
import subprocess


def build_wheel(directory, config_settings=None, metadata_directory=None):
    compiler = "no-such-gcc"
    try:
        subprocess.check_call([compiler, "-c", "x.c"])
    except FileNotFoundError:
        raise SystemExit("error: command '%s' failed: No such file or directory" % compiler)
'''


def wheel(
    directory: Path, name: str, version: str, body: str = "runs", requires: Sequence[str] = (), python: str = ">=3.8",
    scripts: bool = True, more: Optional[Dict[str, str]] = None,
) -> Path:  # fmt: skip
    """Write a wheel; ``body`` is what its command does, one of BODIES, or a program with a main; ``more`` are files of it by path."""
    package = name.replace("-", "_")
    info = "%s-%s.dist-info" % (package, version)
    metadata = "Metadata-Version: 2.1\nName: %s\nVersion: %s\nRequires-Python: %s\n" % (name, version, python)
    metadata += "".join("Requires-Dist: %s\n" % each for each in requires)
    text = BODIES.get(body, body)
    files = {
        package + "/__init__.py": text % {"version": version} if body == "runs" else text,
        info + "/METADATA": metadata,
        info + "/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **(more or {}),
    }
    if scripts:
        files[info + "/entry_points.txt"] = "[console_scripts]\n%s = %s:main\n" % (name, package)
    files[info + "/RECORD"] = "".join("%s,%s,%d\n" % (path, _digest(data), len(data)) for path, data in files.items()) + (
        info + "/RECORD,,\n"
    )
    target = directory / ("%s-%s-py3-none-any.whl" % (package, version))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return target


def sdist_that_compiles(directory: Path, name: str, version: str) -> Path:
    """Write a source distribution whose build calls a compiler that isn't there."""
    base = "%s-%s" % (name.replace("-", "_"), version)
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "%s"\nversion = "%s"\n' % (name, version),
        "backend.py": _BACKEND,
        "PKG-INFO": "Metadata-Version: 2.2\nName: %s\nVersion: %s\n" % (name, version),
    }
    target = directory / (base + ".tar.gz")
    with tarfile.open(target, "w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo("%s/%s" % (base, path))
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return target


def _digest(text: str) -> str:
    raw = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class Index(Loopback):
    """Serves a directory of distributions at ``url``. ``password`` makes it ask for one; ``broken`` makes it answer 503;
    ``corrupt`` serves other bytes than the page's hashes promise."""

    def __init__(self, directory: Path, address: str = "127.0.0.1") -> None:
        super().__init__(address)
        self.directory = directory
        self.password: Optional[str] = None
        self.broken = False
        self.corrupt = False
        self.requests: List[str] = []
        self._links: Dict[Path, Tuple[Tuple[int, int], str]] = {}

    @property
    def url(self) -> str:
        """Without credentials."""
        return self.root + "/simple"

    def with_credentials(self, user: str, password: str) -> str:
        """The address with credentials in it."""
        return self.url.replace("://", "://%s:%s@" % (user, password))

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        """A page of links with hashes for a project, or a file."""
        self.requests.append(request.path)
        if self.broken:
            self.send(request, 503, b"down for maintenance")
            return
        wanted = "Basic " + base64.b64encode(("ci:%s" % self.password).encode()).decode()
        if self.password is not None and request.headers.get("Authorization") != wanted:
            self.send(request, 401, b"who are you?", {"WWW-Authenticate": 'Basic realm="packages"'})
            return
        files = {path.name: path for path in sorted(self.directory.iterdir())}
        page = re.fullmatch(r"/simple/([^/]+)/?", request.path)
        name = unquote(request.path.rsplit("/", 1)[-1])
        if page is not None and any(_project(each) == page.group(1) for each in files):
            links = "".join(self._link(path) for each, path in files.items() if _project(each) == page.group(1))
            self.send(request, 200, ("<!DOCTYPE html><html><body>%s</body></html>" % links).encode(), {"Content-Type": "text/html"})
        elif request.path.startswith("/files/") and name in files:
            self._send_file(request, files[name])
        else:
            self.send(request, 404, b"no such thing")

    def _link(self, path: Path) -> str:
        """A file's link with its hash, worked out once for each state of the file: some are of hundreds of MiB."""
        status = path.stat()
        state = (status.st_mtime_ns, status.st_size)
        if path not in self._links or self._links[path][0] != state:
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            link = '<a href="/files/%s#sha256=%s"%s>%s</a>\n' % (quote(path.name), digest, _python(path), path.name)
            self._links[path] = (state, link)
        return self._links[path][1]

    def _send_file(self, request: http.server.BaseHTTPRequestHandler, path: Path) -> None:
        """A file, or the part of it that is asked for: uv reads a wheel's metadata by its end."""
        size = path.stat().st_size
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("Range") or "")
        if self.corrupt or asked is None or not any(asked.groups()):
            self.send(request, 200, path.read_bytes()[::-1] if self.corrupt else path, {"Accept-Ranges": "bytes"})
            return
        begin = int(asked.group(1)) if asked.group(1) else max(0, size - int(asked.group(2)))
        end = min(size, int(asked.group(2)) + 1) if asked.group(1) and asked.group(2) else size
        with path.open("rb") as stream:
            stream.seek(begin)
            self.send(request, 206, stream.read(end - begin), {"Content-Range": "bytes %d-%d/%d" % (begin, end - 1, size)})


def _python(path: Path) -> str:
    """The Python that a wheel wants, as an attribute of its link; nothing for one that doesn't say."""
    if path.suffix != ".whl":
        return ""
    with zipfile.ZipFile(path) as archive:
        metadata = archive.read(next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))).decode()
    wanted = re.search(r"^Requires-Python: (.+)$", metadata, re.MULTILINE)
    return ' data-requires-python="%s"' % html.escape(wanted.group(1).strip()) if wanted else ""


def _project(filename: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"-\d", filename)[0]).lower()
