# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`--short`: what `make test` runs of the lab's tests, so that it ends while its user still remembers what they changed.

It runs what tests/short.txt lists, of each test there one case: which one is chosen by the test's name, so that it is always the
same, and over all tests each distribution has some. The rest is left to `make test-all`, for every night and before a release. Without
`--short` everything runs, so whoever names a file gets all of it. How many were left out is said at the end of the run, and
in the stage's line.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

LIST = Path(__file__).resolve().parent / "short.txt"
EVERY_CASE = "[*]"
_LEFT = pytest.StashKey[int]()


def listed(text: str) -> List[str]:
    """The list's lines, without what is said about them: a directory, a file, a test (file::name), or with [*] all cases of it."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line]


def split(items: Iterable[Any], lines: Iterable[str]) -> Tuple[List[Any], List[Any]]:
    """What a short run runs, and what it leaves out; in the order given. An item has pytest's ``nodeid`` (path::name[case])."""
    items, wanted = list(items), set(lines)
    cases: Dict[str, List[Any]] = {}
    for item in items:
        cases.setdefault(_test(item), []).append(item)
    run: List[Any] = []
    left: List[Any] = []
    for item in items:
        test = _test(item)
        chosen = cases[test][zlib.crc32(test.encode()) % len(cases[test])]
        names = _names(test)
        whole = any(name + EVERY_CASE in wanted for name in names)
        (run if whole or (item is chosen and wanted.intersection(names)) else left).append(item)
    return run, left


def _test(item: Any) -> str:
    """The test that this is a case of: a case's name may have anything in it, a path or a colon as well."""
    path, _colons, name = str(item.nodeid).partition("::")
    return "%s::%s" % (path, name.partition("[")[0])


def _names(test: str) -> List[str]:
    """What the list may say to mean this test: itself, its file, or a directory above that."""
    path = test.partition("::")[0]
    return [test, path, *(str(parent) for parent in Path(path).parents)]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    parser.addoption("--short", action="store_true", help="only what tests/short.txt lists, one case of each test")


def pytest_configure(config: pytest.Config) -> None:
    """Nothing is left out yet."""
    config.stash[_LEFT] = 0


def pytest_collection_modifyitems(config: pytest.Config, items: List[pytest.Item]) -> None:
    """Leave out what is for `make test-all`."""
    if not config.getoption("short"):
        return
    items[:], left = split(items, listed(LIST.read_text(encoding="utf-8")))
    config.stash[_LEFT] = len(left)
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output["left"] = len(left)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    """A process of several has ended: each has collected, and so left out, the same."""
    config = node.config
    config.stash[_LEFT] = max(config.stash[_LEFT], getattr(node, "workeroutput", {}).get("left", 0))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how many."""
    left = config.stash[_LEFT]
    if left:
        terminalreporter.write_line("%d more in make test-all" % left)
