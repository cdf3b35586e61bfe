# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-test sanity with the oldest and the newest supported ansible-core, without ignore files and without silent skips.

    tests/gates/sanity.py [--whole] [--test NAME ...]      more arguments go to ansible-test

It is what users install that is checked, as Ansible's own reviewers do; with --whole all that a checkout holds. The tests' own
code has ruff and mypy from `make lint`, and is twice as much for ansible-test's pylint.
The two run side by side: each uses one processor for most of its time. ansible-test makes its own virtual environments,
and expects nobody else to make the same at the same time: each core has a home of its own. It fetches pip for them by a
script from the network; here the same pip comes from the package index like everything else. It warns and goes on where
an interpreter or a tool is missing; here only interpreters that this machine really lacks may be missing, and those that
are used are named.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterator, List, NamedTuple, Sequence, Set

import cores
import tarball
import tree
from checks import verdict
from cores import Core
from pythons import find_pythons

_PRINTING = threading.Lock()
_GET_PIP = '''# Runs pip from its wheel, in place of a script that would be downloaded.
import runpy
import sys

sys.path.insert(0, %r)
words = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
sys.argv[1:] = ["install"] + words
runpy.run_module("pip", run_name="__main__", alter_sys=True)
'''


def bootstrap_pip(home: Path, core: Core) -> None:
    """Put pip, in the version that this ansible-test wants, where it looks before it downloads anything."""
    source = core.ansible_test / "_internal" / "python_requirements.py"
    versions = set(re.findall(r"""\bpip=['"]([0-9.]+)['"]""", source.read_text(encoding="utf-8")))
    if not versions:
        raise SystemExit("Cannot tell from %s which pip ansible-test wants. Look at bootstrap_pip()." % source)
    for version in versions:
        cache = home / ".ansible" / "test" / "cache"
        script = cache / ("get_pip_%s.py" % version.replace(".", "_"))
        if script.exists():
            continue
        cache.mkdir(parents=True, exist_ok=True)
        download = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check", "download", "--no-deps"]
        subprocess.run([*download, "-d", str(cache), "pip==" + version], check=True)
        partial = script.with_suffix(".part")
        partial.write_text(_GET_PIP % str(cache / ("pip-%s-py3-none-any.whl" % version)), encoding="utf-8")
        partial.rename(script)


def interpreters(directory: Path) -> Set[str]:
    """Fill a directory with links to real interpreters, python3.9 and up; returns the versions."""
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    versions = set()
    for python in find_pythons():
        version = "%d.%d" % python.minor
        if version not in versions and python.minor >= (3, 9):
            (directory / ("python" + version)).symlink_to(python.path)
            versions.add(version)
    return versions


def unexpected_skips(output: str, present: Set[str]) -> List[str]:
    """The tests that ansible-test left out for another reason than an interpreter that is not on this machine."""
    skips = re.findall(r"^.*\b[Ss]kipping .*$", output, re.MULTILINE)
    absent = re.compile(r"on Python ([0-9.]+) because it could not be found")
    return [line for line in skips if not ((found := absent.search(line)) and found.group(1) not in present)]


def home_of(core: Core) -> Path:
    """The home of this core's ansible-test, kept between runs. What the user set for pip and git holds there as well.

    Its path is short, because what ansible-test installs there names its interpreter in a first line of at most 127 bytes.
    """
    home = tree.cache().parent / core.minor
    home.mkdir(parents=True, exist_ok=True)
    for name in (".cache", ".config", ".gitconfig", ".netrc", ".pip"):
        if (Path.home() / name).exists() and not (home / name).exists():
            (home / name).symlink_to(Path.home() / name)
    return home


@contextlib.contextmanager
def installed(purpose: str) -> Iterator[Path]:
    """What users install, with the one file that tells ansible-test which Pythons it is for."""
    with tarball.unpacked(purpose) as target:
        (target / "tests").mkdir()
        shutil.copy2(tree.ROOT / "tests" / "config.yml", target / "tests")
        tree.known_to_git(target)
        yield target


class Result(NamedTuple):
    """What sanity came to with one core. ``pythons``: those that the code was compiled and imported with."""

    passed: int
    failed: int
    pythons: Sequence[str]
    problems: Sequence[str]


def judge(output: str, returncode: int, present: Set[str], ignore_files: Sequence[str]) -> Result:
    """Read ansible-test's own words; ``present`` are the Pythons that it could have used."""
    started = re.findall(r'^Running sanity test "(.+?)"(?: on Python ([0-9.]+))?$', output, re.MULTILINE)
    listed = re.search(r"^[A-Z]+: The ([0-9]+) sanity test\(s\) listed below", output, re.MULTILINE)
    failed = int(listed.group(1)) if listed else 1 if returncode else 0
    problems = ["ignore file: %s" % name for name in ignore_files]
    problems += ["unexpected skip: %s" % line for line in unexpected_skips(output, present)]
    if returncode:
        problems.append("ansible-test ended with exit code %d" % returncode)
    if not started:
        problems.append("it ran no test")
    # It begins, and has nothing to do, with a Python that is older than what modules are for.
    pythons = sorted({python for name, python in started if python in present}, key=lambda text: int(text.split(".")[1]))
    return Result(len(started) - failed, failed or len(problems), pythons, problems)


def check(core: Core, links: Path, present: Set[str], words: Sequence[str], whole: bool) -> Result:
    """Run sanity with one core on what users install, or on the ``whole`` checkout; show what it says, and its line at the end."""
    started = time.monotonic()
    home = home_of(core)
    path = os.pathsep.join([str(links), str(core.venv / "bin"), os.environ.get("PATH", os.defpath)])
    env = dict(os.environ, HOME=str(home), PATH=path)
    env.setdefault("PIP_QUIET", "1")
    env.pop("PYTHONPATH", None)
    checked = tree.copy if whole else installed
    with (home / "lock").open("w") as lock, checked("sanity-" + core.minor) as copy:
        fcntl.flock(lock, fcntl.LOCK_EX)
        bootstrap_pip(home, core)
        command = [str(core.venv / "bin" / "ansible-test"), "sanity", "--local", "--color", "no", *words]
        with subprocess.Popen(
            command, cwd=copy, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as child:
            lines = []
            for line in child.stdout or ():
                lines.append(line)
                with _PRINTING:
                    print("%s: %s" % (core.minor, line.rstrip("\n")), flush=True)
    ignored = [name for name in tree.tracked_files() if name.startswith("tests/sanity/ignore")]
    result = judge("".join(lines), child.returncode, present, ignored)
    told = "%d tests with Python %s; compiled and imported with %s" % (
        result.passed, core.python, ", ".join(result.pythons) or "none",
    )  # fmt: skip
    with _PRINTING:
        print(verdict("ansible-core " + core.version, time.monotonic() - started, "; ".join(result.problems) or None, told))
    return result


def main() -> int:
    """Entry point."""
    both = [cores.core(cores.OLDEST), cores.core(cores.NEWEST)]
    wrong = cores.complaints(both)
    if wrong:
        raise SystemExit("\n".join(wrong))
    whole = "--whole" in sys.argv[1:]
    words = [word for word in sys.argv[1:] if word != "--whole"]
    links = tree.cache() / "pythons"
    present = interpreters(links)
    with ThreadPoolExecutor(len(both)) as pool:
        results = list(pool.map(lambda core: check(core, links, present, words, whole), both))
    print("%d passed, %d failed" % (sum(each.passed for each in results), sum(each.failed for each in results)))
    return 1 if any(each.problems for each in results) else 0


if __name__ == "__main__":
    sys.exit(main())
