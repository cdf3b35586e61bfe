# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM's command line: the flags of flags.json, argparse's messages and exit code, and the --config file.

The odd parts are the real ones of the version in flags.json: the message about unknown arguments comes from the outer
`vllm` parser; `--config=FILE` in one word is not read; a `false` in the file is dropped, because vLLM looks for
`--no-KEY` among the outer parser's flags, where it never is: only `no-KEY: true` switches something off.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

_SUBCOMMANDS = (
    "chat",
    "complete",
    "serve",
    "launch",
    "bench",
    "collect-env",
    "download-kernels",
    "preload",
    "run-batch",
    "snapshot",
)
_EPILOG = (
    "For full list:            vllm serve --help=all\n"
    "For a section:            vllm serve --help=ModelConfig    (case-insensitive)\n"
    "For a flag:               vllm serve --help=max-model-len  (_ or - accepted)\n"
    "Documentation:            https://docs.vllm.ai\n"
)
_TASK_HINT = (
    "\n\nHint: --task is not a vllm serve option. For embedding, reranking, or reward models, use --runner pooling. "
    "To adapt a generative model for pooling, also use --convert embed, --convert classify, or --convert reward."
)


def flag_table() -> dict[str, Any]:
    """flags.json: {"version", "flags": [{dest, group, flags, negative, hidden, type, ...}]}."""
    table: dict[str, Any] = json.loads((Path(__file__).parent / "flags.json").read_text(encoding="utf-8"))
    return table


def human_readable_int(value: str) -> int:
    """1k is 1000, 1K is 1024; decimals with the decimal suffixes only."""
    value = value.strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", value)
    if match is None:
        return int(value)
    number, suffix = match.groups()
    power = "kmgt".index(suffix.lower()) + 1
    if suffix.islower():
        return int(float(number) * float(1000**power))
    if "." in number:
        raise argparse.ArgumentTypeError(
            f"Decimals are not allowed with binary suffixes like {suffix}. "
            f"Did you mean to use {number}{suffix.lower()} instead?"
        )
    return int(number) << (10 * power)


def human_readable_int_or_auto(value: str) -> int:
    """As human_readable_int; -1 and "auto" stand for what fits."""
    value = value.strip()
    return -1 if value == "-1" or value.lower() == "auto" else human_readable_int(value)


def _json_or_str(value: str) -> Any:
    return _wrapped(json.loads)(value) if re.match(r"(?s)^\s*{.*}\s*$", value) else value


def _wrapped(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """The message that vLLM gives for types it wraps."""

    def wrapped(value: str) -> Any:
        try:
            return parse(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"Value {value} cannot be converted to {parse}.") from error

    return wrapped


def _named(name: str, function: Callable[[str], Any]) -> Callable[[str], Any]:
    """argparse names a type in its message by __name__."""
    function.__name__ = name
    return function


def _dataclass(entry: dict[str, Any]) -> Callable[[str], Any]:
    """A JSON object with no other keys than the fields of vLLM's dataclass."""

    def parse(value: str) -> Any:
        try:
            parsed = json.loads(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(
                f"1 validation error for {entry['dataclass']}\n  Invalid JSON: {error} [type=json_invalid, "
                f"input_value={value!r}, input_type=str]"
            ) from error
        if not isinstance(parsed, dict):
            raise argparse.ArgumentTypeError(
                f"1 validation error for {entry['dataclass']}\n  Input should be an object [type=dataclass_type, "
                f"input_value={value!r}, input_type={type(parsed).__name__}]"
            )
        unknown = [key for key in parsed if key not in entry["fields"]]
        if unknown:
            plural = "" if len(unknown) == 1 else "s"
            raise argparse.ArgumentTypeError(
                f"{len(unknown)} validation error{plural} for {entry['dataclass']}"
                + "".join(
                    f"\n{key}\n  Unexpected keyword argument [type=unexpected_keyword_argument, "
                    f"input_value={parsed[key]!r}, input_type={type(parsed[key]).__name__}]"
                    for key in unknown
                )
            )
        return parsed

    return parse


def _lora_module(value: str) -> Any:
    if "=" in value and "," not in value:
        name, path = value.split("=", 1)
        return {"name": name, "path": path}
    try:
        module = json.loads(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"Invalid JSON format for --lora-modules: {value}") from error
    if not isinstance(module, dict) or not {"name", "path"} <= set(module):
        raise argparse.ArgumentTypeError(f"Invalid fields for --lora-modules: {value}")
    return module


_TYPES: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "json": json.loads,
    "json_or_str": _named("union_dict_and_str", _json_or_str),
    "human_readable_int": human_readable_int,
    "human_readable_int_or_auto": human_readable_int_or_auto,
    "parse_reasoning_parser": _named("parse_reasoning_parser", lambda value: "" if value.lower() == "none" else value),
    "lower_name": _named("<lambda>", lambda value: value.lower().replace("-", "_")),
    "list": _named("<lambda>", lambda value: [int(item) if item.isdigit() else item for item in value.split(",")]),
    "lora_modules": _lora_module,
}


def _type(entry: dict[str, Any]) -> Callable[[str], Any]:
    parse = _dataclass(entry) if entry["type"] == "dataclass" else _TYPES[entry["type"]]
    if entry.get("wrapped") or (entry.get("optional") and entry["type"] != "dataclass"):
        parse = _wrapped(parse)
    if not entry.get("optional"):
        return parse
    return lambda value: None if value in ("", "None") else parse(value)


class _OnOff(argparse.Action):
    """A flag that takes no value, with the spellings that switch it off."""

    def __init__(self, option_strings: Sequence[str], dest: str, negative: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__([*option_strings, *negative], dest, nargs=0, **kwargs)
        self.negative = frozenset(negative)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        setattr(namespace, self.dest, option_string not in self.negative)


class _ServeParser(argparse.ArgumentParser):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            prog="vllm serve",
            usage="vllm serve [model_tag] [options]",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=_EPILOG,
            add_help=False,
        )
        self.search: str | None = None

    def format_help(self) -> str:
        if self.search == "all":
            return super().format_help()
        formatter = self._get_formatter()
        if self.search is not None:
            groups = [group for group in self._action_groups if (group.title or "").lower() == self.search]
            actions = [
                action for action in self._actions if any(self.search in option for option in action.option_strings)
            ]
            if groups or actions:
                formatter.start_section(groups[0].title if groups else f"Arguments matching '{self.search}'")
                formatter.add_arguments(groups[0]._group_actions if groups else actions)
                formatter.end_section()
            else:
                formatter.add_text(
                    f"No group or arguments matching '{self.search}'.\nUse '--help' to see available groups or "
                    "'--help=all' to see all available parameters."
                )
            return formatter.format_help()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.start_section("Config Groups")
        formatter.add_text("\n".join(group.title or "" for group in self._action_groups if group._group_actions))
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


def _serve_parser(table: dict[str, Any]) -> _ServeParser:
    parser = _ServeParser()
    groups: dict[str, Any] = {"options": parser, "": parser}
    parser.add_argument("-h", "--help", action="help", default=argparse.SUPPRESS, help="show this help message")
    parser.add_argument("model_tag", type=str, nargs="?")
    for entry in table["flags"]:
        group = groups.get(entry["group"])
        if group is None:
            group = groups[entry["group"]] = parser.add_argument_group(entry["group"])
        flags, common = entry["flags"], {"dest": entry["dest"], "default": entry["default"]}
        if entry["type"] == "bool":
            action = group.add_argument(*flags, action=_OnOff, negative=entry.get("negative", ()), **common)
            # Hidden spellings are taken, but not shown.
            action.option_strings = [flag for flag in action.option_strings if flag not in entry.get("hidden", ())]
            continue
        common["type"] = _type(entry)
        common |= {key: entry[key] for key in ("nargs", "const", "choices") if key in entry}
        if entry.get("append"):
            common |= {"action": "append", "default": list(entry["default"])}
        group.add_argument(*flags, **common)
    return parser


class _Outer(argparse.ArgumentParser):
    """The `vllm` parser: it reports what the serve parser didn't recognise."""

    def __init__(self) -> None:
        super().__init__(prog="vllm", description="vLLM CLI")
        self.add_argument("-v", "--version", action="store_true")
        self.add_argument("subparser", nargs="?", choices=_SUBCOMMANDS)

    def format_usage(self) -> str:
        names = ",".join(_SUBCOMMANDS)
        return f"usage: vllm [-h] [-v]\n            {{{names}}}\n            ...\n"

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments:") and re.search(r"(^|\s)--task(=|\s|$)", message):
            message += _TASK_HINT
        super().error(message)


def load_config_file(path: str) -> list[str]:
    """A --config file as command line words. ValueError: not YAML by its name; OSError and YAML's own errors."""
    import yaml  # only who uses a file pays for it

    extension = path.split(".")[-1]
    if extension not in ("yaml", "yml"):
        raise ValueError(f"Config file must be of a yaml/yml type. {extension} supplied")
    with open(path, encoding="utf-8") as file:
        config = yaml.safe_load(file)
    words: list[str] = []
    for key, value in config.items():
        if isinstance(value, bool):
            if value:
                words.append("--" + key)
        elif isinstance(value, list):
            if value:
                words += ["--" + key, *map(str, value)]
        elif isinstance(value, dict):
            words += ["--" + key, json.dumps(value)]
        else:
            words += ["--" + key, str(value)]
    return words


def _pull_config(words: list[str]) -> list[str]:
    """Put the file's words after the model and before the rest, so that the command line wins."""
    assert words.count("--config") <= 1, "More than one config file specified!"
    index = words.index("--config")
    if index == len(words) - 1:
        raise ValueError("No config file specified! Please check your command-line arguments.")
    config = load_config_file(words[index + 1])
    in_cli = len(words) > 1 and not words[1].startswith("-")
    if not in_cli and "--model" not in config:
        raise ValueError(
            "No model specified! Please specify model either as a positional argument or in a config file."
        )
    split = 2 if in_cli else 1
    return [*words[:split], *config, *words[split:index], *words[index + 2 :]]


def _dashes(word: str) -> str:
    """Underscores of a flag's name as dashes; not those after a dot (--json-arg.key_name) or in a value."""
    name, equals, value = word.partition("=")
    head, dot, rest = name[2:].partition(".")
    return "--" + head.replace("_", "-") + dot + rest + equals + value


def _nest(words: list[str]) -> list[str]:
    """--flag.key.sub value as --flag '{"key": {"sub": value}}', several merged into one.

    A word like -0.5 is taken for such a flag too, as by vLLM. IndexError: its value is missing.
    """
    plain: list[str] = []
    nested: dict[str, dict[str, Any]] = {}
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        name, equals, value = word.partition("=")
        if not (word.startswith("-") and "." in name):
            plain.append(word)
            continue
        if not equals:
            value = words[position]
            position += 1
        if name.endswith("+"):
            name = name[:-1]
        parsed = value.split(",") if word.partition("=")[0].endswith("+") else _loosely(value)
        key, *path = name.split(".")
        place = nested.setdefault(key, {})
        for part in path[:-1]:
            place = place.setdefault(part, {})
        if isinstance(parsed, list) and isinstance(place.get(path[-1]), list):
            place[path[-1]] += parsed
        else:
            place[path[-1]] = parsed
    for key, together in nested.items():
        plain += [key, json.dumps(together)]
    return plain


def _loosely(value: str) -> Any:
    """A part of a nested value: JSON, else a number with a suffix, else text."""
    try:
        return json.loads(value)
    except ValueError:
        pass
    try:
        return human_readable_int(value)
    except (ValueError, argparse.ArgumentTypeError):
        return value


def parse(words: list[str], table: dict[str, Any], version: str) -> argparse.Namespace:
    """The arguments of `vllm WORDS`. Ends the process as argparse does: 0 after help or version, 2 for a mistake.

    Raises what vLLM raises for a bad --config. The result's `subparser` is "serve", or None with `print_help`.
    """
    outer = _Outer()
    if words[:1] != ["serve"]:
        options = outer.parse_args(words[:1] if words else [])
        if options.version:
            print(version)
            sys.exit(0)
        if options.subparser is not None:
            outer.error(f"the stand-in has no {options.subparser}")
        outer.print_help()
        sys.exit(0)

    words = _model_first(words)
    if "--config" in words:
        words = _pull_config(words)
    parser = _serve_parser(table)
    ready: list[str] = []
    for index, word in enumerate(words[1:], 1):
        if word.startswith("--help="):
            parser.search = word.split("=", 1)[1].lower().replace("_", "-")
            word = "--help"
        elif word.startswith("--"):
            word = _dashes(word)
        elif word.startswith("-O") and word != "-O":
            ready += ["--optimization-level", word[3:] if word[2] == "=" else word[2:]]
            continue
        elif word == "-O" and words[index + 1 : index + 2] and words[index + 1] in ("0", "1", "2", "3"):
            word = "--optimization-level"
        ready.append(word)
    arguments, unknown = parser.parse_known_args(_nest(ready))
    if unknown:
        outer.error("unrecognized arguments: " + " ".join(unknown))
    if arguments.model_tag is not None:
        arguments.model = arguments.model_tag
    arguments.subparser = "serve"
    return arguments


def _model_first(words: list[str]) -> list[str]:
    """--model NAME as the positional argument, where vLLM wants it."""
    for index, word in enumerate(words):
        if word == "--model":
            return ["serve", words[index + 1], *words[1:index], *words[index + 2 :]]
        if word.startswith("--model="):
            return ["serve", word.removeprefix("--model="), *words[1:index], *words[index + 1 :]]
    named = any(re.match(r"^--served[-_]model[-_]name(=.+|$)", word) for word in words)
    if (
        words[1:2]
        and words[1].startswith("-")
        and named
        and not any(re.match("^--config(=|$)", word) for word in words)
    ):
        raise ValueError(
            "`model` should be provided as the first positional argument when using `vllm serve`. "
            "i.e. `vllm serve <model> --<arg> <value>`."
        )
    return words


def non_default(arguments: argparse.Namespace, table: dict[str, Any]) -> dict[str, Any]:
    """What differs from the defaults, with secrets hidden, as vLLM logs it."""
    defaults = {entry["dest"]: entry["default"] for entry in table["flags"]} | {"model_tag": None}
    hidden = ("api_key", "hf_token")
    return {
        name: "***" if name in hidden else value
        for name, value in vars(arguments).items()
        if name in defaults and value != defaults[name]
    }
