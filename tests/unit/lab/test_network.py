# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which addresses a lab takes."""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Network

import pytest

from lab import network
from lab.errors import LabError

POOL = IPv4Network("198.18.0.0/15")


def test_the_network_follows_from_the_labs_id() -> None:
    first, again, other = (network.choose_network(lab_id, [], {}) for lab_id in ("0000ff", "0000ff", "000100"))
    assert first == again == IPv4Network("198.18.255.0/24")
    assert other == IPv4Network("198.19.0.0/24")


def test_a_taken_network_is_passed_over() -> None:
    taken = [IPv4Network("198.18.255.128/25"), IPv4Network("198.19.0.0/24")]
    assert network.choose_network("0000ff", taken, {}) == IPv4Network("198.19.1.0/24")


def test_the_search_goes_round() -> None:
    taken = [IPv4Network("198.19.255.0/24")]
    assert network.choose_network("0001ff", taken, {}) == IPv4Network("198.18.0.0/24")


def test_a_pool_that_is_all_taken() -> None:
    with pytest.raises(LabError, match=r"routes to all of 198\.18\.0\.0/15.*GPUFLEET_LAB_NETWORK"):
        network.choose_network("0000ff", [IPv4Network("198.16.0.0/12")], {})


def test_the_environment_decides() -> None:
    asked = {network.NETWORK_VARIABLE: "10.99.0.0/22"}
    assert network.choose_network("0000ff", [POOL], asked) == IPv4Network("10.99.0.0/22")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("10.99.0.1/24", "not an IPv4 network"),
        ("nonsense", "not an IPv4 network"),
        ("10.99.0.0/25", "needs a /24 or a larger"),
        ("192.0.2.0/24", "clashes with this machine's route to 192.0.2.0/25"),
    ],
)
def test_what_is_asked_for_in_vain(asked: str, message: str) -> None:
    with pytest.raises(LabError, match=message):
        network.choose_network("0000ff", [IPv4Network("192.0.2.0/25")], {network.NETWORK_VARIABLE: asked})


def test_routes_without_the_default_one() -> None:
    routes = [{"dst": "default"}, {"dst": "192.0.2.0/24"}, {"type": "local", "dst": "192.0.2.7"}, {"dst": "0.0.0.0/0"}]
    assert network.taken_networks(routes) == [IPv4Network("192.0.2.0/24"), IPv4Network("192.0.2.7/32")]


def test_addresses() -> None:
    chosen = IPv4Network("198.18.7.0/24")
    assert network.bridge_address(chosen) == ipaddress.IPv4Address("198.18.7.1")
    assert network.host_address(chosen, 1) == ipaddress.IPv4Address("198.18.7.11")


def test_the_bridges_name_fits_the_kernel() -> None:
    assert len(network.bridge_name("ffffff")) <= 15
