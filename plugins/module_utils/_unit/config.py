# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM's engine arguments, brought into one form and written as the file that ``vllm serve --config`` reads.

How vLLM 0.33 reads it (``vllm/utils/argparse_utils.py``): every top-level key becomes a flag, the value its words.

* ``true`` -> ``--key``. ``false`` should become ``--no-key``, but the parser that reads the file asks itself whether it
  knows that flag, and the flags are its subcommand's: every ``false`` is dropped without a word (seen with 0.32 and
  0.33). So a ``false`` that means something goes on the command line, see :func:`split_args`.
* A list -> one word per item, made with ``str()``: a dict in a list would arrive as Python, so it is written as JSON.
* A dict -> JSON. An empty list and null -> nothing.
* A word that begins with ``-`` is taken for a flag, and a dotted one for a nested argument. Such values go on the
  command line as ``--key=value``.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Dict, List, Mapping, Tuple

from .._core.errors import GpuFleetError
from .known_args import FLOATS, INTEGERS, JSON_VALUES, OFF_BY_DEFAULT, OURS, REPEATED, is_boolean
from .quote import text_value

HEADER = "# Managed by gpufleet.vllm: changes made here are overwritten. Change the service's args instead.\n"

_KEY = re.compile(r"^[A-Za-z][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*\Z")
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")
# YAML 1.1 reads these as something else than text when they stand alone.
_YAML_WORDS = frozenset("y n yes no on off true false null".split())


def normalise_args(args: Mapping[str, Any], key: str = "args") -> Dict[str, Any]:
    """Engine arguments in their one form: underscores, sorted, values of one type each; nothing that means nothing.

    ``key`` names the option in messages. Raises GpuFleetError for arguments that are decided elsewhere, for the same
    argument in two spellings, and for values that can't be written. Applying it twice changes nothing.
    """
    if not isinstance(args, Mapping):
        raise GpuFleetError("%s: a dictionary of vLLM's engine arguments is needed, not %r." % (key, args))
    spelled: Dict[str, str] = {}
    found: Dict[str, Any] = {}
    for given, value in args.items():
        name, value = _name_and_value(given, value, key)
        top = name.split(".", 1)[0]
        if top in OURS:
            raise GpuFleetError("%s.%s can't be given as an engine argument. %s." % (key, given, OURS[top]))
        if name in spelled:
            raise GpuFleetError("%s: %s and %s are the same argument. Give it once." % (key, spelled[name], given))
        spelled[name] = str(given)
        where = "%s.%s" % (key, given)
        if "." in name:
            _nest(found, name, _checked(_dotted_value(value), where), where)
            continue
        value = _canonical(name, value, where)
        if value is None:
            continue
        if isinstance(found.get(name), dict) and isinstance(value, dict):
            _merge(found[name], value, where)
        elif name in found:
            raise GpuFleetError("%s: the argument is given whole and in parts. Give it once." % where)
        else:
            found[name] = value
    return {name: found[name] for name in sorted(found)}


def render_config(args: Mapping[str, Any], host: str = "", port: int = 0, served_name: str = "") -> str:
    """The configuration file: sorted, one key a line, values as JSON, which is YAML.

    ``host``, ``port`` and ``served_name`` are the service's own, left out when empty.
    """
    in_file, _words = split_args(args)
    keyed: Dict[str, Any] = {name.replace("_", "-"): value for name, value in in_file.items()}
    if host:
        keyed["host"] = text_value(host, "host")
    if port:
        keyed["port"] = int(port)
    if served_name:
        keyed["served-model-name"] = [text_value(served_name, "served_name")]
    lines = ["%s: %s\n" % (_yaml_key(name), _yaml(_for_file(name, keyed[name]))) for name in sorted(keyed)]
    # An empty document is None to YAML, and vLLM expects a mapping.
    return HEADER + ("".join(lines) or "{}\n")


def command_line(args: Mapping[str, Any]) -> List[str]:
    """The words that have to follow on the command line, because the file can't carry them."""
    return split_args(args)[1]


def split_args(args: Mapping[str, Any]) -> Tuple[Dict[str, Any], List[str]]:
    """What goes into the file, and the words for the command line; together they are all of ``args``."""
    in_file: Dict[str, Any] = {}
    words: List[str] = []
    for name, value in normalise_args(args).items():
        flag = "--" + name.replace("_", "-")
        if value is False:
            if name not in OFF_BY_DEFAULT:
                words.append("--no-" + flag[2:])
        elif name in REPEATED:
            words += ["%s=%s" % (flag, item) for item in (value if isinstance(value, list) else [value])]
        elif isinstance(value, (str, int, float)) and not isinstance(value, bool) and str(value).startswith("-"):
            words.append("%s=%s" % (flag, value))
        else:
            in_file[name] = value
    return in_file, words


def _name_and_value(given: Any, value: Any, key: str) -> Tuple[str, Any]:
    if not isinstance(given, str) or not _KEY.match(given):
        raise GpuFleetError(
            "%s: %r is no name of an engine argument. Write it as vLLM does, without the leading hyphens, "
            "e.g. tensor_parallel_size." % (key, given)
        )
    top, dot, rest = given.partition(".")
    top = top.replace("-", "_").lower()
    positive = top[3:]
    if top.startswith("no_") and not dot and is_boolean(positive):
        flag = _boolean(value, "%s.%s" % (key, given))
        return positive, None if flag is None else not flag
    return top + dot + rest, value


def _canonical(name: str, value: Any, where: str) -> Any:
    """One top-level value in its one form; None for what means "not given"."""
    if value is None or value == []:
        return None
    if is_boolean(name):
        return _boolean(value, where)
    if isinstance(value, str):
        value = _from_text(name, value)
    if isinstance(value, bool):
        return value
    if isinstance(value, (list, tuple)) and name not in JSON_VALUES:
        value = [_from_text(name, item) if isinstance(item, str) else item for item in value]
    if name in FLOATS and isinstance(value, (int, float)):
        value = float(value)
    if name in INTEGERS and isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list):
        for item in value:
            if str(item).startswith("-") and name not in REPEATED and name not in JSON_VALUES:
                raise GpuFleetError(
                    "%s: vLLM takes the item %r for an option. It can't begin with '-'. Choose another." % (where, item)
                )
    return _checked(value, where)


def _from_text(name: str, text: str) -> Any:
    """Numbers and JSON objects that arrive as text (``-e``, templates), wherever vLLM sees the same in the end."""
    stripped = text.strip()
    if stripped.startswith("{"):
        try:
            return json.loads(stripped)
        except ValueError:
            return text  # a template, not JSON
    if name in FLOATS or name in INTEGERS:
        try:
            return float(stripped) if name in FLOATS else int(stripped)
        except ValueError:
            return text
    if re.match(r"^-?(0|[1-9][0-9]{0,17})$", text) and text != "-0":
        return int(text)
    try:
        number = float(text)
    except ValueError:
        return text
    # Only when the number is written back as it came: "0.90" may be a revision.
    return number if math.isfinite(number) and str(number) == text else text


def _boolean(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise GpuFleetError("%s: %r is neither true nor false. Write one of the two." % (where, value))


def _dotted_value(value: Any) -> Any:
    """vLLM reads the value of a dotted argument as JSON when it is JSON, else as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _nest(found: Dict[str, Any], name: str, value: Any, where: str) -> None:
    top, rest = name.split(".", 1)
    for part in reversed(rest.split(".")):
        value = {part: value}
    if top in found and not isinstance(found[top], dict):
        raise GpuFleetError("%s: the argument is given whole and in parts. Give it once." % where)
    _merge(found.setdefault(top, {}), value, where)


def _merge(into: Dict[str, Any], value: Mapping[str, Any], where: str) -> None:
    for name, item in value.items():
        if isinstance(into.get(name), dict) and isinstance(item, dict):
            _merge(into[name], item, where)
        elif name in into:
            raise GpuFleetError("%s: %s is given twice. Give it once." % (where, name))
        else:
            into[name] = item


def _checked(value: Any, where: str) -> Any:
    """A deep copy of plain data, dicts sorted; GpuFleetError for what can't be written."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise GpuFleetError("%s: %r is no number that can be written. Give a finite one." % (where, value))
        return value
    if isinstance(value, str):
        return text_value(value, where)
    if isinstance(value, (list, tuple)):
        return [_checked(item, "%s[%d]" % (where, number)) for number, item in enumerate(value)]
    if isinstance(value, Mapping):
        copied = {}
        for name, item in value.items():
            copied[text_value(name, where)] = _checked(item, "%s.%s" % (where, name))
        return {name: copied[name] for name in sorted(copied)}
    raise GpuFleetError(
        "%s: a %s can't be an argument. Give text, a number, true or false, a list or a dictionary." % (where, type(value).__name__)
    )


def _for_file(flag: str, value: Any) -> Any:
    """The value as it has to stand in the file, so that vLLM's ``str()`` of it is what its parser expects."""
    if not isinstance(value, list):
        return value
    if flag.replace("-", "_") in JSON_VALUES:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    return [
        json.dumps(item, ensure_ascii=False, sort_keys=True) if isinstance(item, (dict, list)) else item
        for item in value
    ]


def _yaml_key(name: str) -> str:
    return '"%s"' % name if name in _YAML_WORDS else name


def _yaml(value: Any) -> str:
    """A value as flow YAML. Text is always in double quotes: "no", "1e3" and dates stay text."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _yaml_float(value)
    if isinstance(value, str):
        return _yaml_text(value)
    if isinstance(value, list):
        return "[%s]" % ", ".join(_yaml(item) for item in value)
    return "{%s}" % ", ".join("%s: %s" % (_yaml_text(name), _yaml(value[name])) for name in sorted(value))


def _yaml_float(value: float) -> str:
    text = repr(value)
    # 1e-05 is text to YAML 1.1: its numbers need a point.
    return text.replace("e", ".0e", 1) if "e" in text and "." not in text else text


def _yaml_text(value: str) -> str:
    """Double-quoted YAML. Characters of the upper planes stand as they are: JSON's surrogate pairs aren't YAML's."""
    return '"%s"' % value.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
