# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the server may not do: settings that cost a vLLM service nothing, and why some are missing.

Left out on purpose, each because the server breaks with it:

* ``PrivateDevices`` and ``DeviceAllow``: the GPUs' nodes are under names that changed between drivers.
* ``ProtectClock``: it adds a ``DeviceAllow``, and with the first of those every device not named is shut out.
* ``MemoryDenyWriteExecute``: kernels are compiled while the server runs.
* ``RemoveIPC``: it removes the shared memory of the *user* when one service stops, also that of its neighbours.
* ``ProtectProc``, ``ProcSubset``: the guard names who holds a GPU, and /proc/meminfo is read.
* ``PrivateNetwork``, ``IPAddressDeny``: it is a server.
* ``PrivateUsers``: the driver compares real user ids when processes share memory.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any, Iterator, List, Mapping, Tuple

from .environment import unit_environment
from .spec import ServiceSpec

_ALWAYS: Tuple[str, ...] = (
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
    "PrivateMounts=yes",
    "ProtectSystem=strict",
    "ProtectControlGroups=yes",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "LockPersonality=yes",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    # NCCL finds its interfaces over netlink.
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "SystemCallArchitectures=native",
    # @resources and @debug stay: NCCL pins threads, CUDA passes memory between processes with pidfd_getfd.
    "SystemCallFilter=~@clock @cpu-emulation @module @mount @obsolete @raw-io @reboot @swap",
    "SystemCallErrorNumber=EPERM",
    "UMask=0077",
)
_HOMES = ("/home", "/root", "/run/user")
_TEMPORARY = ("/tmp", "/var/tmp")
# Where the user may have put a cache of his own. The rest of the file system is read-only to the server.
_CACHES = (
    "HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "VLLM_CACHE_ROOT",
    "VLLM_ASSETS_CACHE",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "XDG_CACHE_HOME",
    "TMPDIR",
)
# What can stand in a list of paths without quotes.
_PLAIN_PATH = re.compile(r"^/[A-Za-z0-9_./@+=,-]+\Z")
# Where a path begins in a value: alone, as a URL, after a name (LoRA modules), in a list, in JSON. Not in a text: a chat template may
# be one.
_IN_VALUE = re.compile(r"(?:^|[=:,\"'])(?:file://)?(/[^=:,\"'\s]+)")


def hardening(spec: ServiceSpec) -> List[str]:
    """The lines of ``[Service]`` that narrow what the server can reach."""
    lines = list(_ALWAYS)
    writable = writable_paths(spec)
    # A model, a virtual environment, a cache, a template, a certificate in somebody's home or in a temporary directory stays reachable.
    needed = [spec.model, spec.executable, *writable, *_paths_in(spec.args), *_paths_in(spec.env)]
    needed = [posixpath.normpath("/" + path.lstrip("/")) for path in needed if path.startswith("/")]
    home = any((path + "/").startswith(place + "/") for path in needed for place in _HOMES)
    # A temporary directory itself is there in either case.
    temporary = any(path.startswith(place + "/") for path in needed for place in _TEMPORARY)
    lines.append("ProtectHome=%s" % ("read-only" if home else "yes"))
    lines.append("PrivateTmp=%s" % ("no" if temporary else "yes"))
    # Those of the host would be read-only as everything else is, and no Python starts without one to write to.
    opened = sorted({*writable, *_TEMPORARY}) if temporary else writable
    # A hyphen: one that isn't there is no reason not to start.
    lines += ["ReadWritePaths=%s%s" % ("" if path == spec.home else "-", path) for path in opened]
    return lines


def _paths_in(value: Any) -> Iterator[str]:
    """The absolute paths that a value names, however deep in it."""
    if isinstance(value, str):
        yield from _IN_VALUE.findall(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _paths_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _paths_in(item)


def writable_paths(spec: ServiceSpec) -> List[str]:
    """The directories outside the service's own that its settings name as places to write to, sorted."""
    environment = unit_environment(spec)
    named = [environment.get(name, "") for name in _CACHES] + [str(spec.args.get("download_dir", "")), spec.home]
    own = spec.home_path + "/"
    return sorted(
        {
            path.rstrip("/")
            for path in named
            if _PLAIN_PATH.match(path) and path.strip("/") and (path == spec.home or not (path + "/").startswith(own))
        }
    )
