# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a service has drifted from its declaration, as data.

The plan of ``vllm_service`` in check mode is taken at its word: what it would do is what is not as declared. Only what no
file of the service says is looked at beside it: which vLLM runs, and which revision of the model lies in its directory.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence

from .._core.files import FileChange
from .._service.plan import Plan, Step
from .._unit.change_unit import CHANGE_UNIT

# More changed lines than these are counted.
_LINES = 3
_LONGEST = 120
_VARIABLE = "Environment="
_VARIABLE_NAME = re.compile(r"""Environment=["']?([A-Za-z_][A-Za-z0-9_]*)=""")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\Z")
_SECRET = re.compile(r"(?i)key|secret|passw|passphrase|pwd|credential|auth|cookie|token(?!iz)")
# max-num-batched-tokens and its like count tokens.
_COUNTS = re.compile(r"(?i)(max|min|long)[-_].*token")
# A number, with a unit perhaps, or a switch.
_PLAIN = re.compile(
    r"(?i)(-?[0-9]{1,12}(\.[0-9]{1,6})?( ?(us|ms|s|sec|m|min|h|d|k|M|G|T|B|KiB|MiB|GiB|%))?"
    r"|true|false|yes|no|on|off|null|infinity)\Z"
)


@dataclass(frozen=True)
class Drift:
    """One way in which a host is not as declared.

    ``kind``: ``missing``, ``unit``, ``drop-in``, ``arguments``, ``secrets``, ``tools``, ``running``, ``boot``, ``rival``, ``host``,
    ``version``, ``revision``, ``taken out`` or ``refused``.
    """

    kind: str
    detail: str

    def to_json(self) -> Dict[str, str]:
        """Plain data."""
        return {"kind": self.kind, "detail": self.detail}


def drift_of(plan: Plan, changes: Sequence[FileChange], unit: str, there: bool) -> List[Drift]:
    """What the plan would put right; ``there`` is whether the service is declared on the host at all."""
    by_path = {change.wanted.path: change for change in changes}
    if not there:
        found = [Drift("missing", "it is not on this host")]
    else:
        found = [drift for drift in (_of_step(step, unit, by_path) for step in plan.steps) if drift is not None]
    found += [Drift("rival", "%s runs beside it: %s" % (step.target, step.reason)) for step in plan.steps
              if step.action == "stop" and step.target != unit]  # fmt: skip
    found += [Drift("boot", "%s starts at boot as well" % step.target) for step in plan.steps
              if step.action == "disable" and step.target != unit]  # fmt: skip
    return found


def _of_step(step: Step, unit: str, by_path: Dict[str, FileChange]) -> Optional[Drift]:
    if step.action in ("write", "remove"):
        return _of_file(step.target, by_path.get(step.target))
    if step.action in ("create_user", "make_directory"):
        return Drift("host", "%s: %s" % (step.target, step.reason))
    if step.action == "daemon_reload" and step.reason.startswith("its file changed"):
        return Drift("unit", "its file changed since systemd read it")
    if step.action == "start" and step.target == unit:
        # That it would be started anew since its files would be written is told with the files.
        return None if step.reason == "its declaration changes" else Drift("running", step.reason)
    if step.action in ("enable", "disable") and step.target == unit:
        return Drift("boot", "it does not start at boot" if step.action == "enable" else "it starts at boot")
    if step.action == "enable" and step.target == CHANGE_UNIT:
        return Drift("tools", "%s does not start at boot" % CHANGE_UNIT)
    return None


def _of_file(path: str, change: Optional[FileChange]) -> Drift:
    kind = _kind_of(path)
    what = "content" if change is None else change.what
    if kind == "tools":
        return Drift(kind, "%s is of another version of the collection" % path if what == "content" else "%s is missing" % path)
    if what == "created":
        return Drift(kind, "%s is missing" % path)
    if what == "removed":
        return Drift(kind, "%s is not declared" % path)
    if what == "mode":
        return Drift(kind, "%s has another mode or owner" % path)
    if change is None or change.wanted.secret or change.wanted.opaque:
        return Drift(kind, "%s has another content" % path)
    return Drift(kind, _differences(os.path.basename(path), change.before or b"", change.wanted.content or b""))


def _kind_of(path: str) -> str:
    name = os.path.basename(path)
    if name.endswith((".pyz", CHANGE_UNIT)):
        return "tools"
    if name.endswith(".service"):
        return "unit"
    if name.endswith(".conf"):
        return "drop-in"
    return "secrets" if name.endswith(".env") else "arguments"


def _differences(name: str, before: bytes, wanted: bytes) -> str:
    """Such as ``kimi.yaml has "max-model-len: 4096" where "max-model-len: 8192" is declared``."""
    sign = ":" if name.endswith((".yaml", ".yml")) else "="
    has, should = _lines(before), _lines(wanted)
    only_there = [line for line in has if line not in should]
    only_declared = [line for line in should if line not in has]
    parts = []
    for line in only_there[:_LINES]:
        key = _key(line, sign)
        other = next((each for each in only_declared if key and _key(each, sign) == key), None)
        if other is not None:
            only_declared.remove(other)
            parts.append(_changed(key, line, other, sign))
        else:
            parts.append('has "%s", which is not declared' % key if key else "has a line that is not declared")
    parts += ["lacks %s" % _shown(line, sign) for line in only_declared[: max(0, _LINES - len(parts))]]
    more = len([line for line in has if line not in should]) + len([line for line in should if line not in has]) - 2 * len(parts)
    text = "%s %s" % (name, ", ".join(parts) or "has the same lines in another order")
    return text + (", and more" if more > 0 and len(parts) >= _LINES else "")


def _changed(key: str, line: str, declared: str, sign: str) -> str:
    """What a host's file says may be anybody's secret: of it only numbers and switches are shown, of a key that is declared."""
    if _told(declared, sign) and _PLAIN.match(line.partition(sign)[2].strip()):
        return 'has "%s" where "%s" is declared' % (line[:_LONGEST], declared[:_LONGEST])
    if _told(declared, sign):
        return 'has another "%s" where "%s" is declared' % (key, declared[:_LONGEST])
    return 'has another "%s" than is declared' % key


def _shown(line: str, sign: str) -> str:
    """A line of the declaration, without its value where that may be a secret."""
    key = _key(line, sign)
    if _told(line, sign):
        return '"%s"' % line[:_LONGEST]
    return '"%s"' % key if key else "a line that is declared"


def _told(line: str, sign: str) -> bool:
    """Whether the value of a declared line may be told."""
    key = _key(line, sign)
    return bool(key) and not line.startswith(_VARIABLE) and (_SECRET.search(key) is None or _COUNTS.match(key) is not None)


def _lines(text: bytes) -> List[str]:
    return [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]


def _key(line: str, sign: str) -> str:
    """The setting that a line sets, a variable for ``Environment="NAME=value"``; "" for what sets none."""
    if line.startswith(_VARIABLE):
        match = _VARIABLE_NAME.match(line)
        return match.group(1) if match else _VARIABLE[:-1]
    head, found, _value = line.partition(sign)
    head = head.strip().strip("\"'")
    return head if found and _NAME.match(head) else ""
