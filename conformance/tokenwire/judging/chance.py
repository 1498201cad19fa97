"""Chance: decides when a difference between two answers to one request is excused.

On some servers the arithmetic depends on the batch, the cache or the chunks of the prefill. Then a greedy
request may have two answers, because either of two nearly equal ids may be chosen. So a difference that may
be chance is a violation only if both requests were repeated with the same answer.

Only whole answers to one request under one condition show if a server repeats its answers. Streams, answers
beside a pause, and answers from the cache are under test, so they must not excuse themselves. If only these
differ, and the whole answer was repeated, the number of differences is compared with that of whole answers
(`fisher`).

`docs/guides/when-a-difference-is-excused.md` explains the rules for maintainers of servers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import comb
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from tokenwire.checks.evidence import Observation
from tokenwire.checks.reading.chance import limits_of, part_no_earlier, texts_alone
from tokenwire.judging.tally import Tally
from tokenwire.record import Answer, Stream, fact
from tokenwire.requirement import Level
from tokenwire.target.alike import known_by
from tokenwire.target.determinism import (
    PROBE,
    Weights,
    completed,
    grouped,
    known_result,
    request_of,
    result_of,
)
from tokenwire.target.noise import Difference, Noise, noise_of, numbers_apart

AGAIN = 2
"""The number of repetitions of an answer after which a chance difference counts as a violation."""
OFTEN = 6
"""The number of repetitions for a server that sometimes answers differently. There, a few equal answers prove
little.
"""
_MANY = 8
"""The minimum number of repetitions that can show that a server answers at random."""
_RARE = 0.01
"""The probability below which a number of differences is not chance."""
_MEND = (
    "start it so that greedy requests are repeatable (SGLang: --enable-deterministic-inference), "
    "or send one request at a time, with --max-concurrency 1"
)


class Condition(NamedTuple):
    """The circumstances of an answer, which must not change it.

    Only answers under the same condition contradict each other. Otherwise an error that depends on the
    condition would excuse itself.
    """

    streamed: bool
    disturbed: bool
    """True if a control request overlapped the exchange."""
    beside: str
    """Another circumstance, such as a refusal before it. Empty if there is none."""
    cached: bool
    """True if a whole answer reports cached prompt tokens."""
    cache_key: Hashable
    """The cache key of the request. It is part of the condition because cache-keys-change-nothing compares
    two keys.
    """

    @property
    def plain(self) -> bool:
        """True for a whole answer without an overlapping control request. Such answers show if the server
        repeats itself.
        """
        return not (self.streamed or self.disturbed)


@dataclass(frozen=True)
class Repetition:
    """The other answers to the request of an answer: how many are equal, and which differ."""

    condition: Condition
    alike: int
    """The number of other answers with the same content. 0 if `varied`."""
    varied: bool
    """True if the identical request had a different answer under the same condition."""
    differing: tuple[str, str] | None
    """The names of two exchanges with different whole answers under one condition. None if all are equal."""
    shown: int
    """A key of the text, or of the ids if there is no text. It does not depend on further output."""
    ids: int | None
    """A key of the ids, because different ids may form the same text. None if ids are not reported."""


@dataclass(frozen=True)
class Determinism:
    """The requests that were repeated, and how their answers compare."""

    repeated: frozenset[str] = frozenset()
    """Keys of requests that had two equal answers, and whose whole answers never differed."""
    contradicted: frozenset[str] = frozenset()
    """Keys of requests whose whole answers differed."""
    probed: bool = False
    """True if the probe request had the same answer twice, and no whole answers in the run differ."""
    by_exchange: Mapping[str, Repetition] = field(default_factory=dict)
    """The repetitions of each complete answer, by the name of its exchange."""
    repetitions: int = 0
    """The number of whole answers that repeat an earlier request under the same condition."""
    contradictions: int = 0
    """The number of these repetitions that differ from the most frequent answer."""
    noise: Noise = field(default_factory=Noise)
    repeated_ids: int = 0
    """The number of output ids in these repetitions."""

    @cached_property
    def in_two_ways(self) -> bool:
        """True if at least one request had two different answers under one condition."""
        return any(seen.varied or seen.differing for seen in self.by_exchange.values())

    @property
    def random(self) -> bool:
        """True if the server seems to answer at random: at least a third of the repeated whole answers
        differ.

        Near ties cause much smaller shares.
        """
        return self.repetitions >= _MANY and 3 * self.contradictions >= self.repetitions

    def trusts(self, stream: Answer) -> bool:
        """True if an answer may be compared with other answers to the same request.

        A sampled request with a seed may be compared only if the server repeated its answer.
        """
        key = stream.asked.key
        return bool(key) and (stream.asked.greedy or key in self.repeated)

    @property
    def anywhere(self) -> bool:
        return bool(self.repeated) or self.probed

    def alike(self, exchange: str) -> int:
        """Return the number of other answers to the request of an exchange that equal its answer."""
        return self.by_exchange[exchange].alike if exchange in self.by_exchange else 0

    def differing(self, exchange: str) -> tuple[str, str] | None:
        """Return the names of two exchanges with different whole answers to the same request. None if all are
        equal.
        """
        return self.by_exchange[exchange].differing if exchange in self.by_exchange else None


@fact(Stream)
def _known_ids(stream: Stream) -> int | None:
    """Return a key of the ids of an answer. None if it reports no ids."""
    ids = [(choice.index, choice.output_ids) for choice in stream.choices]
    return None if any(told is None for _, told in ids) else known_by(ids)


class _Repeatable(NamedTuple):
    """The parts of a complete answer that are compared.

    An object of this class is small, because a run may have many answers.
    """

    stream: Answer
    key: str
    form: int
    """A key of the request that leaves out further enabled outputs and concurrent requests."""
    request: int
    """A key of the identical request to the same weights."""
    delivery: Hashable
    """The delivery mode, and the presence of ids and text. Content is compared only within one such form."""
    result: int
    shown: int
    ids: int | None
    """A key of the ids. None if ids are not reported."""
    condition: Condition

    @classmethod
    def of(cls, stream: Answer, weights: int | None, *, disturbed: bool, beside: str) -> _Repeatable:
        asked, result = stream.asked, result_of(stream)
        carried = tuple(any(choice[position] is not None for choice in result) for position in (1, 2))
        shown = [(position, ids if text is None else text, finish) for position, ids, text, finish in result]
        cached = any(choice.counter("cached_tokens") for choice in stream.choices)
        return cls(
            stream,
            asked.key,
            hash((stream.dialect, asked.key, asked.stream, disturbed, weights)),
            hash((request_of(stream), weights)),
            (asked.stream, asked.stream_interval, carried),
            known_result(stream),
            known_by(tuple(shown)),
            _known_ids(stream),
            Condition(asked.stream, disturbed, beside, not asked.stream and cached, asked.cache_key),
        )

    @property
    def name(self) -> str:
        return self.stream.exchange.name


def determinism(
    streams: Iterable[Answer],
    disturbed: Container[str] = (),
    weights: Weights = lambda _: 0,
    conditions: Mapping[str, str] = MappingProxyType({}),
) -> Determinism:
    """Find the requests that were repeated with the same weights, and compare their answers.

    disturbed: names of exchanges that a control request overlapped. conditions: further circumstances of
    exchanges that must not change the answer (`Condition.beside`).
    """
    answers = [
        _Repeatable.of(
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
    # Two equal answers make a request repeatable, even if other answers differ.
    for alike in grouped(answers, attrgetter("key", "delivery")):
        if len({answer.result for answer in alike}) < len(alike):
            repeated.add(alike[0].key)
            probed = probed or any(answer.stream.exchange.scenario == PROBE for answer in alike)
    varied: set[str] = set()
    for group in grouped(answers, attrgetter("request", "condition")):
        if len({answer.result for answer in group}) > 1:
            varied |= {answer.name for answer in group}
    differences: list[Difference] = []
    for group in grouped(answers, attrgetter("request")):
        # Each answer is compared with the first one only, so that the time grows linearly with the number of
        # answers.
        first, *others = (answer.stream for answer in group)
        differences += numbers_apart(first, others)
    contradicting, repetitions, contradictions, repeated_ids = _contradicting(answers)
    contradicted = {key for _, key in contradicting}
    shown = Counter((answer.form, answer.shown) for answer in answers)
    times = Counter((answer.form, answer.shown, answer.ids) for answer in answers)

    def alike_to(answer: _Repeatable) -> int:
        """Return the number of other answers with the same text, and with the same ids where both report ids.

        Their conditions may differ, because a confirmation is sent alone.
        """
        if answer.ids is None:
            return shown[answer.form, answer.shown] - 1
        there = (answer.form, answer.shown)
        return times[*there, answer.ids] + times[*there, None] - 1

    return Determinism(
        frozenset(repeated - contradicted),
        frozenset(contradicted),
        probed and not contradicted,
        {
            answer.name: Repetition(
                answer.condition,
                0 if answer.name in varied else alike_to(answer),
                answer.name in varied,
                contradicting.get((answer.stream.dialect, answer.key)),
                answer.shown,
                answer.ids,
            )
            for answer in answers
        },
        repetitions,
        contradictions,
        noise_of(differences),
        repeated_ids,
    )


def _contradicting(
    answers: Iterable[_Repeatable],
) -> tuple[dict[tuple[str, str], tuple[str, str]], int, int, int]:
    """Return two contradicting answers for each dialect and key, and three counts.

    The counts are the number of repetitions, the number that differ from the most frequent answer, and the
    number of ids in all repetitions. A repetition is any further whole answer to one request under one
    condition. Streams are left out, because text that a stream loses must not excuse itself.
    """
    contradicting: dict[tuple[str, str], tuple[str, str]] = {}
    repetitions = contradictions = ids = 0
    whole = (answer for answer in answers if answer.condition.plain)
    for group in grouped(whole, attrgetter("request", "condition", "delivery")):
        last = {answer.result: answer.name for answer in group}
        repetitions += len(group) - 1
        ids += sum(_ids_in(answer.stream) for answer in group[1:])
        contradictions += len(group) - max(Counter(answer.result for answer in group).values())
        if len(last) > 1:
            first, second, *_ = last.values()
            contradicting.setdefault((group[0].stream.dialect, group[0].key), (first, second))
    return contradicting, repetitions, contradictions, ids


def _ids_in(stream: Answer) -> int:
    return sum(len(choice.output_ids or ()) for choice in stream.choices)


def times_to_repeat(seen: Iterable[Determinism]) -> int:
    """Return how often an answer must be repeated before a difference counts as a violation."""
    return OFTEN if any(side.in_two_ways for side in seen) else 1


@dataclass(frozen=True)
class Doubt:
    """The reason why a chance difference is not a violation by itself."""

    reason: str
    counted: bool = False
    """True if the number of differences decides, because only answers other than the repeated whole answer
    differ.
    """
    seldom: str = ""
    """The name of the exchange whose answer was not repeated often enough."""
    aborted_ids: int = 0
    """The number of ids of an aborted answer that differs from a whole answer without repetition. Otherwise
    0.
    """


def doubt(
    difference: Observation, answers: Mapping[str, Answer], seen: tuple[Determinism, ...]
) -> Doubt | None:
    """Return the reason why a difference is not a violation by itself. None if it is a violation.

    `answers` are the answers of the run by exchange. The first of `seen` belongs to the server under test.
    """
    if not difference.by_chance and not _parts_as_whole_answers_do(difference, answers, seen[0]):
        return None
    places = (difference.place, *difference.related)
    names = dict.fromkeys(place.exchange for place in places if place.exchange in answers)
    token = isinstance(
        difference.expected, (int, str)
    )  # the difference is in an id or a text, not in an entry of a series
    why = doubt_between(names, seen, token=token)
    if why is None or why.counted or not why.seldom or not isinstance(difference.expected, int):
        return why
    aborted = (answers[name] for name in names if all(name not in side.by_exchange for side in seen))
    return replace(why, aborted_ids=max(map(_ids_in, aborted), default=0))


def _parts_as_whole_answers_do(
    difference: Observation, answers: Mapping[str, Answer], seen: Determinism
) -> bool:
    """True if two texts agree as far as two whole answers to the same request, or if the server seems to
    answer at random. Without ids, a text that is a part of another one looks like a loss. Such a text proves
    no loss if whole answers differ from the same position on.
    """
    texts = (difference.expected, difference.actual)
    if not difference.related or not all(isinstance(text, str) for text in texts):
        return False
    pair = [answers.get(place.exchange) for place in (difference.related[0], difference.place)]
    if None in pair or pair[0] is pair[1]:
        return False
    first, second = (stream.load() for stream in pair if stream is not None)
    if limits_of(first) != limits_of(second):
        return False
    if seen.random and texts_alone(first, second):
        return True
    both = seen.differing(first.exchange.name) or seen.differing(second.exchange.name)
    if both is None:
        return False
    whole = [answers[name].load() for name in both]
    return part_no_earlier((first, second), (whole[0], whole[1]))


def doubt_between(
    exchanges: Iterable[str], seen: Iterable[Determinism], *, token: bool = False
) -> Doubt | None:
    """Return the reason why a chance difference between these exchanges is not a violation. None if it is a
    violation.

    `token`: True if the difference is in an id or in text.
    """
    known, names = list(seen), list(exchanges)
    enough = times_to_repeat(known)
    few, times = "", {name: max((side.alike(name) for side in known), default=0) for name in names}
    for name in names:
        both = next(filter(None, (side.differing(name) for side in known)), None)
        if both is not None:
            first, second = both
            return Doubt(
                f"the target did not repeat itself: {first} and {second} are one request, "
                f"answered with different results; {_MEND}"
            )
        if times[name] < enough and (not few or times[name] < times[few]):
            few = name
    if not few:
        return None
    rows = [side.by_exchange[name] for name in names for side in known if name in side.by_exchange]
    ids = {row.ids for row in rows if row.ids is not None}
    unfinished = any(all(name not in side.by_exchange for side in known) for name in names)
    repeated = any(row.condition.plain and row.alike for row in rows)
    alike = 1 + times[few]
    often = (
        "once"
        if alike == 1
        else f"alike {alike} times, which is too few because other requests had two answers"
    )
    return Doubt(
        "the difference may be chance, and no repetition shows otherwise: "
        f"the request of {few} was answered {often}; {_MEND}",
        # Numbers alone change with the order of computation, and the content of an aborted answer is
        # incomplete.
        counted=repeated and (len({row.shown for row in rows}) > 1 or len(ids) > 1 or (unfinished and token)),
        seldom=few,
    )


def fisher(differing: int, compared: int, contradictions: int, repetitions: int) -> float:
    """Return the probability of at least `differing` differences, by Fisher's exact test, one-sided.

    It assumes that the `compared` answers differ as often as repeated whole answers, of which
    `contradictions` of `repetitions` differ.
    """
    every = differing + contradictions
    some = max(differing, every - repetitions)
    ways = total = comb(compared, some) * comb(repetitions, every - some)
    for some in range(some, min(every, compared)):  # noqa: B020  # computes each term from the one before
        ways = ways * (compared - some) * (every - some) // ((some + 1) * (repetitions - every + some + 1))
        total += ways
    return total / comb(compared + repetitions, every)


class Chance:
    """The differences that one check found in a run, each decided as a violation or as chance.

    If only answers other than a repeated whole answer differ, their number decides. The differences are
    violations if chance does not explain their number. If whole answers never differed, each difference is at
    least a SHOULD, because a race is an error even if it happens once.
    """

    def __init__(
        self,
        doubt: Callable[[Observation], Doubt | None],
        seen: Callable[[], Iterable[Determinism]],
        tallies: Iterable[Tally],
    ) -> None:
        self._doubt = doubt
        self._seen = seen
        self._tallies = tuple(tallies)

    def weigh(self, difference: Observation) -> Observation | Doubt:
        """Return the violation if a difference counts as a violation.

        Otherwise return the reason why it does not count.
        """
        why = self._doubt(difference)
        if why is not None and why.aborted_ids:
            probability, words = self._share_of_aborted
            if probability >= _RARE:
                return Doubt(f"{why.reason}; {words}")
            return difference._replace(message=f"{difference.message}; {words}")
        if why is None or not why.counted:
            return why or difference
        probability, contradictions, words = self._share
        if probability >= _RARE and contradictions:
            return Doubt(f"{why.reason}; {words}")
        level = difference.level if probability < _RARE else Level.SHOULD
        return difference._replace(level=level, message=f"{difference.message}; {words}")

    def _doubts(self) -> Iterator[tuple[Observation, Doubt]]:
        """Yield the differences that may be chance, each with the reason."""
        for found in (found for seen in self._tallies for found in seen.differing):
            if (why := self._doubt(found.observation)) is not None:
                yield found.observation, why

    def _compared(self, counted: Collection[Observation], answers: int) -> int:
        """Return the number of answers that were compared.

        Several observations (ids, text, numbers) belong to one answer. So observations are scaled by the
        share of answers in them.
        """
        total = sum(seen.witnesses for seen in self._tallies)
        return max(answers, total * answers // max(1, sum(seen.witnesses for seen in counted)))

    @cached_property
    def _share_of_aborted(self) -> tuple[float, str]:
        """The probability of this number of differing aborted answers, and a description of it.

        No whole answer was repeated, and aborted answers differ in length from repeated ones. So the ids are
        counted, because two answers may diverge at any id.
        """
        counted = [(difference, why) for difference, why in self._doubts() if why.aborted_ids]
        sizes = {why.seldom: why.aborted_ids for _, why in counted}
        compared = self._compared([difference for difference, _ in counted], len(sizes))
        ids = sum(sizes.values()) * compared // len(sizes)
        contradictions = sum(side.contradictions for side in self._seen())
        repeated = max(contradictions, sum(side.repeated_ids for side in self._seen()))
        words = (
            f"{len(sizes)} of {compared} aborted answers differ, within {ids} ids, and {contradictions} "
            f"repetitions of whole answers within {repeated}"
        )
        return fisher(len(sizes), ids, contradictions, repeated), words

    @cached_property
    def _share(self) -> tuple[float, int, str]:
        """The probability of this number of differences, the number of contradictions, and a description of
        both.
        """
        counted = [(difference, why.seldom) for difference, why in self._doubts() if why.counted]
        # Differences are counted by their baseline, because one unusual baseline may differ from fifty
        # answers.
        answers = len({seldom for _, seldom in counted})
        compared = self._compared([difference for difference, _ in counted], answers)
        repetitions = sum(side.repetitions for side in self._seen())
        contradictions = sum(side.contradictions for side in self._seen())
        words = (
            f"{answers} of {compared} answers differ from one that was repeated, and {contradictions} of "
            f"{repetitions} repetitions of whole answers"
        )
        return fisher(answers, compared, contradictions, repetitions), contradictions, words
