"""Streams of typed items, read: text of the events that open, close and repeat what deltas bring."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from control_calls import of_response, sent_at
from item_answers import (
    ASKED,
    CITY,
    Event,
    blocks,
    call,
    events,
    message,
    messaged,
    responded,
    responded_whole,
    response,
    text_block,
    thought,
    use_block,
)
from item_pairs import numbered
from wire_answers import DONE

from tokenwire.checks.check import CHECKS, Target
from tokenwire.dialects.control import Action
from tokenwire.dialects.dialect import load_dialects
from tokenwire.record import Choice, Stream
from tokenwire.wire.exchange import Read

LEGAL = events(thought(), message(), call())
DELTAS = (
    "response.reasoning_text.delta",
    "response.output_text.delta",
    "response.function_call_arguments.delta",
)


def without(listed: list[Event], *kinds: str) -> list[Event]:
    """The events without those of some types, numbered anew."""
    return numbered([event for event in listed if event["type"] not in kinds])


def only_choice(stream: Stream) -> Choice:
    [choice] = stream.choices
    return choice


def held(stream: Stream) -> tuple[Any, ...]:
    """The reasoning, the text and the arguments of each call that a client holds."""
    choice = only_choice(stream)
    return choice.reasoning, choice.text, [found.arguments for found in choice.calls]


DUE = ("Hm.", "Yes.", [CITY])


@pytest.mark.parametrize(
    "missing",
    [
        (),
        DELTAS,
        (*DELTAS, "response.content_part.added", "response.content_part.done"),
        ("response.output_text.done", "response.content_part.done", "response.function_call_arguments.done"),
        (*DELTAS, "response.function_call_arguments.done"),
        ("response.reasoning_text.delta",),
        ("response.output_item.done",),
    ],
    ids=lambda kinds: ",".join(kind.removeprefix("response.") for kind in kinds) or "nothing",
)
def test_a_response_is_read_once_from_whichever_events_have_it(missing: tuple[str, ...]) -> None:
    assert held(responded(*without(LEGAL, *missing))) == DUE


def test_deltas_that_are_empty_leave_the_text_to_the_event_that_closes() -> None:
    emptied = [{**event, "delta": ""} if "delta" in event else event for event in LEGAL]
    assert held(responded(*emptied)) == DUE


def test_each_part_speaks_for_itself() -> None:
    parts: list[Event] = [
        {"type": "output_text", "text": text, "annotations": []} for text in ("Yes", " and no")
    ]
    item = {**message(), "content": parts}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 1}
    [*begun, closing, last] = events({**item, "content": parts[:1]})
    second = [
        {"type": "response.content_part.added", **place, "part": {**parts[1], "text": ""}},
        {"type": "response.output_text.done", **place, "text": parts[1]["text"]},
        {"type": "response.content_part.done", **place, "part": parts[1]},
    ]
    stream = responded(*numbered([*begun, *second, {**closing, "item": item}, last]))
    assert only_choice(stream).text == "Yes and no"


def test_logprobs_come_with_the_text_that_the_closing_event_restates() -> None:
    entries = [{"token": "Yes.", "logprob": -0.5, "bytes": [89, 101, 115, 46], "top_logprobs": []}]
    scored = [
        {**event, "part": {**event["part"], "logprobs": entries}}
        if event["type"] == "response.content_part.done"
        else event
        for event in events(message())
    ]
    for listed, due in ((without(scored, *DELTAS), entries), (scored, None)):
        assert only_choice(responded(*listed)).series("logprobs_content") == due


@pytest.mark.parametrize(
    ("opening", "deltas", "due"),
    [
        ("", ["Hel", "lo"], "Hello"),
        ("Hel", ["lo"], "Hello"),
        ("Hel", ["Hel", "lo"], "HelHello"),
        ("Hello", [], "Hello"),
    ],
)
@pytest.mark.parametrize("kind", ["text", "thinking"])
def test_the_text_that_opens_a_block_is_a_piece_as_the_official_client_joins_it(
    kind: str, opening: str, deltas: list[str], due: str
) -> None:
    begun, opened, *_, closed, delta, stop = blocks({"type": kind, kind: "."})
    pieces = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": f"{kind}_delta", kind: text}}
        for text in deltas
    ]
    opened["content_block"][kind] = opening
    stream = messaged(begun, opened, *pieces, closed, delta, stop)
    reasoning, text, _ = held(stream)
    assert (text if kind == "text" else reasoning) == due


def test_the_text_that_opens_a_part_is_a_piece() -> None:
    opened = [
        {**event, "part": {**event["part"], "text": "Oh. "}}
        if event["type"] == "response.content_part.added"
        else event
        for event in events(message())
    ]
    assert only_choice(responded(*opened)).text == "Oh. Yes."


def test_what_opens_without_text_brings_no_emission() -> None:
    choice = only_choice(messaged(*blocks(text_block("Yes."))))
    assert [emission.text for emission in choice.emissions] == ["Ye", "s.", None]


@pytest.mark.parametrize("index", [None, [0], {}, "0"])
def test_an_item_that_is_not_numbered_is_read(index: Any) -> None:
    listed = [{**event, "output_index": index} if "output_index" in event else event for event in LEGAL]
    assert only_choice(responded(*listed)).text == "Yes."


@pytest.mark.parametrize(("pieces", "due"), [(True, CITY), (False, '{"city": "Rome"}')])
def test_the_input_with_which_a_call_opens_counts_where_no_piece_follows(pieces: bool, due: str) -> None:
    """The official client of Messages holds it then, and replaces it by the pieces otherwise."""
    written = blocks(text_block(), use_block(), reason="tool_use")
    opened = next(event for event in written if event.get("content_block", {}).get("type") == "tool_use")
    opened["content_block"]["input"] = {"city": "Rome"}
    kept = [event for event in written if pieces or "partial_json" not in event.get("delta", {})]
    assert held(messaged(*kept)) == (None, "Yes.", [due])


def test_an_empty_input_with_which_a_call_opens_is_no_argument() -> None:
    written = blocks(use_block(), reason="tool_use")
    kept = [event for event in written if "partial_json" not in event.get("delta", {})]
    assert held(messaged(*kept))[2] == [""]


def test_a_response_before_an_end_mark_is_the_answer() -> None:
    stream = responded(*events(message()), DONE, store=False)
    assert stream.events[-1].done
    on_run = CHECKS["unstored-response-is-not-retrieved"].on_run
    assert on_run is not None
    target = Target(calls=(of_response(Action.RETRIEVE, 5, response(message())),))
    assert [seen.holds for seen in on_run((stream,), target)] == [False]
    assert list(on_run((responded(DONE),), target)) == []


@pytest.mark.parametrize("status", [[], {}, None, 5])
def test_a_status_of_any_type_is_judged(status: object) -> None:
    strange = {**response(message(), name="resp_b"), "status": status, "background": True}
    asked = {"model": "m", "input": [ASKED], "temperature": 0, "store": True}
    begun = of_response(Action.BEGIN, 1, strange, **asked, background=True)
    looked, cancelled = (
        of_response(action, second, strange) for action, second in ((Action.RETRIEVE, 9), (Action.CANCEL, 10))
    )
    kept = sent_at(responded_whole(response(message()), store=True), 2)
    for requirement, calls in (
        ("background-response-ends", (begun, looked)),
        ("cancelled-response-ends", (cancelled,)),
    ):
        on_run = CHECKS[requirement].on_run
        assert on_run is not None
        assert not all(seen.holds for seen in on_run((kept,), Target(calls=calls))), requirement


HALVES = "\ud83d", "\ude00"


def in_halves(listed: list[Event], kind: str) -> list[Event]:
    """The events, with the delta of this type sent as the two surrogates of a character."""
    [delta] = [event for event in listed if event["type"] == kind]
    place = listed.index(delta)
    halves = [{**delta, "delta": half} for half in HALVES]
    return numbered([*listed[:place], *halves, *listed[place + 1 :]])


@pytest.mark.parametrize(
    ("item", "kind", "place"),
    [
        (message("\U0001f600"), "response.output_text.delta", 1),
        (thought("\U0001f600"), "response.reasoning_text.delta", 0),
    ],
)
def test_surrogates_in_two_deltas_are_one_character(item: Event, kind: str, place: int) -> None:
    """A JSON string may hold half a pair, and joined halves are the JSON of the character."""
    stream = responded(*in_halves(events(item), kind))
    assert held(stream)[place] == "\U0001f600"
    check = CHECKS["deltas-add-up"].on_stream
    assert check is not None
    seen = list(check(stream, Target()))
    assert [observation.holds for observation in seen] == [True] * len(seen)
    assert seen


def test_half_a_pair_is_not_the_character() -> None:
    stream = responded(*in_halves(events(message("\ud83d")), "response.output_text.delta"))
    check = CHECKS["deltas-add-up"].on_stream
    assert check is not None
    assert not all(observation.holds for observation in check(stream, Target()))


def test_a_stream_that_was_not_requested_may_begin_with_null() -> None:
    exchange = responded(*events(message())).exchange
    body = {name: value for name, value in exchange.request.body.items() if name != "stream"}
    reads = (Read(0.0, b"data: null\n\n"), *exchange.reads)
    unasked = replace(exchange, request=replace(exchange.request, body=body), reads=reads)
    stream = load_dialects()["openai-responses"].read(unasked)
    assert stream.answered
    assert stream.document == {}
    check = CHECKS["own-items-are-accepted"].on_run
    assert check is not None
    assert list(check((stream,), Target())) == []
