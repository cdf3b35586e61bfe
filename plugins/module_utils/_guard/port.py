# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the service's port can be bound, asked the way vLLM will bind it."""

from __future__ import annotations

import errno
import socket
from typing import List, Optional, Tuple

_LISTEN = "0A"


def port_taken(host: str, port: int, root: str = "/proc") -> Optional[str]:
    """Who or what has the port; None when it is free, or when the address says nothing about others (a wrong one, a privileged port).

    vLLM binds before it loads its model and listens only after that, so that a port can be taken by a server nobody can connect
    to yet: binding once with SO_REUSEADDR, as vLLM does, and once without tells.
    """
    try:
        # as bytes, where it can be: text goes through the codec for international names, which costs more than all the rest here
        name = host.encode("ascii") if host.isascii() else host
        found = socket.getaddrinfo(name or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return None
    for family, _kind, _protocol, _name, address in found[:2]:
        if _refused(family, address, reuse=True):
            return _whose(port, root)
        if _refused(family, address, reuse=False) and not _entries(port, root):
            # bound by somebody, and neither listening nor the remains of a connection
            return "a process that is bound to it and does not listen yet (a server that is starting)"
    return None


def _refused(family: int, address: "Tuple[object, ...]", reuse: bool) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if reuse:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind(address)
            if reuse:
                probe.listen(1)
        except OSError as exc:
            return exc.errno == errno.EADDRINUSE
    return False


def _entries(port: int, root: str) -> List[Tuple[str, str]]:
    """(state, inode) of every TCP socket with this local port."""
    found: List[Tuple[str, str]] = []
    for name in ("tcp", "tcp6"):
        try:
            with open("%s/net/%s" % (root, name), encoding="ascii", errors="replace") as handle:
                lines = handle.read().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) > 9 and words[1].endswith(":%04X" % port):
                found.append((words[3], words[9]))
    return found


def _whose(port: int, root: str) -> str:
    # not at the top: only where the port is taken, since a start should cost little
    from .._process.holders import all_pids, open_files
    from .._process.procfs import read_process

    sockets = {"socket:[%s]" % inode for state, inode in _entries(port, root) if state == _LISTEN}
    for pid in all_pids(root):
        if sockets.intersection(open_files(pid, root) or ()):
            info = read_process(pid, root)
            if info is not None:
                return "pid %d %s (user %s)" % (pid, info.cmdline or info.comm, info.user)
    return "another process (its owner can't be seen from here; `ss -ltnp` as root shows it)"
