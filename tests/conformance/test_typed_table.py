from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from tokenwire.typed_table import typed


@dataclass(frozen=True)
class Wheel:
    spokes: int
    rim: Literal["steel", "wood"] = "steel"


@dataclass(frozen=True)
class Cart:
    wheels: tuple[Wheel, ...]
    open: bool = True
    name: str = ""
    colours: frozenset[str] = frozenset()
    loads: Mapping[str, float | None] = field(default_factory=dict)


def test_a_table_becomes_what_its_fields_say():
    found = {
        "wheels": [{"spokes": 8}, {"spokes": 9, "rim": "wood"}],
        "colours": ["red"],
        "loads": {"a": 1, "b": None},
    }
    assert typed(Cart, found, "cart.yaml") == Cart(
        (Wheel(8), Wheel(9, "wood")), colours=frozenset({"red"}), loads={"a": 1, "b": None}
    )


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([], r"cart\.yaml: \[\] is not a table; known are wheels, open"),
        ({}, r"cart\.yaml: 'wheels' is missing; its value must be a list, each entry a table"),
        ({"wheels": [], "opne": True}, r"cart\.yaml: there is no 'opne'; did you mean 'open'\?"),
        ({"wheels": [], 7: True}, r"cart\.yaml: there is no 7; known are wheels, open"),
        ({"wheels": {}}, r"cart\.yaml: wheels: \{\} is not a list, each entry a table"),
        ({"wheels": [{"spokes": True}]}, r"cart\.yaml: wheels: entry 0: spokes: True is not an integer"),
        ({"wheels": [{"spokes": 8, "rim": "stone"}]}, r"rim: 'stone' is not 'steel' or 'wood'"),
        ({"wheels": [], "open": 1}, r"open: 1 is not true or false"),
        ({"wheels": [], "name": None}, r"name: None is not a text"),
        ({"wheels": [], "colours": ["red", 7]}, r"colours: entry 1: 7 is not a text"),
        ({"wheels": [], "loads": {"a": "x"}}, r"loads: a: 'x' is not a number"),
        ({"wheels": [], "loads": 7}, r"loads: 7 is not a table, each value a number or null"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place_and_what_would_fit(table: Any, words: str):
    with pytest.raises(ValueError, match=words):
        typed(Cart, table, "cart.yaml")
