"""Relations between the values of a field along a choice: constant fields, and fields that only grow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import dropwhile, pairwise
from typing import Any

from tokenwire.checks.about import ANY, CUMULATIVE, STREAMED, about, streamed
from tokenwire.checks.check import Relation, Target, check_choice_rows, check_run
from tokenwire.checks.difference import observe_sequences, observe_text
from tokenwire.checks.evidence import Observation, equal, expect, expect_equal, in_wire_order, left_out
from tokenwire.checks.reading.fields import counters
from tokenwire.checks.reading.times import began, covered_s
from tokenwire.record import Answer, Choice, Emission, Place, Stream, as_list, fact

Value = tuple[Emission, str, Any]
"""An emission, the name of a field, and the value of this field."""
Reader = Callable[[Choice], Iterable[Value]]

# Functions that read the values of a field.


def _prompt_tokens(choice: Choice) -> Iterator[Value]:
    return ((emission, "prompt_tokens", n) for emission, n in counters(choice.delivered, "prompt_tokens"))


def _chunk_ids(choice: Choice) -> Iterator[Value]:
    return ((emission, "request_id", emission.details.get("request_id")) for emission in choice.emissions)


def _request_ids(choice: Choice) -> Iterator[Value]:
    """Yield the request ids, from the first one that is not null."""
    ids = ((emission, "request_id", emission.details.get("request_id")) for emission in choice.delivered)
    return dropwhile(lambda value: value[2] is None, ids)


def _created(choice: Choice) -> Iterator[Value]:
    documents = ((emission, emission.event.data) for emission in choice.emissions)
    return (
        (emission, "created", data["created"])
        for emission, data in documents
        if isinstance(data, Mapping) and "created" in data
    )


@fact(Stream)
def _span_of_created(stream: Stream) -> tuple[bool, float, float, Place | None]:
    """Return facts about the `created` fields of a stream.

    They are: True if all values are equal, the times of the first and the last event with a value, and the
    place of the last value. Times are seconds since the request; both are 0 if no event has a value.
    """
    values = [value for choice in stream.choices for value in _created(choice)]
    times = [emission.event.place.time for emission, _, _ in values]
    alike = all(equal(first[2], value[2]) for first, value in pairwise(values))
    place = values[-1][0].at("created") if values else None
    return alike, min(times, default=0.0), max(times, default=0.0), place


_SECONDS_MET = 5.0
"""Seconds of stream after which a clock in whole seconds must have advanced.

The value is so large that even in a hundred runs no run misses a full second by chance.
"""


@check_run("created-is-constant", alone=True)
def _created_is_constant(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that `created` does not change within a stream.

    A constant value is evidence only if the streams lasted long enough. A clock that is read for each event
    would have advanced in this time.
    """
    asked = [stream for stream in streams if streamed(stream)]
    spans = [(stream, *_span_of_created(stream)) for stream in asked]
    for stream, alike, *_ in spans:
        if not alike:
            values = [value for choice in stream.load().choices for value in _created(choice)]
            pairs = ((emission, name, values[0][2], value) for emission, name, value in values[1:])
            seen = expect_equal(pairs, "{field} changed from {expected!r} to {actual!r}")
            yield from in_wire_order(found for found in seen if not found.holds)
    constant = [
        (stream, first, last, place)
        for stream, alike, first, last, place in spans
        if alike and first < last and place is not None
    ]
    covered = covered_s(
        (start + first, start + last)
        for stream, first, last, _ in constant
        if (start := began(stream.exchange)) is not None
    )
    for *_, place in constant:
        if covered < _SECONDS_MET:
            why = f"streams with `created` last only {covered:.1f} s; a clock may not advance"
            yield left_out(place, why)
        else:
            yield expect(place, "one time of creation", "one time of creation")


def _prompt_ids(choice: Choice) -> Iterator[Value]:
    lists = (
        (emission, "prompt_token_ids", as_list(emission.prompt_token_ids)) for emission in choice.delivered
    )
    return (value for value in lists if value[2] is not None)


def _prompt_series(choice: Choice) -> Iterator[Value]:
    """Yield the values of each prompt-side series in turn, including values that are not lists."""
    for name in dict.fromkeys(name for emission in choice.delivered for name in emission.prompt_series):
        carrying = (carrier for carrier in choice.delivered if name in carrier.prompt_series)
        yield from ((carrier, name, carrier.prompt_series[name]) for carrier in carrying)


def _output_ids(choice: Choice) -> Iterator[Value]:
    return (
        (emission, "output_ids", emission.output_ids)
        for emission in choice.delivered
        if emission.output_ids is not None
    )


def _text(choice: Choice) -> Iterator[Value]:
    return ((emission, "text", emission.text) for emission in choice.delivered if emission.text is not None)


def _series(choice: Choice) -> Iterator[Value]:
    """Yield the lists of each series in turn."""
    for name in dict.fromkeys(name for emission in choice.delivered for name in emission.series):
        lists = ((carrier, name, carrier.entries(name)) for carrier in choice.delivered)
        yield from (value for value in lists if value[2] is not None)


# Relations between these values.


@dataclass(frozen=True)
class Constant(Relation):
    """Every later value of a field must equal the first."""

    field: Reader
    words: str
    """The message. It may contain `{emission}`, `{field}`, `{expected}` and `{actual}`."""


def _observe_constant(row: Constant, choice: Choice, _stream: Stream) -> Iterator[Observation]:
    values = list(row.field(choice))
    pairs = ((emission, field, values[0][2], value) for emission, field, value in values[1:])
    return expect_equal(pairs, row.words)


@dataclass(frozen=True)
class _Kept(Relation):
    """Later values of a field must begin with the earlier value, and must not change it."""

    field: Reader
    entry: str
    """The name of an entry, which may contain `{field}`. Empty for a text."""
    grows: bool = True
    """True if later values may be longer. Otherwise all later values must equal the first list."""


def _observe_kept(row: _Kept, choice: Choice, _stream: Stream) -> Iterator[Observation]:
    source = "the emission before it" if row.grows else "the first emission"
    lists: list[tuple[Emission, str, list[Any], list[Any]]] = []
    sent: dict[str, Any] = {}
    for emission, field, value in row.field(choice):
        held: Any = sent.get(field, value)
        kept = value[: len(held)] if row.grows else value
        if field not in sent:
            sent[field] = value
        elif not row.entry:
            yield observe_text(emission.at(field), expected=held, actual=kept, source=source)
        elif isinstance(held, list) and isinstance(kept, list):
            lists.append((emission, field, held, kept))
        else:
            message = f"{field} is {value!r}, not a list"
            yield expect(emission.at(field), "a list", value, message, holds=False)
        if row.grows:
            sent[field] = value
    yield from observe_sequences(lists, row.entry, source)


check_choice_rows(
    _observe_constant,
    Constant(
        "prompt-tokens-constant",
        STREAMED,
        _prompt_tokens,
        "{field} changed from {expected!r} to {actual!r}",
    ),
    Constant(
        "request-id-constant",
        ANY,
        _request_ids,
        "the request id is {actual!r}, not {expected!r}",
    ),
    Constant(
        "chat-chunks-share-a-choice-id",
        about(chat=True, items=False, streamed=True),
        _chunk_ids,
        "a chunk of choice {emission.choice} has the id {actual!r}, not {expected!r}",
    ),
)
check_choice_rows(
    _observe_kept,
    _Kept("prompt-ids-constant", STREAMED, _prompt_ids, "prompt id", grows=False),
    _Kept("prompt-series-constant", STREAMED, _prompt_series, "{field} entry", grows=False),
    _Kept("cumulative-ids-extend", CUMULATIVE, _output_ids, "output id"),
    _Kept("cumulative-text-extends", CUMULATIVE, _text, ""),
    _Kept("cumulative-series-extend", CUMULATIVE, _series, "{field} entry"),
)
