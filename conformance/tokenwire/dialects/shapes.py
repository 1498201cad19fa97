"""Writes and recognizes requests like those of common clients, with the same fields in the same order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

from tokenwire.dialects.demands import filled_in
from tokenwire.spec_files import read_yaml, spec_root
from tokenwire.typed_table import typed

_ADDED = {"temperature": 0.0}
"""The field that the suite adds to all shapes, so that answers can be compared."""
_WORDS, _MODEL, _BUDGET = "WORDS", "MODEL", "BUDGET"


@dataclass(frozen=True)
class Shape:
    """The request of a common client, from `spec/shapes.yaml`."""

    client: str
    path: str
    says: Literal["content", "call", "json"]
    """The kind of text that the model is made to output."""
    body: Mapping[str, Any]
    plain: bool = False
    """True for plain requests, with which the other shapes are compared."""
    may_be_refused: bool = False

    def written(self, words: str, model: str, budget: int) -> dict[str, Any]:
        """Return the body of a request, with its fields in the order of the client."""
        filled = filled_in(self.body, {_WORDS: words, _MODEL: model, _BUDGET: budget})
        return {**filled, **_ADDED}

    def read(self, body: Any) -> Filled | None:
        """Return the values at the placeholders of a body of this shape; None for other bodies."""
        found: dict[str, Any] = {}
        held = isinstance(body, Mapping) and body.keys() == {**self.body, **_ADDED}.keys()
        if not held or not _fits({**self.body, **_ADDED}, body, found) or _WORDS not in found:
            return None
        return Filled(found[_WORDS], found[_MODEL], found.get(_BUDGET))


class Filled(NamedTuple):
    """The values at the placeholders of a shape."""

    words: str
    model: str
    budget: int | None
    """None if the shape has no budget."""


_TYPES = {_WORDS: str, _MODEL: str, _BUDGET: int}


def _fits(template: Any, value: Any, found: dict[str, Any]) -> bool:
    """True if a value matches a template. The first value at each placeholder is added to `found`."""
    match template:
        case "WORDS" | "MODEL" | "BUDGET":
            found.setdefault(template, value)
            return isinstance(value, _TYPES[template])
        case {**members}:
            same = isinstance(value, Mapping) and value.keys() == members.keys()
            return same and all(_fits(members[name], value[name], found) for name in members)
        case [*entries]:
            same = isinstance(value, list) and len(value) == len(entries)
            return same and all(_fits(*pair, found) for pair in zip(entries, value, strict=True))
    return bool(template == value)


@cache
def load_shapes() -> Mapping[str, Shape]:
    """Return the shapes of `spec/shapes.yaml`, by name."""
    table = read_yaml(spec_root() / "shapes.yaml")
    return {name: typed(Shape, row, f"shape {name}") for name, row in table.items()}
