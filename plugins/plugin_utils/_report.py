# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The JSON report that a run leaves behind: its envelope, its file, and questions asked of it in JMESPath."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

SCHEMA_VERSION = 1
# What the envelope says; a caller's own keys must not hide it.
ENVELOPE = ("schema_version", "name", "title", "time", "playbook", "check_mode", "rows")


class ReportError(Exception):
    """A report that cannot be made; the text says what to do."""


def plain(value: Any) -> Any:
    """The same value made of JSON's own types.

    Ansible hands out subclasses that JMESPath's type checks do not know, and JSON has no NaN: that becomes null.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return str(value)


def build(
    name: str,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    report: Mapping[str, Any],
    playbook: Optional[str],
    check_mode: bool,
    now: float,
) -> Dict[str, Any]:
    """The whole document. ``now`` is in seconds since the epoch; it is written as UTC. Raises ReportError."""
    taken = [key for key in ENVELOPE if key in report]
    if taken:
        raise ReportError("`report` must not hold %s: the report's own envelope does. Rename it." % ", ".join(taken))
    document: Dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "title": title,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
        "playbook": playbook,
        "check_mode": check_mode,
        "rows": rows,
    }
    document.update(report)
    cleaned: Dict[str, Any] = plain(document)
    return cleaned


def ask(expression: str, document: Any) -> Any:
    """What a JMESPath expression finds in the document. Raises ReportError."""
    try:
        import jmespath
        from jmespath.exceptions import JMESPathError
    except ImportError as exc:
        raise ReportError(
            "`query` needs the Python library jmespath on the controller, in the environment that runs"
            " ansible-playbook: pip install jmespath"
        ) from exc
    try:
        return jmespath.search(expression, document)
    except JMESPathError as exc:
        raise ReportError("`query` %r does not work: %s" % (expression, str(exc).strip())) from exc


def write(directory: str, name: str, document: Mapping[str, Any]) -> str:
    """Write ``<directory>/<name>-<time>.json`` whole or not at all; never over another report. Returns the path."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ReportError("`report_name` is %r. It becomes a file's name: letters, digits, dots, hyphens." % name)
    directory = os.path.abspath(os.path.expanduser(directory))
    text = json.dumps(document, indent=2, sort_keys=False, allow_nan=False, ensure_ascii=False) + "\n"
    stem = "%s-%s" % (name, re.sub(r"[-:]", "", str(document["time"])))
    try:
        os.makedirs(directory, exist_ok=True)
        return _write_new(directory, stem, text)
    except OSError as exc:
        raise ReportError(
            "The report cannot be written to %s: %s. Give another `report_dir`." % (directory, exc.strerror)
        ) from exc


def attach(report: str, texts: Mapping[str, Any]) -> List[str]:
    """Write a report's other forms beside it, by extension; returns their paths. The report's name is its own, so these are too."""
    stem = report[: -len(".json")]
    paths = []
    for extension, text in texts.items():
        if not re.fullmatch(r"[a-z0-9]{1,8}", str(extension)) or extension == "json":
            raise ReportError("`attachments` has %r. It becomes a file's extension: a few letters, such as md or html." % extension)
        path = "%s.%s" % (stem, extension)
        try:
            _replace(path, str(text))
        except OSError as exc:
            raise ReportError("The report cannot be written to %s: %s. Give another `report_dir`." % (path, exc.strerror)) from exc
        paths.append(path)
    return paths


def _replace(path: str, text: str) -> None:
    temporary = _temporary(os.path.dirname(path), text)
    try:
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def _write_new(directory: str, stem: str, text: str) -> str:
    temporary = _temporary(directory, text)
    try:
        for path in _candidates(directory, stem):
            try:
                os.link(temporary, path)  # unlike a rename, it fails where something is already there
            except FileExistsError:
                continue
            return path
        raise FileExistsError(17, "too many reports of this second are there already")
    finally:
        os.unlink(temporary)


def _temporary(directory: str, text: str) -> str:
    """A file that nobody looks for, whole and on disk, with the mode that a new file has here."""
    fd, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=directory)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
    except OSError:
        os.unlink(temporary)
        raise
    return temporary


def _candidates(directory: str, stem: str) -> List[str]:
    suffixes = [""] + ["-%d" % number for number in range(2, 100)]
    return [os.path.join(directory, "%s%s.json" % (stem, suffix)) for suffix in suffixes]


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
