"""Determinism: the requests for which the target repeats its answers, so that answers may be compared.

If a server's arithmetic depends on the batch, the cache or the chunks of the prefill, a greedy request may
have two answers: of two nearly equal ids, either may win. So a chance difference between two answers is a
violation only if both requests were repeated with the same result.

Only whole answers to one request under one condition show if a target repeats itself. Streams, answers beside
a pause and answers from the cache are under test, and must not excuse themselves. If only these differ, while
the whole answer was repeated, the differences are counted and compared with those of whole answers
(`rarer_than`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from marshal import dumps
from math import comb
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from tokenwire.record import Answer, Choice, Stream, fact
from tokenwire.target.alike import apart
from tokenwire.target.noise import Difference, Noise, noise_of
from tokenwire.wire.exchange import Ending

PROBE = "probe"
"""The scenario whose repetition represents the whole run."""
AGAIN = 2
"""The repetitions of an answer with a chance difference before the target is blamed."""
OFTEN = 6
"""The repetitions for a target that was seen not to repeat itself, because few equal answers prove little
there.
"""
_MANY = 8
"""The number of repetitions that can show random answers."""
_MEND = (
    "start it so that greedy requests are repeatable (SGLang: --enable-deterministic-inference), "
    "or ask it alone, with --max-concurrency 1"
)


_Thing = TypeVar("_Thing")
Weights = Callable[[Answer], int | None]
"""Returns the number of the weights that made an answer; None if unknown."""


@dataclass(frozen=True)
class Determinism:
    """The requests for which the target repeated its answer."""

    repeated: frozenset[str] = frozenset()
    """Keys with two equal answers and no whole answers that differ."""
    contradicted: frozenset[str] = frozenset()
    """Keys whose whole answers differ from each other."""
    probed: bool = False
    """True if the probe was answered twice alike and nothing in the run contradicts it."""
    steady: Mapping[str, int] = field(default_factory=dict)
    """By exchange, the number of other equal answers to its request; only requests that never had another
    answer.
    """
    unsteady: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """By exchange, two differing whole answers to its request under one condition."""
    varied: frozenset[str] = frozenset()
    """Exchanges whose identical request, streamed or whole, had another answer under the same condition."""
    whole: frozenset[str] = frozenset()
    """Exchanges with a complete answer that was not disturbed."""
    shown: Mapping[str, int] = field(default_factory=dict)
    """A number by exchange that is equal for equal results: the text, or the ids without a text."""
    ids: Mapping[str, int] = field(default_factory=dict)
    """A number by exchange that is equal for equal ids. Different ids may make the same text."""
    repetitions: int = 0
    """The number of whole answers that repeat an earlier request under the same condition."""
    contradictions: int = 0
    """The number of these that differ from the most frequent answer."""
    noise: Noise = field(default_factory=Noise)

    @property
    def random(self) -> bool:
        """True if the target seems to answer at random: at least every third repetition of a whole answer
        differs.

        Near ties cause far fewer.
        """
        return self.repetitions >= _MANY and 3 * self.contradictions >= self.repetitions

    def trusts(self, stream: Answer) -> bool:
        """True if an answer may be compared with others to the same request.

        A request with a seed is trusted only after the target repeated an answer.
        """
        key = stream.asked.key
        return bool(key) and (stream.asked.greedy or key in self.repeated)

    @property
    def anywhere(self) -> bool:
        return bool(self.repeated) or self.probed


@dataclass(frozen=True)
class AnswerPair:
    """Two answers whose requests must yield the same record.

    `baseline` is the whole answer if there is one. A chance difference is a violation only if the target
    repeated both (`spec/delivery.md`, determinism). Across targets, `baseline` is the worker's answer and
    `other` the gateway's; requests that refuse, fail or may differ are compared, too.
    """

    baseline: Answer
    other: Answer
    repeats: bool = True
    """True if both sides repeated themselves, so that ids, text and numbers may be compared."""
    steady: bool = False
    """True if a chance difference counts, because both answers were repeated or no request ever had two
    answers.
    """
    noise: Noise = field(default_factory=Noise)
    """The noise of both sides."""

    def load(self) -> Comparison:
        """Return the pair with the content of both answers."""
        return Comparison(self.baseline.load(), self.other.load(), self.repeats, self.steady, self.noise)


@dataclass(frozen=True)
class Comparison(AnswerPair):
    """A pair with its content, for checks to compare."""

    baseline: Stream
    other: Stream


def times_to_repeat(seen: Iterable[Determinism]) -> int:
    """Return the repetitions needed before a difference counts as a violation."""
    return OFTEN if any(side.unsteady or side.varied for side in seen) else 1


@dataclass(frozen=True)
class Doubt:
    """The reason why a chance difference alone is not a violation."""

    reason: str
    counted: bool = False
    """True if only answers other than the repeated whole one differ, so that the number of differences
    decides.
    """
    seldom: str = ""
    """The exchange whose answer was not repeated often enough."""


def doubt(exchanges: Iterable[str], seen: Iterable[Determinism], *, token: bool = False) -> Doubt | None:
    """Return the reason why a chance difference between these exchanges is not a violation; None if it is
    one.

    `token`: the difference is in an id or in text.
    """
    few, repeated = "", False
    known, names = list(seen), list(exchanges)
    enough = times_to_repeat(known)
    times = {name: max((side.steady.get(name, 0) for side in known), default=0) for name in names}
    for name in names:
        both = next((side.unsteady[name] for side in known if name in side.unsteady), None)
        if both is not None:
            first, second = both
            return Doubt(
                f"the target did not repeat itself: {first} and {second} are one request, "
                f"answered with different results; {_MEND}"
            )
        if times[name] < enough and (not few or times[name] < times[few]):
            few = name
        repeated = repeated or any(name in side.whole and side.steady.get(name) for side in known)
    if not few:
        return None
    alike = 1 + times[few]
    results = {side.shown[name] for name in names for side in known if name in side.shown}
    ids = {side.ids[name] for name in names for side in known if name in side.ids}
    unfinished = any(all(name not in side.shown for side in known) for name in names)
    often = "once" if alike == 1 else f"alike {alike} times, too few where others were answered in two ways"
    return Doubt(
        "the answers differ as two answers to one request may, and the target was not seen to repeat itself: "
        f"the request of {few} was answered {often}; {_MEND}",
        # Numbers alone move with the order of computing; the result of what was aborted is not known whole.
        counted=repeated and (len(results) > 1 or len(ids) > 1 or (unfinished and token)),
        seldom=few,
    )


def rarer_than(limit: float, differing: int, compared: int, seen: Iterable[Determinism]) -> bool:
    """True if the differences would be improbable at the rate of whole answers: Fisher's exact test,
    one-sided.

    `differing` of `compared` answers differ, and the probability must be less than `limit`.
    """
    known = list(seen)
    repetitions = sum(side.repetitions for side in known)
    every = differing + sum(side.contradictions for side in known)
    ways = sum(
        comb(compared, some) * comb(repetitions, every - some)
        for some in range(differing, min(every, compared) + 1)
    )
    return ways < limit * comb(compared + repetitions, every)


def completed(stream: Answer) -> bool:
    """True if the stream delivered its complete record, without an error or an abort."""
    return (
        stream.answered
        and stream.error is None
        and stream.exchange.ending is Ending.COMPLETE
        and all(choice.finish is not None and choice.finish.type != "abort" for choice in stream.choices)
    )


def request_of(stream: Answer) -> Hashable:
    """Return a key of requests for the same answer in the same form; None for a request that need not
    repeat.
    """
    asked = stream.asked
    if not asked.key:
        return None
    # What an answer is asked to tell counts, too: whether that changes the result is judged by
    # asking-for-more-changes-nothing.
    reported = (asked.logprobs, asked.logprob_start, asked.top_logprobs, asked.chosen_ids, asked.uniform)
    returned = (asked.return_prompt_token_ids, asked.return_token_ids, asked.return_meta_info)
    usage = (asked.usage, asked.continuous_usage)
    return (stream.dialect, asked.key, asked.stream, asked.stream_interval, *reported, *returned, *usage)


def _result(stream: Answer) -> tuple[Any, ...]:
    return tuple(
        (choice.index, choice.output_ids, choice.text, choice.finish.type if choice.finish else None)
        for choice in stream.choices
    )


def known_by(value: Any) -> int:
    """Return a key that is equal exactly for equal JSON values. Many cannot be hashed, and -1 and -2 have one
    hash.
    """
    # Version 2 of the format has no references, by which equal values would have other bytes.
    return hash(dumps(value, 2))


@fact(Stream)
def _known_result(stream: Stream) -> int:
    """Return a key of answers with the same result."""
    return known_by(_result(stream))


@fact(Stream)
def _known_ids(stream: Stream) -> int | None:
    """Return a key of answers with the same ids; None for an answer without ids."""
    ids = [(choice.index, choice.output_ids) for choice in stream.choices]
    return None if any(told is None for _, told in ids) else known_by(ids)


class _Answer(NamedTuple):
    """The compared parts of a complete answer to a repeatable request, small because a run may have many."""

    stream: Answer
    key: str
    form: int
    """A key of requests for one result in one form, whatever other outputs they enable."""
    request: int
    """A key of requests to the same weights for the same answer in the same form."""
    delivery: Hashable
    """The form of delivery, and the presence of ids and text. Results are compared only within one form."""
    result: int
    shown: int
    """A key of the result that does not depend on the amount of output: the text, or the ids without a
    text.
    """
    condition: Hashable
    """The condition of the answer (streamed, disturbed, after a refusal, cached, …). Only answers under one
    condition contradict each other.
    """

    @classmethod
    def of(cls, stream: Answer, weights: int | None, *, disturbed: bool, beside: str) -> _Answer:
        asked, result = stream.asked, _result(stream)
        carried = tuple(any(choice[position] is not None for choice in result) for position in (1, 2))
        return cls(
            stream,
            asked.key,
            hash((stream.dialect, asked.key, asked.stream, disturbed, beside, weights)),
            hash((request_of(stream), weights)),
            (asked.stream, asked.stream_interval, carried),
            _known_result(stream),
            known_by(
                tuple(
                    (position, ids if text is None else text, finish)
                    for position, ids, text, finish in result
                )
            ),
            # The cache key counts: cache-keys-change-nothing compares answers under two keys, and these must
            # not excuse each other.
            (asked.stream, disturbed, beside, not asked.stream and _was_cached(stream), asked.cache_key),
        )


def _grouped(things: Iterable[_Thing], known_by: Callable[[_Thing], Hashable]) -> Iterable[list[_Thing]]:
    """Group things by a key, in their order."""
    groups: dict[Hashable, list[_Thing]] = defaultdict(list)
    for thing in things:
        groups[known_by(thing)].append(thing)
    return groups.values()


def determinism(
    streams: Iterable[Answer],
    disturbed: Container[str] = (),
    weights: Weights = lambda _: 0,
    conditions: Mapping[str, str] = MappingProxyType({}),
) -> Determinism:
    """Find requests that were answered more than once by the same `weights`.

    disturbed: exchanges that a control call overlapped. conditions: other circumstances of an exchange that
    must not change the answer, such as an earlier refusal. Only whole answers under one condition contradict
    each other. Otherwise a fault of delivery, of the cache, or after a refusal would switch off the
    comparison that finds it.
    """
    answers = [
        _Answer.of(
            stream,
            weights(stream),
            disturbed=stream.exchange.name in disturbed,
            beside=conditions.get(stream.exchange.name, ""),
        )
        for stream in streams
        if stream.asked.key and completed(stream)
    ]
    repeated = set()
    probed = False
    # Some answer came twice: enough to call a request repeatable, however many others differ.
    for alike in _grouped(answers, attrgetter("key", "delivery")):
        if len({answer.result for answer in alike}) < len(alike):
            repeated.add(alike[0].key)
            probed = probed or any(answer.stream.exchange.scenario == PROBE for answer in alike)
    times = Counter((answer.form, answer.shown) for answer in answers)
    varied: set[str] = set()
    differences: list[Difference] = []
    for group in _grouped(answers, attrgetter("request", "condition")):
        if len({answer.result for answer in group}) > 1:
            varied |= {answer.stream.exchange.name for answer in group}
    for group in _grouped(answers, attrgetter("request")):
        # Only with the first: the time grows with the answers to a request, and not with their pairs.
        first, *others = (answer.stream for answer in group)
        differences += _numbers_apart(first, others)
    steady = {answer.stream.exchange.name: times[answer.form, answer.shown] - 1 for answer in answers}
    # Streams are left out: what a stream loses would pass for a server that does not repeat itself, and so
    # excuse the loss.
    whole = [
        answer
        for answer in answers
        if not (answer.stream.asked.stream or answer.stream.exchange.name in disturbed)
    ]
    contradicting, repetitions, contradictions = _contradicting(whole)
    contradicted = {key for _, key in contradicting}
    return Determinism(
        frozenset(repeated - contradicted),
        frozenset(contradicted),
        probed and not contradicted,
        {name: often for name, often in steady.items() if often and name not in varied},
        {
            answer.stream.exchange.name: both
            for answer in answers
            if (both := contradicting.get((answer.stream.dialect, answer.key))) is not None
        },
        frozenset(varied),
        frozenset(answer.stream.exchange.name for answer in whole),
        {answer.stream.exchange.name: answer.shown for answer in answers},
        {
            answer.stream.exchange.name: known
            for answer in answers
            if (known := _known_ids(answer.stream)) is not None
        },
        repetitions,
        contradictions,
        noise_of(differences),
    )


def _contradicting(
    whole: Iterable[_Answer],
) -> tuple[dict[tuple[str, str], tuple[str, str]], int, int]:
    """Return two contradicting answers for each dialect and key, the number of repetitions, and the number of
    unusual ones.

    A repetition is any answer after the first to one request under one condition. It is unusual if it is not
    the most frequent answer.
    """
    contradicting: dict[tuple[str, str], tuple[str, str]] = {}
    repetitions = contradictions = 0
    for group in _grouped(whole, attrgetter("request", "condition", "delivery")):
        last = {answer.result: answer.stream for answer in group}
        repetitions += len(group) - 1
        contradictions += len(group) - max(Counter(answer.result for answer in group).values())
        if len(last) > 1:
            first, second, *_ = last.values()
            names = first.exchange.name, second.exchange.name
            contradicting.setdefault((first.dialect, first.asked.key), names)
    return contradicting, repetitions, contradictions


def _was_cached(stream: Answer) -> bool:
    """True if part of the prompt came from the cache, as far as the answer reports it."""
    return any(choice.counter("cached_tokens") for choice in stream.choices)


def _numbers_apart(first: Answer, others: Iterable[Answer]) -> Iterable[Difference]:
    """Return the greatest distance of numbers at one place for each series, among answers to one request with
    the same result.
    """
    furthest: dict[str, float] = {}
    for other in others:
        theirs = {choice.index: choice for choice in other.choices}
        for choice in first.choices:
            twin = theirs.get(choice.index)
            if twin is None or (choice.output_ids, choice.text) != (twin.output_ids, twin.text):
                continue
            # Most choices tell equal numbers, which a fact shows: then neither is read again from its
            # capture.
            differing = _numbers(choice) != _numbers(twin)
            found = _series_apart(choice.load(), twin.load()) if differing else {}
            for name in _series_of_numbers(choice) & _series_of_numbers(twin):
                furthest[name] = max(furthest.get(name, 0.0), found.get(name, 0.0))
    return [Difference(first.asked.key, (first.dialect, name), most) for name, most in furthest.items()]


def _series_apart(first: Choice, other: Choice) -> dict[str, float]:
    ours, theirs = _of_prompt(first), _of_prompt(other)
    of_prompt = {name: _entries_apart(entries, theirs.get(name)) for name, entries in ours.items()}
    names = first.series_names & other.series_names - first.customized
    return of_prompt | {name: _entries_apart(first.series(name), other.series(name)) for name in names}


@fact(Choice)
def _series_of_numbers(choice: Choice) -> frozenset[str]:
    """Return the series whose numbers are compared, of output and prompt."""
    return choice.server_series | _of_prompt(choice).keys()


@fact(Choice)
def _numbers(choice: Choice) -> int:
    """Return a key that is equal for choices with the same numbers."""
    of_output = {name: choice.series(name) for name in sorted(choice.server_series)}
    of_prompt = _of_prompt(choice)
    return known_by((of_output, of_prompt)) if of_output or of_prompt else 0


def _of_prompt(choice: Choice) -> dict[str, Any]:
    """Return the prompt-side series of a choice, each from the emission that carries it first."""
    series: dict[str, Any] = {}
    for emission in reversed(choice.emissions):
        series |= emission.prompt_series
    return series


def _entries_apart(ours: Any, theirs: Any) -> float:
    """Return the greatest distance of logprobs in two series; 0 if they cover different positions."""
    both = isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)) and len(ours) == len(theirs)
    return max(map(apart, ours, theirs), default=0.0) if both and ours != theirs else 0.0


@fact(Stream)
def details_named(stream: Stream) -> frozenset[str]:
    """Return the names of the details in any choice of an answer."""
    emissions = (emission for choice in stream.choices for emission in choice.emissions)
    details = (detail for emission in emissions for detail in emission.details.items())
    return frozenset(name for name, value in details if value is not None)


def question(stream: Answer) -> tuple[str, str]:
    """Return the dialect and the label, because the same question has a different scenario for a gateway and
    its worker.
    """
    return stream.dialect, stream.exchange.label


def side_by_side(
    worker: Sequence[Answer],
    gateway: Sequence[Answer],
    asked: Callable[[Answer], tuple[str, str]] = question,
) -> list[AnswerPair]:
    """Pair a worker's answers with its gateway's answers to the same requests.

    `asked` returns the key of a request.
    """
    seen = (determinism(worker), determinism(gateway))
    noise, enough = seen[0].noise | seen[1].noise, times_to_repeat(seen)
    ours = {asked(stream): stream for stream in worker}
    pairs = []
    for theirs in gateway:
        baseline = ours.get(asked(theirs))
        if baseline is not None:
            both = list(zip((baseline, theirs), seen, strict=True))
            repeats = all(
                side.trusts(stream) and side.anywhere and stream.asked.key not in side.contradicted
                for stream, side in both
            )
            steady = enough == 1 or all(
                side.steady.get(stream.exchange.name, 0) >= enough for stream, side in both
            )
            pairs.append(AnswerPair(baseline, theirs, repeats, steady, noise))
    return pairs


class _Held(NamedTuple):
    """The parts of an answer that decide which other answers it is compared with."""

    position: int
    stream: Answer
    whole: bool
    interval: int | None
    series: frozenset[str]
    details: frozenset[str]
    result: int

    def nearness(self, other: _Held) -> tuple[int, bool, int, int]:
        series, details = self.series & other.series, self.details & other.details
        return len(series), self.result == other.result, len(details), -self.position


def _held(position: int, stream: Answer) -> _Held:
    series = frozenset(name for choice in stream.choices for name in choice.series_names)
    whole, interval = not stream.asked.stream, stream.asked.stream_interval
    return _Held(position, stream, whole, interval, series, details_named(stream), _known_result(stream))


def comparisons(
    streams: Iterable[Answer], seen: Determinism, weights: Weights = lambda _: 0
) -> list[AnswerPair]:
    """Pair each stream with a whole answer to the same request, and with a stream at another interval.

    The baseline is chosen by the most per-token series in common, then an equal result, then the most details
    in common. Among equals, the first is taken.
    """
    pairs: list[AnswerPair] = []
    known = (
        stream
        for stream in streams
        if seen.trusts(stream) and completed(stream) and weights(stream) is not None
    )
    for group in _grouped(known, lambda stream: (weights(stream), stream.asked.key)):
        reported = [_held(position, stream) for position, stream in enumerate(group)]
        whole, streamed = _Firsts(), _Firsts()
        for answer in reported:
            if answer.whole:
                whole.add(answer)
        for other in reported:
            if not other.whole:
                baselines = (whole.nearest(other), streamed.nearest(other))
                pairs += [
                    AnswerPair(baseline.stream, other.stream)
                    for baseline in baselines
                    if baseline is not None
                ]
                streamed.add(other)
    return pairs


class _Firsts:
    """The first answer of each combination of parts, for one request."""

    def __init__(self) -> None:
        self._alike: dict[Hashable, dict[int | None, _Held]] = {}

    def add(self, answer: _Held) -> None:
        first = self._alike.setdefault(
            (answer.whole, answer.interval, answer.series, answer.details), {None: answer}
        )
        first.setdefault(answer.result, answer)

    def nearest(self, other: _Held) -> _Held | None:
        """Return the answer with the most in common with another; if that is a stream, one of another
        interval.
        """
        known = (first.get(other.result, first[None]) for first in self._alike.values())
        apart = (answer for answer in known if answer.whole or answer.interval != other.interval)
        return max(apart, key=other.nearness, default=None)
