# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make release`: prove a tarball of the last commit, then lay it into dist/. To publish it is somebody's decision, and not made here."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import changelog
import importer
import tarball
import tree

from lab import LabError

from . import contents, swap, versions
from .installed import CommandFailed, Installed
from .steps import StepFailed, Steps, hold

DIST = tree.ROOT / "dist"


def committed() -> str:
    """Nothing is released that no commit holds."""
    hold(["not committed: " + line for line in tree.uncommitted()])
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=tree.ROOT, capture_output=True, text=True, check=True)
    return "commit %s, nothing beside it" % done.stdout.strip()


def versioned() -> str:
    """galaxy.yml, the changelog and the documents name one version."""
    hold(versions.problems(tree.ROOT, tree.tracked_files()))
    return "%s in galaxy.yml, changelog and documents" % versions.declared(tree.ROOT)


def told() -> str:
    """The changelog passes its linter, and its page is up to date."""
    hold(changelog.problems())
    return "sound, and CHANGELOG.rst is what it comes to"


def holds(built: Path) -> str:
    """What is in the tarball, and nothing else, is what the tree has."""
    hold(contents.problems(built, tree.ROOT, tree.tracked_files()))
    return "%d files, %d KiB, as in the tree" % (len(contents.files(built)), built.stat().st_size // 1024)


def same_again(built: Path, place: Path) -> str:
    """Another build, from the commit and not from this directory, holds the same."""
    with tree.committed() as source:
        other = tarball.build_from(source, place)
        hold(["%s differs" % name for name in contents.differences(built, other)])
    return "a build of the commit holds the same"


def imported(built: Path) -> str:
    """galaxy-importer has nothing against it."""
    hold(importer.check(built))
    return "no warning"


def laid_out(built: Path) -> str:
    """The proven tarball, and its checksum, in dist/."""
    DIST.mkdir(exist_ok=True)
    shutil.copy2(built, DIST)
    digest = hashlib.sha256(built.read_bytes()).hexdigest()
    (DIST / (built.name + ".sha256")).write_text("%s  %s\n" % (digest, built.name), encoding="utf-8")
    return "dist/%s, sha256 %s" % (built.name, digest[:16])


def release(place: Path, steps: Steps) -> None:
    """Every step, in an empty directory. StepFailed, CommandFailed or LabError from the first that fails."""
    steps.run("tree", committed)
    steps.run("version", versioned)
    steps.run("changelog", told)
    built: list[Path] = []
    installed: list[Installed] = []

    def build() -> str:
        built.append(tarball.build(place / "first"))
        return built[0].name

    def install() -> str:
        installed.append(Installed(built[0], place / "installed"))
        installed[0].verify()
        return "into an empty collections path, checksums verified"

    steps.run("build", build)
    steps.run("contents", lambda: holds(built[0]))
    steps.run("once more", lambda: same_again(built[0], place / "second"))
    steps.run("galaxy-importer", lambda: imported(built[0]))
    steps.run("install", install)
    with swap.own_lab(steps) as lab:
        swap.run(steps, installed[0], lab)
    steps.run("dist", lambda: laid_out(built[0]))


def main() -> int:
    """Entry point. Exit codes: 0 proven and in dist/, 1 a step failed."""
    steps = Steps()
    started = time.monotonic()
    failed = None
    with tempfile.TemporaryDirectory(prefix="gpufleet-release-") as place:
        try:
            release(Path(place), steps)
        except (StepFailed, CommandFailed, LabError) as error:
            failed = error
    if failed is not None:
        print("%s\nNothing was put into dist/." % failed)
    for line in versions.to_set_before_publishing(tree.ROOT):
        print("  Before it is published, galaxy.yml needs a true address in place of\n    %s\n  (CONTRIBUTING.md, A release)" % line)
    print("%d passed, %d failed  %.1f s" % (steps.passed, failed is not None, time.monotonic() - started))
    return 0 if failed is None else 1


if __name__ == "__main__":
    sys.exit(main())
