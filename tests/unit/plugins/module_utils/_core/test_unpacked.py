# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A program whose files lie beside it, compiled."""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.unpack import unpack
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.unpacked import unpacked
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.zipapp import build


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that looks for its files in the directory ``code`` beside it."""
    path = tmp_path / "change.pyz"
    path.write_bytes(build("_job.main", "packed", str(tmp_path / "code")))
    return path


@pytest.fixture
def code(program: Path) -> Path:
    """That directory, with the files in it."""
    directory = program.parent / "code"
    before = os.umask(0o077)
    try:
        unpack(str(program), str(directory))
    finally:
        os.umask(before)
    return directory


def run(program: Path) -> str:
    """What it prints on being asked how it is used."""
    return subprocess.run([sys.executable, str(program), "--help"], capture_output=True, text=True, check=True, timeout=60).stdout


def mark(place: str) -> None:
    """Make what lies there known when it runs."""
    main = Path(place) / "packed" / "_job" / "main.py"
    main.write_text("def main(words):\n    print('unpacked')\n    return 0\n", encoding="utf-8")


def test_it_runs_what_lies_there_compiled(program: Path, code: Path) -> None:
    place = unpacked(str(program), str(code))
    assert place is not None and list(Path(place).glob("packed/_job/__pycache__/main.*.pyc"))
    mark(place)
    assert run(program) == "unpacked\n"


def test_it_runs_by_itself_as_well(program: Path) -> None:
    assert unpacked(str(program), str(program.parent / "code")) is None
    assert "usage: change.pyz" in run(program)


def test_another_program_does_not_run_it_and_takes_its_place(program: Path, code: Path) -> None:
    first = unpacked(str(program), str(code))
    assert first is not None
    mark(first)
    other = program.with_name("new")
    other.write_bytes(program.read_bytes())
    other.rename(program)
    assert unpacked(str(program), str(code)) is None and "usage: change.pyz" in run(program)
    unpack(str(program), str(code))
    second = unpacked(str(program), str(code))
    # Whoever runs the one before comes to need its files as he goes.
    assert sorted(str(code / name) for name in os.listdir(code)) == sorted([first, str(second)])


def test_what_nobody_runs_any_more_goes(program: Path, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [unpacked(str(program), str(code))]
    real = time.time
    for hours in (0, 2, 4):
        other = program.with_name("new")
        other.write_bytes(program.read_bytes())
        other.rename(program)
        monkeypatch.setattr(time, "time", lambda hours=hours: real() + hours * 3600.0)
        unpack(str(program), str(code))
        made.append(unpacked(str(program), str(code)))
        kept = made if hours == 0 else made[-2:]
        assert sorted(str(code / name) for name in os.listdir(code)) == sorted(map(str, kept))


@pytest.mark.parametrize("which", ["directory", "place"])
@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_what_others_may_write_is_not_run(program: Path, code: Path, which: str, mode: int) -> None:
    place = unpacked(str(program), str(code))
    assert place is not None
    mark(place)
    os.chmod(code if which == "directory" else place, mode)
    assert unpacked(str(program), str(code)) is None and "usage: change.pyz" in run(program)


def test_neither_is_what_others_own(program: Path, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.lstat
    monkeypatch.setattr(os, "lstat", lambda path: os.stat_result((*real(path)[:4], real(program).st_uid + 1, *real(path)[5:10])))
    assert unpacked(str(program), str(code)) is None


def test_a_link_to_it_is_not_followed(program: Path, code: Path) -> None:
    code.rename(code.with_name("elsewhere"))
    code.symlink_to(code.with_name("elsewhere"))
    assert unpacked(str(program), str(code)) is None


def test_everybody_may_read_it(program: Path, code: Path) -> None:
    place = Path(str(unpacked(str(program), str(code))))
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in [place, *place.rglob("*")])


def test_once_is_enough(program: Path, code: Path) -> None:
    place = unpacked(str(program), str(code))
    unpack(str(program), str(code))
    assert unpacked(str(program), str(code)) == place and len(os.listdir(code)) == 1


@pytest.mark.parametrize("left", [0, 16, 40])
def test_of_a_full_file_system_nothing_is_taken_that_is_not_whole(program: Path, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    real = compileall.compile_dir

    def compile_dir(directory: str, **more: Any) -> bool:
        real(directory, **more)
        (short,) = Path(directory).glob("packed/_service/__pycache__/run.*.pyc")
        os.truncate(short, left)
        return True

    monkeypatch.setattr(compileall, "compile_dir", compile_dir)
    with pytest.raises(OSError, match="not all of it was written"):
        unpack(str(program), str(program.parent / "code"))
    assert unpacked(str(program), str(program.parent / "code")) is None and not list((program.parent / "code").iterdir())


def _shortened(place: Path) -> None:
    (compiled,) = place.glob("packed/_job/__pycache__/main.*.pyc")
    os.truncate(compiled, 40)


@pytest.mark.parametrize("damage", [_shortened, lambda place: (place / "packed" / "_job" / "main.py").write_text("broken(")])
def test_what_is_damaged_is_not_run_and_goes(program: Path, code: Path, damage: Callable[[Path], object]) -> None:
    place = str(unpacked(str(program), str(code)))
    damage(Path(place))
    assert "usage: change.pyz" in run(program)
    assert not os.path.exists(place)


@pytest.mark.parametrize("gone", ["packed/_service/run.py", "packed/_service", "packed"])
def test_what_goes_while_it_runs_is_taken_out_of_the_program(program: Path, code: Path, gone: str) -> None:
    place = Path(str(unpacked(str(program), str(code))))
    main = place / "packed" / "_job" / "main.py"
    main.write_text(
        "import os, shutil, sys\n\n\ndef main(words):\n"
        "    from .._core import errors\n    shutil.rmtree(sys.path[0] + '/%s', ignore_errors=True)\n"
        "    if os.path.isfile(sys.path[0] + '/%s'):\n        os.unlink(sys.path[0] + '/%s')\n"
        "        shutil.rmtree(sys.path[0] + '/packed/_service/__pycache__')\n"
        "    from .._service import run\n    from .._gpu.apart import __name__ as lazily\n"
        "    print(run.__file__, lazily)\n    return 0\n" % (gone, gone, gone), encoding="utf-8",
    )  # fmt: skip
    where, lazily = run(program).split()
    assert where == f"{program}/packed/_service/run.py" and lazily == "packed._gpu.apart"


def test_a_link_is_not_unpacked_into_and_nothing_of_others_is_swept(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere, code = program.parent / "elsewhere", program.parent / "code"
    for name in ("theirs", "1-2-3", "2-3-4"):
        (elsewhere / name).mkdir(parents=True)
    code.symlink_to(elsewhere)
    with pytest.raises(OSError, match="it is a link"):
        unpack(str(program), str(code))
    code.unlink()
    elsewhere.rename(code)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 7200.0)
    unpack(str(program), str(code))
    assert {path.name for path in code.iterdir()} > {"theirs"} and len(list(code.glob("*-*-*"))) == 2


def rebuilt(program: Path, place: str) -> tuple[bytes, list[str]]:
    """What the program would be packed into by what runs of it, unpacked, and the modules that it took."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[2]); sys.argv[0] = sys.argv[1]\n"
        "from packed._core.zipapp import build\n"
        "sys.stdout.buffer.write(build('_job.main', 'packed', sys.argv[3]))\n"
        "sys.stderr.write(' '.join(sys.modules))\n"
    )
    words = [sys.executable, "-I", "-c", code, str(program), place, str(program.parent / "code")]
    done = subprocess.run(words, capture_output=True, check=True, timeout=60)
    return done.stdout, done.stderr.decode().split()


def test_what_runs_unpacked_is_not_packed_anew_to_be_compared(program: Path, code: Path) -> None:
    place = str(unpacked(str(program), str(code)))
    content, loaded = rebuilt(program, place)
    assert content == program.read_bytes() and "zipfile" not in loaded


@pytest.mark.parametrize("change", [
    lambda program: program.write_bytes(b"damaged"),
    lambda program: program.unlink(),
])
def test_a_program_that_is_another_one_by_now_is(program: Path, code: Path, change: Callable[[Path], object]) -> None:
    place, before = str(unpacked(str(program), str(code))), program.read_bytes()
    change(program)
    content, loaded = rebuilt(program, place)
    assert content == before and "zipfile" in loaded


def test_before_its_first_step_a_change_loads_only_what_it_needs(program: Path, code: Path) -> None:
    place = str(unpacked(str(program), str(code)))
    words = "import sys; sys.path.insert(0, sys.argv[1]); import packed._job.main, packed._job.job; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", words, place], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    assert "packed._service.run" in loaded
    assert not loaded & {"argparse", "http.client", "ssl", "zipfile", "packed._preflight.run", "packed._job.change"}
