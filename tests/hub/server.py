# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model hub of the tests' own, on loopback: it answers what the real huggingface_hub asks, and fails in every way on request.

Large files come, as on the real one, by a redirect to a content server of another name, which must not see the token.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import socket
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional
from urllib.parse import unquote, urlsplit

from loopback import Loopback


class Request(NamedTuple):
    """What was asked. ``kind``: ``info``, ``head``, ``file`` (small, from the hub) or ``content`` (large, from the content server)."""

    kind: str
    path: str
    range: Optional[str]
    token: Optional[str]


class Model:
    """A repository: commits with their files, and the names of commits."""

    def __init__(self, files: Dict[str, bytes]) -> None:
        self.commits: Dict[str, Dict[str, bytes]] = {}
        self.names: Dict[str, str] = {}
        self.add(files)

    def add(self, files: Dict[str, bytes]) -> str:
        """A new commit, which becomes main."""
        commit = hashlib.sha1(repr((len(self.commits), sorted(files))).encode()).hexdigest()
        self.commits[commit] = dict(files)
        self.names["main"] = commit
        return commit

    @property
    def head(self) -> str:
        """The commit of main."""
        return self.names["main"]


def is_large(path: str) -> bool:
    """Whether a file is kept in LFS."""
    return path.endswith(".safetensors")


class Hub(Loopback):
    """The server, with its faults as attributes."""

    protocol = "HTTP/1.1"

    def __init__(self, address: str = "127.0.0.1", content_host: str = "localhost") -> None:
        super().__init__(address)
        self.models: Dict[str, Model] = {}
        self.content_host = content_host
        self.token: Optional[str] = None  # the only valid one; None: everybody may read
        self.granted = True  # False: gated, and the token's owner is not on the list
        self.forbidden = False
        self.limited = False  # whoever asks has asked too much
        self.no_models_here = False  # answers as some web server would
        self.statuses: List[int] = []  # what the next requests for a file's content are answered with
        self.cuts: List[int] = []  # after how many bytes the next contents break off
        self.stalls: List[int] = []  # after how many bytes they say nothing more
        self.changed: Dict[str, bytes] = {}  # content that is not the listed one
        self.short: Dict[str, bytes] = {}
        self.ranges = True
        self.requests: List[Request] = []
        self._ended = threading.Event()

    @property
    def url(self) -> str:
        """The endpoint."""
        return self.root

    def release(self) -> None:
        """Let what has stalled break off."""
        self._ended.set()

    def kinds(self) -> List[str]:
        """The kinds of all requests, in order."""
        return [each.kind for each in self.requests]

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        """Find out what is asked."""
        path = unquote(urlsplit(request.path).path)
        info = re.fullmatch(r"/api/models/(.+?)/revision/([^/]+)", path)
        file = re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path)
        content = re.fullmatch(r"/content/(.+?)/resolve/([^/]+)/(.+)", path)
        kind = "info" if info else "content" if content else "head" if request.command == "HEAD" else "file"
        authorization = request.headers.get("Authorization")
        token = authorization[len("Bearer "):] if authorization else None
        self.requests.append(Request(kind, path, request.headers.get("Range"), token))
        if self.no_models_here:
            self.send(request, 200, b"<html>It works!</html>", {"Content-Type": "text/html"})
        elif content:
            self._content(request, content.group(1), content.group(2), content.group(3))
        elif info:
            self._info(request, token, info.group(1), info.group(2))
        elif file:
            self._file(request, token, file.group(1), file.group(2), file.group(3))
        else:
            self.send(request, 404, b"")

    def _info(self, request: http.server.BaseHTTPRequestHandler, token: Optional[str], name: str, revision: str) -> None:
        commit = self._commit(request, token, name, revision)
        if commit is None:
            return
        siblings = []
        for path, data in self.models[name].commits[commit].items():
            entry: Dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": git_hash(data)}
            if is_large(path):
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        answer = {"id": name, "modelId": name, "sha": commit, "private": False, "gated": "auto" if not self.granted else False,
                  "disabled": False, "downloads": 1, "likes": 0, "tags": [], "siblings": siblings}  # fmt: skip
        self.send(request, 200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _file(
        self, request: http.server.BaseHTTPRequestHandler, token: Optional[str], name: str, revision: str, path: str
    ) -> None:
        commit = self._commit(request, token, name, revision)
        if commit is None:
            return
        if not self.granted:
            self._refuse(request, 403 if token else 401, "GatedRepo", "Access to model %s is restricted." % name)
            return
        data = self.models[name].commits[commit].get(path)
        if data is None:
            self._refuse(request, 404, "EntryNotFound", "Entry not found")
            return
        headers = {"X-Repo-Commit": commit, "ETag": '"%s"' % git_hash(data), "Accept-Ranges": "bytes"}
        if is_large(path):
            location = "http://%s:%d/content/%s/resolve/%s/%s" % (self.content_host, self.port, name, commit, path)
            headers.update({"X-Linked-Size": str(len(data)), "X-Linked-ETag": '"%s"' % hashlib.sha256(data).hexdigest(),
                            "Location": location})  # fmt: skip
            self.send(request, 302, b"", headers)
        elif request.command == "HEAD":
            self.send(request, 200, data, headers)
        else:
            self._bytes(request, path, data, headers)

    def _content(self, request: http.server.BaseHTTPRequestHandler, name: str, commit: str, path: str) -> None:
        self._bytes(request, path, self.models[name].commits[commit][path], {"Accept-Ranges": "bytes"})

    def _bytes(self, request: http.server.BaseHTTPRequestHandler, path: str, data: bytes, headers: Dict[str, str]) -> None:
        if self.statuses:
            status = self.statuses.pop(0)
            if status != 200:
                self.send(request, status, b"")
                return
        data = self.changed.get(path, self.short.get(path, data))
        wanted = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range") or "")
        status, start = 200, 0
        if wanted and self.ranges:
            status, start = 206, int(wanted.group(1))
            if start >= len(data):
                self.send(request, 416, b"", {"Content-Range": "bytes */%d" % len(data)})
                return
            headers = {**headers, "Content-Range": "bytes %d-%d/%d" % (start, len(data) - 1, len(data))}
        body = data[start:]
        request.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            request.send_header(key, value)
        request.end_headers()
        for after, stalls in ((self.cuts, False), (self.stalls, True)):
            if after:
                request.wfile.write(body[: after.pop(0)])
                request.wfile.flush()
                if stalls:
                    self._ended.wait(30)
                request.close_connection = True
                request.connection.shutdown(socket.SHUT_RDWR)
                return
        request.wfile.write(body)

    def _commit(self, request: http.server.BaseHTTPRequestHandler, token: Optional[str], name: str, revision: str) -> Optional[str]:
        """The commit that is meant, or None when the request was refused."""
        if token is not None and self.token is not None and token != self.token:
            self.send(request, 401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})
            return None
        if self.limited:
            self.send(request, 429, b"", {"Retry-After": "1"})
            return None
        if self.forbidden:
            self.send(request, 403, b"", {"X-Error-Message": "Your token has no right to read this"})
            return None
        if name not in self.models or (self.token is not None and token is None):
            # Who is nobody is not told whether there is such a model.
            self._refuse(request, 404 if token else 401, "RepoNotFound", "Repository not found")
            return None
        model = self.models[name]
        commit = model.names.get(revision, revision)
        if commit not in model.commits:
            self._refuse(request, 404, "RevisionNotFound", "Invalid rev id: %s" % revision)
            return None
        return commit

    def _refuse(self, request: http.server.BaseHTTPRequestHandler, status: int, code: str, message: str) -> None:
        self.send(request, status, b"", {"X-Error-Code": code, "X-Error-Message": message})


def git_hash(data: bytes) -> str:
    """The SHA-1 that git gives a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def wait_for(condition: Any, seconds: float = 30.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it never came to be")
        time.sleep(0.02)
