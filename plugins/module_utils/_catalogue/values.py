# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the values of a catalogue entry are read.

Each reader takes what YAML or ``-e`` made of a value and returns it in one canonical form, so that ``port: "8000"`` and
``port: 8000`` declare the same service. It raises ValueError with what the value has to be; the message never repeats a
secret.
"""

from __future__ import annotations

import posixpath
import re
from difflib import get_close_matches
from typing import Any, Callable, Dict, List, Mapping, Sequence

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# An index, a UUID or a beginning of one, or a PCI id, as vllm_service takes them.
_GPU = re.compile(r"([0-9]+|(GPU|MIG)-[0-9A-Z/-]+|([0-9A-F]{4,8}:)?[0-9A-F]{2}:[0-9A-F]{2}\.[0-7])\Z", re.IGNORECASE)
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_SOURCE = re.compile(r"([\w.@%-]+:)?/.+\Z")
# A word of the language, and not the name of a variable.
_WORD = re.compile(r"[a-z]+[ ,:]")
# More seconds than this in a time-out are a slip of the keyboard.
_WEEK_S = 7 * 24 * 3600
_SHOWN = 60


def shown(value: Any) -> str:
    """A value as messages show it: short, on one line."""
    text = repr(plain(value))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def kind(value: Any) -> str:
    """What a value is, for messages about values that may hold secrets."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, Mapping):
        return "a dictionary"
    if isinstance(value, (list, tuple)):
        return "a list"
    return "nothing" if value is None else shown(value)


def plain(value: Any) -> Any:
    """The same value made of Python's own types. Ansible hands out subclasses of them."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value)


def sentence(text: str) -> str:
    """A text with a capital letter at its begin, unless it begins with a name of something, such as ``vllm_models['a']``."""
    return text[0].upper() + text[1:] if _WORD.match(text) else text


def hint(name: str, known: Sequence[str]) -> str:
    """`` (did you mean 'gpus'?)``, or nothing when no known name is near."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return " (did you mean %r?)" % near[0] if near else ""


def text(value: Any) -> str:
    """Text as it was written. Numbers are refused: YAML may already have changed them."""
    if not isinstance(value, str):
        raise ValueError("has to be text in quotes, not %s" % shown(value))
    return _clean(value)


def one_word(value: Any) -> str:
    """A name without blanks. Numbers are taken as they are written."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("has to be one word, not %s" % shown(value))
    word = _clean(str(value))
    if re.search(r"\s", word):
        raise ValueError("has to be one word, not %s" % shown(word))
    return word


def absolute_path(value: Any) -> str:
    """A path on the host that starts at its root, without a trailing slash."""
    if not isinstance(value, str) or not _clean(value).startswith("/"):
        raise ValueError("has to be an absolute path on the host, not %s" % shown(value))
    return posixpath.normpath(_clean(value))


def repository(value: Any) -> str:
    """A model repository: ``owner/name``."""
    if not isinstance(value, str) or not _REPOSITORY.fullmatch(value.strip()):
        raise ValueError("has to be a repository such as MiniMaxAI/MiniMax-M2.5, not %s" % shown(value))
    return value.strip()


def source(value: Any) -> str:
    """A directory to copy from, on the host or on another one: ``/directory`` or ``[user@]host:/directory``."""
    if not isinstance(value, str) or not _SOURCE.match(value.strip()):
        wanted = "has to be a directory of the host, or one of another host such as mirror01:/models/Qwen3-0.6B, not %s"
        raise ValueError(wanted % shown(value))
    return value.strip()


def number(value: Any) -> int:
    """A whole number, also when it was written in quotes."""
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]+\s*", value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("has to be a whole number, not %s" % shown(value))
    return int(value)


def whole_number(low: int, high: int = _WEEK_S) -> Callable[[Any], int]:
    """A reader of whole numbers between two bounds, both allowed."""

    def read(value: Any) -> int:
        result = number(value)
        if not low <= result <= high:
            raise ValueError("has to be between %d and %d, not %s" % (low, high, shown(value)))
        return result

    return read


port = whole_number(1, 65535)


def boolean(value: Any) -> bool:
    """true or false, also as the words that ``-e`` passes."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (str, int)) and str(value).strip().lower() in _TRUE + _FALSE:
        return str(value).strip().lower() in _TRUE
    raise ValueError("has to be true or false, not %s" % shown(value))


def choice(*allowed: str) -> Callable[[Any], str]:
    """A reader of one of a few words."""

    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError("has to be one of %s, not %s" % (", ".join(allowed), shown(value)))
        return str(value)

    return read


def gpus(value: Any) -> List[str]:
    """``all``, or indices, UUIDs and PCI ids, as a list of strings. Each GPU at most once."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    elif isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError('has to be "all" or a list such as [0, 1, 2, 3], not %s' % shown(value))
    result = []
    for gpu in value:
        if isinstance(gpu, bool) or not isinstance(gpu, (str, int)) or not str(gpu).strip():
            raise ValueError("holds %s; a GPU is an index, a UUID or a PCI id" % shown(gpu))
        if str(gpu).strip().startswith("-"):
            raise ValueError("holds %s; indices start at 0" % shown(gpu))
        if str(gpu).strip() != "all" and not _GPU.match(str(gpu).strip()):
            raise ValueError("holds %s, which is neither an index, nor a UUID (GPU-..., MIG-...), nor a PCI id (0000:1b:00.0)" % shown(gpu))
        result.append(_without_zeros(str(gpu).strip()))
    if "all" in result and len(result) > 1:
        raise ValueError('holds "all" beside other GPUs; one of the two')
    twice = sorted({gpu for gpu in result if result.count(gpu) > 1})
    if twice:
        raise ValueError("names GPU %s twice" % ", ".join(twice))
    return result


def _without_zeros(gpu: str) -> str:
    return str(int(gpu)) if gpu.isascii() and gpu.isdigit() else gpu


def engine_arguments(value: Any) -> Dict[str, Any]:
    """vLLM's arguments; those that the entry has a key for are refused there, not here."""
    result = _mapping(value, "engine arguments, such as {tensor_parallel_size: 4}")
    for key, item in result.items():
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", key):
            raise ValueError("holds %s; an argument is named without leading dashes, such as max_model_len" % shown(key))
        if item is None:
            raise ValueError("%s has no value. Give one, or leave the key out" % key)
    return result


def variables(value: Any) -> Dict[str, Any]:
    """Environment variables with plain values."""
    result = _mapping(value, "environment variables, such as {NCCL_DEBUG: WARN}")
    for key, item in result.items():
        _variable(key)
        if item is None or isinstance(item, (dict, list)):
            raise ValueError("%s has to be text or a number, not %s" % (key, kind(item)))
    return result


def secrets(value: Any) -> Dict[str, str]:
    """Environment variables that are kept secret; their values never reach a message."""
    if not isinstance(value, Mapping):
        raise ValueError("has to be a dictionary of environment variables, such as {VLLM_API_KEY: ...}, not %s" % kind(value))
    result = {}
    for key, item in value.items():
        _variable(str(key))
        if isinstance(item, bool) or not isinstance(item, (str, int, float)):
            raise ValueError("%s has to be text" % key)
        if str(item) == "":
            raise ValueError("%s is empty. Give its value, or leave the key out" % key)
        result[str(key)] = str(item)
    return result


def sections(value: Any) -> Dict[str, Dict[str, Any]]:
    """systemd settings by section."""
    result = _mapping(value, "systemd sections, such as {Service: {Nice: 5}}")
    for section, settings in result.items():
        if not isinstance(settings, dict):
            raise ValueError("%s has to be a dictionary of settings, such as {Nice: 5}, not %s" % (section, shown(settings)))
    return result


_GUARD: Dict[str, Callable[[Any], Any]] = {
    "enabled": boolean,
    "timeout": whole_number(1),
    "margin_mib": whole_number(0, 2**31 - 1),
}


def guard(value: Any) -> Dict[str, Any]:
    """The memory guard's settings."""
    result = _mapping(value, "the guard's settings, such as {timeout: 300}")
    for key in result:
        if key not in _GUARD:
            raise ValueError("has no key %r%s. Allowed: %s" % (key, hint(key, list(_GUARD)), ", ".join(_GUARD)))
        try:
            result[key] = _GUARD[key](result[key])
        except ValueError as exc:
            raise ValueError("%s %s" % (key, exc)) from exc
    return result


def _mapping(value: Any, what: str) -> Dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("has to be a dictionary of %s, not %s" % (what, kind(value)))
    return {str(key): plain(item) for key, item in value.items()}


def _variable(name: str) -> None:
    if not _VARIABLE.fullmatch(name):
        raise ValueError("holds %s, which cannot be the name of an environment variable" % shown(name))


def _clean(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty")
    if re.search(r"[\x00-\x1f\x7f]", value.strip()):
        raise ValueError("holds a control character: %s" % shown(value))
    return str(value).strip()
