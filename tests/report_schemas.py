# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The published schemas of the playbooks' reports, and what of a report does not fit its own.

Published they are open: whoever holds a report against the schema of today goes on when a key is added. Here they are closed, so that no
key gets into a report that its schema does not describe.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).resolve().parents[1] / "docs" / "schemas"


@cache
def schemas() -> dict[str, dict[str, Any]]:
    """The schemas by the name of the report that they are for."""
    read = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(SCHEMAS.glob("*.schema.json"))]
    return {schema["properties"]["name"]["const"]: schema for schema in read}


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, with no other keys than those that it describes in a report and in its rows."""
    row = {**schema["$defs"]["row"], "additionalProperties": False}
    return {**schema, "additionalProperties": False, "$defs": {**schema["$defs"], "row": row}}


def faults(report: dict[str, Any]) -> list[str]:
    """What of a report is not as its schema says, a line each: where, and what."""
    schema = schemas().get(str(report.get("name")))
    if schema is None:
        return [f"docs/schemas has no schema for the report {report.get('name')!r}. It has: {', '.join(sorted(schemas()))}"]
    errors = Draft202012Validator(closed(schema)).iter_errors(report)
    return [f"{error.json_path}: {error.message[-300:]}" for error in errors]
