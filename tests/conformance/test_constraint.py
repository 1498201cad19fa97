"""Whether a text is a word of a language or the beginning of one; and what is no language."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenwire import constraint
from tokenwire.constraint import Constraint, UntoldError

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "c": {"enum": ["red", "blue"]}},
    "required": ["a", "c"],
    "additionalProperties": False,
}
GRAMMAR = 'root ::= "yes" | "no"'
TAGS = {
    "type": "structural_tag",
    "structures": [{"begin": "<f=x>", "schema": {"type": "integer"}, "end": "</f>"}],
    "triggers": ["<f="],
}
TAG = {
    "format": {"type": "tag", "begin": "<f>", "content": {"type": "regex", "pattern": "[ab]+"}, "end": "</f>"}
}


def of(kind: str, value: object) -> Constraint:
    return Constraint("it", kind, value)


@pytest.mark.parametrize(
    ("kind", "value", "words", "others"),
    [
        (
            "json_schema",
            SCHEMA,
            ('{"a": true, "c": "red"}', ' {"c":"blue",\n"a":false} '),
            ('{"b": tru', "", "1"),
        ),
        ("json_schema", '{"type": "integer"}', ("12",), ("1.5", "NaN", "12 12")),
        ("json_object", True, ("{}",), ("[1]", '"a"')),
        ("regex", "[a-c]{3}|d", ("abc", "d"), ("abcd", "abc\n", "ab")),
        ("choice", ["red", "blue"], ("red",), ("re", "redblue")),
        ("grammar", GRAMMAR, ("yes", "no"), ("yesno", "ye")),
        (
            "structural_tag",
            TAGS,
            ("<f=x>12</f>", "so <f=x> 1 </f> and <f=x>2</f>, </f> <f>"),
            ("<f=x>12", "<f=y>12</f>", "<f=x>a</f>", "<f=x>1</f><f="),
        ),
        ("structural_tag", TAG, ("<f>ab</f>",), ("ab", "<f>ab</f>.", "<f>c</f>", "<f>ab", "")),
    ],
)
def test_a_word_is_told_from_another_text(kind, value, words, others):
    assert [text for text in words if not of(kind, value).admits(text)] == []
    assert [text for text in others if of(kind, value).admits(text)] == []


@pytest.mark.parametrize(
    ("kind", "value", "begun", "others"),
    [
        (
            "json_schema",
            SCHEMA,
            ("", "\n{", '{"a', '{"a": tr', '{"a": true, "c": "re', '{"a": true, "c": "red"}'),
            ("x", "[", '{"b": true', '{"a": 12, "c": "r', '{"a": true, "c": "red"} and', '{"a": nope'),
        ),
        ("json_schema", {"type": "array", "items": {"type": "integer"}}, ("[1, 2", "[1.5"), ("{", '["a')),
        ("json_schema", {"type": "object"}, ("{",), ("12", "true", "null", '"a"')),
        ("json_schema", {"items": {"type": "string"}}, ("12", "true", '["a'), ("[12", "[true", "[null")),
        ("json_schema", {"type": "integer", "minimum": 10}, ("1", "1.5", "-"), ("true", "{")),
        ("regex", "[a-c]{3}-[0-9]", ("", "ab", "abc-", "abc-1", "ab\ufffd"), ("abd", "abc-12")),
        ("choice", ["red", "blue"], ("r", "red"), ("redd", "green")),
        ("grammar", GRAMMAR, ("ye", "no"), ("yo", "nope")),
        (
            "structural_tag",
            TAGS,
            ("a <f=", "<f=x", "<f=x>", "<f=x>12", "<f=x>12<", "<f=x>12</f", "<f=x>12</f> b"),
            ("<f=y", "<f=x>a", "<f=x>12</f> <f=x>]"),
        ),
        ("structural_tag", TAG, ("", "<", "<f>a", "<f>ab</f", "<f>ab</f>"), ("a", "<f>ab</f>a", "<f>ac")),
    ],
)
def test_the_beginning_of_a_word_is_told_from_another_text(kind, value, begun, others):
    assert [text for text in begun if not of(kind, value).admits(text, cut=True)] == []
    assert [text for text in others if of(kind, value).admits(text, cut=True)] == []


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("json_schema", {"type": "nonsense"}),
        ("json_schema", {"$ref": "#/$defs/nope"}),
        ("json_schema", {"type": "string", "pattern": "(un"}),
        ("json_schema", '{"type": '),
        ("json_schema", None),
        ("regex", "(un"),
        ("grammar", "root ::= nothing"),
        ("choice", []),
        ("structural_tag", '{"type": "structural_tag"}'),
        ("yaml", {}),
    ],
)
def test_what_is_no_language_says_why(kind, value):
    assert of(kind, value).fault.startswith("it ")
    with pytest.raises(UntoldError):
        of(kind, value).admits("a")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("json_schema", {"$ref": "http://127.0.0.1:9/schema"}),
        ("json_schema", {"const": "a" * 70_000}),
        ("regex", "(?=a)a"),
        ("structural_tag", {"structures": [], "triggers": []}),
        ("structural_tag", TAGS),  # no tag is begun
        ("structural_tag", {"format": {"type": "sequence", "elements": []}}),
        ("structural_tag", {"structures": [{"begin": "a", "end": "b"}, 1], "triggers": ["a"]}),
        ("structural_tag", {"structures": [{"begin": 1, "schema": {}, "end": "a"}], "triggers": ["a"]}),
    ],
)
def test_what_is_not_read_is_no_fault_and_no_verdict(kind, value):
    assert of(kind, value).fault == ""
    with pytest.raises(UntoldError):
        of(kind, value).admits("a")


def test_ends_without_number_are_not_all_tried():
    with pytest.raises(UntoldError, match="ends"):
        of("structural_tag", TAGS).admits("<f=x>" + "</f>" * 200)


def test_an_expression_without_end_takes_no_time():
    assert not of("regex", "(a*)*b").admits("a" * 20_000)


def test_a_light_installation_says_what_it_lacks(monkeypatch):
    monkeypatch.setattr(constraint, "llguidance", None)
    assert of("regex", "(yes|no)").admits("no")
    with pytest.raises(UntoldError, match=r"tokenwire\[constraints\]"):
        of("grammar", GRAMMAR).admits("no")


DEEP = "[" * 20_000
HOSTILE = [
    "",
    "(",
    DEEP,
    '{"a":' * 5_000,
    "1" * 5_000,
    "root ::= 1",
    "root ::= ((",
    '"\ud800"',
    "\ud800",
    "\\",
    None,
]
KINDS = ["json_object", "json_schema", "regex", "grammar", "choice", "structural_tag", "yaml"]


def _is_told_or_not(kind: str, value: object, text: str) -> None:
    """Nothing is raised but that it cannot be told."""
    language = of(kind, value)
    assert isinstance(language.fault, str)
    for cut in (False, True):
        with suppress(UntoldError):
            language.admits(text, cut=cut)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_no_language_and_no_text_of_strangers_ends_a_check(kind, value):
    for text in HOSTILE:
        _is_told_or_not(kind, value, text or "")


@given(st.sampled_from(KINDS), st.text('root:=[]{}()"|*+ab1-\\', max_size=20), st.text(max_size=10))
def test_no_drawn_language_ends_a_check(kind, value, text):
    _is_told_or_not(kind, f"root ::= {value}" if kind == "grammar" else value, text)


def test_text_that_is_nested_too_deep_is_no_violation():
    with pytest.raises(UntoldError, match="nested"):
        of("json_schema", {}).admits(DEEP, cut=True)
