"""Whether a text is a word of a language or the beginning of one; and what is no language."""

from __future__ import annotations

import pytest

from tokenwire import constraint
from tokenwire.constraint import Constraint, UntoldError

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "c": {"enum": ["red", "blue"]}},
    "required": ["a", "c"],
    "additionalProperties": False,
}
GRAMMAR = 'root ::= "yes" | "no"'


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
        ("regex", "[a-c]{3}-[0-9]", ("", "ab", "abc-", "abc-1", "ab\ufffd"), ("abd", "abc-12")),
        ("choice", ["red", "blue"], ("r", "red"), ("redd", "green")),
        ("grammar", GRAMMAR, ("ye", "no"), ("yo", "nope")),
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
    ],
)
def test_what_is_not_read_is_no_fault_and_no_verdict(kind, value):
    assert of(kind, value).fault == ""
    with pytest.raises(UntoldError):
        of(kind, value).admits("a")


def test_an_expression_without_end_takes_no_time():
    assert not of("regex", "(a*)*b").admits("a" * 20_000)


def test_a_light_installation_says_what_it_lacks(monkeypatch):
    monkeypatch.setattr(constraint, "llguidance", None)
    assert of("regex", "(yes|no)").admits("no")
    with pytest.raises(UntoldError, match=r"tokenwire\[constraints\]"):
        of("grammar", GRAMMAR).admits("no")
