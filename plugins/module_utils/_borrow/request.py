# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked of a host whose GPUs are borrowed: which ones, for which command, and how long for what."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Tuple

from .._core.errors import GpuFleetError
from .._core.scrub import SHORTEST
from .._service.request import FREE_MAX_USED_MIB
from .._unit.quote import environment_file_line

_WEEK_S = 7 * 24 * 3600
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*\Z")
# What the command is told of its GPUs. Another value would send it to GPUs that were not borrowed.
OURS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GPUFLEET_GPU_INDICES", "GPUFLEET_GPU_UUIDS", "GPUFLEET_GPU_COUNT")
# The shell takes a list's words as they are, and says like any shell what it can't run (126, 127).
_AS_IT_IS = ("/bin/sh", "-c", 'exec "$@"', "sh")


@dataclass(frozen=True)
class BorrowRequest:
    """The parameters of ``gpu_borrow``, checked and typed. Durations are seconds.

    ``argv`` is what is executed; ``shown`` the command as it was given, for people. Of secrets only the names are asked for: a token
    that was renewed makes no other request, and nothing that is kept of one can give its value away.
    """

    argv: Tuple[str, ...]
    shown: str
    gpus: Tuple[str, ...] = ("all",)
    env: Mapping[str, str] = field(default_factory=dict)
    secret_names: Tuple[str, ...] = ()
    chdir: str = "/"
    user: str = "root"
    timeout: float = 3600.0
    grace: float = 20.0
    drain_timeout: float = 0.0
    stop_timeout: float = 60.0
    ready_timeout: float = 1800.0
    max_used_mib: int = FREE_MAX_USED_MIB
    output_kib: int = 64


def to_borrow(params: Mapping[str, Any]) -> BorrowRequest:
    """Check what an argument spec cannot, and give the values their types. Raises GpuFleetError."""
    argv, shown = _command(params.get("command"))
    for name, low, high in (
        ("timeout", 1, _WEEK_S), ("grace", 1, 3600), ("drain_timeout", 0, _WEEK_S), ("stop_timeout", 1, _WEEK_S),
        ("ready_timeout", 1, _WEEK_S), ("max_used_mib", 0, 1 << 30), ("output_kib", 1, 1024),
    ):  # fmt: skip
        value = params.get(name)
        if value is not None and not low <= float(value) <= high:
            raise GpuFleetError("`%s` is %s. It has to be between %d and %d." % (name, value, low, high))
    given = params.get("gpus")
    gpus = tuple(str(gpu).strip() for gpu in (["all"] if given is None else given))
    if not gpus or not all(gpus):
        raise GpuFleetError("`gpus` is empty, or has an empty entry. Give indices, UUIDs, PCI ids, or \"all\" for every GPU of the host.")
    chdir = params.get("chdir") or "/"
    if not chdir.startswith("/") or not chdir.isprintable():
        raise GpuFleetError("`chdir` is %r. It is an absolute path on the host." % chdir)
    env = _environment(params.get("env") or {}, "env")
    names = tuple(sorted(secrets_in(params))) or tuple(params.get("secret_names") or ())
    twice = sorted(set(env) & set(names))
    if twice:
        raise GpuFleetError("`env` and `secrets` both have %s. Give it in one of them." % twice[0])
    return BorrowRequest(
        argv=argv,
        shown=shown,
        gpus=gpus,
        env=env,
        secret_names=names,
        chdir=chdir,
        user=params.get("user") or "root",
        timeout=_number(params, "timeout", 3600),
        grace=_number(params, "grace", 20),
        drain_timeout=_number(params, "drain_timeout", 0),
        stop_timeout=_number(params, "stop_timeout", 60),
        ready_timeout=_number(params, "ready_timeout", 1800),
        max_used_mib=int(_number(params, "max_used_mib", FREE_MAX_USED_MIB)),
        output_kib=int(_number(params, "output_kib", 64)),
    )


def _number(params: Mapping[str, Any], name: str, default: float) -> float:
    value = params.get(name)
    return float(default if value is None else value)


def _command(value: Any) -> Tuple[Tuple[str, ...], str]:
    """A text is a shell's line, a list is a program with its arguments."""
    argv: Tuple[str, ...]
    if isinstance(value, str) and value.strip():
        argv, shown = ("/bin/sh", "-c", value), value.strip()
    elif isinstance(value, (list, tuple)) and value and not any(isinstance(word, (list, tuple, dict)) or word is None for word in value):
        words = tuple(str(word) for word in value)
        argv, shown = _AS_IT_IS + words, " ".join(words)
        if not words[0].strip():
            raise GpuFleetError("`command` begins with an empty word. The first entry of a list is the program.")
    else:
        raise GpuFleetError("`command` is %r. Give a line for the shell, or a list of a program and its arguments." % (value,))
    if any("\0" in word for word in argv):
        raise GpuFleetError("`command` holds a NUL character, which no command line can have.")
    return argv, shown


def secrets_in(params: Mapping[str, Any]) -> Dict[str, str]:
    """The secrets of the module's parameters, checked. Raises GpuFleetError, which quotes no value."""
    found = _environment(params.get("secrets") or {}, "secrets")
    for name, value in found.items():
        if len(value.strip()) < SHORTEST:
            raise GpuFleetError(
                "`secrets.%s` is %s, and could not be hidden in what the command writes. Give one of at least %d characters, or put what "
                "is no secret into `env`." % (name, "too short" if value.strip() else "empty", SHORTEST)
            )
    return found


def without_secrets(params: Mapping[str, Any]) -> Dict[str, Any]:
    """The same parameters as they may be kept: to_borrow() makes the same request of them."""
    kept = {name: value for name, value in params.items() if name != "secrets"}
    return dict(kept, secret_names=sorted(secrets_in(params)))


def _environment(given: Any, what: str) -> Dict[str, str]:
    """``what`` is the parameter. A value is quoted where it is no secret."""
    if not isinstance(given, Mapping):
        raise GpuFleetError("`%s` is no dictionary. Give one of variables and their values." % what)
    found = {}
    for name, value in given.items():
        if not _NAME.match(str(name)):
            raise GpuFleetError("%r in `%s` is no name of an environment variable." % (name, what))
        if name in OURS:
            raise GpuFleetError("The variable %s of `%s` is what the command is told of its GPUs. Choose them with `gpus`." % (name, what))
        if isinstance(value, (dict, list, tuple)) or value is None:
            is_no_text = "has no value" if value is None else "is no text"
            said = is_no_text if what == "secrets" else "is %r" % (value,)
            raise GpuFleetError("The variable %s of `%s` %s. An environment holds text; give it as a string." % (name, what, said))
        text = ("1" if value else "0") if isinstance(value, bool) else str(value)
        if "\0" in text:
            raise GpuFleetError("The variable %s of `%s` holds a NUL character, which no environment can have." % (name, what))
        environment_file_line(name, text, "`%s.%s`" % (what, name))  # what can't be handed to systemd is refused here
        found[str(name)] = text
    return found
