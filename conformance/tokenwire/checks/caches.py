"""Checks of isolation: a request uses only its own cache, adapter and rank."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from math import inf
from operator import eq

from tokenwire.checks.about import ANSWERED, ANY
from tokenwire.checks.check import (
    Relation,
    Target,
    check,
    check_choices,
    check_rows,
    check_run,
    check_run_rows,
)
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.fields import prompt_sent, start_place
from tokenwire.checks.reading.refusals import ABOUT_ACCESS_OR_LOAD, words_of
from tokenwire.checks.reading.times import began, over
from tokenwire.checks.refusals import Refused, observe_refusal
from tokenwire.dialects.control import Action
from tokenwire.record import Answer, Choice, Stream, fact, integer
from tokenwire.requirement import tolerance
from tokenwire.target.shown import cached_tokens

Side = Callable[[Answer], Hashable]
"""A function that returns a key for the cache that a request may use, or None if the cache is unknown."""


@fact(Stream)
def _preempted(stream: Stream) -> bool:
    """True if the request was preempted, so that the cached tokens may be its own."""
    return any(emission.counters.get("num_retractions") for emission in stream.emissions())


def _only_prompt(answer: Answer) -> object:
    """Return the prompt of an answer with one prompt and one choice. None for other answers."""
    asked = answer.asked
    alone = answer.answered and asked.n == 1 and asked.prompts == 1 and not asked.media
    return (asked.input_ids or _worded(answer)) if alone else None


def _worded(answer: Answer) -> str | None:
    """Return the prompt as JSON, without the name of the model. None if it cannot be parsed."""
    sent = prompt_sent(answer)
    return json.dumps(sent[1], sort_keys=True) if sent is not None else None


DRAWN_PROMPTS: Mapping[str, str] = {
    "adapters": "none",
    "cache-keys": "first",
    "cold-and-warm": "cold",
    "flushed-cache": "first",
    "shared-beginnings": "first",
    "updated-weights": "first",
}
"""Scenarios whose prompts are random in each run, made of ids or, at endpoints without ids, of words.

The value is the label of the first request with a prompt. A hyphen and a number may follow the label.
"""
_BY_CHANCE = int(tolerance("drawn_alike"))


@fact(Stream)
def _drawn_ids(stream: Stream) -> tuple[int, ...]:
    """Return the ids of the prompt if it is random in each run. Empty for any other prompt."""
    ids = stream.asked.input_ids if stream.exchange.scenario in DRAWN_PROMPTS else None
    return tuple(ids[0]) if ids else ()


def _may_have_run(other: Answer, answer: Answer, count: int) -> bool:
    """True if another request may have computed the first `count` tokens of a prompt before this prompt was
    answered.
    """
    if other.refused or not _before(other, answer):
        return False
    if not (ours := answer.asked.input_ids) or not (theirs := other.asked.input_ids):
        if _drawn_ids(answer):  # a random prompt of ids begins like a text only by chance
            return count <= _BY_CHANCE
        return _worded(answer) == _worded(other) or _length(other) >= count
    # A request with a shorter prompt may have generated the ids that follow its prompt in this prompt.
    return any(_shared(prompt, ours[0]) >= min(count, len(prompt)) for prompt in theirs)


def _before(other: Answer, answer: Answer) -> bool:
    """True if one request was sent before another was answered, or if their order is unknown."""
    start, end = began(other.exchange), over(answer.exchange)
    return start is None or end is None or start <= end


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of equal ids at the beginning of two prompts."""
    return sum(1 for _ in takewhile(bool, map(eq, first, second)))


def _length(answer: Answer) -> float:
    """Return the largest number of tokens of a request and its answer. Infinite if it is unknown."""
    names = ("prompt_tokens", "completion_tokens")
    every = (answer.usage or {}, *(choice.counters for choice in answer.choices))
    known = ([integer(counts.get(name)) for name in names] for counts in every)
    return max((float(sum(filter(None, pair))) for pair in known if None not in pair), default=inf)


@dataclass(frozen=True)
class Apart(Relation):
    """The cached tokens of an answer must have been computed on the side of that answer, for example under
    the same cache key.
    """

    sides: Callable[[Target], Side]
    border: str
    """A phrase for the message that describes the other side."""


def _observe_apart(row: Apart, streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Observe the first answer to a prompt on each side, if the prompt was answered on another side
    before.
    """
    side_of = row.sides(target)
    prompts: defaultdict[object, list[tuple[Hashable, Answer]]] = defaultdict(list)
    by_side: defaultdict[Hashable, list[Answer]] = defaultdict(list)
    for stream in streams:
        side = side_of(stream)
        by_side[side].append(stream)
        if side is not None and (prompt := _only_prompt(stream)) is not None:
            prompts[prompt].append((side, stream))
    for answers in prompts.values():
        seen: set[Hashable] = set()
        for position, (side, answer) in enumerate(answers):
            if position and side not in seen:
                before = (earlier for _, earlier in islice(answers, position))
                yield from _of_same_side(row, answer, before, chain(by_side[side], by_side[None]))
            seen.add(side)


def _of_same_side(
    row: Apart, answer: Answer, before: Iterable[Answer], same_side: Iterable[Answer]
) -> Iterator[Observation]:
    """Check the number of cached tokens of an answer, if earlier answers show that another side cached the
    prompt.

    Nothing is observed if a request on the same side may have computed these tokens.
    """
    count = cached_tokens(answer)
    if count is None or _preempted(answer):
        return
    # An earlier answer with fewer cached tokens computed the rest of the prompt. If this answer has no cached
    # tokens, an earlier answer with any cached token shows that the prompt can be cached.
    counted = ((earlier, found) for earlier in before if (found := cached_tokens(earlier)) is not None)
    other = next((earlier for earlier, found in counted if (found < count if count else found > 0)), None)
    others = (candidate for candidate in same_side if candidate is not answer)
    if other is None or (count and any(_may_have_run(candidate, answer, count) for candidate in others)):
        return
    message = (
        f"{count} tokens are reported as cached, but only {other.exchange.name} computed them, {row.border}"
    )
    place = answer.choices[0].last_at("cached_tokens")
    yield expect(place, 0, count, message, related=(other.choices[0].last_at("cached_tokens"),))


def _keys(_target: Target) -> Side:
    return lambda answer: answer.asked.cache_key


def _adapters(target: Target) -> Side:
    """Return a function that returns the adapter or model of a request.

    The function returns None for a request with several prompts.
    """
    known = target.advertised.adapters

    def side(answer: Answer) -> str | None:
        asked = answer.asked
        if asked.prompts > 1:
            return None
        given = asked.adapter.values[0] if asked.adapter is not None else ""
        named = given[0] if isinstance(given, list) and given else given
        return next((name for name in (named, asked.model) if isinstance(name, str) and name in known), "")

    return side if known else lambda _: None


def _flushes(target: Target) -> Side:
    """Return a function that counts the flushes completed before a request.

    The function returns None if a flush overlaps the request.
    """
    calls = [call for call in target.calls if call.flushes and call.done]
    ends = sorted(end for call in calls if (end := over(call.exchange)) is not None)

    def side(answer: Answer) -> int | None:
        start = began(answer.exchange)
        met = any(target.deeds.beside(answer.exchange, kind) for kind in (Action.FLUSH, Action.UPDATE))
        return None if start is None or met else bisect_right(ends, start)

    return side if ends else lambda _: None


check_run_rows(
    _observe_apart,
    Apart("cached-tokens-keep-to-their-key", ANY, _keys, "under another key"),
    Apart("cached-tokens-keep-to-their-adapter", ANY, _adapters, "without it or with another"),
    Apart("flushed-tokens-are-not-counted", ANY, _flushes, "before a flush"),
)


@fact(Stream)
def _beginnings(stream: Stream) -> frozenset[Hashable]:
    """Return the prompt's text, or enough of its first ids to tell random prompts apart."""
    ids = stream.asked.input_ids
    if ids is None:
        return frozenset({_worded(stream)})
    return frozenset(tuple(prompt[: _BY_CHANCE + 1]) for prompt in ids)


@fact(Stream)
def _is_first_of_drawn(stream: Stream) -> bool:
    """True for the first request with a random prompt, if the prompt consists of ids or has a cache salt.

    A prompt of words begins with the words of a chat template, so such a prompt is new only under a new salt.
    """
    label, _, behind = stream.exchange.label.partition("-")
    first = label == DRAWN_PROMPTS.get(stream.exchange.scenario) and (not behind or behind[0].isdecimal())
    return (
        first
        and _only_prompt(stream) is not None
        and (len(_drawn_ids(stream)) > _BY_CHANCE or bool(stream.asked.cache_key))
    )


@check_run("new-prompts-are-not-cached")
def _new_prompts_are_not_cached(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that the first answer to each random prompt has no more cached tokens than chance allows.

    If a server fails after it computed a prompt, the suite repeats the request. Then the prompt is not new.
    """
    drawn = [stream for stream in streams if _is_first_of_drawn(stream)]
    brought: defaultdict[Hashable, list[Answer]] = defaultdict(list)
    wanted = {beginning for stream in drawn for beginning in _beginnings(stream)}
    for stream in streams if wanted else ():
        for beginning in _beginnings(stream) & wanted:
            brought[beginning].append(stream)
    for stream in drawn:
        count = cached_tokens(stream)
        others = (other for beginning in _beginnings(stream) for other in brought[beginning])
        if count is None or _preempted(stream) or any(o is not stream and _before(o, stream) for o in others):
            continue
        message = f"{count} tokens are reported as cached, of a prompt that is random and new"
        place = stream.choices[0].last_at("cached_tokens")
        yield expect(place, f"{_BY_CHANCE} at most", count, message, holds=count <= _BY_CHANCE)


SHARING, BEGINNING = ("first", "second", "third", "fourth"), "beginning"
"""Labels of the conversations that share a random system message, and of the conversation that has little
else.
"""


@check_run("shared-beginnings-alone-are-cached")
def _shared_beginnings_alone_are_cached(
    streams: tuple[Answer, ...], _target: Target
) -> Iterator[Observation]:
    """Check that the first request of each conversation has no more cached tokens than the shared beginning
    has.
    """
    shared = [stream for stream in streams if stream.exchange.scenario == "shared-beginnings"]
    most: dict[str, int] = {}
    for stream in shared:
        count = integer((stream.usage or {}).get("prompt_tokens"))
        if stream.exchange.label == BEGINNING and count is not None:
            most[stream.dialect] = count
    for stream in shared:
        count, limit = cached_tokens(stream), most.get(stream.dialect)
        if stream.exchange.label not in SHARING or count is None or limit is None or _preempted(stream):
            continue
        message = (
            f"{count} tokens are reported as cached, but the conversation shares at most {limit} with others"
        )
        place = stream.choices[0].last_at("cached_tokens")
        yield expect(place, f"{limit} at most", count, message, holds=count <= limit)


ADAPTERS, UNKNOWN = "adapters", "unknown"
"""The name of the scenario with adapters, and the label of its request for an unknown adapter."""


@check("unknown-adapters-are-refused")
def _unknown_adapters_are_refused(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that an unknown adapter is refused with a 4xx status and a message that names the adapter."""
    status, adapter = stream.exchange.status, stream.asked.adapter
    if adapter is None or (stream.exchange.scenario, stream.exchange.label) != (ADAPTERS, UNKNOWN):
        return
    if status is None or status in ABOUT_ACCESS_OR_LOAD:
        return
    words = words_of(stream.error)[:200]
    holds = 400 <= status < 500 and str(adapter.values[0]) in words
    message = f"the request names an unknown adapter, and was answered with status {status}"
    yield expect(start_place(stream), "a 4xx status and its name", words, message, holds=holds)


@check("answer-names-its-adapter", ANSWERED)
def _answer_names_its_adapter(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that an answer reports the requested adapter as its model."""
    name, adapter = stream.asked.model, stream.asked.adapter
    if adapter is None or name not in adapter.values or name not in target.advertised.adapters:
        return
    emission = next((found for found in stream.emissions() if "model" in found.details), None)
    if emission is not None:
        reported = emission.details["model"]
        message = f"the request names the adapter {name!r}, and the answer names {reported!r}"
        yield expect(emission.at("model"), name, reported, message)


@check_choices("rank-is-the-asked-one", ANY)
def _rank_is_the_asked_one(choice: Choice, stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that a request runs on the rank that it names. A client may know that this rank has its prefix in
    the cache.
    """
    due = stream.asked.rank
    emission = choice.delivered[-1]
    rank = integer(emission.details.get("dp_rank"))
    if due is not None and rank is not None:
        message = f"the request names rank {due}, but rank {rank} ran it"
        yield expect(emission.at("dp_rank"), due, rank, message)


def _no_such_rank(stream: Stream, target: Target) -> str:
    rank, size = stream.asked.rank, target.advertised.dp_size
    known = rank is None or size is None or 0 <= rank < size
    return "" if known else f"rank {rank} was requested, of {size} existing ranks, and the request was"


check_rows(observe_refusal, Refused("unknown-rank-refused", ANY, _no_such_rank))
