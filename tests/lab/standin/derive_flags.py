# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write flags.json: every argument that a real vLLM's `vllm serve` knows, read from its own parser.

Run it where vLLM's Python sources can be imported, with what they import (torch's CPU build will do; the compiled
extensions are not needed):

    PYTHONPATH=<unpacked vllm wheel> python derive_flags.py flags.json

Only names, types, choices and defaults are taken, no help text.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any


def _build_parser() -> argparse.ArgumentParser:
    """The `serve` parser of the vLLM that is importable, without asking for a GPU."""
    platforms = importlib.import_module("vllm.platforms")
    vars(platforms)["current_platform"] = importlib.import_module("vllm.platforms.cpu").CpuPlatform()
    empty = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser(prog="vllm serve")
    parser: argparse.ArgumentParser = importlib.import_module("vllm.entrypoints.common.cli_args").make_arg_parser(empty)
    return parser


def _closure(function: Callable[..., Any], name: str) -> Any:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return cells[name].cell_contents


def _type_of(action: argparse.Action) -> dict[str, Any]:
    """How a value is parsed: `type` and, where it matters, whether an empty one or None stands for nothing."""
    function: Any = action.type
    found: dict[str, Any] = {}
    while True:
        name = getattr(function, "__name__", str(function))
        if name == "_optional_type":
            found["optional"] = True
        elif name == "_parse_type":
            found["wrapped"] = True
        else:
            break
        function = _closure(function, "return_type")
    if name == "parse_dataclass":
        known = function.__defaults__[0]
        return found | {
            "type": "dataclass",
            "dataclass": known.__name__,
            "fields": sorted(field.name for field in dataclasses.fields(known) if field.init),
        }
    if name == "<lambda>":
        name = "lower_name" if action.choices else "list"
    names = {"loads": "json", "union_dict_and_str": "json_or_str", "NoneType": "str", "None": "str"}
    return found | {"type": names.get(name, name)}


def _plain(value: Any) -> Any:
    """A default as JSON has it; null for what JSON can't say."""
    if value is argparse.SUPPRESS:
        return None
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, (set, frozenset, tuple)):
        return [_plain(item) for item in value]
    try:
        json.dumps(value)
    except TypeError:
        return None
    return value


def _describe(action: argparse.Action, strings: Iterable[str], group: str) -> dict[str, Any]:
    negative = getattr(action, "negative_option_strings", ())
    entry: dict[str, Any] = {
        "dest": action.dest,
        "group": group,
        "flags": [flag for flag in action.option_strings if flag not in negative],
    }
    if negative:
        entry["negative"] = [flag for flag in strings if flag in negative]
    hidden = [flag for flag in strings if flag not in action.option_strings]
    if hidden:
        entry["hidden"] = hidden
    if action.nargs == 0:
        entry["type"] = "bool"
    else:
        entry |= _type_of(action)
        if action.nargs is not None:
            entry["nargs"] = action.nargs
        if action.const is not None:
            entry["const"] = action.const
        if action.choices is not None:
            entry["choices"] = [_plain(choice) for choice in action.choices]
        if type(action).__name__ == "_AppendAction":
            entry["append"] = True
        if type(action).__name__ == "LoRAParserAction":
            entry["type"] = "lora_modules"
    entry["default"] = _plain(action.default)
    return entry


def derive() -> dict[str, Any]:
    """The whole table, as it goes into flags.json."""
    parser = _build_parser()
    groups = {id(action): group.title or "" for group in parser._action_groups for action in group._group_actions}
    strings: dict[int, list[str]] = {}
    actions: dict[int, argparse.Action] = {}
    # The parser's own map also holds the spellings that help hides.
    for flag, action in parser._option_string_actions.items():
        strings.setdefault(id(action), []).append(flag)
        actions[id(action)] = action
    flags = [
        _describe(action, strings[key], groups.get(key, ""))
        for key, action in actions.items()
        if not isinstance(action, argparse._HelpAction)
    ]
    return {
        "version": importlib.import_module("vllm.version").__version__,
        "derived": "by derive_flags.py from the argument parser of this version's own Python sources",
        "flags": flags,  # in the parser's order, which shows in its messages
    }


def main() -> int:
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        table = derive()
        head = {key: value for key, value in table.items() if key != "flags"}
        # One flag a line: a difference between two versions reads well.
        lines = ",\n".join("  " + json.dumps(entry) for entry in table["flags"])
        out.write(json.dumps(head, indent=1)[:-2] + ',\n "flags": [\n' + lines + "\n ]\n}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
