"""Whether two answers to one request agree, as far as both go.

Beside other neighbours, or from a cache, a server computes the same thing in another order, and numbers move
a little. An id may change where two were as good as equally likely; what comes after such a change is
another text, and is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenwire.checks.difference import first_difference, identical, observe_sequence, observe_text
from tokenwire.checks.logprob_entry import SAMPLED, told_by
from tokenwire.checks.walk import joined_ids, joined_text, walk
from tokenwire.judging.check import Observation
from tokenwire.record import Choice, Stream

Side = tuple[Stream, Choice]
"""A choice, and the answer that it stands in."""

NEAR_TIE = 0.1
"""Two ids whose logprobs lie closer may change places."""
DRIFT = 0.2
"""Logprobs may differ by so much where the order of computing does; those of another position by more."""
_BROKEN = "\ufffd"


def drifted(one: object, other: object) -> bool:
    """Equal, but for numbers that may have drifted."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, float) and isinstance(other, float):
        return one == other or abs(one - other) <= DRIFT
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(drifted, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(drifted(one[key], other[key]) for key in one)
    return bool(one == other)


def _likeliest(stream: Stream, choice: int) -> dict[int, dict[Any, Any]]:
    """The logprobs of the alternatives at each position of a choice, by id."""
    found: dict[int, dict[Any, Any]] = {}
    for step in walk(stream):
        if step.emission.choice != choice:
            continue
        for told in told_by(step):
            for offset, position in enumerate(told.positions):
                entries = [*(position.top or ()), *([position.sampled] if position.sampled else ())]
                found.setdefault(step.before + offset, {}).update(
                    {entry.token_id: entry.logprob for entry in entries if entry.token_id is not None}
                )
    return found


def near_tie(streams: Sequence[Stream], choices: Sequence[Choice], position: int) -> bool:
    """Whether the ids that two answers have at a position were as good as equally likely in one of them."""
    ids = [ours[position] for choice in choices if (ours := joined_ids(choice)) and position < len(ours)]
    for stream, choice in zip(streams, choices, strict=True):
        likeliest = _likeliest(stream, choice.index).get(position, {})
        said = [one for token in ids if isinstance(one := likeliest.get(token), float)]
        if len(said) == 2:
            return abs(said[0] - said[1]) <= NEAR_TIE
    return False


def same_beginning(stream: Stream) -> tuple[object, ...] | None:
    """Equal for greedy requests whose answers begin alike, however long they may get; None for all others."""
    asked = stream.asked
    if not asked.prompt_key or not asked.greedy:
        return None
    stops = (asked.stop, asked.stop_token_ids, asked.stop_regex, asked.no_stop_trim, asked.ignore_eos)
    shown = (asked.skip_special_tokens, asked.spaces_between_special_tokens, asked.echo)
    counts = (asked.prompts, asked.n, asked.batch, asked.min_new_tokens)
    return (stream.dialect, asked.prompt_key, asked.other_sampling, *stops, *shown, *counts)


def choice_pairs(baseline: Stream, other: Stream) -> Iterator[tuple[Side, Side]]:
    """The choices of two answers, index by index."""
    others = {choice.index: choice for choice in other.choices}
    for choice in baseline.choices:
        if choice.index in others:
            yield (baseline, choice), (other, others[choice.index])


def _comparable_series(baseline: Side, other: Side) -> frozenset[str]:
    """The series that both carry and that were asked for alike: others cannot be alike."""
    common = baseline[1].series_names & other[1].series_names
    asked = [
        (s.asked.uniform, s.asked.logprobs, s.asked.top_logprobs, s.asked.chosen_ids)
        for s, _ in (baseline, other)
    ]
    if asked[0] == asked[1] and asked[0][0]:
        return common
    return common & (baseline[1].customized | {SAMPLED})


def agree(baseline: Side, other: Side, source: str) -> Iterator[Observation]:
    """Look whether two choices are one record as far as both go, up to near ties and drift."""
    ours, theirs = joined_ids(baseline[1]), joined_ids(other[1])
    last, related = other[1].emissions[-1], (baseline[1].emissions[-1].event.place,)
    if not ours or not theirs:
        yield from _same_text(baseline[1], other[1], source)
        return
    common = slice(min(len(ours), len(theirs)))
    end = first_difference(ours[common], theirs[common])
    if end is None or not near_tie((baseline[0], other[0]), (baseline[1], other[1]), end):
        yield observe_sequence(
            last.at("output_ids"),
            "output id",
            expected=ours[common],
            actual=theirs[common],
            source=source,
            related=related,
        )
    if end is None:
        yield from _same_text(baseline[1], other[1], source)
    upto = common if end is None else slice(end)
    for name in sorted(_comparable_series(baseline, other)):
        expected, actual = baseline[1].series(name) or [], other[1].series(name) or []
        yield observe_sequence(
            last.at(name),
            f"{name} entry",
            expected=expected[upto],
            actual=actual[upto],
            source=source,
            same=identical if name in other[1].customized else drifted,
            related=related,
        )


def _same_text(baseline: Choice, other: Choice, source: str) -> Iterator[Observation]:
    """Text that ends inside a character may end in U+FFFD, where a longer one goes on."""
    ours, theirs = joined_text(baseline), joined_text(other)
    if ours is not None and theirs is not None:
        ours, theirs = ours.rstrip(_BROKEN), theirs.rstrip(_BROKEN)
        end = min(len(ours), len(theirs))
        if end:
            place = other.emissions[-1].at("text")
            yield observe_text(place, expected=ours[:end], actual=theirs[:end], source=source)
