"""Relations between the values of a field along a choice: fields that are constant, and fields that only
grow.
"""

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
"""The value of a field of an emission."""
Reader = Callable[[Choice], Iterable[Value]]

# Readers.


def _prompt_tokens(choice: Choice) -> Iterator[Value]:
    return ((emission, "prompt_tokens", n) for emission, n in counters(choice.delivered, "prompt_tokens"))


def _chunk_ids(choice: Choice) -> Iterator[Value]:
    return ((emission, "request_id", emission.details.get("request_id")) for emission in choice.emissions)


def _request_ids(choice: Choice) -> Iterator[Value]:
    """Yield the request ids, beginning with the first."""
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
    """Return True if all values of `created` are equal, the times of the first and last event with one, and
    the place of the last.

    The times are counted from the request; they are equal if no event has one.
    """
    values = [value for choice in stream.choices for value in _created(choice)]
    times = [emission.event.place.time for emission, _, _ in values]
    alike = all(equal(first[2], value[2]) for first, value in pairwise(values))
    place = values[-1][0].at("created") if values else None
    return alike, min(times, default=0.0), max(times, default=0.0), place


_SECONDS_MET = 5.0
"""The stream length in seconds from which a clock in whole seconds must advance. By chance, not even one of a
hundred such runs fails to cross a second.
"""


@check_run("created-is-constant", alone=True)
def _created_is_constant(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that no stream changes its `created`.

    This is evidence only once streams lasted so long that a clock read for each event would have advanced.
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
            why = f"streams with `created` cover {covered:.1f} s, within which a clock need not move on"
            yield left_out(place, why)
        else:
            yield expect(place, "one time of creation", "one time of creation")


def _prompt_ids(choice: Choice) -> Iterator[Value]:
    lists = (
        (emission, "prompt_token_ids", as_list(emission.prompt_token_ids)) for emission in choice.delivered
    )
    return (value for value in lists if value[2] is not None)


def _prompt_series(choice: Choice) -> Iterator[Value]:
    """Yield all prompt-side series, one after the other, even those that are not lists."""
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
    """Yield the lists of all series, one after the other."""
    for name in dict.fromkeys(name for emission in choice.delivered for name in emission.series):
        lists = ((carrier, name, carrier.entries(name)) for carrier in choice.delivered)
        yield from (value for value in lists if value[2] is not None)


# Relations.


@dataclass(frozen=True)
class Constant(Relation):
    """Every later value of a field must equal the first."""

    field: Reader
    words: str
    """A message with `{emission}`, `{field}`, `{expected}` and `{actual}`."""


def _observe_constant(row: Constant, choice: Choice, _stream: Stream) -> Iterator[Observation]:
    values = list(row.field(choice))
    pairs = ((emission, field, values[0][2], value) for emission, field, value in values[1:])
    return expect_equal(pairs, row.words)


@dataclass(frozen=True)
class _Kept(Relation):
    """Entries of a list, or the text, must stay unchanged at the beginning of all later values."""

    field: Reader
    entry: str
    """The name of an entry of `{field}`; empty for a text."""
    grows: bool = True
    """True if later values may be longer; otherwise the first list must stay as it is."""


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
