"""Limits on a body's number of values, applied before they are copied.

Three bytes of JSON may take 250 bytes of memory after parsing. A validator copies a value that it refuses,
once for each alternative of the schema. So the number of values is bounded before a body is parsed, and the
length of each list and object before a validator sees the body.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenwire_reference.doors.errors import INVALID, MALFORMED, RefusalError
from tokenwire_reference.doors.json_answer import Json
from tokenwire_reference.doors.limits import OTHERS

MOST_VALUES = 200_000
"""The maximum number of lists, objects, texts and names in one body.

The length of the body bounds the number of numbers.
"""
MOST_DEPTH = 200
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_KINDS: Mapping[type[Any], str] = {str: "string", list: "array"}
_SHOWN, _SHOWN_DEPTH = 8, 3
"""The number of entries, and the depth, to which a value without a schema is reduced for the validator."""

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]


def refuse_many_values(content: bytes) -> None:
    """Raise RefusalError for a body with too many values, without parsing it."""
    if content.count(b'"') // 2 + content.count(b"[") + content.count(b"{") <= MOST_VALUES:
        return  # The number of quotation marks in the JSON bounds the number of texts.
    count, end = 0, 0
    for text in _STRING.finditer(content):
        count += 1 + content.count(b"[", end, text.start()) + content.count(b"{", end, text.start())
        end = text.end()
        if count > MOST_VALUES:
            break
    if count + content.count(b"[", end) + content.count(b"{", end) > MOST_VALUES:
        raise RefusalError(
            f"the body has more than {MOST_VALUES} lists, objects, texts and names; send less", type=INVALID
        )


def refuse_deep(body: Json) -> None:
    """Raise RefusalError if a value is nested deeper than `MOST_DEPTH`."""
    level, depth = [body], 0
    while level:
        depth += 1
        if depth > MOST_DEPTH:
            raise RefusalError(f"the body is nested deeper than {MOST_DEPTH}; nest less", type=MALFORMED)
        level = [inner for value in level for inner in _inner(value) if isinstance(inner, (dict, list))]


def _inner(value: Json) -> Iterator[Json]:
    yield from value.values() if isinstance(value, dict) else value


def stand_in(body: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return a reduced copy of a body for the validator.

    It has all values that the schema defines, and a part of every other value. Raises RefusalError for a list
    or an object that is too long, and for a long list of ids that contains other values.
    """
    slim: dict[str, Any] = _slim(body, [schema], schema.get("$defs", {}), ())
    return slim


def _slim(value: Json, schemas: Sequence[Schema], definitions: Mapping[str, Schema], path: Path) -> Json:
    if not isinstance(value, (dict, list)):
        return value
    options = [option for schema in schemas for option in _options(schema, definitions)]
    if isinstance(value, dict):
        return _slim_object(value, options, definitions, path)
    lists = [option for option in options if "items" in option or "array" in _types(option)]
    if not lists:
        return _shown(value)
    most = max(option.get("maxItems", len(value)) for option in lists)
    if len(value) > most:
        raise _too_long(path, len(value), most, "items")
    if len(value) > OTHERS["maxItems"] and any(_is_of_ids(option, definitions) for option in lists):
        return _slim_ids(value, lists, definitions, path)
    inner = [option["items"] for option in lists if isinstance(option.get("items"), dict)]
    return [_slim(entry, inner, definitions, (*path, place)) for place, entry in enumerate(value)]


def _slim_object(
    value: dict[str, Any], options: Sequence[Schema], definitions: Mapping[str, Schema], path: Path
) -> Json:
    objects = [option for option in options if "object" in _types(option) or "properties" in option]
    free = [option for option in objects if "properties" not in option]
    most = max((option.get("maxProperties", len(value)) for option in free), default=0)
    if free and len(free) == len(objects) and len(value) > most:
        raise _too_long(path, len(value), most, "properties")
    others = [o["additionalProperties"] for o in objects if isinstance(o.get("additionalProperties"), dict)]
    slim, unknown = {}, 0
    for name, inner in value.items():
        known = [o["properties"][name] for o in objects if name in o.get("properties", ())] or others
        if known:
            slim[name] = _slim(inner, known, definitions, (*path, name))
        elif unknown < _SHOWN:
            unknown += 1
            slim[name] = _shown(inner)
    return slim


def _slim_ids(
    value: list[Any], lists: Sequence[Schema], definitions: Mapping[str, Schema], path: Path
) -> Json:
    """Validate a long list of ids. Return a list with one id, which represents all ids for the validator."""
    other = next((place for place, entry in enumerate(value) if type(entry) is not int), None)
    if other is not None:
        kind = _KINDS.get(type(value[0]), "")
        shorter = [o.get("maxItems", 0) for o in lists if kind in _types_of_entries(o, definitions)]
        if shorter:  # a list of these may be shorter
            raise _too_long(path, len(value), max(shorter), "items")
        place = where(path)
        words = f'{place}[{other}]: {str(value[other])[:80]} is not of type "integer"'
        raise RefusalError(words, type=MALFORMED, param=place)
    inner = [option["items"] for option in lists if _is_of_ids(option, definitions)]
    return [_slim(entry, inner, definitions, path) for entry in (min(value), max(value))]


def _is_of_ids(option: Schema, definitions: Mapping[str, Schema]) -> bool:
    return "integer" in _types_of_entries(option, definitions)


def _types_of_entries(option: Schema, definitions: Mapping[str, Schema]) -> set[str]:
    items = option.get("items")
    if not isinstance(items, dict):
        return set()
    return {name for inner in _options(items, definitions) for name in _types(inner)}


def _options(schema: Schema, definitions: Mapping[str, Schema]) -> Iterator[Schema]:
    """Yield a schema, and each of its alternatives."""
    if "$ref" in schema:
        yield from _options(definitions[schema["$ref"].rpartition("/")[2]], definitions)
        return
    yield schema
    for part in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        yield from _options(part, definitions)


def _types(schema: Schema) -> Sequence[str]:
    types: str | Sequence[str] = schema.get("type", ())
    return (types,) if isinstance(types, str) else types


def _shown(value: Json, depth: int = 0) -> Json:
    """Return a reduced copy of a value without a schema, with only its first entries."""
    if depth == _SHOWN_DEPTH and isinstance(value, (dict, list)):
        return type(value)()
    match value:
        case dict():
            return {name: _shown(inner, depth + 1) for name, inner in [*value.items()][:_SHOWN]}
        case list():
            return [_shown(inner, depth + 1) for inner in value[:_SHOWN]]
    return value


def _too_long(path: Path, count: int, most: float, unit: str) -> RefusalError:
    place = where(path) or "the body"
    return RefusalError(f"{place}: {count} are given; it has more than {most} {unit}", param=place)


def where(path: Sequence[str | int]) -> str:
    """Return a path in readable form: sampling_params[0].stop."""
    words = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return words.lstrip(".")
