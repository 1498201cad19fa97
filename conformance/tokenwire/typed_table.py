"""Convert YAML tables to frozen dataclasses. Unknown keys and values of a wrong type are errors.

A field of type `Annotated[Keys, parse]` gets the value that `parse` returns. A field name that ends with "_"
has no "_" in the table, because words such as `in` are Python keywords.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import date
from enum import EnumType
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

_Row = TypeVar("_Row")

_UNIONS = {Union, UnionType}
_IN_WORDS = {
    Any: "anything",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a text",
    date: "a date such as 2030-01-31",
}


def typed(kind: type[_Row], table: object, where: str) -> _Row:
    """Convert a table to a dataclass. Raises ValueError with the place, the value, and the allowed values."""
    fields = _fields(kind)  # type: ignore[arg-type]  # every class can be hashed
    known = f"known are {', '.join(fields)}"
    if not isinstance(table, Mapping):
        raise ValueError(f"{where}: {table!r} is not a table; {known}")  # noqa: TRY004
    for name in table:
        if name not in fields:
            raise ValueError(f"{where}: there is no {name!r}; {suggestion(str(name), fields, known)}")
    for name, (_, hint, required) in fields.items():
        if required and name not in table:
            raise ValueError(f"{where}: {name!r} is missing; its value must be {in_words(hint)}")
    values = {
        fields[name][0]: fitting(fields[name][1], value, f"{where}: {name}") for name, value in table.items()
    }
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


@cache
def _fields(kind: Any) -> dict[str, tuple[str, Any, bool]]:
    """Return the fields of a dataclass by their names in the table.

    A value consists of the field's name, the field's type, and True if the table must contain the field.
    """
    hints = get_type_hints(kind, include_extras=True)
    required = {dataclasses.MISSING}
    return {
        field.name.rstrip("_"): (
            field.name,
            hints[field.name],
            {field.default, field.default_factory} == required,
        )
        for field in dataclasses.fields(kind)
    }


def fitting(hint: Any, value: Any, where: str) -> Any:
    """Convert a value to a type. Raises ValueError with the place, the value, and the allowed values."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        try:
            return args[1](value)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
    if origin in _UNIONS and value is None and NoneType in args:
        return None
    kinds = [entry for entry in args if entry is not NoneType] if origin in _UNIONS else [hint]
    if len(kinds) == 1 and kinds[0] is not hint:
        return fitting(kinds[0], value, where)
    if any(_is(entry, value) for entry in kinds):
        return value
    for kind in kinds if len(kinds) > 1 else ():
        with suppress(ValueError):
            return fitting(kind, value, where)
    if origin in {tuple, frozenset} and isinstance(value, list):
        return origin(fitting(args[0], entry, f"{where}: entry {index}") for index, entry in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping):
        return {
            fitting(args[0], name, where): fitting(args[1], value, f"{where}: {name}")
            for name, value in value.items()
        }
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return typed(hint, value, where)
    if isinstance(hint, EnumType) and value in list(hint):
        return hint(value)
    raise ValueError(f"{where}: {value!r} is not {in_words(hint)}")


def _is(hint: Any, value: object) -> bool:
    """True if a value is an instance of a type without type arguments."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    return hint is Any or type(value) is hint or (hint is float and type(value) is int)


def in_words(hint: Any) -> str:
    """Return a description of the values of a type, for messages."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return f"what {args[1].__name__} reads"
    if origin is Literal or isinstance(hint, EnumType):
        return " or ".join(repr(str(kind)) for kind in args or hint)
    if origin in _UNIONS:
        return " or ".join("null" if kind is NoneType else in_words(kind) for kind in args)
    if origin in {tuple, frozenset}:
        return f"a list, each entry {in_words(args[0])}"
    if origin is Mapping:
        return f"a table, each value {in_words(args[1])}"
    return _IN_WORDS.get(hint, "a table")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 case`, `2 cases`."""
    return f"{number} {noun if number == 1 else plural_of(noun)}"


def plural_of(noun: str) -> str:
    """Return the plural of a noun: `entries`, `cases`."""
    return f"{noun.removesuffix('y')}ies" if noun.endswith("ry") else f"{noun}s"


def suggestion(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a clause with the closest known name, or `otherwise` if no name is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise
