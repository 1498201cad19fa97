"""Differences between two answers to one greedy request that chance explains.

Beside other requests, or from a cache, a server computes the same request in another order, so numbers differ
slightly. If two ids are nearly equally likely, either may be chosen, and the texts differ from there on.
Chance explains nothing else: equal ids have equal text, counters count all ids, and logprobs belong to their
own ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenwire.checks.difference import first_difference
from tokenwire.dialects.logprobs import logprobs_of, sampled_entries
from tokenwire.record import Choice, ChoiceFacts, Stream, fact, integer
from tokenwire.requirement import tolerance
from tokenwire.target.alike import alike

NEAR_TIE = tolerance("near_tie")
"""The difference of two logprobs up to which either id may be chosen."""
TORN = tolerance("torn")
"""The difference of two logprobs above which the less likely id is never chosen. Between both limits,
repetition decides.
"""
DRIFT = tolerance("drift")
"""The difference that the order of computation may cause in one logprob."""

Pair = tuple[ChoiceFacts, ChoiceFacts]
LoadedPair = tuple[Choice, Choice]


def sampled_logprobs(choice: ChoiceFacts) -> list[Any]:
    """Return the logprobs of a choice's output ids by position, whatever their format."""
    return [entry.value if entry else None for entry in sampled_entries(choice.load())]


@fact(Choice)
def tells_sampled(choice: Choice) -> bool:
    """True if a choice has the logprobs of its output ids."""
    return bool(sampled_logprobs(choice))


@dataclass
class _Position:
    """The logprobs of the candidate ids at one position of an answer."""

    sampled: float | None = None
    by_id: dict[int, float] = field(default_factory=dict)
    others: float | None = None
    """An upper bound for the logprob of every id that is not listed.

    If entries have ids, the bound is the lowest listed logprob. Otherwise it is the highest listed logprob
    except that of the sampled id.
    """


def _reported_at(choice: Choice, position: int) -> _Position:
    found = _Position()
    for emission, logprobs in zip(choice.emissions, logprobs_of(choice), strict=True):
        for reported in logprobs.reported:
            index = position - emission.before
            if not 0 <= index < len(reported.positions):
                continue
            sampled, top = reported.positions[index].sampled, reported.positions[index].top or []
            read = [(entry.id, number) for entry in top if (number := entry.number) is not None]
            if len(read) > 1:
                found.others = _of_others(read, sampled.number if sampled is not None else None)
            if sampled is not None and (number := sampled.number) is not None:
                found.sampled = number
                read.append((sampled.id, number))
            found.by_id |= {token: number for token, number in read if integer(token) is not None}
    return found


def _of_others(likeliest: Sequence[tuple[object, float]], sampled: float | None) -> float:
    """Return the highest possible logprob of an id that is not listed at a position."""
    # The sampled id may be one of the most likely, or follow them. Without ids, only the best entry besides
    # it bounds the other ids.
    numbers = sorted(number for _, number in likeliest)
    if all(integer(token) is not None for token, _ in likeliest):
        return numbers[0]
    return numbers[-2] if numbers[-1] == sampled else numbers[-1]


def _gap(pair: Pair, position: int) -> tuple[float, bool] | None:
    """Return the difference of the logprobs of two answers' ids at a position, and True if it is exact.

    A difference that is not exact is a lower bound. None if the answers do not report it, or if other things
    than the logprobs decide: random sampling, biases or penalties.
    """
    if not all(choice.likeliest for choice in pair):
        return None
    told_ids = [ours[position] for choice in pair if (ours := choice.output_ids) and position < len(ours)]
    ids = [token for token in told_ids if integer(token) is not None]
    reported = [_reported_at(choice.load(), position) for choice in pair]
    if len(ids) == len(pair):
        first, second = ids
        both = [entries.by_id for entries in reported if first in entries.by_id and second in entries.by_id]
        if both:
            return min(abs(by_id[first] - by_id[second]) for by_id in both), True
    bounds = [
        entries.sampled - entries.others
        for entries in reported
        if len(ids) == len(pair) and entries.sampled is not None and entries.others is not None
    ]
    sampled = [entries.sampled for entries in reported if entries.sampled is not None]
    if len(sampled) == len(pair):
        bounds.append(abs(sampled[0] - sampled[1]))
    return (max(bounds), False) if bounds else None


def near_tie(pair: Pair, position: int) -> bool:
    """True if the two ids at a position are known to be nearly equally likely."""
    gap = _gap(pair, position)
    return gap is not None and gap[1] and gap[0] <= NEAR_TIE


def torn(pair: Pair, position: int) -> bool:
    """True if either id may have been chosen at the position where two answers diverge. True if it is
    unknown.
    """
    gap = _gap(pair, position)
    return gap is None or gap[0] <= TORN


def _finished_with(choice: ChoiceFacts) -> str:
    return choice.finish.type if choice.finish is not None else ""


def _miscounts(choice: ChoiceFacts, ids: Sequence[Any]) -> bool:
    """True if an answer used its whole budget, but the number of its ids differs from its counter."""
    count = choice.counter("completion_tokens")
    return _finished_with(choice) == "length" and count is not None and count != len(ids)


def goes_apart(pair: Pair) -> bool:
    """True if two answers to one request diverge by chance, and each continues in its own way.

    Ids that were lost or repeated, or an early end, are not chance if the ids or the counters show the error.
    """
    ids = pair[0].output_ids, pair[1].output_ids
    if ids[0] is None or ids[1] is None:
        return _texts_go_apart(pair)
    position = first_difference(ids[0], ids[1])
    if position is None or any(map(_miscounts, pair, (ids[0], ids[1]))):
        return False
    short = min(pair, key=lambda choice: len(choice.output_ids or ()))
    if len(ids[0]) != len(ids[1]) and _finished_with(short) != "stop":
        return False
    return torn(pair, position)


def _texts_go_apart(pair: Pair) -> bool:
    texts = [choice.text or "" for choice in pair]
    if texts[0] == texts[1]:
        return False
    short, long = sorted(texts, key=len)
    counts = [choice.counter("completion_tokens") for choice in pair]
    spent = all(_finished_with(choice) == "length" for choice in pair)
    as_long = spent or (counts[0] is not None and counts[0] == counts[1])
    if as_long and len(short) < len(long) and _is_without_a_piece(short, long):
        return False
    return not _is_without_pieces(short, long)


def _is_without_a_piece(short: str, long: str) -> bool:
    """True if the short text equals the long one with one piece removed."""
    head = first_difference(short, long)
    tail = first_difference(short[::-1], long[::-1])
    return (head or 0) + (tail or 0) >= len(short)


def limits_of(stream: Stream) -> tuple[object, ...]:
    """Return a key of everything that may end an answer: the budget and the stops."""
    asked = stream.asked
    return asked.max_new_tokens, asked.stop, asked.stop_token_ids, asked.ignore_eos, asked.greedy


def texts_alone(first: Stream, second: Stream) -> bool:
    """True if no choice of the two answers reports ids."""
    return all(choice.output_ids is None for stream in (first, second) for choice in stream.choices)


def part_no_earlier(pair: tuple[Stream, Stream], whole: tuple[Stream, Stream]) -> bool:
    """True if two answers have only text, and agree at least as far as two whole answers to the same request
    agree.
    """
    parting = [_parting(*answers) for answers in (pair, whole)]
    return None not in parting and parting[0] >= parting[1]  # type: ignore[operator]  # neither is None


def _parting(first: Stream, second: Stream) -> int | None:
    """Return the number of equal characters at the beginning of two answers. None if unknown, or if they are
    equal.
    """
    choices = [stream.choices[0] for stream in (first, second) if len(stream.choices) == 1]
    if len(choices) < 2 or not texts_alone(first, second):
        return None
    ours, theirs = (f"{choice.reasoning or ''}{choice.text or ''}" for choice in choices)
    return first_difference(ours, theirs)


def entries_go_apart(pair: Pair, position: int, entries: tuple[Sequence[Any], Sequence[Any]]) -> bool:
    """True if chance explains a difference of two series at a position.

    Chance explains the difference if the numbers differ only slightly, or if the answers diverged by chance
    before this position.
    """
    both = [series[position] for series in entries if position < len(series)]
    if len(both) == 2 and alike(both[0], both[1], DRIFT):
        return True
    ids = pair[0].output_ids, pair[1].output_ids
    end = first_difference(ids[0], ids[1]) if ids[0] is not None and ids[1] is not None else 0
    return end is not None and position >= end and goes_apart(pair)


_LONG_ENOUGH, _SHORTEST_SHARE = 16, 4
"""The minimum number of characters after the first difference, and the maximum ratio of both lengths.

Within these limits, one text consists of another's characters in order only if pieces of the other were lost.
"""


def _is_without_pieces(short: str, long: str) -> bool:
    """True if the short text is the long one with some pieces removed, so that they were lost and not
    sampled.
    """
    head = first_difference(short, long) or 0
    rest, whole = short[head:], long[head:]
    if not _LONG_ENOUGH <= len(rest) < len(whole) <= _SHORTEST_SHARE * len(rest):
        return False
    characters = iter(whole)
    return all(character in characters for character in rest)
