# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's network: one bridge with a /24 of its own, every host on it by a veth pair that systemd-nspawn makes."""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from lab.errors import LabError

NETWORK_VARIABLE = "GPUFLEET_LAB_NETWORK"
# Set aside for benchmarks of network devices (RFC 2544): neither the internet nor a usual site uses it.
_POOL = ipaddress.IPv4Network("198.18.0.0/15")


def bridge_name(lab_id: str) -> str:
    """The bridge's name; 15 characters are the most that the kernel takes."""
    return f"gfl{lab_id}"


def ip(*words: str) -> str:
    """Run ``ip`` and give its output; LabError with its words when it fails."""
    result = subprocess.run(["ip", *words], capture_output=True, text=True, check=False, timeout=30)
    if result.returncode != 0:
        raise LabError(f"`ip {' '.join(words)}` failed: {result.stderr.strip()}")
    return result.stdout


def ip_json(*words: str) -> list[dict[str, Any]]:
    """Run ``ip -json``; an empty answer is an empty list."""
    text = ip("-json", *words)
    return list(json.loads(text)) if text.strip() else []


def links() -> dict[str, dict[str, Any]]:
    """This machine's network links by name."""
    return {str(link["ifname"]): link for link in ip_json("link", "show") if "ifname" in link}


def taken_networks(routes: Iterable[Mapping[str, Any]]) -> list[ipaddress.IPv4Network]:
    """The networks that the machine has routes to, the default route left out; ``routes`` as ``ip -json route`` has them."""
    result = []
    for route in routes:
        destination = str(route.get("dst", "default"))
        if destination in ("default", "0.0.0.0/0"):
            continue
        result.append(ipaddress.IPv4Network(destination, strict=False))
    return result


def choose_network(
    lab_id: str, taken: Collection[ipaddress.IPv4Network], environment: Mapping[str, str] | None = None
) -> ipaddress.IPv4Network:
    """A /24 for the lab: the one asked for in ``GPUFLEET_LAB_NETWORK``, or one that follows from the lab's id.

    LabError when the one asked for is malformed or clashes with a route, or when every one in the pool does.
    """
    asked = (os.environ if environment is None else environment).get(NETWORK_VARIABLE)
    if asked:
        try:
            network = ipaddress.IPv4Network(asked)
        except ValueError as error:
            raise LabError(f"{NETWORK_VARIABLE}={asked}: not an IPv4 network ({error})") from None
        if network.prefixlen > 24:
            raise LabError(f"{NETWORK_VARIABLE}={asked}: the lab needs a /24 or a larger network")
        clash = next((other for other in taken if other.overlaps(network)), None)
        if clash is not None:
            raise LabError(f"{NETWORK_VARIABLE}={asked} clashes with this machine's route to {clash}: choose another")
        return network
    subnets = list(_POOL.subnets(new_prefix=24))
    first = int(lab_id, 16) % len(subnets)
    for network in (*subnets[first:], *subnets[:first]):
        if not any(other.overlaps(network) for other in taken):
            return network
    raise LabError(f"this machine has routes to all of {_POOL}: name a free /24 in {NETWORK_VARIABLE}")


def routes() -> list[dict[str, Any]]:
    """The machine's IPv4 routes."""
    return ip_json("-4", "route", "show", "table", "all")


def bridge_address(network: ipaddress.IPv4Network) -> ipaddress.IPv4Address:
    """The machine's own address on the bridge."""
    return network[1]


def host_address(network: ipaddress.IPv4Network, number: int) -> ipaddress.IPv4Address:
    """The address of the n-th host, counted from 1."""
    return network[10 + number]


def make_bridge(name: str, network: ipaddress.IPv4Network) -> None:
    """Make the bridge with the machine's address on it."""
    ip("link", "add", "name", name, "type", "bridge", "stp_state", "0", "forward_delay", "0")
    ip("link", "set", name, "addrgenmode", "none", "up")
    ip("address", "add", f"{bridge_address(network)}/{network.prefixlen}", "dev", name)


def remove_bridge(name: str) -> None:
    """Remove the bridge; one that is gone already is fine."""
    if name in links():
        ip("link", "delete", name, "type", "bridge")


def host_link(leader: int, bridge: str) -> str | None:
    """The name of the machine's end of a host's cable: the port of ``bridge`` that is the peer of the host's ``host0``."""
    result = subprocess.run(
        ["nsenter", f"--target={leader}", "--net", "ip", "-json", "link", "show", "host0"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    if result.returncode != 0:
        return None
    peer = json.loads(result.stdout)[0].get("link_index")
    for name, link in links().items():
        if link.get("ifindex") == peer and link.get("master") == bridge:
            return name
    return None


def host_end_name(machine_name: str) -> str:
    """What systemd-nspawn calls the machine's end of a host's cable, before it shortens it to what the kernel takes."""
    return f"vb-{machine_name}"


def remove_host_link(machine_name: str, bridge: str) -> None:
    """Remove the cable of a host that is off.

    It would go by itself with the host's network namespace, but a moment later, and until then the name is taken.
    """
    wanted = host_end_name(machine_name)
    for name, link in links().items():
        # A name that was too long lives on as an alternative name. The bridge may have gone before the cable did.
        if link.get("master") in (bridge, None) and wanted in (name, *link.get("altnames", ())):
            remove_link(name)


def remove_link(name: str) -> None:
    """Remove a network link; one that goes by itself meanwhile is fine."""
    result = subprocess.run(["ip", "link", "delete", name], capture_output=True, text=True, check=False, timeout=30)
    if result.returncode != 0 and name in links():
        raise LabError(f"can't remove the network link {name}: {result.stderr.strip()}")


def set_link(name: str, up: bool) -> None:
    """Plug or unplug a host's cable."""
    ip("link", "set", name, "up" if up else "down")
