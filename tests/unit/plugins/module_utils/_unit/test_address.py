# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which addresses can't be listened on side by side, held against the kernel."""

from __future__ import annotations

import socket

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.address import addresses_meet

# On every Linux machine; the kernel has the last word on each pair.
LITERAL = ("0.0.0.0", "::", "127.0.0.1", "127.0.0.2", "::1")


def _both(one: str, other: str) -> bool:
    """Whether the kernel lets both be listened on, each as vLLM binds it."""
    first = socket.socket(socket.AF_INET6 if ":" in one else socket.AF_INET)
    second = socket.socket(socket.AF_INET6 if ":" in other else socket.AF_INET)
    with first, second:
        for each in (first, second):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        first.bind((one, 0))
        first.listen(1)
        try:
            second.bind((other, first.getsockname()[1]))
            second.listen(1)
        except OSError:
            return False
        return True


@pytest.mark.parametrize("one", LITERAL)
@pytest.mark.parametrize("other", LITERAL)
def test_the_kernel_agrees(one: str, other: str) -> None:
    assert addresses_meet(one, other) is not _both(one, other)
    backwards = {"one": other, "other": one}
    assert addresses_meet(one, other) is addresses_meet(**backwards)


@pytest.mark.parametrize(("one", "other", "meet"), [
    ("localhost", "10.0.0.1", True),
    ("", "127.0.0.1", True),
    ("gpu01.example.com", "gpu02.example.com", True),
    ("10.0.0.1", "10.0.0.2", False),
    ("[::1]", "::1", True),
    ("::ffff:10.0.0.1", "10.0.0.1", True),
    ("::ffff:10.0.0.1", "10.0.0.2", False),
    ("fe80::1%eth0", "fe80::1%eth1", True),
])  # fmt: skip
def test_names_and_other_spellings(one: str, other: str, meet: bool) -> None:
    assert addresses_meet(one, other) is meet
