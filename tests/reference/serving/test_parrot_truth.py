"""The truth that is computed from a request is the record that the reference delivers, whole and streamed, at
every endpoint: as it stands, and as the checks of known answers see it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.ask import Ask, Tool
from tokenwire.asking.scenario import token_ids
from tokenwire.checks.check import CHECKS, Target
from tokenwire.dialects.dialect import Unsupported, load_dialects
from tokenwire.dialects.markup import as_object
from tokenwire.parrot.encoding import encoder
from tokenwire.parrot.law import Parrot
from tokenwire.parrot.recognition import KnownModel
from tokenwire.parrot.script import Script, deaf_to_stops, truth
from tokenwire.parrot.speaker import Speaker
from tokenwire.parrot.vocabulary import SIZE, Vocabulary, words_of
from tokenwire.record import Stream
from tokenwire.requirement import load_requirements
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read
from tokenwire_reference.assembly import make_engine
from tokenwire_reference.loading import load_model

LAW = Parrot(SIZE)
WORDS = words_of(Vocabulary.BYTE_LEVEL)
MODEL = KnownModel(LAW, WORDS, encoder(Vocabulary.BYTE_LEVEL), ours=True, seen_in="this test")
ROWS = [name for name, row in load_requirements().items() if row.oracle == "script"]
DOORS = ("sglang-generate", "sglang-completions", "sglang-chat", "vllm-generate", "openai-chat")
TEXTS = (
    "The parrot says ",
    "漢字かな交じり文。",
    "😀🦖👩‍💻",
    "xaaab\n\n",
    "é ж ไ ",
    "one two three ",
    "</think>",
    "\ufffd",
    "Q",
    "Z",
)
STOPS = ("aab", "文", "three", "\n\n", " says", "🦖", "nowhere", "o t", "\ufffd", "<|im_start|>", "QZ")
PATTERNS = ("[a-z]{4}", "Q+Z", "[A-Z文]", "say|two", "\\n{2}")
BYTES = {byte: WORDS.pieces.index(bytes([byte])) for byte in range(256)}
END = "<|endoftext|>"
GENERATE = (Phase.explicit, Phase.reuse, Phase.generate)
"""Without shrinking: each try asks an engine."""


@cache
def parrot():
    return load_model("builtin:parrot")


@st.composite
def scripts(draw: st.DrawFn) -> tuple[int, ...]:
    """Texts in pieces and in bytes, lone bytes, special ids, ends."""
    spelled = st.sampled_from(TEXTS).map(lambda text: tuple(BYTES[byte] for byte in text.encode()))
    pieces = st.sampled_from(TEXTS).map(lambda text: Script.of_text(text, WORDS).ids)
    single = st.integers(0, SIZE - 1).map(lambda token: (token,))
    special = st.sampled_from(sorted(WORDS.special)).map(lambda token: (token,))
    parts = draw(st.lists(pieces | spelled | single | special, min_size=1, max_size=9))
    return (*(token for part in parts for token in part), *(WORDS.ends if draw(st.booleans()) else ()))


@st.composite
def asks(draw: st.DrawFn) -> tuple[str, Ask]:
    """An endpoint, and what it is asked to say, up to which stop or budget, and how it is to tell."""
    door = draw(st.sampled_from(DOORS))
    ignore_eos = draw(st.booleans())
    ids = draw(scripts())
    stream = draw(st.booleans())
    ask = Ask(
        input_ids=(Script(ids).prompt(LAW, filler=9),),
        max_new_tokens=draw(st.integers(1, len(ids) + 3)),
        stop=tuple(draw(st.lists(st.sampled_from(STOPS), max_size=2, unique=True))),
        no_stop_trim=draw(st.booleans()),
        stream=stream,
        stream_interval=draw(st.sampled_from((1, 2, 3, 4, 7, 50))) if stream else None,
        usage=stream,
        logprobs=True,
        top_logprobs=5,
    )
    least = draw(st.integers(0, ask.max_new_tokens or 0)) * draw(st.booleans())
    patterns = draw(st.lists(st.sampled_from(PATTERNS), max_size=1))
    if door == "openai-chat":
        texts = draw(st.lists(st.sampled_from(TEXTS) | st.text(max_size=5), max_size=6))
        message = {"role": "user", "content": "".join((*texts, END))}
        return door, replace(ask, input_ids=(), messages=(message,), no_stop_trim=False, stream_interval=None)
    if door == "sglang-generate":
        ask = replace(ask, chosen_ids=(700, 9, 10), logprob_start=0)
    if door == "sglang-completions":
        ask = replace(ask, echo=draw(st.booleans()))
    if door.startswith("sglang"):
        ask = replace(ask, stop_regex=tuple(patterns))
    if not ignore_eos:
        ask = replace(ask, min_new_tokens=least or None)
        return door, replace(ask, stop_token_ids=tuple(draw(st.lists(st.sampled_from(ids), max_size=1))))
    return door, replace(ask, ignore_eos=True)


def request_of(door: str, ask: Ask) -> HttpRequest:
    dialect = load_dialects()[door]
    rendered = dialect.render(ask, "scripted")
    if isinstance(rendered, Unsupported):  # chats take no stream_interval beside ids, for example
        rendered = dialect.render(replace(ask, stream_interval=None, no_stop_trim=False), "scripted")
    assert not isinstance(rendered, Unsupported), rendered.reason
    return rendered


def read(door: str, request: HttpRequest, response: httpx.Response) -> Stream:
    headers = tuple(response.headers.items())
    exchange = Exchange(
        "a/b", request, "a", response.status_code, headers, (Read(0.1, response.content),), Ending.COMPLETE
    )
    return load_dialects()[door].read(exchange)


@pytest.fixture
def deliver(answers, call):
    """Ask for all at once, and read what is answered."""

    def found(asked: list[tuple[str, Ask]], **flags: str) -> list[Stream]:
        requests = [request_of(door, ask) for door, ask in asked]
        calls = [call(request.path, request.body) for request in requests]
        responses = answers(make_engine(parrot()), *calls, tokenizer=parrot().tokenizer, **flags)
        return [
            read(door, request, response)
            for (door, _), request, response in zip(asked, requests, responses, strict=True)
        ]

    return found


@settings(
    max_examples=6,
    derandomize=True,
    deadline=None,
    phases=GENERATE,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(asks(), min_size=8, max_size=8))
def test_computed_and_delivered_records_are_one(deliver, asked: list[tuple[str, Ask]]) -> None:
    for stream in deliver(asked):
        assert stream.exchange.status == 200, stream.exchange.body
        (prompt,) = MODEL.prompts(stream)
        assert prompt is not None
        readings = [truth(LAW, WORDS, prompt, stream.asked, unheeded=n) for n in deaf_to_stops(stream.asked)]
        found = [
            reading for reading in readings if reading is not None and token_ids(stream) in {reading.ids, ()}
        ]
        assert found, (stream.asked, token_ids(stream))
        known = found[0]
        finish, text = stream.choices[0].finish, stream.choices[0].text
        assert finish is not None
        assert text is None or stream.asked.echo or text in (known.texts_of(finish.matched) or known.legal)
        assert finish.type == known.finish
        assert {"script-finish-is-right", "script-counts-are-right"} <= set(seeing(stream))


def seeing(stream: Stream) -> list[str]:
    """The requirements that see an answer; none of them sees anything wrong."""
    seen = []
    for name in ROWS:
        on_stream = CHECKS[name].on_stream
        assert on_stream is not None
        for observation in on_stream(stream, Target(model=MODEL)):
            assert observation.holds, (name, observation)
            seen.append(name)
    return seen


OF_OTHERS = {"script-text-offsets-are-right", "script-channels-are-right"}
"""Requirements that need text offsets, which SGLang does not report, or channels."""


def test_every_requirement_on_known_answers_sees_a_stream_that_tells_all(deliver) -> None:
    ids = (*Script.of_text("one two three QZ", WORDS).ids, *WORDS.ends)
    ask = Ask(
        input_ids=(Script(ids).prompt(LAW, filler=9),),
        max_new_tokens=60,
        stop=("QZ",),
        stream=True,
        logprobs=True,
        top_logprobs=5,
        chosen_ids=(700, 9, 10),
        logprob_start=0,
    )
    (stream,) = deliver([("sglang-generate", ask)])
    assert set(seeing(stream)) == set(ROWS) - OF_OTHERS


SPEAKER = Speaker(LAW, WORDS, encoder(Vocabulary.BYTE_LEVEL))
PARSERS = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
TOOL = Tool("get_weather", None, {"type": "object", "properties": {"city": {"type": "string"}}})
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln 😀"}}\n</tool_call>'
PIECES = (
    "<think>\nHm, 1 < 2.\n</think>\n\n",
    "The parrot says é 😀. ",
    f"{CALL}\n",
    "\n\n",
    "a < b ",
    "<tool_cal",
)
ITEM_DOORS = ("openai-responses", "anthropic-messages")


@st.composite
def conversations(draw: st.DrawFn) -> Ask:
    """A text with markup that the parrot is to say, and where its budget ends it."""
    pieces = draw(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4))
    script = (*SPEAKER.encode("".join(pieces)), SPEAKER.end)
    ask = SPEAKER.ask(load_dialects()["openai-chat"], script)
    budget = draw(st.integers(1, len(script)) | st.just(len(script) + 1))
    assert ask is not None, pieces
    return replace(ask, tools=(TOOL,), max_new_tokens=budget)


def record_of(stream: Stream) -> tuple[object, ...]:
    """The channels, calls, finish and usage of an answer, however it spells and delivers them."""
    (choice,), usage = stream.choices, stream.usage
    assert choice.finish is not None
    assert usage is not None
    # A call that was cut off is no object yet; a whole message gives an empty one.
    calls = [(call.name, as_object(call.arguments) or {}) for call in choice.calls]
    counts = usage["prompt_tokens"], usage["completion_tokens"]
    return choice.reasoning or "", choice.text or "", calls, choice.finish.type, counts


@settings(
    max_examples=15,
    derandomize=True,
    deadline=None,
    phases=GENERATE,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(conversations())
def test_a_conversation_has_one_record_at_every_endpoint_that_takes_messages(deliver, ask: Ask) -> None:
    doors = ("openai-chat", *ITEM_DOORS)
    asked = [(door, replace(ask, stream=stream, usage=stream)) for door in doors for stream in (False, True)]
    chat, *others = deliver(asked, **PARSERS)
    for stream in others:
        assert record_of(stream) == record_of(chat), stream.exchange.request.path
