"""Markup: what a text says is read in every form, and what no document settles is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenwire.dialects.markup import (
    BEHIND,
    Markup,
    Reading,
    as_object,
    begun,
    load_markup,
    read_markup,
)

WAYS, FORMS = load_markup()
THINK = WAYS["think"]
CITY = {"city": "Paris"}


def read(text: str, form: str = "hermes", tools: tuple[str, ...] | None = None) -> Reading:
    return read_markup(text, Markup(THINK, FORMS[form]), tools)


def names(reading: Reading) -> list[str]:
    return [call.name for call in reading.calls]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_as_it_is_written(form: str) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("get_weather", {"city": "Köln {x}", "note": "a\nb"}),
        ("ping", {}),
    ]
    text = "Look.\n" if FORMS[form].opens else ""
    reading = read(f"<think>\nhm\n</think>\n\n{text}{FORMS[form].spelled(*calls)}", form)
    assert (reading.reasoning, reading.contents[0], reading.disputed) == ("\nhm\n", f"\n\n{text}", "")
    assert [(call.name, call.arguments) for call in reading.calls] == calls
    assert reading.cut is None


TEXTS = st.text(st.sampled_from('ab"\\{}[]<>/éß😀\n '), max_size=12)
VALUES = TEXTS | st.integers(-9, 9) | st.booleans() | st.none()


@given(st.dictionaries(st.sampled_from("abc"), VALUES | st.lists(VALUES, max_size=2)))
def test_arguments_of_any_kind_are_read(arguments: dict[str, Any]) -> None:
    for form in ("hermes", "llama3", "pythonic"):
        [call] = read(FORMS[form].spelled(("ping", arguments)), form).calls
        assert call.arguments == arguments, form


@pytest.mark.parametrize(
    ("text", "disputed"),
    [
        ('<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>\nDone.', BEHIND),
        ("<think>\nI could <tool_call> it\n</think>\n\nNo.", "the reasoning contains a tool call"),
        ('<tool_call>\n{"name": "ping"}\n</tool_call>', "a tool call is malformed"),
        ('<tool_call>\n{"name": "ping", "arguments": {]}\n</tool_call>', "a tool call is malformed"),
        (
            '<tool_call>\n{"name": "no", "arguments": {}}\n</tool_call>',
            "a call is of no tool that the request has",
        ),
        ("Hello <think> there", "the content contains a marker of reasoning"),
    ],
)
def test_what_no_document_settles_is_disputed(text: str, disputed: str) -> None:
    assert read(text, tools=("ping",)).disputed == disputed


@pytest.mark.parametrize("size", range(1, 66))
def test_a_call_that_is_cut_anywhere_is_no_call_and_no_content(size: int) -> None:
    call = FORMS["hermes"].spelled(("get_weather", CITY))
    reading = read(f"Look.{call[:size]}")
    if size < len("<tool_call>"):
        assert (reading.cut, reading.contents) == (None, (f"Look.{call[:size]}",))
        return
    assert (reading.cut, reading.contents, reading.calls) == (call[:size], ("Look.",), ())
    known = begun(call[:size], FORMS["hermes"])
    complete = '{"name": "get_weather"' in call[:size]
    assert known is None or complete
    assert not complete or (known is not None and known[0] == "get_weather")


def test_reasoning_that_the_prompt_opened_ends_at_its_marker() -> None:
    reading = read("Just thoughts.\n</think>\n\nThe answer.")
    assert (reading.reasoning, reading.contents, reading.disputed) == (
        "Just thoughts.\n",
        ("\n\nThe answer.",),
        "",
    )
    assert read("<think>\nnever").cut == ""


def test_what_only_looks_like_a_marker_is_content() -> None:
    text = 'a < b, <tool and <thin or </thin, {"nam": 1} and [x(y=1)]. end <'
    assert (read(text).contents, read(text).disputed) == ((text,), "")


def test_parameters_may_stand_for_values_of_other_types() -> None:
    [call] = read(
        FORMS["qwen3_xml"].spelled(("f", {"days": 2, "q": {"a": [1]}, "s": "x"})), "qwen3_xml"
    ).calls
    assert call.is_told_by('{"days": 2, "q": {"a":[1]}, "s": "x"}')
    assert call.is_told_by('{"days": "2", "q": "{\\"a\\": [1]}", "s": "x"}')
    assert not call.is_told_by('{"days": 3, "q": {"a": [1]}, "s": "x"}')
    assert not call.is_told_by('{"days": 2')


def test_a_list_of_calls_begins_where_its_bracket_does() -> None:
    reading = read('<think>hm</think>[ping(), get_weather(city="[Paris]")]', "pythonic")
    assert names(reading) == ["ping", "get_weather"]
    assert reading.calls[1].arguments == {"city": "[Paris]"}


def test_a_call_at_the_very_beginning_of_reasoning_stands_in_it() -> None:
    call = FORMS["hermes"].spelled(("ping", {}))
    assert read(f"<think>{call}</think>No.").disputed == "the reasoning contains a tool call"


DEEP = 100_000


@pytest.mark.parametrize(
    ("form", "call"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": ' + "[" * DEEP + "\n</tool_call>"),
        (
            "qwen3_xml",
            "<tool_call>\n<function=f>\n<parameter=a>\n[[\n</parameter>\n</function>\n</tool_call>",
        ),
        ("pythonic", "[f(a={[]: 1})]"),
        ("pythonic", f"[f(a={'-' * DEEP}1)]"),
        ("pythonic", f"[f(a={'(' * 1000}1{')' * 1000})]"),
        ("pythonic", f"[f(a={'[' * DEEP}{']' * DEEP})]"),
        ("pythonic", "[f(a=" + "[]," * DEEP),
        ("pythonic", "[f(a='" + "]" * DEEP + ")]"),
        ("pythonic", "[f(a=\0)]"),
    ],
)
def test_no_text_of_a_model_ends_the_reading(form: str, call: str) -> None:
    reading = read(call, form)
    assert reading.disputed or reading.cut is not None or reading.calls


def test_arguments_that_are_nested_too_deep_are_no_object() -> None:
    assert as_object('{"a":' * DEEP) is None
    [call] = read(FORMS["qwen3_xml"].spelled(("f", {"a": "[" * DEEP})), "qwen3_xml").calls
    assert not call.is_told_by('{"a": 1}')
    assert not call.is_told_by("[" * DEEP)


def test_a_call_that_is_cut_behind_many_parameters_is_read_at_once() -> None:
    written = FORMS["qwen3_xml"].spelled(("ping", {f"key_{n}": "value" for n in range(40)}))
    cut = written.removesuffix("</function>\n</tool_call>")
    reading = read(cut, "qwen3_xml")
    assert (reading.calls, reading.cut) == ((), cut)


def test_a_value_may_hold_the_closing_tag_of_a_parameter() -> None:
    values = {"a": "x</parameter> y", "b": "</parameter>\n", "c": "<parameter=d>"}
    [call] = read(FORMS["qwen3_xml"].spelled(("ping", values)), "qwen3_xml").calls
    assert call.arguments == values
