"""The shapes of usual clients: written as the client writes them, and recognised."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tokenwire.dialects.dialect import load_dialects
from tokenwire.dialects.shapes import load_shapes

SHAPES = load_shapes()


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_recognised_and_no_other_is_taken_for_it(name: str) -> None:
    shape = SHAPES[name]
    body = json.loads(json.dumps(shape.written("Is it?", "m", 9)))
    assert [*body][: len(shape.body)] == [*shape.body]
    assert body["temperature"] == 0
    assert not {"WORDS", "MODEL", "BUDGET"} & set(_strings(body))
    assert shape.read(body) == ("Is it?", "m", 9 if "BUDGET" in shape.body.values() else None)
    others = [
        other
        for other, candidate in SHAPES.items()
        if candidate.path == shape.path and candidate.read(body) is not None and candidate.body != shape.body
    ]
    assert others == []
    assert shape.read({**body, "top_p": 0.5}) is None
    assert shape.read({**body, "model": ["m"]}) is None


@pytest.mark.parametrize("path", sorted({shape.path for shape in SHAPES.values()}))
def test_each_path_has_plain_requests_for_its_texts(path: str) -> None:
    assert path in {dialect.endpoint.path for dialect in load_dialects().values()}
    shapes = [shape for shape in SHAPES.values() if shape.path == path]
    plain = {(shape.says, "tools" in shape.body) for shape in shapes if shape.plain}
    assert {(shape.says, "tools" in shape.body) for shape in shapes} == plain
    assert len([shape for shape in shapes if not shape.plain]) >= 5


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for member in value.values() for text in _strings(member)]
    if isinstance(value, list):
        return [text for member in value for text in _strings(member)]
    return [value] if isinstance(value, str) else []
