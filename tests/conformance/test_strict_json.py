"""Strict JSON: what it refuses, and that it changes nothing of what it takes."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenwire.wire import strict_json
from tokenwire.wire.strict_json import MAX_DEPTH, StrictJsonError, loads


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("NaN", "NaN"),
        ("[-Infinity]", "-Infinity"),
        ('{"a": Infinity}', "Infinity"),
        ('{"a": 1, "b": 2, "a": 1}', "'a' occurs twice"),
        ('[{"a": {"x": 1, "x": 2}}]', "'x' occurs twice"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "deep"),
        ("[" * 100_000, "deep"),
        ("9" * 5000, "does not fit into 64 bits"),
        ('{"a": 1} {"b": 2}', "character 9"),
        ("{'a': 1}", "character 1"),
        ('"a\nb"', "character 2"),
        ("[1,]", "character"),
        ("01", "character 1"),
        ("\ufeff{}", "character 0"),
        ("", "character 0"),
    ],
)
def test_refused(text: str, why: str) -> None:
    with pytest.raises(StrictJsonError, match=why):
        loads(text)


def test_an_integer_is_told_from_a_float() -> None:
    values = loads("[1, 1.0, 1e0, -0, 18446744073709551615]")
    assert [type(value) for value in values] == [int, float, float, int, int]
    assert values[-1] == 2**64 - 1


def test_a_lone_surrogate_is_json() -> None:
    assert loads(r'"\ud83d"') == "\ud83d"


def test_brackets_in_strings_are_no_nesting() -> None:
    text = json.dumps(["[" * 500, '\\"' + "{" * 500])
    assert loads(text) == json.loads(text)


def test_the_deepest_nesting_that_is_taken() -> None:
    assert json.dumps(loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)).count("[") == MAX_DEPTH
    beside = f"[[],{'[' * (MAX_DEPTH - 1)}{']' * (MAX_DEPTH - 1)}]"
    assert len(loads(beside)) == 2, "more brackets than may stand inside each other"
    assert len(loads("[" + "[]," * 1000 + "[]]")) == 1001, "many arrays beside each other are not deep"


_INTEGERS = st.integers(-(2**63), 2**64 - 1)
_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.recursive(
    st.none() | st.booleans() | _INTEGERS | _FLOATS | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(_VALUES)
@settings(deadline=None)
def test_all_else_is_read_as_written(value: object) -> None:
    assert repr(loads(json.dumps(value))) == repr(value)


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63), 0, 10**18])
def test_integers_of_64_bits_are_read(number: int) -> None:
    assert loads(f'{{"id": {number}}}') == {"id": number}


@pytest.mark.parametrize("number", [str(2**64), str(-(2**63) - 1), "9" * 4300, "1" + "0" * 10_000])
def test_longer_integers_are_refused_and_not_told_in_full(number: str) -> None:
    with pytest.raises(StrictJsonError, match="does not fit into 64 bits") as caught:
        loads(f'{{"usage": [{number}]}}')
    assert len(str(caught.value)) < 120


def test_long_fractions_and_long_strings_of_digits_are_no_long_integers() -> None:
    assert loads('{"a": 0.12345678901234567890123, "b": "12345678901234567890123"}')["b"].endswith("123")


_PIECES = st.sampled_from(
    [
        *'{}[]:,"',
        *('"a"', '"a":', "{}", "[]", "null", "true", "NaN", "Infinity", " ", "\n", "\x00", "\ufeff", "\\"),
        *("0", "-0", "00", "1.0", "1.", "1e5", "1E+05", "1e999", "-1E999", "1e+0999", "1e-999", "0.1e310"),
        *(
            str(2**63),
            str(2**64),
            str(-(2**63) - 1),
            "9" * 400,
            "9" * 400 + ".0",
            "0." + "3" * 30,
            "9" * 18 + "e99",
        ),
        *(
            r'"\ud83d"',
            r'"\ud83d\ude00"',
            r'"\u0000"',
            '"\ud83d"',
            '"\t"',
            r'"\x"',
            '"1e999"',
            "[" * 199,
            "]" * 199,
        ),
    ]
)


@given(st.lists(_PIECES, max_size=8).map("".join))
@settings(deadline=None, max_examples=500)
def test_what_is_read_fast_is_read_as_carefully(text: str) -> None:
    fast = strict_json._read_fast(text)
    if fast is not strict_json._UNSURE:
        assert repr(fast) == repr(strict_json._read_carefully(text))


@pytest.mark.parametrize("text", ["1e999", "[1E+400]", str(2**64), "9" * 400 + ".0", r'"\ud83d"', "NaN"])
def test_what_others_read_otherwise_is_not_read_fast(text: str) -> None:
    assert strict_json._read_fast(text) is strict_json._UNSURE


def test_an_answer_of_a_server_is_read_fast() -> None:
    text = '{"text": "a", "logprobs": [[-1.5e-07, 12, null]], "id": "12345678901234567"}'
    assert strict_json._read_fast(text) == json.loads(text)
