# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plain JSON into frozen dataclasses, strictly: an unknown key or a wrong type is an error that names its place."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


class ScenarioError(ValueError):
    """A scenario that can't be meant: the message says where and what is allowed."""


def load(kind: type[T], data: Any, where: str) -> T:
    """data as an instance of the dataclass kind. Raises ScenarioError."""
    if not isinstance(data, dict):
        raise ScenarioError(f"{where}: expected an object, got {data!r}")
    hints = _hints(typing.cast(Any, kind))
    known = list(hints)
    for key in data:
        if key not in known:
            raise ScenarioError(f"{where}: unknown key {key!r}; known are {', '.join(known)}")
    values = {key: _value(hints[key], value, f"{where}.{key}") for key, value in data.items()}
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ScenarioError(f"{where}: {error}") from error


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass with their types; resolving them from text is slow."""
    types_of = typing.get_type_hints(kind)
    return {each.name: types_of[each.name] for each in dataclasses.fields(kind)}


def dump(instance: Any) -> Any:
    """The JSON form of a dataclass instance; load() of it gives an equal instance."""
    if dataclasses.is_dataclass(instance) and not isinstance(instance, type):
        return {each.name: dump(getattr(instance, each.name)) for each in dataclasses.fields(instance)}
    if isinstance(instance, (tuple, list)):
        return [dump(each) for each in instance]
    if isinstance(instance, dict):
        return {key: dump(value) for key, value in instance.items()}
    return instance


def _value(hint: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _one_of(typing.get_args(hint), value, where)
    if origin is typing.Literal:
        if value not in typing.get_args(hint) or isinstance(value, bool):
            raise ScenarioError(f"{where}: {value!r} is not one of {', '.join(map(repr, typing.get_args(hint)))}")
        return value
    if origin is tuple:
        return _sequence(typing.get_args(hint), value, where)
    if origin is dict:
        if not isinstance(value, dict):
            raise ScenarioError(f"{where}: expected an object, got {value!r}")
        of = typing.get_args(hint)[1]
        return {str(key): _value(of, each, f"{where}.{key}") for key, each in value.items()}
    if dataclasses.is_dataclass(hint):
        return load(typing.cast(type[Any], hint), value, where)
    return _scalar(hint, value, where)


def _one_of(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and types.NoneType in options:
        return None
    errors = []
    for option in options:
        if option is types.NoneType:
            continue
        try:
            return _value(option, value, where)
        except ScenarioError as error:
            errors.append(str(error))
    raise ScenarioError("; ".join(errors))


def _sequence(of: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise ScenarioError(f"{where}: expected a list, got {value!r}")
    if len(of) == 2 and of[1] is Ellipsis:
        return tuple(_value(of[0], each, f"{where}[{number}]") for number, each in enumerate(value))
    if len(of) != len(value):
        raise ScenarioError(f"{where}: expected {len(of)} values, got {len(value)}")
    return tuple(
        _value(kind, each, f"{where}[{number}]") for number, (kind, each) in enumerate(zip(of, value, strict=True))
    )


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, bool):
        raise ScenarioError(f"{where}: expected a number, got {value!r}")
    if not isinstance(value, hint):
        raise ScenarioError(f"{where}: expected {hint.__name__}, got {value!r}")
    return value
