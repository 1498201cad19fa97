"""The input of a custom tool, taken out of the arguments of its function as they come."""

from __future__ import annotations

import json

import pytest

from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.items.free_input import FreeInput, as_function

TEXT = 'a "b" \\ {"input": 1}\n\té😀\u2028'


def read(arguments: str, step: int) -> list[str]:
    """Return the pieces of the input, of arguments that come in pieces of a number of characters."""
    free = FreeInput()
    pieces = [free.push(arguments[place : place + step]) for place in range(0, len(arguments), step)]
    return [*pieces, free.finish()]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("plain", [True, False])
def test_the_pieces_add_up_to_the_text(step: int, plain: bool) -> None:
    for arguments in (
        json.dumps({"input": TEXT}, ensure_ascii=plain),
        f'{{ "input" : {json.dumps(TEXT, ensure_ascii=plain)} }}',
    ):
        assert "".join(read(arguments, step)) == TEXT


@pytest.mark.parametrize("step", [1, 1000])
def test_arguments_without_an_input_are_the_input(step: int) -> None:
    for arguments in ('{"patch": "a"}', "plain", "[]"):
        assert "".join(read(arguments, step)) == arguments


def test_an_input_that_was_cut_is_what_came_of_it() -> None:
    assert "".join(read('{"input": "ab\\', 1)) == "ab"
    assert "".join(read('{"input": "ab\\ud83d', 1)) == "ab"


def test_a_grammar_is_refused_and_a_text_is_not() -> None:
    tool = {"type": "custom", "name": "apply_patch", "format": {"type": "text"}}
    assert as_function(tool)["parameters"]["required"] == ["input"]
    with pytest.raises(RefusalError, match="apply_patch has the format 'grammar'"):
        as_function({**tool, "format": {"type": "grammar", "syntax": "lark", "definition": "start: A"}})
