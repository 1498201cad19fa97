"""Events that fit a template are read as they are one by one, whatever else a server wrote between them."""

from __future__ import annotations

import json
import weakref
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tokenwire.dialects.dialect import Dialect, load_dialects
from tokenwire.dialects.recognition import DialectResolver
from tokenwire.dialects.template_schema import TemplateSchema
from tokenwire.judging.gc_paused import gc_paused
from tokenwire.judging.judge import Run, judge
from tokenwire.record import Columns, Events, Stream
from tokenwire.shelved import _forget
from tokenwire.spec_files import read_yaml, spec_root
from tokenwire.wire import strict_json, template
from tokenwire.wire.capture import read_capture
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read
from tokenwire.wire.json_pointer import ABSENT
from tokenwire.wire.template import Alike, fit

FIXTURES = Path(__file__).parents[2] / "fixtures"
FEWEST = 8


@pytest.fixture(autouse=True, scope="module")
def of_few_events() -> Iterator[None]:
    """Eight events are enough for a template."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template, "FEWEST", FEWEST)
        yield


def one_by_one(dialect: Dialect, exchange: Exchange) -> Stream:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template, "FEWEST", len(exchange.body) + 1)
        return dialect.read(exchange)


def by_template(stream: Stream) -> bool:
    return isinstance(stream.events, Events) and isinstance(stream.events.data, Alike)


def plain(column: Any) -> Any:
    if isinstance(column, dict):
        return {name: list(one) for name, one in sorted(column.items())}
    return [sorted(one) if isinstance(one, frozenset) else one for one in column]


def said(columns: Columns) -> dict[str, Any]:
    return {
        one.name: plain(getattr(columns, one.name)) for one in fields(columns) if one.name != "customized"
    }


def told(stream: Stream) -> list[str]:
    """All that is read of a stream, spelled out: 1, 1.0 and True are equal, and are not the same."""
    choices = [
        (one.index, said(one.columns), sorted(one.columns.customized), list(one.emissions))
        for one in stream.choices
    ]
    kept = {
        one.name: getattr(stream, one.name)
        for one in fields(stream)
        if one.name not in ("exchange", "asked", "events", "choices")
    }
    at = [list(Events.of(stream.events).at(keys)) for keys in ((), ("choices", "0"), ("error",))]
    seen = [list(stream.in_order.at(keys)) for keys in ((), ("choices", "0"), ("error",))]
    assert repr(at) == repr(seen)
    return [repr(list(stream.events)), *map(repr, choices), repr(kept), repr(dict(stream.in_order.errors))]


def exchange_of(dialect: Dialect, body: bytes, **more: Any) -> Exchange:
    request = HttpRequest(dialect.endpoint.methods[0], dialect.endpoint.path, {"stream": True, **more})
    reads = tuple(Read(0.1 * at, body[at : at + 900]) for at in range(0, len(body), 900))
    return Exchange("one", request, "one", 200, (), reads, Ending.COMPLETE)


def assert_the_same(dialect: Dialect, body: bytes) -> bool:
    """Hold both ways of reading against each other; whether the template was taken."""
    exchange = exchange_of(dialect, body)
    fast = dialect.read(exchange)
    assert told(fast) == told(one_by_one(dialect, exchange))
    return by_template(fast)


HOLE = "HOLE"
_STYLES: list[dict[str, Any]] = [
    {"separators": (",", ":"), "ensure_ascii": False},
    {"separators": (",", ":")},
    {"ensure_ascii": False},
    {"separators": (",  ", ":\t")},
]
"""How servers write JSON, and how one might."""

_SAMPLED = [" b", "a", 'say "so"', "back\\slash", "ü", "日本", "}\n{", "],[", '":"', "😀", "\0", "\u2028", ""]
_ENTRY = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
_TOP = _ENTRY | {"top_logprobs": [{"token": '"', "logprob": -1.0, "bytes": [98, 99]}]}
_PARALLEL = {"tokens": [], "token_logprobs": [-0.5], "top_logprobs": [], "text_offset": [0]}
_HEAD = {"id": "r-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
_META = {"id": "r-1", "finish_reason": None, "prompt_tokens": 4, "weight_version": "default"}

Place = tuple[tuple[str | int, ...], list[Any]]
STREAMS: dict[str, tuple[dict[str, Any], list[Place]]] = {
    "sglang-generate": (
        {"text": "a", "output_ids": [7], "meta_info": _META},
        [
            (("text",), _SAMPLED),
            (("output_ids",), [[7], [8], [9, 10], []]),
            (("meta_info", "completion_tokens"), [1, 2, 3, 40]),
            (
                ("meta_info", "output_token_logprobs"),
                [[[-0.5, 7, None]], [[-1.5, 8, "x"]], [[-0.5, 7, '"'], [0, 1, "],["]], []],
            ),
            (
                ("meta_info", "output_top_logprobs"),
                [[[[-0.5, 7, None], [-1e-05, 8, "x"]]], [[]], [None], [[[-12.0, 7, "a,b"]]]],
            ),
            (("meta_info", "x"), [[7], [8], ["a", None]]),
            (("meta_info", "e2e_latency"), [0.5, 1.25, 1e-05, 0, 3.7594289779663086]),
            (("meta_info", "finish_reason"), [None, None, None, {"type": "length", "length": 3}]),
            (("index",), [0, 0, 0, 1]),
        ],
    ),
    "sglang-chat": (
        _HEAD
        | {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}, "finish_reason": None}]},
        [
            (("choices", 0, "delta", "content"), _SAMPLED),
            (("choices", 0, "delta", "reasoning_content"), _SAMPLED),
            (("choices", 0, "delta", "role"), [None, None, "assistant"]),
            (
                ("choices", 0, "logprobs"),
                [{"content": [_ENTRY]}, {"content": [_TOP]}, {"content": [_TOP, _ENTRY]}, {"content": []}],
            ),
            (("created",), [1, 2, 3]),
            (("choices", 0, "finish_reason"), [None, None, None, "stop"]),
            (("choices", 0, "index"), [0, 0, 0, 1]),
        ],
    ),
    "vllm-completions": (
        _HEAD
        | {"object": "text_completion"}
        | {"choices": [{"index": 0, "text": "a", "logprobs": None, "finish_reason": None, "token_ids": [7]}]},
        [
            (("choices", 0, "text"), _SAMPLED),
            (
                ("choices", 0, "logprobs"),
                [
                    _PARALLEL | {"tokens": [text], "top_logprobs": [top]}
                    for text, top in (("a", {"a": -0.5}), ("b", {"b": -1, '"': -2.5}), ("}", {}))
                ],
            ),
            (("choices", 0, "token_ids"), [[7], [8], [9, 10]]),
            (("usage",), [None, None, {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}]),
            (("choices", 0, "finish_reason"), [None, None, None, "stop"]),
        ],
    ),
}
"""An event of several endpoints, and what servers tell at some places of it."""
_ODD = [
    "1.0",
    "-0",
    "01",
    "+1",
    "1.",
    ".5",
    "1e3",
    "1E400",
    "1e999",
    "-1e+400",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775809",
    "100000000000000000000000000",
    "0.1234567890123456789012345",
    "NaN",
    "Infinity",
    "-Infinity",
    "tru",
    "null",
    "None",
    "",
    " ",
    ",",
    "1,2",
    "1 2",
    "[1",
    "2]",
    "[1,2",
    "1],[2",
    "[[1]",
    "[1]]",
    "[,]",
    "[1,]",
    "[ 1 , 2 ]",
    "[1 2]",
    "{}",
    '{"a":1,"a":2}',
    '[{"a":1,"a":2}]',
    '{"a":1,"\\u0061":2}',
    '"a","text":"b"',
    '"a"},{"a":"b"',
    '"a"}',
    '"a',
    'a"',
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '"\\ud83d\\ude00"',
    '"\\u00e9"',
    '"\\x41"',
    '"\\"',
    '"\\\\"',
    '"a\tb"',
    '"a\x00b"',
    '"\\u12"',
    '"1e999,18446744073709551616"',
    "[" * 150 + "]" * 150,
    "[" * 250 + "]" * 250,
    '[["a,b",1],["]"]]',
    "1, 2",
    "[1]/**/",
    "1\n",
    "1\r\n",
    "1\n\n",
    "1\n\ndata: 2",
]
"""What stands where a value should."""

_BETWEEN = [
    "",
    "\n",
    "\n\n\n\n",
    "\r\n\r\n",
    "\r",
    ": comment\n\n",
    "\n\n: comment\n\n",
    "\n\nevent: odd\n",
    "\n\nid: 7\n\n",
    "\n\ndata: [DONE]\n\n",
    "\n\ndata: \n\n",
    '\n\ndata: {"error": {"message": "no", "code": 500}}\n\n',
    '\n\ndata: {"choices": [], "usage": {"prompt_tokens": 3}}\n\n',
    "\n\ndata:{}\n\n",
    "\n\ndata: 1\ndata: 2\n\n",
    "\n\n\ufeff",
    " \n\n",
    "x\n\n",
    "}\n\n",
]
"""What stands between two events, instead of a blank line."""


def _put(event: dict[str, Any], way: tuple[str | int, ...], value: Any) -> None:
    holder: Any = event
    for key in way[:-1]:
        holder = holder[key]
    holder[way[-1]] = value


def _without_schema(name: str) -> Dialect:
    return Dialect(read_yaml(spec_root() / "dialects" / f"{name}.yaml"), schemas=lambda _: {})


LENIENT = {name: _without_schema(name) for name in STREAMS}
"""Dialects that take every value at every place."""


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A stream whose events differ in some values, and perhaps in what no server should write."""
    name = draw(st.sampled_from(sorted(STREAMS)))
    style = draw(st.sampled_from(_STYLES))
    first, usual = STREAMS[name]
    places = draw(st.lists(st.sampled_from(usual), min_size=1, max_size=4, unique_by=lambda place: place[0]))
    event = deepcopy(first)
    odd_share = draw(st.sampled_from([0, 0, 1, 4]))
    texts = []
    for _ in range(draw(st.integers(FEWEST, 24))):
        fillings: dict[str, str] = {}
        for at, (way, values) in enumerate(places):
            filling = json.dumps(draw(st.sampled_from(values)), **style)
            if odd_share and draw(st.integers(0, 9)) < odd_share:
                filling = draw(st.sampled_from(_ODD))
            fillings[f'"{HOLE}{at}"'] = filling
            _put(event, way, f"{HOLE}{at}")
        text = json.dumps(event, **style)
        for hole, filling in fillings.items():
            text = text.replace(hole, filling)
        texts.append(text)
    body = "data: " + texts[0]
    for text in texts[1:]:
        odd = odd_share and draw(st.integers(0, 19)) == 0
        body += (draw(st.sampled_from(_BETWEEN)) if odd else "\n\n") + "data: " + text
    body += draw(st.sampled_from(["\n\n", "\n\n", "\n\ndata: [DONE]\n\n", "\n", "", "\n\ndata: {"]))
    data = body.encode()
    if draw(st.integers(0, 19)) == 0:
        at = draw(st.integers(0, len(data) - 1))
        other = draw(st.sampled_from([b"\xff", b"\xed\xa0\x80", b"\x00", b'"', b""]))
        data = data[:at] + other + data[at + 1 :]
    return name, data


@given(bodies())
@settings(max_examples=500)
def test_no_stream_is_read_otherwise_by_a_template(drawn: tuple[str, bytes]) -> None:
    name, body = drawn
    assert_the_same(load_dialects()[name], body)
    event("by template" if assert_the_same(LENIENT[name], body) else "one by one")


_NATIVE = {
    "text": "T",
    "output_ids": "I",
    "meta_info": _META | {"completion_tokens": 1, "output_token_logprobs": "L"},
}


_NATIVE_FILLINGS = '" %d"', "[%d]", "[[-%d.5, %d, null]]"


def native(count: int, *fillings: str) -> list[str]:
    """Events of a native stream; `fillings` stand in turn for the text, the ids and the entries of each."""
    told = dict(zip(("T", "I", "L"), fillings or _NATIVE_FILLINGS, strict=True))
    events = []
    for at in range(1, count + 1):
        text = json.dumps(_NATIVE)
        for hole, filling in told.items():
            text = text.replace(f'"{hole}"', filling.replace("%d", str(at)))
        events.append(text)
    return events


def body_of(events: list[str]) -> bytes:
    return b"".join(b"data: %b\n\n" % one.encode() for one in (*events, "[DONE]"))


NATIVE = load_dialects()["sglang-generate"]


@pytest.mark.parametrize("style", _STYLES[:-1])
@pytest.mark.parametrize("name", sorted(STREAMS))
def test_a_stream_as_servers_write_it_fits_a_template(name: str, style: dict[str, Any]) -> None:
    """With the finish in the last event and an error in the middle."""
    first, places = STREAMS[name]
    rarely = ("finish_reason", "usage", "index", "role")
    written = []
    for at in range(40):
        event = deepcopy(first)
        for way, values in places:
            if way[-1] not in rarely:
                _put(event, way, values[at % len(values)])
        written.append(json.dumps(event, **style))
    written.insert(20, '{"error": {"message": "no", "code": 500}}')
    assert assert_the_same(load_dialects()[name], body_of(written))


@pytest.mark.parametrize("odd", _ODD)
def test_what_stands_where_a_value_should_is_read_as_it_is_alone(odd: str) -> None:
    for count in (1, 2, 12, 40):
        for place in range(3):
            fillings = list(_NATIVE_FILLINGS)
            fillings[place] = odd
            events = native(40)
            events[20 : 20 + count] = native(40, *fillings)[20 : 20 + count]
            assert_the_same(NATIVE, body_of(events))
            assert_the_same(LENIENT["sglang-generate"], body_of(events))


@pytest.mark.parametrize("odd", _BETWEEN)
def test_what_stands_between_events_is_read_as_it_is_alone(odd: str) -> None:
    for at in (0, 1, 20, 40):
        events = [f"data: {one}\n\n" for one in native(40)]
        head, tail = "".join(events[:at]), "".join(events[at:])
        assert_the_same(NATIVE, (head.removesuffix("\n\n") + odd + tail).encode())
        assert_the_same(NATIVE, (head + odd + tail).encode())


@pytest.mark.parametrize("odd", [b"\r", b"\n", b"\r\n", b"\n\n", b"\xff", b'"x":1,"x":', b"\x00", b"\t"])
def test_what_stands_in_every_event_is_read_as_it_is_alone(odd: bytes) -> None:
    """Within what all events have, and within what they differ in."""
    body = body_of(native(40))
    for before in (b'"text": ', b'"output_ids": ', b'"text": "', b'"weight_version": "'):
        assert_the_same(NATIVE, body.replace(before, before + odd))
        assert_the_same(LENIENT["sglang-generate"], body.replace(before, before + odd))


def test_what_is_balanced_only_together_is_no_json() -> None:
    """`[1` and `2]` make one value of two, and `1,2` two of one: as many as there are events."""
    ids = ["[1", "2]", "1,2", *map(str, range(17))]
    texts = native(20, '" %d"', "[0]", "[[-%d.5, 0, null]]")
    events = [one.replace("[0]", own) for one, own in zip(texts, ids, strict=True)]
    assert_the_same(NATIVE, body_of(events))
    assert strict_json.loads_column([b"1,2"]) is None
    assert strict_json.loads_column([b"1", b"1e999"]) is None


def test_an_event_that_fits_is_made_of_the_template_and_what_fills_it() -> None:
    fitted = fit(body_of(native(20)))
    assert fitted is not None
    assert fitted.template.holes == {"text": 0, "output_ids": 1, "meta_info": {"output_token_logprobs": 2}}
    assert fitted.columns[1] == [[at] for at in range(1, 21)]
    assert (fitted.others, fitted.others_at) == ((b"[DONE]",), [20])
    values = Alike(fitted, [None])
    assert [values[-1], values[20], len(values)] == [None, None, 21]
    assert values[3] == values[3:5][0] == json.loads(native(4)[3])
    assert list(values.at(("meta_info",)))[::20] == [values[0]["meta_info"], ABSENT]


def test_a_body_of_few_or_large_events_has_no_template() -> None:
    assert fit(body_of(native(FEWEST))) is not None
    assert fit(body_of(native(FEWEST - 2))) is None
    assert fit(body_of(native(20, '"%s"' % ("a" * 5000), "[%d]", "[[-%d.5, %d, null]]"))) is None
    assert fit(body_of(native(20, '"a"', "[0]", "[]"))) is None, "they do not differ"


def _nested(depth: int, value: object) -> object:
    return value if depth == 0 else [_nested(depth - 1, value)]


@pytest.mark.parametrize(
    ("values", "holes"),
    [
        ([{"a": {"b": at}} for at in range(20)], {"a": {"b": 0}}),
        ([{"a": [{"b": at}]} for at in range(20)], {"a": {"0": {"b": 0}}}),
        ([{"a": {"b": [{"c": at}]}} for at in range(20)], {"a": {"b": 0}}),
        ([{"a": [{"b": at}, 1]} for at in range(20)], {"a": 0}),
        ([{"a": [at]} for at in range(20)], {"a": 0}),
        ([{"a": [[None], ["a", "b"], [1], [{}, {}], []][at % 5]} for at in range(20)], {"a": 0}),
        ([{"a": [["b", at % 2], [[at], at % 2], [{"c": at}, "d"]][at % 3]} for at in range(20)], {"a": 0}),
        ([{"a": at, "b": at} if at % 4 else {"b": at, "a": None} for at in range(20)], {"a": 0, "b": 1}),
        ([{"a": at, "b": at} if at % 4 else {"a": None, "b": 1} for at in range(20)], {"a": 0, "b": 1}),
        ([{"a": _nested(15, at)} for at in range(20)], {"a": 0}),
        ([{"a": _nested(16, at)} for at in range(20)], None),
        ([{"ab"[at % 2]: at} if at % 5 else {"c": at} for at in range(20)], None),
        ([[at] for at in range(20)], None),
        ([{"a": 1}] * 20, None),
    ],
)
def test_events_of_one_form_have_a_template(values: list[Any], holes: object) -> None:
    fitted = fit(body_of([json.dumps(value) for value in values]))
    assert (fitted and fitted.template.holes) == holes
    if fitted is not None:
        odd = [at for at, value in enumerate(values) if tuple(value) != tuple(values[1])]
        assert fitted.others_at == [*odd, 20]


RECORDED = {
    "sglang/0.5.23/C_incr": "sglang-generate",
    "sglang/0.5.12.post1/script-incremental": "sglang-generate",
    "vllm/0.32.0-cpu/live-interval-1": "vllm-generate",
    "vllm/0.32.0-cpu/channels-qwen3-xml": "vllm-chat",
    "llama-cpp-python/0.3.36/live-server": "openai-chat",
}


@pytest.mark.parametrize("capture", RECORDED)
def test_recorded_streams_are_read_the_same_by_a_template(capture: str) -> None:
    exchanges = list(read_capture(FIXTURES / f"{capture}.jsonl.gz"))
    dialect_of = DialectResolver(exchanges).dialect_of
    taken: Counter[str] = Counter()
    for exchange in exchanges:
        dialect = dialect_of(exchange)
        if dialect is not None:
            fast = dialect.read(exchange)
            assert told(fast) == told(one_by_one(dialect, exchange)), exchange.name
            taken[dialect.name] += by_template(fast)
    assert taken[RECORDED[capture]] >= 5, taken


def _together(one: Any, other: Any) -> Any:
    return one | other if isinstance(one, dict) and isinstance(other, dict) else other


_SCHEMAS = st.recursive(
    st.sampled_from(
        [
            True,
            {},
            False,
            {"type": "integer"},
            {"type": ["string", "null"]},
            {"minimum": 3},
            {"enum": [1, "a", None]},
            {"const": 2},
            {"pattern": "^a"},
            {"minItems": 2},
            {"required": ["a"]},
            {"uniqueItems": True},
            {"minProperties": 2},
            {"$ref": "#/$defs/small"},
        ]
    ),
    lambda inner: st.one_of(
        *(
            st.builds(lambda word, one: {word: one}, st.just(word), inner)
            for word in ("not", "items", "additionalProperties", "contains")
        ),
        *(
            st.builds(lambda word, some: {word: some}, st.just(word), st.lists(inner, min_size=1, max_size=2))
            for word in ("anyOf", "allOf", "oneOf", "prefixItems")
        ),
        st.builds(lambda one: {"properties": one}, st.dictionaries(st.sampled_from("ab"), inner, max_size=2)),
        st.builds(lambda one, two, three: {"if": one, "then": two, "else": three}, inner, inner, inner),
        st.builds(_together, inner, inner),
    ),
    max_leaves=6,
)
_VALUES = st.sampled_from(
    [1, 2, 3, 4, 2.0, "a", "b", None, True, [1], [1, 1], [2, "a"], {"a": 1}, {"b": "a"}, {}]
)


@st.composite
def alike_values(draw: st.DrawFn) -> list[Any]:
    """Events that differ in what one or two keys hold, at the top or further in."""
    fixed, inner = draw(_VALUES), draw(st.booleans())
    pool = draw(st.lists(_VALUES, min_size=2, max_size=3))
    events = []
    for at in range(16):
        varying = {"a": pool[at % len(pool)], "c": at} if at < 8 else {"a": draw(_VALUES), "c": at}
        events.append({"a": varying, "b": fixed} if inner else {**varying, "b": fixed})
    return events


_SMALL = {"properties": {"a": {"maximum": 20}}}
_CHOICES = {"prefixItems": [_SMALL], "items": {"properties": {"a": {"maximum": 19}}}}


@pytest.mark.parametrize(
    ("schema", "takes"),
    [
        (_SMALL, True),
        ({"properties": {"a": {"maximum": 19}}}, False),
        ({"properties": {"b": {"const": 0}}}, True),
        ({"not": {"required": ["c"]}}, True),
        ({"not": {"properties": {"a": {"const": 20}}}}, False),
        ({"oneOf": [{"required": ["c"]}, {"required": ["a"]}]}, True),
        ({"oneOf": [_SMALL, {"properties": {"a": {"minimum": 20}}}]}, False),
        ({"anyOf": [{"required": ["c"]}, _SMALL]}, True),
        ({"anyOf": [{"properties": {"a": {"maximum": 19}}}, {"properties": {"a": {"minimum": 20}}}]}, False),
        ({"if": {"required": ["c"]}, "then": False, "else": _SMALL}, True),
        ({"if": {"properties": {"a": {"const": 20}}}, "then": False}, False),
        ({"additionalProperties": True}, False),
        ({"properties": {"choices": _CHOICES}}, True),
        ({"properties": {"choices": {"items": {"properties": {"a": {"maximum": 19}}}}}}, False),
        ({"properties": {"a": False}}, False),
    ],
)
def test_a_schema_takes_what_it_surely_takes(schema: dict[str, Any], *, takes: bool) -> None:
    """Of events whose number goes up to 20 in the last, which is no sample of them."""
    inner = "choices" in schema.get("properties", ())
    values = [{"a": at, "b": 0} for at in range(1, 21)]
    fitted = fit(body_of([json.dumps({"choices": [one]} if inner else one) for one in values]))
    assert fitted is not None
    assert len(fitted.columns[0]) == len(values)
    assert TemplateSchema(schema).takes(fitted) is takes


@given(_SCHEMAS, alike_values())
@settings(max_examples=500)
def test_what_a_schema_takes_at_once_it_takes_one_by_one(schema: Any, values: list[Any]) -> None:
    whole = {"allOf": [schema], "$defs": {"small": {"maximum": 2}}}
    fitted = fit(body_of([json.dumps(value) for value in values]))
    if fitted is not None and TemplateSchema(whole).takes(fitted):
        valid = jsonschema.Draft202012Validator(whole).is_valid
        assert all(map(valid, Alike(fitted, [fitted.template.model] * len(fitted.others))))
        event("taken")


def test_what_was_read_by_a_template_goes_when_it_is_dropped() -> None:
    """A replay reads each answer several times, while the garbage collector rests."""
    with gc_paused():
        stream = NATIVE.read(exchange_of(NATIVE, body_of(native(12))))
        assert by_template(stream)
        judge([Run((stream,))])
        _forget(stream)
        data = weakref.ref(stream.in_order.data)
        del stream
        assert data() is None
