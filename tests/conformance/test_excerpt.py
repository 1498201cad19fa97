"""What is shown of an event: the neighbourhood of a pointer, with the wrong value marked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hand_made_stream import ids_stream

from tokenwire.record import Place
from tokenwire.report.excerpt import Excerpt, excerpt, excerpt_at, neighbourhood
from tokenwire.report.failure import failure

CHUNK = {
    "id": "chatcmpl-1",
    "created": 1795314144,
    "model": "toy-1",
    "object": "chat.completion.chunk",
    "choices": [{"index": 0, "delta": {"content": " sat"}, "finish_reason": None}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 13, "total_tokens": 20},
}
TEXT = "/choices/0/delta/content"


def marked(shown: Excerpt) -> str:
    return "" if shown.mark is None else shown.text[slice(*shown.mark)]


def test_what_stands_before_and_behind_is_left_out() -> None:
    shown = neighbourhood(CHUNK, TEXT)
    assert shown.text == '{… "choices":[{… "delta":{"content":" sat"} …}] …}'
    assert marked(shown) == '" sat"'


def test_the_tokens_stand_beside_any_other_field() -> None:
    shown = neighbourhood(CHUNK, "/usage/completion_tokens", [TEXT])
    assert shown.text == (
        '{… "choices":[{… "delta":{"content":" sat"} …}],"usage":{… "completion_tokens":13 …}}'
    )
    assert marked(shown) == "13"


@pytest.mark.parametrize("pointer", ["", "/nowhere", "/choices/7", "/id/deeper"])
def test_what_is_not_there_is_not_marked(pointer: str) -> None:
    assert neighbourhood(CHUNK, pointer, [TEXT]) == Excerpt(
        '{… "choices":[{… "delta":{"content":" sat"} …}] …}'
    )
    assert len(neighbourhood(CHUNK, pointer).text) <= 150


def test_the_wrong_entry_of_a_list_is_marked_where_it_is_the_only_one_like_it() -> None:
    data = {"meta_info": {"mirror_position": [11, 12, 13, 14]}}
    assert marked(neighbourhood(data, "/meta_info/mirror_position", actual=13)) == "13"
    assert marked(neighbourhood(data, "/meta_info/mirror_position", actual=3)) == "[11,12,13,14]"
    data["meta_info"]["mirror_position"].append(13)
    assert marked(neighbourhood(data, "/meta_info/mirror_position", actual=13)) == "[11,12,13,14,13]"


def test_an_entry_that_is_not_a_list_is_marked() -> None:
    data = {"token_logprobs": [0.0, -0.05, -1.5]}
    assert marked(neighbourhood(data, "/token_logprobs", actual=[0.0])) == "0.0"


def test_a_marked_part_that_is_longer_than_the_line_keeps_its_beginning() -> None:
    text = f"data: {{… {'[0.0,' + '-0.05,' * 30}-1.0]}}"
    mark = [text.index("["), len(text) - 1]
    shown = {"index": 0, "time": 0.1, "excerpt": text, "mark": mark, "illegal": True}
    exhibit = {
        **dict.fromkeys(("message", "expected", "actual", "first_seen", "others", "curl", "again"), ""),
        **{"differs_at": None, "upstream": [], "events": [shown], "related": []},
    }
    row = {"verdict": "FAIL", "requirement": "r", "scenario": "s", "sentence": "", "exhibit": exhibit}
    line, carets = failure(row, 80).splitlines()[-2:]
    assert "… [0.0,-0.05," in line
    assert carets.index("^") == line.index("[")


def test_a_long_list_is_shown_around_its_wrong_entry() -> None:
    shown = neighbourhood({"output_ids": list(range(1000, 2000))}, "/output_ids", actual=1500)
    assert marked(shown) == "1500"
    assert ",1499,1500,1501," in shown.text
    assert shown.text.startswith('{"output_ids":[… ')
    assert shown.text.endswith(" …]}")
    assert len(shown.text) < 140


def test_a_long_text_is_shown_ten_characters_around_what_is_wrong_in_it() -> None:
    text = "".join(f"word {n} " for n in range(100))
    shown = neighbourhood({"text": text}, "/text", actual="word 50")
    assert shown.text == '{"text":"… 8 word 49 word 50 word 51 w …"}'
    assert marked(shown) == "word 50"
    assert len(neighbourhood({"text": text}, "/text", actual="not in it").text) < 110


@pytest.mark.parametrize("value", ["a\x1b[31mb", "\u202eabc", "x\x7f", "\ud800", {"\u2028": 1}])
def test_a_mark_fits_what_a_terminal_shows(value: Any) -> None:
    shown = neighbourhood({"text": value, "b": 1}, "/text")
    assert shown.text.isprintable()
    assert shown.text == f'{{"text":{marked(shown)} …}}'


def test_an_event_is_shown_with_the_tokens_that_it_brings() -> None:
    stream = ids_stream([1], [2, 3])
    event = replace(stream.events[1], data={"a": 1, "output_ids": [2, 3], "b": {"c": 2}})
    assert excerpt(stream, event, "/b/c").text == 'data: {… "output_ids":[2,3],"b":{"c":2}}'
    assert marked(excerpt(stream, event, "/b/c")) == "2"
    assert excerpt_at(stream, Place("x", 1, "/output_ids")).text == 'data: {"output_ids":[2,3]}'


def test_a_document_may_be_a_list_of_choices() -> None:
    shown = neighbourhood([{"text": "a"}, {"text": "b", "output_ids": [7]}], "/1/text", ["/1/output_ids"])
    assert shown.text == '[… {"text":"b","output_ids":[7]}]'
    assert marked(shown) == '"b"'
    stream = ids_stream([1])
    batch = replace(stream.events[0], data=[{"text": "a"}], place=Place("generate/one"))
    assert excerpt(stream, batch, "/0/text").text == '[{"text":"a"}]'


def test_what_is_no_object_is_shown_as_it_stands_on_the_wire() -> None:
    stream = ids_stream([1])
    broken = replace(stream.events[0], data=None, problem="not strict JSON")
    assert excerpt(stream, broken, "/output_ids") == Excerpt('data: {"output_ids":[1]}')
    assert excerpt_at(stream, Place("x", 9, start=6, end=9)) == Excerpt('{"o')
