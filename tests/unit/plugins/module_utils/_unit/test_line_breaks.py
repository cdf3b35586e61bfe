# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A line break in any place of a declaration would let it write lines of its own: it is refused in each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.parameters import to_request
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.render import wanted_files
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.spec import GuardSpec, ServiceSpec

BASE: dict[str, Any] = {"name": "x", "model": "/m", "served_name": "x", "gpus": (0,)}
# Where the text goes, by the option that it is given in.
PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "model": lambda text: {"model": "/m" + text},
    "served_name": lambda text: {"served_name": text},
    "host": lambda text: {"host": text},
    "executable": lambda text: {"executable": "/opt/" + text},
    "user": lambda text: {"user": text},
    "group": lambda text: {"group": text},
    "home": lambda text: {"home": "/srv/" + text},
    "nvidia_modprobe": lambda text: {"nvidia_modprobe": "/usr/bin/" + text},
    "guard path": lambda text: {"guard": GuardSpec(path="/usr/" + text)},
    "guard python": lambda text: {"guard": GuardSpec(python="/usr/" + text)},
    "a MIG instance": lambda text: {"gpu_uuids": ("MIG-" + text,)},
    "an argument": lambda text: {"args": {"a": text}},
    "an argument's name": lambda text: {"args": {text: 1}},
    "a dotted argument's name": lambda text: {"args": {"a." + text: 1}},
    "a list's item": lambda text: {"args": {"a": [text]}},
    "a dict's key": lambda text: {"args": {"a": {text: 1}}},
    "an argument for the command line": lambda text: {"args": {"a": "-" + text}},
    "a variable": lambda text: {"env": {"A": text}},
    "a variable's name": lambda text: {"env": {text: "x"}},
    "a secret": lambda text: {"secrets": {"A": text}},
    "a secret's name": lambda text: {"secrets": {text: "x"}},
    "a setting": lambda text: {"unit_options": {"Service": {"Nice": text}}},
    "a setting's item": lambda text: {"unit_options": {"Service": {"Nice": [text]}}},
    "a setting's name": lambda text: {"unit_options": {"Service": {text: 1}}},
    "a section": lambda text: {"unit_options": {text: {"Nice": 1}}},
    "a section of one's own": lambda text: {"unit_options": {"X-" + text: {"Nice": 1}}},
}
TEXTS = ["Service", "Nice", "vllm"]
BREAKS = ["\n", "\r", "\r\n", "\0", "\x85", "\u2028", "\nExecStartPre=/bin/sh"]


@pytest.mark.parametrize("place", PLACES)
def test_it_is_refused_in_every_place(place: str) -> None:
    taken = []
    for word, bad in itertools.product(TEXTS, BREAKS):
        for text in (word + bad, bad + word, word + bad + word):
            try:
                wanted_files(ServiceSpec(**{**BASE, **PLACES[place](text)}))
            except GpuFleetError:
                continue
            taken.append(text)
    assert taken == []


@pytest.mark.parametrize("bad", BREAKS, ids=ascii)
def test_the_name_of_a_unit_to_replace_holds_none(bad: str) -> None:
    for unit in ("vllm-x" + bad, "vllm-x.service" + bad):
        with pytest.raises(GpuFleetError):
            to_request({"name": "x", "model": "/m", "replace": [unit]})


def test_the_same_declarations_without_them_are_taken() -> None:
    """So that the refusals above are for the line break."""
    taken = [place for place in PLACES if _taken(PLACES[place]("Service")) or _taken(PLACES[place]("Nice"))]
    assert taken == list(PLACES)


def _taken(changes: dict[str, Any]) -> bool:
    try:
        return bool(wanted_files(ServiceSpec(**{**BASE, **changes})))
    except GpuFleetError:
        return False
