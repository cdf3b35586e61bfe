# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that talks to a hub. The interpreter of vLLM's environment runs it, because huggingface_hub is there and not on the host.

Its request comes as JSON on standard input (a token is on no command line and in no environment), its answer is the last line
of its output. What it fetched before it failed, or was killed, stays where the next run goes on from.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import sys
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, Dict, List

from .hub_errors import RETRIED, classify

# Beyond this a hub serves no file over plain HTTP (huggingface_hub's MAX_HTTP_DOWNLOAD_SIZE).
HTTP_LIMIT = 50 * 1000**3
_LONGEST_WAIT_S = 30.0
_CHUNK = 1 << 18


class Driver:
    """One request's dealings with a hub."""

    def __init__(self, request: Dict[str, Any]) -> None:
        self.request = request
        self.hub = importlib.import_module("huggingface_hub")
        # False and not None: a token that somebody once stored on this host must not be sent along.
        self.token = request["token"] or False
        self.given_up = threading.Event()
        constants: Any = importlib.import_module("huggingface_hub.constants")
        if hasattr(constants, "DOWNLOAD_CHUNK_SIZE"):
            # What arrived of a chunk is lost when the connection breaks: with its 10 MB a bad line would never get anywhere.
            constants.DOWNLOAD_CHUNK_SIZE = _CHUNK

    def info(self) -> Dict[str, Any]:
        """The commit and its files, and whether files may be had at all: the page of a gated model is everybody's to read."""
        api = self.hub.HfApi(endpoint=self.request["endpoint"], token=self.token)
        found = self._again(lambda: api.model_info(
            self.request["repo"], revision=self.request["revision"], files_metadata=True, timeout=self.request["stall_timeout"],
        ))  # fmt: skip
        files = [
            {"path": each.rfilename, "size": each.size, "sha256": each.lfs.sha256 if each.lfs else None, "git": each.blob_id}
            for each in found.siblings or []
        ]
        if files:
            # A small text of a gated model may be everybody's too: the largest file tells.
            url = self._url(max(files, key=lambda each: each["size"] or 0)["path"], found.sha)
            self._again(lambda: self.hub.get_hf_file_metadata(url, token=self.token, timeout=self.request["stall_timeout"]))
        return {"commit": found.sha, "files": files}

    def fetch(self) -> Dict[str, Any]:
        """Fetch the files of the request into its directory, several at a time."""
        with ThreadPoolExecutor(max_workers=self.request["workers"]) as pool:
            waiting: List["Future[None]"] = [pool.submit(self._fetch_one, each) for each in self.request["files"]]
            done, rest = wait(waiting, return_when=FIRST_EXCEPTION)
            failed = [each.exception() for each in done if each.exception() is not None]
            if failed:
                # The others may be in the midst of gigabytes: they are not waited for.
                self.answer(dict(classify(failed[0] or RuntimeError()), ok=False))
                os._exit(1)
        return {"fetched": len(self.request["files"])}

    def _fetch_one(self, entry: Dict[str, Any]) -> None:
        if self.given_up.is_set():
            return
        try:
            self._get(entry)
        except BaseException:
            self.given_up.set()  # nobody begins another file
            raise

    def _get(self, entry: Dict[str, Any]) -> None:
        target = os.path.join(self.request["directory"], entry["path"])
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if self.request["xet"] or entry["size"] > HTTP_LIMIT:
            self._again(lambda: self._by_library(entry, target))
            return
        part = os.path.join(self.request["parts"], hashlib.sha256(entry["path"].encode("utf-8")).hexdigest()[:32])
        self._again(lambda: self._by_http(entry, part, target), lambda: os.path.getsize(part) if os.path.exists(part) else 0)

    def _by_http(self, entry: Dict[str, Any], part: str, target: str) -> None:
        # The library's own downloads begin a file anew in every process. This function of it goes on where a file ends.
        get = importlib.import_module("huggingface_hub.file_download").http_get
        headers = self.hub.utils.build_hf_headers(token=self.token)
        headers["Accept-Encoding"] = "identity"  # a compressed answer could not be gone on with
        own = {"_nb_retries": 0} if "_nb_retries" in inspect.signature(get).parameters else {}
        with open(part, "r+b" if os.path.exists(part) else "w+b") as handle:
            size = handle.seek(0, os.SEEK_END)
            if size > entry["size"]:
                handle.truncate(0)
                size = handle.seek(0)
            try:
                get(self._url(entry["path"], self.request["commit"]), handle, resume_size=size, headers=headers,
                    expected_size=entry["size"], displayed_filename=entry["path"], **own)  # fmt: skip
            except BaseException as exc:
                if classify(exc)["kind"] in ("range", "truncated"):
                    handle.truncate(0)
                raise
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(part, target)

    def _by_library(self, entry: Dict[str, Any], target: str) -> None:
        place = os.path.join(self.request["parts"], "library")
        path = self.hub.hf_hub_download(
            self.request["repo"], entry["path"], revision=self.request["commit"], local_dir=place, token=self.token,
            endpoint=self.request["endpoint"],
        )  # fmt: skip
        os.replace(path, target)

    def _url(self, path: str, commit: str) -> str:
        return str(self.hub.hf_hub_url(self.request["repo"], path, revision=commit, endpoint=self.request["endpoint"]))

    def _again(self, what: Any, progress: Any = lambda: 0) -> Any:
        """Try, and try again where that may help: so many times without getting any further, with longer and longer waits."""
        tries, had = 0, progress()
        while True:
            try:
                return what()
            except Exception as exc:  # what it is decides whether it is tried again
                if classify(exc)["kind"] not in RETRIED or self.given_up.is_set():
                    raise
                tries, had = (0 if progress() > had else tries + 1), progress()
                if tries > self.request["retries"]:
                    raise
            time.sleep(min(self.request["delay"] * 2 ** max(0, tries - 1), _LONGEST_WAIT_S))

    @staticmethod
    def answer(what: Dict[str, Any]) -> None:
        """The last line of the output."""
        sys.stdout.write("\n" + json.dumps(what) + "\n")
        sys.stdout.flush()


def main(argv: List[str]) -> int:
    """Entry point: the request is on standard input."""
    request = json.loads(sys.stdin.read())
    try:
        driver = Driver(request)
        result = driver.info() if request["do"] == "info" else driver.fetch()
    except Exception as exc:  # noqa: BLE001 - whatever it is, the other side tells it
        Driver.answer(dict(classify(exc), ok=False))
        return 1
    Driver.answer(dict(result, ok=True))
    return 0
