"""Two answers to one request side by side: status, fields, record, values, and each event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, zip_longest
from typing import Any

from tokenwire.checks.about import ended
from tokenwire.checks.evidence import Observation
from tokenwire.checks.reading.chance import goes_apart
from tokenwire.checks.reading.fields import start_place
from tokenwire.checks.reading.json_fields import fields_of, is_of_the_cache, lost
from tokenwire.checks.same_answers import COUNTERS, same_finish, same_ids, same_series, same_text
from tokenwire.record import Choice, Place, Stream
from tokenwire.report.excerpt import written
from tokenwire.report.wording import clause, value
from tokenwire.target.alike import alike
from tokenwire.target.determinism import Comparison
from tokenwire.wire import strict_json
from tokenwire.wire.exchange import HttpRequest
from tokenwire.wire.json_pointer import join

_NAMES = frozenset({"model", "rid", "request_id"})
"""Fields that may differ between two equal requests."""
_VOLATILE = frozenset(
    {"id", "created", "request_id", "rid", "dp_rank", "num_retractions", "system_fingerprint", "queue_time"}
)
_VOLATILE_ENDS = ("_ts", "_time", "_latency", "_timestamp", "latency", "throughput")
"""Endings of names whose values differ between answers of one server."""
ABORTING = frozenset(
    {"abort", "abort-in-the-queue", "abort-of-choices", "abort-of-everything", "abort-of-one", "script-abort"}
)
"""Scenarios that abort their requests."""
RACING = frozenset({"id-in-use"})
"""Scenarios with racing requests: timing decides which of them is too late."""
_MOST_EVENTS = 5
_ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """A difference of two answers to one request."""

    kind: str
    """The kind: status, field, ids, text, series, finish, counter or value; events and request are
    remarks.
    """
    subject: str
    """The field or path, or empty. Differences of one kind and subject are one finding."""
    message: str
    exchange: str
    one: Place | None = None
    other: Place | None = None
    excerpts: tuple[str, str] = ("", "")
    """The values at both places."""

    @property
    def decides(self) -> bool:
        """True if it makes the answers different; the cuts of a stream, for example, do not."""
        return self.kind not in {"events", "request"}


def _is_volatile(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name in _VOLATILE or name.endswith(_VOLATILE_ENDS) or "cached" in path


def _body(request: HttpRequest) -> Any:
    body = request.body
    if request.raw_body is not None:
        try:
            body = strict_json.loads(request.raw_body.decode())
        except ValueError:
            return request.raw_body
    if not isinstance(body, dict):
        return body
    return {name: value for name, value in body.items() if name not in _NAMES}


def _without_names(found: Any, stream: Stream) -> Any:
    """Return a value in which names from the request are replaced by the names of their fields."""
    body = stream.exchange.request.body
    if isinstance(found, str) and isinstance(body, dict):
        for name in sorted(_NAMES & body.keys()):
            if isinstance(body[name], str) and body[name]:
                found = found.replace(body[name], name)
    return found


def _first_difference(first: Any, second: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Return the first path at which two JSON values differ by more than rounding, except volatile ones."""
    if _is_volatile(path):
        return None
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        pairs: Iterator[tuple[object, Any, Any]] = (
            (name, first.get(name, _ABSENT), second.get(name, _ABSENT)) for name in {**first, **second}
        )
    elif isinstance(first, list) and isinstance(second, list):
        entries = zip_longest(first, second, fillvalue=_ABSENT)
        pairs = ((index, ours, theirs) for index, (ours, theirs) in enumerate(entries))
    else:
        return None if alike(first, second) else (path, first, second)
    for key, ours, theirs in pairs:
        found = _first_difference(ours, theirs, path + join(key))
        if found is not None:
            return found
    return None


def _words(thing: Any) -> str:
    return "nothing" if thing is _ABSENT else value(thing)


def _was_aborted(stream: Stream) -> bool:
    return any(choice.finish is not None and choice.finish.type == "abort" for choice in stream.choices)


def _observed(
    kind: str, subject: str, observations: Iterator[Observation], pair: Comparison
) -> Iterator[Difference]:
    name = pair.baseline.exchange.name
    for seen in observations:
        if not seen.holds and (pair.steady or not seen.by_chance):
            related = seen.related[0] if seen.related else None
            yield Difference(kind, subject, clause(seen), name, related, seen.place)


def _fields(first: Stream, second: Stream, names: tuple[str, str]) -> Iterator[Difference]:
    for side, missing in enumerate((lost(first, second), lost(second, first))):
        for path, place in missing.items():
            places = (place, None) if side == 0 else (None, place)
            yield Difference("field", path, f"only in {names[side]}", first.exchange.name, *places)


def _record(ours: Choice, theirs: Choice, source: str, both: Comparison) -> Iterator[Difference]:
    pair, name = (ours, theirs), both.baseline.exchange.name
    yield from _observed("ids", "output_ids", same_ids(pair, source), both)
    yield from _observed("text", "text", same_text(pair, source), both)
    yield from _observed(
        "series", "", same_series(pair, source, partial(both.noise.rounding, both.other)), both
    )
    yield from _observed("finish", "finish_reason", same_finish(pair, source), both)
    for counter in COUNTERS if both.steady or not goes_apart(pair) else ("prompt_tokens",):
        first, second = ours.counter(counter), theirs.counter(counter)
        if first is not None and second is not None and first != second:
            places = ours.emissions[-1].at(counter), theirs.emissions[-1].at(counter)
            yield Difference("counter", counter, f"{second}, but {first} in {source}", name, *places)


def _record_paths(stream: Stream) -> frozenset[str]:
    """Return the paths, without indices, of the fields in the record, which are compared after joining."""
    return frozenset(
        "".join(f"/{key}" for key in pointer.split("/")[1:] if not key.isdecimal())
        for emission in stream.emissions()
        for name, pointer in emission.pointers.items()
        if name not in emission.details
    )


def _values(stream: Stream) -> dict[str, tuple[Any, Place]]:
    """Return the last value, with its place, of each path outside the record."""
    record = _record_paths(stream)
    last: dict[str, tuple[Any, Place]] = {}
    for event in stream.events:
        for path, found in fields_of(event.data):
            if _is_volatile(path) or is_of_the_cache(path):
                continue
            if not any(f"{path}/".startswith(f"{field}/") for field in record):
                last[path] = (found, event.place)
    return last


def _other_values(first: Stream, second: Stream, source: str) -> Iterator[Difference]:
    if len(first.choices) > 1 and first.asked.stream:
        return  # the server chooses which choice comes last
    ours, theirs = _values(first), _values(second)
    for path in sorted(ours.keys() & theirs.keys()):
        if not alike(_without_names(ours[path][0], first), _without_names(theirs[path][0], second)):
            message = f"{value(theirs[path][0])}, but {value(ours[path][0])} in {source}"
            yield Difference("value", path, message, first.exchange.name, ours[path][1], theirs[path][1])


def _events(first: Stream, second: Stream) -> Iterator[Difference]:
    """Yield the first difference of each event, if both streams have the same number of events."""
    name = first.exchange.name
    if len(first.events) != len(second.events):
        yield Difference("events", "", f"cut into {len(first.events)} and {len(second.events)} events", name)
        return
    for ours, theirs in zip(first.events, second.events, strict=True):
        found = _first_difference(ours.data, theirs.data)
        if found is not None:
            path, was, became = found
            message = f"event {ours.index}, {path or 'the whole'}: {_words(was)} and {_words(became)}"
            yield Difference("events", "", message, name, ours.place, theirs.place)


def differences(pair: Comparison, names: tuple[str, str]) -> Iterator[Difference]:
    """Yield the differences between two answers to requests of one name. `names` are the sides' names."""
    found = list(_differences(pair, names))
    bodies = [side.exchange.body if found else b"" for side in (pair.baseline, pair.other)]
    for difference in found:
        ours, theirs = (
            "" if place is None else written(body, place)
            for body, place in zip(bodies, (difference.one, difference.other), strict=True)
        )
        yield replace(difference, excerpts=(ours, theirs))


def _differences(pair: Comparison, names: tuple[str, str]) -> Iterator[Difference]:
    """Yield the differences of two answers.

    Values are compared only if both sides repeat themselves. Chance differences count only if neither side
    ever had two answers, or both repeated these answers. Differences by timing do not count: the length of an
    aborted answer, or the order of two requests with one id.
    """
    first, second = pair.baseline, pair.other
    name, source = first.exchange.name, names[0]
    asked = _first_difference(_body(first.exchange.request), _body(second.exchange.request))
    if asked is not None:
        message = f"asked differently at {asked[0] or 'the whole'}: {_words(asked[1])} and {_words(asked[2])}"
        yield Difference("request", "", message, name)
        return
    if first.exchange.scenario in RACING:
        return
    statuses = first.exchange.status, second.exchange.status
    if statuses[0] != statuses[1]:
        message = f"{statuses[1]}, but {statuses[0]} in {source}"
        yield Difference("status", "", message, name, start_place(first), start_place(second))
        return
    if not (ended(first) and ended(second)) and (first.answered or second.answered):
        return
    if first.exchange.scenario in ABORTING and (_was_aborted(first) or _was_aborted(second)):
        return
    yield from _fields(first, second, names)
    if not pair.repeats:
        return
    theirs = {choice.index: choice for choice in second.choices}
    for choice in first.choices:
        if choice.index in theirs:
            yield from _record(choice, theirs[choice.index], source, pair)
        else:
            yield Difference("choice", str(choice.index), f"only in {source}", name, start_place(first))
    yield from _other_values(first, second, source)
    yield from islice(_events(first, second), _MOST_EVENTS)
