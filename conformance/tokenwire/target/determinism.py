"""Determinism: where the target was seen to repeat itself, so that answers may be held against each other.

A server whose arithmetic depends on the batch, the cache or the chunking of the prefill may answer a greedy
request in two ways: where two ids are as good as equally likely, either may win. So what two answers differ
in by chance is a violation where each of the two requests was asked again, and was answered as before.

Whether a target repeats itself is learnt from whole answers to one request under one condition alone. A
stream that differs from the whole answer, an answer beside a pause or from the cache: these are what is
tested, and would excuse themselves. Where only such an answer differs, and the whole one was repeated, the
differences are counted beside those of whole answers (`rarer_than`).
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
"""So often an answer is asked for again that differs from another by chance, before the target is blamed."""
OFTEN = 6
"""And so often where the target was seen not to repeat itself: few alike answers prove little there."""
_MANY = 8
"""The repetitions that show if a target answers as at random."""
_MEND = (
    "start it so that greedy requests are repeatable (SGLang: --enable-deterministic-inference), "
    "or ask it alone, with --max-concurrency 1"
)


Thing = TypeVar("Thing")
Weights = Callable[[Answer], int | None]
"""Which weights made an answer, by number; None where that is not known."""


@dataclass(frozen=True)
class Determinism:
    """Requests that the target answered alike when asked again."""

    repeated: frozenset[str] = frozenset()
    """Keys of which two answers were alike, and no whole answers differed."""
    contradicted: frozenset[str] = frozenset()
    """Keys whose whole answers differed from each other."""
    probed: bool = False
    """The probe was answered twice alike, and nothing in the run contradicts it."""
    steady: Mapping[str, int] = field(default_factory=dict)
    """How often the request of an exchange was answered alike beside it, where its very request never was
    otherwise.
    """
    unsteady: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Exchanges whose request was answered whole in two ways under one condition, each with two such."""
    varied: frozenset[str] = frozenset()
    """Exchanges whose very request was answered otherwise too under their condition, streams among them."""
    whole: frozenset[str] = frozenset()
    """The exchanges that were answered whole, and undisturbed."""
    shown: Mapping[str, int] = field(default_factory=dict)
    """What the answers of exchanges show, equal where it is equal: their text, or their ids without one."""
    ids: Mapping[str, int] = field(default_factory=dict)
    """The same of ids alone, of the answers that tell them: other ids may make the same text."""
    repetitions: int = 0
    """Of whole answers to one request under one condition, how many came behind a first."""
    contradictions: int = 0
    """How many of these were not the most frequent of their answers."""
    noise: Noise = field(default_factory=Noise)

    @property
    def random(self) -> bool:
        """True if the target answers as at random: every third whole answer to a request that was asked again
        was another one. Near ties make far fewer.
        """
        return self.repetitions >= _MANY and 3 * self.contradictions >= self.repetitions

    def trusts(self, stream: Answer) -> bool:
        """True if an answer may be compared with others to the same request.

        A request with a seed is not assumed to repeat its answer until the target was seen to do so.
        """
        key = stream.asked.key
        return bool(key) and (stream.asked.greedy or key in self.repeated)

    @property
    def anywhere(self) -> bool:
        return bool(self.repeated) or self.probed


@dataclass(frozen=True)
class AnswerPair:
    """Two answers whose requests must yield the same record.

    `baseline` is the whole answer where there is one. What they differ in by chance is a violation only where
    the target was seen to repeat both (`spec/delivery.md`, determinism). Across targets, `baseline` is the
    worker's answer and `other` the gateway's, and requests are compared that refuse, fail or may differ too.
    """

    baseline: Answer
    other: Answer
    repeats: bool = True
    """Both sides were seen to repeat themselves, so that ids, text and numbers may be compared."""
    steady: bool = False
    """Both answers were given again, or nothing was seen to be answered in two ways: what the two differ in
    by chance is a difference.
    """
    noise: Noise = field(default_factory=Noise)
    """That of both sides."""

    def load(self) -> Comparison:
        """The same with the content of both."""
        return Comparison(self.baseline.load(), self.other.load(), self.repeats, self.steady, self.noise)


@dataclass(frozen=True)
class Comparison(AnswerPair):
    """A pair that checks compare, with its content."""

    baseline: Stream
    other: Stream


def times_to_repeat(seen: Iterable[Determinism]) -> int:
    """Return the repetitions needed before a difference counts as a violation."""
    return OFTEN if any(side.unsteady or side.varied for side in seen) else 1


@dataclass(frozen=True)
class Doubt:
    """The reason why a difference by chance is not a violation in itself."""

    reason: str
    counted: bool = False
    """The whole answer was repeated, and only the other differs: how many do so decides."""
    seldom: str = ""
    """The exchange whose answer was given too seldom to be no matter of chance."""


def doubt(exchanges: Iterable[str], seen: Iterable[Determinism], *, token: bool = False) -> Doubt | None:
    """Explain why a difference by chance between these exchanges is not a violation; None if it is one.
    `token`: they differ in an id or in text.
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
    """True if `differing` of `compared` answers would differ with less than this probability if whole answers
    to one request differed as often: Fisher's exact test, one-sided.
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
    """True if the stream delivered a record to its end: all of it, without an error or an abort."""
    return (
        stream.answered
        and stream.error is None
        and stream.exchange.ending is Ending.COMPLETE
        and all(choice.finish is not None and choice.finish.type != "abort" for choice in stream.choices)
    )


def request_of(stream: Answer) -> Hashable:
    """Equal for requests that ask for the same answer in the same form; None for one that need not repeat."""
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
    """Equal for equal JSON values, and for no others: many cannot be hashed, and -1 and -2 have one hash."""
    # Version 2 of the format has no references, by which equal values would have other bytes.
    return hash(dumps(value, 2))


@fact(Stream)
def _known_result(stream: Stream) -> int:
    """Equal for answers of one result."""
    return known_by(_result(stream))


@fact(Stream)
def _known_ids(stream: Stream) -> int | None:
    """Return what is equal for answers of the same ids; None for an answer without ids."""
    ids = [(choice.index, choice.output_ids) for choice in stream.choices]
    return None if any(told is None for _, told in ids) else known_by(ids)


class _Answer(NamedTuple):
    """The compared parts of a complete answer to a request that must be repeatable: a run may have many."""

    stream: Answer
    key: str
    form: int
    """Equal for requests for one result in one form, whatever else they ask to get."""
    request: int
    """Equal for requests that ask the same weights for the same answer in the same form."""
    delivery: Hashable
    """How it travelled, and which of ids and text it carries: results are compared where that is the same."""
    result: int
    shown: int
    """What answers show that tell more or less of one result: the text, or the ids where there is none."""
    condition: Hashable
    """Under which answers contradict each other: whole or streamed, disturbed, behind a refusal, cached, …"""

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


def _grouped(things: Iterable[Thing], known_by: Callable[[Thing], Hashable]) -> Iterable[list[Thing]]:
    """Group things by what they are known by, in their order."""
    groups: dict[Hashable, list[Thing]] = defaultdict(list)
    for thing in things:
        groups[known_by(thing)].append(thing)
    return groups.values()


def determinism(
    streams: Iterable[Answer],
    disturbed: Container[str] = (),
    weights: Weights = lambda _: 0,
    conditions: Mapping[str, str] = MappingProxyType({}),
) -> Determinism:
    """Look for requests that were answered more than once, by the same `weights`.

    disturbed: exchanges that a control call overlapped. conditions: what else was so of an exchange that may
    change no answer, such as a refusal before it. Only whole answers under one condition contradict each
    other: streams of one request may differ through a fault of delivery, an answer from the cache through a
    fault of the cache, and one behind a refusal by what that left behind. Such a fault must not switch off
    the comparison that finds it.
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
    """Two answers to one request under one condition that differ, by dialect and key; how many answers came
    behind the first to their request, and how many of these were not the most frequent.
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
    """True if any of the prompt came from the cache, as far as the answer reports it."""
    return any(choice.counter("cached_tokens") for choice in stream.choices)


def _numbers_apart(first: Answer, others: Iterable[Answer]) -> Iterable[Difference]:
    """Return how far apart numbers at one place of answers to one request are at most, for each series, as
    far as their results are the same.
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
    """The series whose numbers are compared, of output and prompt."""
    return choice.server_series | _of_prompt(choice).keys()


@fact(Choice)
def _numbers(choice: Choice) -> int:
    """Return a key that is equal for choices with the same numbers."""
    of_output = {name: choice.series(name) for name in sorted(choice.server_series)}
    of_prompt = _of_prompt(choice)
    return known_by((of_output, of_prompt)) if of_output or of_prompt else 0


def _of_prompt(choice: Choice) -> dict[str, Any]:
    """Return the prompt-side series of a choice, each as it is where it comes first."""
    series: dict[str, Any] = {}
    for emission in reversed(choice.emissions):
        series |= emission.prompt_series
    return series


def _entries_apart(ours: Any, theirs: Any) -> float:
    """Return how far apart the logprobs of two series are at most; 0 if they are not of the same
    positions.
    """
    both = isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)) and len(ours) == len(theirs)
    return max(map(apart, ours, theirs), default=0.0) if both and ours != theirs else 0.0


@fact(Stream)
def details_named(stream: Stream) -> frozenset[str]:
    """Return the names of the details in any choice of an answer."""
    emissions = (emission for choice in stream.choices for emission in choice.emissions)
    details = (detail for emission in emissions for detail in emission.details.items())
    return frozenset(name for name, value in details if value is not None)


def question(stream: Answer) -> tuple[str, str]:
    """Dialect and label: a gateway and its worker are asked the same in two scenarios."""
    return stream.dialect, stream.exchange.label


def side_by_side(
    worker: Sequence[Answer],
    gateway: Sequence[Answer],
    asked: Callable[[Answer], tuple[str, str]] = question,
) -> list[AnswerPair]:
    """Pair a worker's answers with its gateway's answers to the same requests.

    `asked` returns what identifies a request.
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
    """Parts of an answer that decide if another one is compared with it."""

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

    The baseline is the answer that has the most per-token series in common with the other, and of several
    one with the same result, and then one with the most details in common. Of those that are alike in all
    this it is the first, and no other is looked at.
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
    """The first of the answers to one request with the same parts."""

    def __init__(self) -> None:
        self._alike: dict[Hashable, dict[int | None, _Held]] = {}

    def add(self, answer: _Held) -> None:
        first = self._alike.setdefault(
            (answer.whole, answer.interval, answer.series, answer.details), {None: answer}
        )
        first.setdefault(answer.result, answer)

    def nearest(self, other: _Held) -> _Held | None:
        """The one that has the most in common with another, of another interval where it is a stream."""
        known = (first.get(other.result, first[None]) for first in self._alike.values())
        apart = (answer for answer in known if answer.whole or answer.interval != other.interval)
        return max(apart, key=other.nearness, default=None)
