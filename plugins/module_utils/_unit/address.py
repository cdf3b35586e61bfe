# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether two addresses to listen on get into each other's way on one port."""

from __future__ import annotations

import ipaddress
from typing import Optional, Union

_Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]


def addresses_meet(one: str, other: str) -> bool:
    """True unless both are addresses in numbers that can be listened on side by side.

    ``0.0.0.0`` takes every IPv4 address. ``::`` takes every address: vLLM binds its socket without IPV6_V6ONLY. A name may
    mean any address of the host, and nothing at all means the wildcard.
    """
    if one == other:
        return True
    first, second = _address(one), _address(other)
    if first is None or second is None:
        return True
    if first.is_unspecified or second.is_unspecified:
        everything = any(each.is_unspecified and each.version == 6 for each in (first, second))
        return everything or first.version == second.version
    return first == second


def _address(host: str) -> Optional[_Address]:
    try:
        found = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found
