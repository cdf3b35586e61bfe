# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the service's port can be bound, asked the way vLLM will bind it."""

from __future__ import annotations

import errno
import socket
from typing import List, Optional, Tuple

_LISTEN = "0A"


def port_trouble(host: str, port: int, root: str = "/proc") -> Optional[str]:
    """Why the server can't have the port, as what follows "port N on HOST", and what to do; None when it can.

    The address is bound as vLLM does it: an IPv6 address as such, which by default takes the port of IPv4 with it; whatever else
    through IPv4. vLLM binds before it loads its model and listens only after that, so that a port can be taken by a server
    nobody can connect to yet: binding once with SO_REUSEADDR, as vLLM does, and once without tells.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    error = _bind_error(family, host, port, reuse=True)
    if error is not None and error.errno != errno.EADDRINUSE:
        return "can't be bound: %s; give the service an address of this host, and a port that it may have" % error.strerror
    if error is not None:
        return "is in use by %s; stop it or give the service another port" % _whose(port, root)
    if _bind_error(family, host, port, reuse=False) is not None and not _entries(port, root):
        # bound by somebody, and neither listening nor the remains of a connection
        return ("is in use by a process that is bound to it and does not listen yet (a server that is starting); "
                "stop it or give the service another port")
    return None


def host_trouble(host: str) -> Optional[str]:
    """Why this can be no address or name of a host at all; None when it can."""
    if not host.isprintable() or " " in host:
        return "it has a blank or a character that can't be written"
    if ":" in host or not host:
        return None
    try:
        name = host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        return "it is no name that could be looked up"
    labels = name[:-1].split(".") if name.endswith(".") else name.split(".")
    if len(name) > 253 or not all(0 < len(label) < 64 for label in labels):
        return "a name has at most 253 characters, and 1 to 63 between two dots"
    return None


def _bind_error(family: int, host: str, port: int, reuse: bool) -> Optional[OSError]:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if reuse:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            if reuse:
                probe.listen(1)
    except UnicodeError as exc:
        return OSError(errno.EINVAL, str(exc))
    except OSError as exc:  # also what looking up the name says
        return exc
    return None


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
