"""A text taken apart into channels: each format, and that no cut of a text moves any of it."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokenwire_reference.extras.channels.formats import REASONING, TOOL_CALLS, channel_format
from tokenwire_reference.extras.channels.parser import Call, Channel, ChannelParser, Delta, Message

TYPES = {"get_weather": {"city": ("string",), "days": ("integer",), "q": ("object", "null")}}


def parser(tools="hermes", reasoning="qwen3", **options):
    return ChannelParser(channel_format(tools, reasoning, TYPES, **options))


def parted(text, tools="hermes", reasoning="qwen3", cuts=(), **options):
    """The message of a text that comes in pieces."""
    reader, message = parser(tools, reasoning, **options), Message()
    for start, end in zip((0, *cuts), (*cuts, len(text)), strict=True):
        message.add(reader.push(text[start:end]))
    message.add(reader.finish())
    return message


PARIS = '{"city": "Paris", "days": 2}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>'
XML = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call>"
)
THOUGHT = "<think>\nLet me see: 1 < 2.\n</think>\n\n"
WEATHER = Call("get_weather", PARIS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Hello.\n", Message("", "Hello.\n")),
        ("", Message()),
        (
            "a < b, <tool and <thin or </thin, </think> end <",
            Message("", "a < b, <tool and <thin or </thin, </think> end <"),
        ),
        (f"{THOUGHT}It is 4. \n", Message("Let me see: 1 < 2.", "It is 4. \n")),
        ("<think>\nLet me see:", Message("Let me see:")),
        ("So <think> is a marker</think>", Message("", "So <think> is a marker</think>")),
        (CALL, Message("", "", [WEATHER])),
        (f"I will look.\n{CALL}", Message("", "I will look.", [WEATHER])),
        (f"{CALL}\nThat is all.", Message("", "That is all.", [WEATHER])),
        (f"{THOUGHT}{CALL}\n{CALL}", Message("Let me see: 1 < 2.", "", [WEATHER, WEATHER])),
        (f"<think>I could {CALL} now</think>No", Message(f"I could {CALL} now", "No")),
        ('<tool_call>{"name": "ping", "arguments": {}}</tool_call>', Message("", "", [Call("ping", "{}")])),
        ('<tool_call>{"name": "ping"}</tool_call>', Message("", "", [Call("ping", "{}")])),
        # The name may come last, and what else there is says nothing.
        (
            f'<tool_call>{{"arguments": {PARIS}, "id": [{{"a": null}}], "name": "get_weather"}}</tool_call>',
            Message("", "", [WEATHER]),
        ),
        # Markers and brackets within strings are text.
        (
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>}]\\"", "b": [[{}]]}}</tool_call>.',
            Message("", ".", [Call("f", '{"a": "</tool_call>}]\\"", "b": [[{}]]}')]),
        ),
        # The model ended, or its budget did, before the marker, or before the object.
        (CALL.removesuffix("call>"), Message("", "", [WEATHER])),
        (CALL.partition("Paris")[0], Message("", "", [Call("get_weather", '{"city": "')])),
        (CALL.partition("_weather")[0], Message("", CALL.partition("_weather")[0])),
        # What is no call is content, and a call may follow.
        (f"<tool_call>\nnothing {CALL}", Message("", "<tool_call>\nnothing", [WEATHER])),
        (f"<tool_call>{CALL}", Message("", "<tool_call>", [WEATHER])),
        (
            '<tool_call>{"name": "f", "arguments": 1}</tool_call>',
            Message("", '<tool_call>{"name": "f", "arguments": 1}</tool_call>'),
        ),
        ('<tool_call>{"arguments": {}}</tool_call>', Message("", '<tool_call>{"arguments": {}}</tool_call>')),
        # What goes wrong in the arguments stays in them, to the end of the call.
        (
            '<tool_call>{"name": "f", "arguments": {"a": nought}}</tool_call> so',
            Message("", "so", [Call("f", '{"a": nought}}')]),
        ),
    ],
)
def test_what_a_model_says_in_hermes_and_think(text, message):
    assert parted(text) == message
    assert parted(text, cuts=range(1, len(text))) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"Looking. {XML}", Message("", "Looking.", [WEATHER])),
        ("<tool_call><function=ping></function></tool_call>", Message("", "", [Call("ping", "{}")])),
        # No type, and no JSON of the type, make a string.
        (
            '<tool_call><function=f><parameter=a>\n \n"é"\\\n\n</parameter></function></tool_call>',
            Message("", "", [Call("f", json.dumps({"a": ' \n"é"\\\n'}, ensure_ascii=False))]),
        ),
        (
            "<tool_call><function=get_weather><parameter=days>many</parameter></function></tool_call>",
            Message("", "", [Call("get_weather", '{"days": "many"}')]),
        ),
        (
            '<tool_call><function=get_weather><parameter=q>{"a": 1}</parameter></function></tool_call>',
            Message("", "", [Call("get_weather", '{"q": {"a": 1}}')]),
        ),
        (XML.partition("ris")[0], Message("", "", [Call("get_weather", '{"city": "Pa')])),
        (
            XML.partition("\n2")[0] + "\n2",
            Message("", "", [Call("get_weather", '{"city": "Paris", "days": 2')]),
        ),
        (XML.partition("_weather")[0], Message("", XML.partition("_weather")[0])),
        (CALL, Message("", CALL)),
    ],
)
def test_what_a_model_says_in_xml(text, message):
    assert parted(text, "qwen3_xml") == message
    assert parted(text, "qwen3_xml", cuts=range(1, len(text))) == message


@pytest.mark.parametrize(
    ("text", "tools", "message"),
    [
        (f'{{"name": "get_weather", "parameters": {PARIS}}}', "llama3", Message("", "", [WEATHER])),
        (
            f'<|python_tag|>{{"name": "get_weather", "parameters": {PARIS}}}',
            "llama3",
            Message("", "", [WEATHER]),
        ),
        ('{"name": "a"}; {"name": "b"}', "llama3", Message("", "", [Call("a", "{}"), Call("b", "{}")])),
        ('{"name": 1} and [x(y=1)]', "llama3", Message("", '{"name": 1} and [x(y=1)]')),
        ('{"name": "a"}; so', "llama3", Message("", "; so", [Call("a", "{}")])),
        ('Say {"name": "a"}', "llama3", Message("", 'Say {"name": "a"}')),
        (
            '[get_weather(city="Paris", days=2), ping(x="]\\")", y=[None, True])]\n',
            "pythonic",
            Message("", "", [WEATHER, Call("ping", '{"x": "]\\")", "y": [null, true]}')]),
        ),
        ("[1, 2] are numbers", "pythonic", Message("", "[1, 2] are numbers")),
        ('[get_weather(city="Par', "pythonic", Message("", '[get_weather(city="Par')),
        ("[f(x)]", "pythonic", Message("", "[f(x)]")),
        ("[f(**x)] [f(1)]", "pythonic", Message("", "[f(**x)] [f(1)]")),
    ],
)
def test_what_a_model_says_in_formats_that_begin_with_the_answer(text, tools, message):
    assert parted(text, tools) == message
    assert parted(text, tools, cuts=range(1, len(text))) == message


def test_a_prompt_may_have_begun_the_reasoning():
    assert parted("So.</think>4", reasoning="deepseek-r1") == Message("So.", "4")
    assert parted("<think>So.</think>4", reasoning="deepseek-r1") == Message("So.", "4")
    assert parted("So it goes", reasoning="deepseek-r1") == Message("So it goes")
    assert parted("4", reasoning="deepseek-r1", begins_thinking=False) == Message("", "4")


def test_reasoning_that_is_not_set_apart_is_content_and_calls_nothing():
    text = f"<think>\nI could {CALL}\n</think>\n\n4"
    assert parted(text, separate_reasoning=False) == Message("", text)
    assert parted(f"{THOUGHT}{CALL}", separate_reasoning=False) == Message("", THOUGHT.rstrip(), [WEATHER])


def test_text_comes_as_soon_as_it_is_known():
    reader = parser()
    assert [reader.push(text) for text in ("He", "y <", "b ", "<tool_ca")] == [
        [delta(Channel.CONTENT, "He")],
        [delta(Channel.CONTENT, "y")],
        [delta(Channel.CONTENT, " <b")],
        [],
    ]
    assert reader.push('ll>{"name": "f", "arguments": {') == [delta(Channel.CALL, "{", name="f")]
    assert reader.push('"a": "b') == [delta(Channel.CALL, '"a": "b')]
    assert reader.push('"}}</tool_call> So') == [delta(Channel.CALL, '"}'), delta(Channel.CONTENT, "So")]


def delta(channel, text, call=0, name=None):
    return Delta(channel, text, call, name)


def test_where_the_reasoning_stands():
    reader = parser()
    reader.push(f"{THOUGHT}4")
    reader.finish()
    begin, end = reader.reasoning
    assert THOUGHT[begin:end] == "\nLet me see: 1 < 2.\n"


PIECES = st.sampled_from(
    [
        *(
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            "<|python_tag|>",
            "<function=f>",
            "</function>",
        ),
        *(
            "<parameter=a>",
            "</parameter>",
            '{"name": "f", "arguments": {',
            '"a": "b',
            '"',
            "}",
            "}}",
            "{",
            "[",
            "]",
        ),
        *("f(a=1", ")", ";", ",", ":", "\\", " ", "\n", "é😀", "<", "text", "1", "null", CALL, XML),
    ]
)


@st.composite
def cut_texts(draw, but=()):
    text = "".join(draw(st.lists(PIECES.filter(lambda piece: piece not in but), max_size=20)))
    return text, sorted(draw(st.sets(st.integers(0, len(text)), max_size=8)))


@pytest.mark.parametrize("tools", [None, *TOOL_CALLS])
@pytest.mark.parametrize("reasoning", [None, *REASONING])
@given(cut=cut_texts(), separate=st.booleans())
@example(cut=(f"{THOUGHT}{CALL}{XML}", []), separate=True)
def test_no_cut_moves_text_between_channels(tools, reasoning, cut, separate):
    text, cuts = cut
    if tools is None and reasoning is None:
        return
    options = {"separate_reasoning": separate}
    whole = parted(text, tools, reasoning, **options)
    assert parted(text, tools, reasoning, cuts=cuts, **options) == whole
    assert parted(text, tools, reasoning, cuts=range(1, len(text)), **options) == whole


@given(cut=cut_texts(but=(",",)))
def test_hermes_loses_no_letter(cut):
    """All that is no markup is in a channel, but for members of a call beside its name and arguments."""
    message = parted(cut[0])
    letters = (
        message.reasoning + message.content + "".join(call.name + call.arguments for call in message.calls)
    )
    for letter in "é😀":
        assert letters.count(letter) == cut[0].count(letter)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('{"a": 10e1212}', {"a": float("inf")}),
        ('{"a": 1, "b": [null, true, -0.5e-3]}', {"a": 1, "b": [None, True, -0.0005]}),
        ("", None),
        ('{"a": 1', None),
        ('{"a": NaN}', None),
        ('{"a": -Infinity}', None),
        ('{"a": 01}', None),
        ("[" * 100_000, None),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_call_is_whole_if_its_arguments_are_of_the_grammar_of_json(arguments, value):
    """A grammar bounds no number: such a call finished with `stop`, though it was delivered whole."""
    call = Call("get_weather", arguments)
    assert call.whole is (value is not None)
    assert call.value == ({} if value is None else value)
    assert Message(calls=[call]).calls_tools is call.whole


def test_an_answer_writes_a_number_beyond_a_double_as_null():
    written = orjson.dumps(Call("f", f'{{"a": 10e1212, "b": {"9" * 5000}, "c": {"9" * 19}}}').value)
    assert orjson.loads(written) == {"a": None, "b": None, "c": 1e19}
    half = Call("f", '{"a": "\\ud800"}')
    assert (half.whole, half.value) == (True, {})
