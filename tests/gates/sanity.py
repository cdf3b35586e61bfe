# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-test sanity on a copy of the tracked files, without ignore files and without silent skips.

    tests/gates/sanity.py [--test NAME ...]      more arguments go to ansible-test

ansible-test makes its own virtual environments. It fetches pip for them by a script from the network; here the same pip
comes from the package index like everything else. It warns and goes on where an interpreter or a tool is missing; here
only interpreters that this machine really lacks may be missing, and they are named.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import List, Set

import tree
from pythons import find_pythons

BIN = Path(sys.executable).parent
_GET_PIP = '''# Runs pip from its wheel, in place of a script that would be downloaded.
import runpy
import sys

sys.path.insert(0, %r)
words = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
sys.argv[1:] = ["install"] + words
runpy.run_module("pip", run_name="__main__", alter_sys=True)
'''


def bootstrap_pip(home: Path) -> None:
    """Put pip, in the version that this ansible-test wants, where it looks before it downloads anything."""
    spec = importlib.util.find_spec("ansible_test")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("ansible-test is not in %s. Run: make venv" % BIN)
    source = Path(spec.submodule_search_locations[0]) / "_internal" / "python_requirements.py"
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
        if version not in versions and python.minor >= (3, 8):
            (directory / ("python" + version)).symlink_to(python.path)
            versions.add(version)
    return versions


def unexpected_skips(output: str, present: Set[str]) -> List[str]:
    """The tests that ansible-test left out for another reason than an interpreter that is not on this machine."""
    skips = re.findall(r"^.*\b[Ss]kipping .*$", output, re.MULTILINE)
    absent = re.compile(r"on Python ([0-9.]+) because it could not be found")
    return [line for line in skips if not ((found := absent.search(line)) and found.group(1) not in present)]


def main() -> int:
    """Entry point."""
    home = Path.home()
    bootstrap_pip(home)
    links = tree.cache() / "pythons"
    present = interpreters(links)
    env = dict(os.environ, PATH=os.pathsep.join([str(links), str(BIN), os.environ.get("PATH", os.defpath)]))
    env.setdefault("PIP_QUIET", "1")
    env.pop("PYTHONPATH", None)
    with tree.copy("sanity") as copy:
        command = [str(BIN / "ansible-test"), "sanity", "--local", "--color", "no", *sys.argv[1:]]
        with subprocess.Popen(
            command, cwd=copy, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as child:
            lines = []
            for line in child.stdout or ():
                sys.stdout.write(line)
                sys.stdout.flush()
                lines.append(line)
        output = "".join(lines)
        ignores = sorted(path.name for path in (copy / "tests" / "sanity").glob("ignore*"))
    started = re.findall(r'^Running sanity test "(.+)"(?: on Python [0-9.]+)?$', output, re.MULTILINE)
    verdict = re.search(r"^[A-Z]+: The ([0-9]+) sanity test\(s\) listed below", output, re.MULTILINE)
    failed = int(verdict.group(1)) if verdict else 1 if child.returncode else 0
    problems = ["ignore file: %s" % name for name in ignores]
    problems += ["unexpected skip: %s" % line for line in unexpected_skips(output, present)]
    if child.returncode:
        problems.append("ansible-test ended with exit code %d" % child.returncode)
    for problem in problems:
        print("FAILED: " + problem)
    print("Python %s on this machine." % ", ".join(sorted(present, key=lambda text: int(text.split(".")[1]))))
    print("%d passed, %d failed" % (len(started) - failed, failed or len(problems)))
    return 1 if problems or not started else 0


if __name__ == "__main__":
    sys.exit(main())
