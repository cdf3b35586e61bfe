# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`--short`: what `make test` runs of the lab's tests, so that it ends while its user still remembers what they changed.

Left to `make test-all`, which is what CI runs:

- of a test with many cases on the lab's hosts all but one, unless the test is marked `every_case`. Which one is chosen by the test's name:
  always the same, and over all tests some of each distribution;
- what is marked `thorough`.

Both marks say why. Without `--short` everything runs, so whoever names a file gets all of it. How many were left out is
said at the end of the run, and in the stage's line.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, Dict, List, Tuple

import pytest

# Tests below this directory take hosts, thus seconds to minutes for each case.
ON_HOSTS = "tests/e2e/"
MARKS = (
    "thorough(reason): left out of a short run, because another test of it shows the same in less time",
    "every_case(reason): a short run has all of its cases",
)
_LEFT = pytest.StashKey[int]()


def split(items: Iterable[Any]) -> Tuple[List[Any], List[Any]]:
    """What a short run runs, and what it leaves out; in the order given.

    An item has pytest's ``nodeid`` (path::name[case]) and ``get_closest_marker``.
    """
    items = list(items)
    cases: Dict[str, List[Any]] = {}
    for item in items:
        cases.setdefault(_test(item), []).append(item)
    run: List[Any] = []
    left: List[Any] = []
    for item in items:
        test = _test(item)
        chosen = cases[test][zlib.crc32(test.encode()) % len(cases[test])]
        all_of_them = not test.startswith(ON_HOSTS) or item.get_closest_marker("every_case")
        (run if (all_of_them or item is chosen) and not item.get_closest_marker("thorough") else left).append(item)
    return run, left


def _test(item: Any) -> str:
    """The test that this is a case of: a case's name may have anything in it, a path or a colon as well."""
    path, _colons, name = str(item.nodeid).partition("::")
    return "%s::%s" % (path, name.partition("[")[0])


def reasons(items: Iterable[Any]) -> List[str]:
    """What is wrong with the marks of these items: each has to say why."""
    wrong = []
    for item in items:
        for name in ("thorough", "every_case"):
            mark = item.get_closest_marker(name)
            if mark is not None and not (len(mark.args) == 1 and isinstance(mark.args[0], str) and mark.args[0].strip()):
                wrong.append('%s: say why: @pytest.mark.%s("...")' % (item.nodeid, name))
    return wrong


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    parser.addoption("--short", action="store_true", help="of the tests on hosts one case of each, and nothing marked thorough")


def pytest_configure(config: pytest.Config) -> None:
    """The marks."""
    config.stash[_LEFT] = 0
    for mark in MARKS:
        config.addinivalue_line("markers", mark)


def pytest_collection_modifyitems(config: pytest.Config, items: List[pytest.Item]) -> None:
    """Leave out what is for `make test-all`."""
    wrong = reasons(items)
    if wrong:
        raise pytest.UsageError("\n".join(wrong))
    if not config.getoption("short"):
        return
    items[:], left = split(items)
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
