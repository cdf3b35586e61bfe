# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Errors in vLLM's form: what is wrong with a request."""

from __future__ import annotations

import json
from typing import Any

from .web import Request, Response, json_response


def error(message: str, kind: str, status: int, param: str | None = None) -> Response:
    """An error as vLLM words it."""
    return json_response({"error": {"message": message, "type": kind, "param": param, "code": status}}, status)


def bad(message: str, param: str | None = None, value: Any = None) -> Response:
    """A value that can't be, found by vLLM's own checks."""
    shown = (
        "" if param is None else f" (parameter={param})" if value is None else f" (parameter={param}, value={value})"
    )
    return error(message + shown, "BadRequestError", 400, param)


def engine_dead() -> Response:
    """What a request gets when its engine dies."""
    return error("The server had an error while processing your request.", "InternalServerError", 500)


def _validation(detail: dict[str, Any]) -> Response:
    return error(f"1 validation error:\n  {detail}", "Bad Request", 400, str(detail["loc"]))


def missing(field: str, body: Any) -> Response:
    """A field that has to be there."""
    shown = f"<dict of {len(body)} items>"
    return _validation({"type": "missing", "loc": f"body.{field}", "msg": "Field required", "input": shown})


def invalid(field: str, expected: str, value: Any) -> Response:
    """A field of the wrong type; expected is pydantic's name for the right one."""
    loc = f"body.{field}" if field else "body"
    if isinstance(value, str) and expected in ("integer", "number"):
        short = {"integer": "int", "number": "float"}[expected]
        text = f"Input should be a valid {expected}, unable to parse string as {'an' if short == 'int' else 'a'} {expected}"
        return _validation({"type": f"{short}_parsing", "loc": loc, "msg": text, "input": value})
    shown = value if isinstance(value, str) else str(value)
    return _validation(
        {"type": f"{expected}_type", "loc": loc, "msg": f"Input should be a valid {expected}", "input": shown}
    )


def too_small(field: str, least: int, value: int) -> Response:
    """A number that is below what the field takes."""
    text = f"Input should be greater than or equal to {least}"
    return _validation(
        {"type": "greater_than_equal", "loc": f"body.{field}", "msg": text, "input": str(value), "ctx": {"ge": least}}
    )


def parse(request: Request) -> dict[str, Any] | Response:
    """The JSON object in a request's body, or what to answer when there is none."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        return error(message, "Bad Request", 400)
    try:
        body = json.loads(request.body)
    except json.JSONDecodeError as wrong:
        detail = {"type": "json_invalid", "loc": f"body.{wrong.pos}", "msg": "JSON decode error"}
        return _validation(detail | {"input": "<dict of 0 items>", "ctx": {"error": wrong.msg}})
    except UnicodeDecodeError:
        return error("There was an error parsing the body", "Bad Request", 400)
    return body if isinstance(body, dict) else invalid("", "dictionary", body)
