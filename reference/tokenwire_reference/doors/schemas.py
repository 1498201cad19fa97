"""The request schemas of the specification, with the limits of this server in them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from typing import Any

from tokenwire.spec_files import load_schema
from tokenwire_reference.doors.limits import LIMITS, Number

_KEYWORDS = {
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "string": ("minLength", "maxLength"),
    "array": ("maxItems",),
    "object": ("maxProperties",),
}
"""What limits a value of each type."""


_CONTROL: Mapping[str, Any] = {
    "abort-request": {"rid": {"type": ["string", "null"]}, "abort_all": {"type": ["boolean", "null"]}},
    "abort-requests-request": {"request_ids": {"type": "array", "items": {"type": "string"}}},
    "pause-request": {"mode": {"enum": ["abort", "retract", "in_place"]}},
    "continue-request": {},
}
"""The fields of calls that the specification has no schema for; a list among them is required."""


@cache
def request_schema(name: str) -> dict[str, Any]:
    """`spec/schemas/<name>.json`, or a control call, as this server reads it.

    Raises FileNotFoundError where there is none.
    """
    if (fields := _CONTROL.get(name)) is not None:
        required = [field for field, value in fields.items() if value.get("type") == "array"]
        schema = {"type": "object", "properties": deepcopy(fields), "required": required}
    else:
        schema = deepcopy(load_schema(name))
    definitions = schema.get("$defs", {})
    for owner in (schema, *definitions.values()):
        for field, value in owner.get("properties", {}).items():
            _limit(value, LIMITS.get(field, {}), definitions)
    return schema


def _limit(schema: dict[str, Any], limits: Mapping[str, Number], definitions: Mapping[str, Any]) -> None:
    """Put limits into the schema of a value: wherever it may be a number, a text, a list or an object."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    types = schema.get("type", [])
    for type_ in [types] if isinstance(types, str) else types:
        # A list of ids is one prompt, and not a batch.
        if not (type_ == "array" and "$ref" in schema.get("items", {})):
            schema |= {word: limits[word] for word in _KEYWORDS.get(type_, ()) if word in limits}
    for part in (*schema.get("anyOf", ()), schema.get("items"), schema.get("additionalProperties")):
        if isinstance(part, dict) and "$ref" not in part:
            inner = limits if "items" not in schema else {w: v for w, v in limits.items() if w != "maxItems"}
            _limit(part, inner, definitions)
