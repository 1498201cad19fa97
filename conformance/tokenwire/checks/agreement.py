"""Agreement of two answers to one request, up to the length of the shorter one.

A server computes the same request in another order beside other requests, or from a cache, so numbers differ
slightly. An id may change if two ids were almost equally likely. The text after such a change differs, and is
not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial

from tokenwire.checks.check import Target
from tokenwire.checks.difference import first_difference, observe_sequence, observe_text
from tokenwire.checks.evidence import Observation, equal
from tokenwire.checks.reading.chance import DRIFT, Pair, near_tie, sampled_logprobs, torn
from tokenwire.checks.reading.fields import SHOWN, STOPS, asked_alike, bringing, counts_its_ids
from tokenwire.record import BROKEN, Answer, Choice, Place, Stream
from tokenwire.requirement import Level
from tokenwire.target.alike import alike
from tokenwire.target.capability import BATCH_INVARIANCE

Side = tuple[Stream, Choice]
"""An answer and one of its choices."""


def same_beginning(stream: Answer) -> tuple[object, ...] | None:
    """Return a key of a greedy request. Answers with equal keys begin alike, whatever their length. None for
    a sampled request.
    """
    asked = stream.asked
    if not asked.prompt_key or not asked.greedy:
        return None
    counts = ("prompts", "n", "batch")
    return asked_alike(
        stream, "prompt_key", "form", "other_sampling", *STOPS, *SHOWN, "logprob_texts", *counts
    )


def choice_pairs(baseline: Answer, other: Answer) -> Iterator[tuple[Side, Side]]:
    """Yield the choices of two answers in pairs with equal index, with their content.

    Both answers stay loaded during the comparison, because a check reads each of them several times.
    """
    baseline, other = baseline.load(), other.load()
    others = {choice.index: choice for choice in other.choices}
    for choice in baseline.choices:
        if choice.index in others:
            yield (baseline, choice), (other, others[choice.index])


def _asked_alike(baseline: Side, other: Side) -> bool:
    """True if both requests enabled the same series, so that their entries can be compared."""
    asked = [
        (s.asked.uniform, s.asked.logprobs, s.asked.top_logprobs, s.asked.chosen_ids)
        for s, _ in (baseline, other)
    ]
    return asked[0] == asked[1] and asked[0][0]


def same_sampled(pair: Pair, source: str, upto: slice = slice(None)) -> Iterator[Observation]:
    """Check that two choices have the same logprobs for the same ids, whatever the shape of their
    logprobs.
    """
    ids = [(choice.output_ids or [])[upto] for choice in pair]
    ours, theirs = (sampled_logprobs(choice)[upto] for choice in pair) if ids[0] == ids[1] else ([], [])
    if not ids[0] or not ours or len(ours) != len(theirs):
        return
    places = [choice.last_at() for choice in pair]
    yield observe_sequence(
        places[1],
        "the logprob of output id",
        expected=ours,
        actual=theirs,
        source=source,
        same=partial(alike, tolerance=DRIFT),
        related=(places[0],),
        by_chance=True,
    )


def _comparable_series(baseline: Side, other: Side) -> frozenset[str]:
    """Return the series that both choices carry and that both requests enabled in the same way."""
    common = baseline[1].series_names & other[1].series_names
    if _asked_alike(baseline, other):
        return common
    return common & baseline[1].customized


def same_ids(
    pair: Pair,
    name: str,
    source: str,
    *,
    at: Choice,
    related: Callable[[int | None], tuple[Place, ...]] = lambda _: (),
    upto: slice = slice(None),
) -> Generator[Observation, None, int | None]:
    """Compare the ids of two choices, and return the first position that differs. A near tie is not reported.

    `at`: the choice whose place is reported. `related`: the places to report beside it, by the position.
    """
    expected, actual = ((choice.output_ids or [])[upto] for choice in pair)
    end = first_difference(expected, actual)
    if end is None or not near_tie(pair, end):
        yield observe_sequence(
            bringing(at, "output_ids", end),
            name,
            expected=expected,
            actual=actual,
            source=source,
            related=related(end),
            by_chance=end is not None and torn(pair, end),
        )
    return end


def agree(baseline: Side, other: Side, source: str, *, told_apart: bool = False) -> Iterator[Observation]:
    """Check that two choices agree up to the length of the shorter one. Near ties and small numeric
    differences are allowed.

    If their requests enabled different series, `told_apart` compares the logprobs of the sampled ids. Answers
    that lost ids or entries of a series are skipped, because other requirements report these losses.
    """
    pair = (baseline[1], other[1])
    if not all(map(counts_its_ids, pair)):
        return
    ours, theirs = pair[0].output_ids, pair[1].output_ids
    if not ours or not theirs:
        yield from _same_text(pair, source, by_chance=True)
        return
    common = slice(min(len(ours), len(theirs)))
    end = yield from same_ids(
        pair, "output id", source, at=pair[1], related=lambda _: (pair[0].last_at(),), upto=common
    )
    if end is None:
        # Equal ids must have equal text. Chance cannot change this text (spec/record.md, comparisons).
        yield from _same_text(pair, source, by_chance=False)
    upto = common if end is None else slice(end)
    if told_apart and not _asked_alike(baseline, other):
        yield from same_sampled(pair, source, upto)
    for name in sorted(_comparable_series(baseline, other)):
        expected, actual = baseline[1].series(name) or [], other[1].series(name) or []
        if len(expected) != len(ours) or len(actual) != len(theirs):
            continue
        same = equal if name in other[1].customized else partial(alike, tolerance=DRIFT)
        position = first_difference(expected[upto], actual[upto], same)
        yield observe_sequence(
            bringing(pair[1], name, position),
            f"{name} entry",
            expected=expected[upto],
            actual=actual[upto],
            source=source,
            same=same,
            related=(pair[0].last_at(),),
        )


def as_declared(seen: Iterator[Observation], target: Target) -> Iterator[Observation]:
    """Yield observations. If the server does not declare determinism, a difference that chance explains
    violates only a SHOULD.
    """
    for observation in seen:
        lenient = observation.by_chance and BATCH_INVARIANCE not in target.capabilities
        yield observation._replace(level=Level.SHOULD) if lenient else observation


def _same_text(pair: Pair, source: str, *, by_chance: bool) -> Iterator[Observation]:
    """Check that two texts agree. The shorter text may end in U+FFFD, within a character that the longer one
    completes.
    """
    ours, theirs = pair[0].text, pair[1].text
    if ours is not None and theirs is not None:
        ours, theirs = ours.rstrip(BROKEN), theirs.rstrip(BROKEN)
        end = min(len(ours), len(theirs))
        if end:
            position = first_difference(ours[:end], theirs[:end])
            places = [bringing(choice, "text", position) for choice in pair]
            yield observe_text(
                places[1],
                expected=ours[:end],
                actual=theirs[:end],
                source=source,
                related=(places[0],),
                by_chance=by_chance,
            )
