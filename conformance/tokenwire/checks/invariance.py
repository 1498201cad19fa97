"""Checks of invariance: an answer does not depend on concurrent requests, batches, the cache, preemption or
extra fields.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from statistics import median

from tokenwire.checks.about import ANY, INCREMENTAL, ended, finished_choices
from tokenwire.checks.agreement import Side, agree, as_declared, choice_pairs, same_beginning
from tokenwire.checks.check import (
    Answers,
    Relation,
    Target,
    check,
    check_run,
    check_run_rows,
    once_per_run,
    select,
)
from tokenwire.checks.evidence import Observation, expect, left_out
from tokenwire.checks.reading.fields import EXTRAS, LOGPROBS, SHOWN, STOPS, asked_alike, end_place
from tokenwire.checks.reading.times import began, timeline
from tokenwire.record import Answer, Stream, fact, integer
from tokenwire.requirement import tolerance
from tokenwire.target.alike import known_by
from tokenwire.wire.exchange import ExchangeHead

CROWD = 4
"""The minimum number of concurrent requests with other prompts that make a crowd."""


_LEAST_EVENTS = 64
"""The minimum number of events in a stream that shows if events grow."""
_GROWTH = tolerance("event_growth")
_SLACK_BYTES = tolerance("event_slack")
"""The allowed growth in bytes. Numbers get longer during a stream, and tokens differ in length."""


def undisturbed(stream: Answer) -> bool:
    """True if an answer is complete and was not aborted, so that it can be compared."""
    choices = finished_choices(stream)
    return (
        ended(stream)
        and len(choices) == len(stream.choices) > 0
        and all(choice.finish is not None and choice.finish.type != "abort" for choice in choices)
    )


def _company(streams: Iterable[Answer]) -> Callable[[ExchangeHead, str], int]:
    """Return a function that counts the answered requests with other prompts that ran at the same time as a
    request.
    """
    by_prompt: dict[str, list[ExchangeHead]] = {}
    for stream in streams:
        if stream.answered:
            by_prompt.setdefault(stream.asked.prompt_key, []).append(stream.exchange)
    alike = {prompt: timeline((e, e) for e in exchanges) for prompt, exchanges in by_prompt.items()}
    everyone = timeline((e, e) for e in chain.from_iterable(by_prompt.values()))

    def beside(exchange: ExchangeHead, prompt: str) -> int:
        return everyone.count(exchange) - alike[prompt].count(exchange)

    return beside


def in_crowds(streams: Iterable[Answer]) -> Iterator[str]:
    """Yield the names of the exchanges that ran together with a crowd of other requests."""
    answered = [stream for stream in streams if stream.answered]
    beside = _company(answered)
    for stream in answered:
        known = began(stream.exchange) is not None
        if known and beside(stream.exchange, stream.asked.prompt_key) >= CROWD:
            yield stream.exchange.name


def repeated(group: list[Answer]) -> Answer | None:
    """Return the first of two equal answers in a group. Two equal answers show that the server repeats its
    answers.
    """
    results = [known_by(tuple((c.index, c.output_ids, c.text) for c in stream.choices)) for stream in group]
    times = Counter(results)
    return next((s for s, result in zip(group, results, strict=True) if times[result] > 1), None)


@once_per_run
def beginnings(streams: tuple[Answer, ...]) -> list[list[Answer]]:
    """Return groups of complete answers that must begin alike.

    The ids of a short answer are the beginning of the ids of a longer one. Its text may differ from the
    beginning of the longer text, because servers parse and trim the whole text. So an answer without ids is
    compared only with answers of the same budget and delivery mode.
    """
    by_ids: dict[tuple[object, ...], list[Answer]] = {}
    by_text: dict[tuple[object, ...], list[Answer]] = {}
    for stream in streams:
        key = same_beginning(stream)
        if key is not None and undisturbed(stream):
            alike = (*key, *asked_alike(stream, "stream", "max_new_tokens"))
            by_text.setdefault(alike, []).append(stream)
            if _tells_ids(stream):
                by_ids.setdefault(key, []).append(stream)
    some_without_ids = [group for group in by_text.values() if not all(map(_tells_ids, group))]
    return [group for group in (*by_ids.values(), *some_without_ids) if len(group) > 1]


def _tells_ids(stream: Answer) -> bool:
    return all(choice.output_ids for choice in stream.choices)


@dataclass(frozen=True)
class _Invariant(Relation):
    """Two answers to one request must agree up to the end of the shorter one, although one condition
    differed.
    """

    pairs: Callable[[tuple[Answer, ...]], Iterator[tuple[Answer | None, Answer, str]]]
    """A function that yields pairs of answers: without the condition and with it.

    The third value describes the first answer. If there is no first answer, the first value is None, and the
    third value is the reason.
    """
    other_series: bool = False
    """True if the requests may have enabled different series. Then only the logprobs of the sampled ids are
    compared.
    """


def _observe_invariant(row: _Invariant, streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    for baseline, other, source in chain.from_iterable(map(row.pairs, _of_same_weights(streams, target))):
        if baseline is None:
            yield left_out(end_place(other), source)
        for first, second in choice_pairs(baseline, other) if baseline else ():
            yield from as_declared(agree(first, second, source, told_apart=row.other_series), target)


def _of_same_weights(streams: tuple[Answer, ...], target: Target) -> Iterable[tuple[Answer, ...]]:
    """Return the answers in groups that ran with the same weights."""
    by_weights: defaultdict[int | None, list[Answer]] = defaultdict(list)
    for stream in streams:
        by_weights[target.deeds.weights(stream)].append(stream)
    by_weights.pop(None, None)
    alike = by_weights.values()
    return (streams,) if any(len(group) == len(streams) for group in alike) else map(Answers, alike)


def _alone_and_in_a_crowd(streams: tuple[Answer, ...]) -> Iterator[tuple[Answer | None, Answer, str]]:
    """Yield pairs of answers to one request: one that was sent alone and repeated, and one that ran in a
    crowd.
    """
    beside = _company(streams)
    for group in beginnings(streams):
        if len(group) < 3:
            continue
        prompt, asked = group[0].asked.prompt_key, [stream.exchange for stream in group]
        crowds = {
            exchange.name: beside(exchange, prompt) for exchange in asked if began(exchange) is not None
        }
        alone = repeated([stream for stream in group if crowds.get(stream.exchange.name) == 0])
        for stream in group:
            crowd = crowds.get(stream.exchange.name, 0)
            if crowd >= CROWD and alone is None:
                yield None, stream, "without other requests, its request never had the same answer twice"
            elif alone is not None and crowd >= CROWD:
                alone = alone.load()  # load the content once for all comparisons
                yield alone, stream, f"the answer without the {crowd} others beside it"


@fact(Stream)
def _highest(stream: Stream) -> dict[str, int]:
    """Return the highest value of each counter in an answer."""
    highest: dict[str, int] = {}
    for emission in stream.emissions():
        for name, value in emission.counters.items():
            if (count := integer(value)) is not None:
                highest[name] = max(count, highest.get(name, count))
    return highest


def _with_and_without(streams: tuple[Answer, ...], counter: str) -> Iterator[tuple[Answer, Answer, int]]:
    """Yield each pair of comparable answers with different values of a counter, and the lowest value.

    The answer with the lowest value is the first of each pair.
    """
    for group in beginnings(streams):
        counts = [_highest(stream).get(counter, 0) for stream in group]
        least = min(counts)
        baseline = group[counts.index(least)]
        for stream, count in zip(group, counts, strict=True):
            if count > least:
                baseline = baseline.load()  # load the content once for all comparisons
                yield baseline, stream, least


def _cold_and_warm(streams: tuple[Answer, ...]) -> Iterator[tuple[Answer | None, Answer, str]]:
    """Yield pairs of an answer with a computed prompt and an answer with the same prompt from the cache."""
    for cold, warm, count in _with_and_without(streams, "cached_tokens"):
        yield cold, warm, f"the answer with {count} cached tokens"


def _under_other_keys(streams: tuple[Answer, ...]) -> Iterator[tuple[Answer | None, Answer, str]]:
    """Yield pairs of answers to one prompt under different cache keys; no key counts as a key."""
    for first, *others in beginnings(streams):
        for other in others:
            if other.asked.cache_key != first.asked.cache_key:
                yield first, other, f"the answer under {first.asked.cache_key or 'no key'}"


def _calm_and_preempted(streams: tuple[Answer, ...]) -> Iterator[tuple[Answer | None, Answer, str]]:
    for calm, preempted, least in _with_and_without(streams, "num_retractions"):
        if not least:
            yield calm, preempted, "the answer without preemption"


def _asking_for_more(streams: tuple[Answer, ...]) -> Iterator[tuple[Answer | None, Answer, str]]:
    """Yield pairs of the whole answer with the most enabled fields, and a whole answer with fewer fields.

    Streams have their own requirements.
    """
    for beginning in beginnings(streams):
        group = [answer for answer in beginning if not answer.asked.stream]
        if len(group) < 2:
            continue
        most = max(group, key=lambda a: (a.asked.top_logprobs, a.asked.max_new_tokens or 0))
        all_fields = asked_alike(most, *LOGPROBS, *EXTRAS)
        for stream in group:
            if asked_alike(stream, *LOGPROBS, *EXTRAS) != all_fields:
                most = most.load()  # load the content once for all comparisons
                yield most, stream, f"the answer of {most.exchange.name}, which only enabled more fields"


check_run_rows(
    _observe_invariant,
    _Invariant("neighbours-change-nothing", ANY, _alone_and_in_a_crowd),
    _Invariant("cache-changes-nothing", ANY, _cold_and_warm),
    _Invariant("cache-keys-change-nothing", ANY, _under_other_keys),
    _Invariant("preemption-changes-nothing", ANY, _calm_and_preempted),
    _Invariant("asking-for-more-changes-nothing", ANY, _asking_for_more, other_series=True),
)


@select
def _in_batches(stream: Stream) -> bool:
    """Select the answers to batches of prompts with one choice for each prompt."""
    asked = stream.asked
    return bool(asked.greedy and asked.batch and asked.n == 1 and (asked.input_ids or asked.texts))


@check_run("batch-items-stand-alone")
def _batch_items_stand_alone(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a prompt in a batch has the same answer as the prompt alone."""
    alone: dict[tuple[object, ...], list[Answer]] = {}
    for stream in streams if _in_batches(streams) else ():
        asked = stream.asked
        prompts = asked.input_ids or asked.texts
        if prompts and asked.greedy and not asked.batch and undisturbed(stream):
            alone.setdefault((prompts[0], *_shape(stream)), []).append(stream)
    twins: dict[tuple[object, ...], Answer | None] = {}
    for stream in filter(undisturbed, _in_batches(streams)):
        prompts = stream.asked.input_ids or stream.asked.texts
        for place, choice in enumerate(stream.choices):
            if choice.index >= len(prompts):
                continue
            prompt = (prompts[choice.index], *_shape(stream))
            if prompt not in twins:
                twins[prompt] = repeated(alone.get(prompt, []))
            twin = twins[prompt]
            if twin is None:
                yield left_out(choice.last_at(), "its prompt alone never had the same answer twice")
            else:
                single, batched = twin.load(), stream.load()
                pair = (single, single.choices[0]), (batched, batched.choices[place])
                yield from as_declared(agree(*pair, "the same prompt alone"), target)
                yield from _same_end(*pair)


def _same_end(baseline: Side, other: Side) -> Iterator[Observation]:
    """Check that a choice of a batch ends at the same id as the answer to its prompt alone, if its
    ids agree.
    """
    ours, theirs = baseline[1].output_ids, other[1].output_ids
    budgets = [stream.asked.budget(choice.index) for stream, choice in (baseline, other)]
    if not ours or not theirs or budgets[0] != budgets[1] or ours[: len(theirs)] != theirs[: len(ours)]:
        return
    message = (
        f"choice {other[1].index} has {len(theirs)} output ids, but {len(ours)} if its prompt is sent alone"
    )
    place, related = other[1].last_at("finish"), (baseline[1].last_at("finish"),)
    yield expect(place, len(ours), len(theirs), message, related=related)


def _shape(stream: Answer) -> tuple[object, ...]:
    """Return a key of everything in a request that influences a greedy answer, except the prompt."""
    return asked_alike(stream, "form", "other_sampling", *STOPS, *SHOWN, "n")


@check("events-do-not-grow", INCREMENTAL)
def _events_do_not_grow(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the events of an incremental stream do not grow.

    Only events with the same number of ids are compared, in streams of one choice.
    """
    if len(stream.choices) != 1:
        return
    every = stream.choices[0].delivered
    inner = [emission for emission in every if emission.position > 0 and emission.finish is None]
    counts = [emission.new for emission in inner]
    usual = max(set(counts), key=counts.count, default=0)
    alike = [emission.event.place for emission in inner if emission.new == usual]
    if len(alike) < _LEAST_EVENTS:
        return
    quarter = len(alike) // 4
    early, late = (
        int(median(place.end - place.start for place in part)) for part in (alike[:quarter], alike[-quarter:])
    )
    message = f"early events have about {early} bytes and late ones {late}, for the same number of ids"
    yield expect(
        alike[-quarter], f"about {early} bytes", late, message, holds=late <= _GROWTH * early + _SLACK_BYTES
    )
