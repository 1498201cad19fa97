"""Compares two answers to the same request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tokenwire.checks.about import ended
from tokenwire.checks.reading.fields import start_place, told_prompt
from tokenwire.checks.same_answers import COUNTERS
from tokenwire.record import Choice, Stream
from tokenwire.report.excerpt import written
from tokenwire.target.alike import known_by
from tokenwire.target.determinism import Comparison
from tokenwire.wire.exchange import Ending
from tokenwire_twin.difference import Difference, Gravity, Pair, asked_otherwise, in_words
from tokenwire_twin.field_differences import missing_fields, other_events, other_values
from tokenwire_twin.output_differences import output_differences
from tokenwire_twin.status_differences import status_differences

ABORTING = frozenset(
    {"abort", "abort-in-the-queue", "abort-of-choices", "abort-of-everything", "abort-of-one"}
    | {"scheduled-aborts", "script-abort", "session-abort"}
)
"""Scenarios that abort their requests."""
RACING = frozenset({"id-in-use"})
"""Scenarios in which timing decides which of several requests succeeds."""


def _left_early(stream: Stream) -> bool:
    """True if the suite closed the connection before an answer began."""
    exchange = stream.exchange
    return exchange.status is None and exchange.ending in {Ending.HUNG_UP, Ending.CANCELLED}


def _was_aborted(stream: Stream) -> bool:
    return any(choice.finish is not None and choice.finish.type == "abort" for choice in stream.choices)


def _failed(stream: Stream) -> bool:
    return any(choice.finish is not None and choice.finish.failed for choice in stream.choices)


def shown(stream: Stream) -> int:
    """Return a key that is equal for answers with the same output, with and without streaming."""
    results = [
        (choice.index, choice.output_ids, choice.text, choice.reasoning, choice.finish and choice.finish.type)
        for choice in stream.choices
    ]
    return known_by(results)


def differences(both: Comparison, names: tuple[str, str]) -> Iterator[Difference]:
    """Yield the differences between two answers to requests with the same exchange name.

    `names`: the names of the sides.
    """
    found = list(_differences(Pair(both, names)))
    bodies = [side.exchange.body if found else b"" for side in (both.baseline, both.other)]
    for difference in found:
        ours, theirs = (
            "" if place is None else written(body, place)
            for body, place in zip(bodies, (difference.one, difference.other), strict=True)
        )
        yield replace(difference, excerpts=(ours, theirs))


def _differences(pair: Pair) -> Iterator[Difference]:
    """Yield the differences between two answers.

    Values are compared only if both sides are deterministic and the requests are equal. Values that may
    differ by chance are compared only if each side always gave the same answer to this request. Differences
    that depend on timing do not count: the length of an aborted answer, an answer that began before the suite
    closed the connection, and the choice between two requests with the same id. If samples differ, their
    other fields are not compared.
    """
    first, second = pair.first, pair.second
    if first.exchange.scenario in RACING or _left_early(first) or _left_early(second):
        return
    asked = asked_otherwise(first, second)
    if asked is not None:
        says = f"asked differently at {asked[0] or 'the whole'}"
        message = f"{says}: {in_words(asked[1])} and {in_words(asked[2])}"
        yield pair.differs(Gravity.REMARKS, ("request", "", says), message)
    statuses = first.exchange.status, second.exchange.status
    if statuses[0] != statuses[1]:
        if asked is None:
            yield from status_differences(pair)
        return
    if not (ended(first) and ended(second)) and (first.answered or second.answered):
        return
    if first.exchange.scenario in ABORTING and (_was_aborted(first) or _was_aborted(second)):
        return
    if _failed(first) or _failed(second):
        return
    if asked is not None:
        return
    refused = not (first.answered and second.answered)
    if refused or pair.both.repeats or shown(first) == shown(second):
        yield from missing_fields(pair, parts=True)
    if not (pair.both.repeats or refused):
        return
    theirs = {choice.index: choice for choice in second.choices}
    results: list[Difference] = []
    for choice in first.choices:
        if choice.index in theirs:
            results += output_differences(pair, choice, theirs[choice.index])
        else:
            says = f"only in {pair.source}"
            places = start_place(first), start_place(second)
            family = "choices", "", says
            results.append(pair.differs(Gravity.TEXT, family, f"choice {choice.index}: {says}", places))
    yield from results
    # Different outputs have different counts.
    another = any(found.gravity in {Gravity.PROMPT, Gravity.IDS, Gravity.TEXT} for found in results)
    for found in other_values(pair):
        if not (another and found.gravity is Gravity.FINISH):
            yield found
    yield from other_events(pair)


def _comparable(both: Comparison) -> bool:
    first, second = both.baseline, both.other
    return both.repeats and first.answered and second.answered and not asked_otherwise(first, second)


_HELD: Mapping[Gravity, Callable[[Choice], Any]] = {
    Gravity.PROMPT: told_prompt,
    Gravity.IDS: lambda choice: choice.output_ids is not None,
    Gravity.TEXT: lambda choice: choice.text is not None and not choice.parsed,
    Gravity.CHANNELS: lambda choice: choice.parsed,
    Gravity.FINISH: lambda choice: choice.finish,
    Gravity.LOGPROBS: lambda choice: choice.series_names,
    Gravity.FIELDS: bool,
}
"""The condition under which a choice has content for each subject."""


def compared(both: Comparison) -> frozenset[Gravity]:
    """Return the subjects in which two answers can be compared. Both answers have content for them."""
    if not _comparable(both):
        return frozenset()
    theirs = {choice.index: choice for choice in both.other.choices}
    pairs = [(choice, theirs[choice.index]) for choice in both.baseline.choices if choice.index in theirs]
    return frozenset(
        gravity for gravity, holds in _HELD.items() if any(all(map(holds, sides)) for sides in pairs)
    )


def held(both: Comparison) -> frozenset[tuple[Gravity, int]]:
    """Return the subjects for which the answers have content, each with the index of the side that has it."""
    if not _comparable(both):
        return frozenset()
    return frozenset(
        (gravity, side)
        for side, stream in enumerate((both.baseline, both.other))
        for gravity, holds in _HELD.items()
        if any(map(holds, stream.choices))
    )


# The following function returns the values in which answers of one side may contradict each other.


def aspects(stream: Stream, gravity: Gravity) -> dict[str, Any]:
    """Return the parts of an answer that must be equal if the request is repeated.

    Parts that the answer lacks are left out.
    """
    found: dict[str, Any] = {}
    for choice in stream.choices:
        for name, held in _aspects_of(choice, gravity).items():
            found[f"{choice.index} {name}"] = held
    if gravity is Gravity.FINISH:
        found["usage"] = (stream.usage or {}).get("completion_tokens_details")
    return {name: held for name, held in found.items() if held is not None}


def _aspects_of(choice: Choice, gravity: Gravity) -> dict[str, Any]:
    match gravity:
        case Gravity.IDS:
            return {"ids": choice.output_ids}
        case Gravity.TEXT | Gravity.CHANNELS:
            calls = [[call.name, call.arguments] for call in choice.calls]
            return {"reasoning": choice.reasoning or "", "text": choice.text or "", "calls": calls}
        case Gravity.FINISH:
            finish = choice.finish and choice.finish.type
            return {"finish": finish, **{name: choice.counter(name) for name in COUNTERS}}
        case Gravity.LOGPROBS:
            return {
                "names": sorted(choice.series_names),
                **{n: choice.series(n) for n in choice.series_names},
            }
        case _:
            return {"customized": sorted(choice.customized)}
