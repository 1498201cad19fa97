"""Determinism: where the target was seen to repeat itself, so that answers may be held against each other.

A server whose arithmetic depends on the batch, the cache or the chunking of the prefill may answer a greedy
request in two ways: where two ids are as good as equally likely, either may win. So what two answers differ
in by chance is a violation only where each of the two requests was asked again, and was answered as before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenwire.record import Choice, Stream, in_short
from tokenwire.target.alike import ROUNDING, apart
from tokenwire.wire.exchange import Ending
from tokenwire.wire.json_pointer import ABSENT

PROBE = "probe"
"""The scenario whose repetition stands for the whole run."""
AGAIN = 2
"""So often an answer is asked for again that differs from another by chance, before the target is blamed."""
OFTEN = 6
"""And so often where the target was seen not to repeat itself: few alike answers prove little there."""
_OF_NOISE = 4
"""Numbers may differ by so many times the most by which the target's own repetitions do."""
_MEND = (
    "start it so that greedy requests are repeatable (SGLang: --enable-deterministic-inference), "
    "or ask it alone, with --max-concurrency 1"
)


@dataclass(frozen=True)
class Determinism:
    """Which requests the target answered alike when asked again."""

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
    unsteady: Mapping[str, str] = field(default_factory=dict)
    """Exchanges whose very request was answered otherwise too, each with one that was."""
    noise: float = 0.0
    """How far apart numbers at one place of repeated answers were at most, in whatever dialect."""

    def trusts(self, stream: Stream) -> bool:
        """Whether an answer may be held against others to the same request.

        A request with a seed is not taken to repeat its answer until the target was seen to do so.
        """
        key = stream.asked.key
        return bool(key) and (stream.asked.greedy or key in self.repeated)

    @property
    def anywhere(self) -> bool:
        return bool(self.repeated) or self.probed

    @property
    def rounding(self) -> float:
        """How far numbers of two answers may lie apart."""
        return max(ROUNDING, _OF_NOISE * self.noise)


@dataclass(frozen=True)
class Comparison:
    """Two streams whose requests must yield the same record.

    `baseline` is the whole answer where there is one. What they differ in by chance is a violation only where
    the target was seen to repeat both (`spec/delivery.md`, determinism). Across targets, `baseline` is the
    worker's answer and `other` the gateway's, and requests are compared that refuse, fail or may differ too.
    """

    baseline: Stream
    other: Stream
    repeats: bool = True
    """Both sides were seen to repeat themselves, so that ids, text and numbers may be compared."""
    steady: bool = False
    """Both answers were given again, or nothing was seen to be answered in two ways: what the two differ in
    by chance is a difference.
    """
    rounding: float = ROUNDING
    """How far numbers of the two may lie apart."""


def _enough(seen: Iterable[Determinism]) -> int:
    """How often a request has to be answered alike once more to be no matter of chance."""
    return OFTEN if any(one.unsteady for one in seen) else 1


def doubt(exchanges: Iterable[str], seen: Iterable[Determinism]) -> str:
    """Why a difference by chance between these exchanges is no violation, in words; empty where it is one."""
    few = ""
    known = list(seen)
    enough = _enough(known)
    for name in exchanges:
        other = next((one.unsteady[name] for one in known if name in one.unsteady), None)
        if other is not None:
            return (
                f"the target did not repeat itself: {name} and {other} are one request, "
                f"answered with different results; {_MEND}"
            )
        if all(one.steady.get(name, 0) < enough for one in known):
            few = few or name
    if not few:
        return ""
    alike = 1 + max((one.steady.get(few, 0) for one in known), default=0)
    often = "once" if alike == 1 else f"alike {alike} times, too few where others were answered in two ways"
    return (
        "the answers differ as two answers to one request may, and the target was not seen to repeat itself: "
        f"the request of {few} was answered {often}; {_MEND}"
    )


def completed(stream: Stream) -> bool:
    """Whether the stream delivered a record to its end: all of it, without an error or an abort."""
    return (
        stream.answered
        and stream.error is None
        and stream.exchange.ending is Ending.COMPLETE
        and all(choice.finish is not None and choice.finish.type != "abort" for choice in stream.choices)
    )


def request_of(stream: Stream) -> Hashable:
    """Equal for requests that ask for the same answer in the same form; None for one that need not repeat."""
    asked = stream.asked
    if not asked.key:
        return None
    told = (asked.logprobs, asked.logprob_start, asked.top_logprobs, asked.chosen_ids, asked.uniform)
    returned = (asked.prompt_token_ids, asked.response_token_ids, asked.meta_info)
    usage = (asked.usage, asked.continuous_usage)
    return (stream.dialect, asked.key, asked.stream, asked.stream_interval, *told, *returned, *usage)


def _result(stream: Stream) -> tuple[Any, ...]:
    return tuple(
        (choice.index, choice.output_ids, choice.text, choice.finish.type if choice.finish else None)
        for choice in stream.choices
    )


def _forms(stream: Stream) -> Hashable:
    """Equal for requests for one result in one form, whatever else they ask to be told."""
    asked = stream.asked
    return (stream.dialect, asked.key, asked.stream) if asked.key else None


def _shown(stream: Stream) -> tuple[Any, ...]:
    """What answers show that tell more or less of one result: the text, or the ids where there is none."""
    return tuple(
        (index, ids if text is None else text, finish) for index, ids, text, finish in _result(stream)
    )


def _grouped(
    streams: Iterable[Stream], known_by: Callable[[Stream], Hashable]
) -> dict[Hashable, list[Stream]]:
    """The complete answers, those together that are known by the same."""
    groups: dict[Hashable, list[Stream]] = defaultdict(list)
    for stream in streams:
        if (name := known_by(stream)) and completed(stream):
            groups[name].append(stream)
    return groups


def _carried(stream: Stream) -> tuple[bool, bool]:
    """Which of ids and text the answer carries; results are compared only where they carry the same."""
    return (
        any(choice.output_ids is not None for choice in stream.choices),
        any(choice.text is not None for choice in stream.choices),
    )


def determinism(streams: Iterable[Stream]) -> Determinism:
    """Look for requests that were answered more than once.

    Only whole answers can contradict each other's key: streams of one request may differ through a fault of
    delivery, and that fault must not switch off the comparison that finds it.
    """
    known = list(streams)
    repeated, contradicted = set(), set()
    probed = False
    for key, group in _grouped(known, lambda stream: stream.asked.key).items():
        alike: dict[tuple[Any, ...], list[Stream]] = defaultdict(list)
        for stream in group:
            alike[stream.asked.stream, stream.asked.stream_interval, _carried(stream)].append(stream)
        for (streamed, *_), same_delivery in alike.items():
            kinds = _kinds(map(_result, same_delivery))
            if not streamed and any(kinds):
                contradicted.add(str(key))
            elif len(set(kinds)) < len(kinds):
                repeated.add(str(key))
                probed = probed or any(stream.exchange.scenario == PROBE for stream in same_delivery)
    steady: dict[str, int] = {}
    for group in _grouped(known, _forms).values():
        kinds = _kinds(map(_shown, group))
        times = Counter(kinds)
        steady |= {one.exchange.name: times[kind] - 1 for one, kind in zip(group, kinds, strict=True)}
    unsteady: dict[str, str] = {}
    furthest = 0.0
    for group in _grouped(known, request_of).values():
        kinds = _kinds(map(_result, group))
        last = dict(zip(kinds, group, strict=True))
        for one, kind in zip(group, kinds, strict=True) if len(last) > 1 else ():
            unsteady[one.exchange.name] = next(last[k].exchange.name for k in last if k != kind)
        furthest = max((furthest, *(_numbers_apart(group[0], stream) for stream in group[1:])))
    return Determinism(
        frozenset(repeated - contradicted),
        frozenset(contradicted),
        probed and not contradicted,
        {name: times for name, times in steady.items() if times and name not in unsteady},
        unsteady,
        furthest,
    )


def _kinds(values: Iterable[Any]) -> list[int]:
    """Of what kind each value is, where equal ones are of one, counted from 0 in the order of the first ones.

    JSON values cannot all be hashed; there are few kinds, and so few comparisons.
    """
    firsts: list[Any] = []
    kinds: list[int] = []
    for value in values:
        kinds.append(next((kind for kind, first in enumerate(firsts) if first == value), len(firsts)))
        if kinds[-1] == len(firsts):
            firsts.append(value)
    return kinds


def _numbers_apart(one: Stream, other: Stream) -> float:
    """How far numbers at one place of two answers lie apart at most, as far as their results are the same."""
    others = {choice.index: choice for choice in other.choices}
    pairs = [(choice, others[choice.index]) for choice in one.choices if choice.index in others]
    return max((_series_apart(*pair) for pair in pairs), default=0.0)


def _series_apart(one: Choice, other: Choice) -> float:
    if one.output_ids != other.output_ids or one.text != other.text:
        return 0.0
    furthest = 0.0
    for name in one.series_names & other.series_names - one.customized:
        furthest = max(furthest, _entries_apart(one.series(name), other.series(name)))
    theirs = _of_prompt(other)
    for name, entries in _of_prompt(one).items():
        furthest = max(furthest, _entries_apart(entries, theirs.get(name)))
    return furthest


def _of_prompt(choice: Choice) -> dict[str, Any]:
    """The prompt-side series of a choice, each as it stands where it comes first."""
    columns = choice.columns.prompt_series.items()
    return {name: next(one for one in column if one is not ABSENT) for name, column in columns}


def _entries_apart(ours: Any, theirs: Any) -> float:
    """How far the logprobs of two series lie apart at most; 0 where they are not of the same positions."""
    both = isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)) and len(ours) == len(theirs)
    return max(map(apart, ours, theirs), default=0.0) if both and ours != theirs else 0.0


def _series_in_common(one: Stream, other: Stream) -> int:
    names = [{name for choice in stream.choices for name in choice.series_names} for stream in (one, other)]
    return len(names[0] & names[1])


def _details_in_common(one: Stream, other: Stream) -> int:
    """How many details both hold, such as arrays that few requests ask for."""
    return len(details_named(one) & details_named(other))


@in_short(Stream)
def details_named(stream: Stream) -> frozenset[str]:
    """The details that any choice of an answer tells."""
    return frozenset(name for choice in stream.choices for name in choice.columns.told_details)


def question(stream: Stream) -> tuple[str, str]:
    """Dialect and label: what stands in an exchange's name beside its scenario."""
    return stream.dialect, stream.exchange.name.rpartition("/")[2]


def side_by_side(
    worker: Sequence[Stream],
    gateway: Sequence[Stream],
    asked: Callable[[Stream], tuple[str, str]] = question,
) -> list[Comparison]:
    """Pair a worker's answers with its gateway's answers to the same requests.

    `asked` tells by what two requests are known for the same.
    """
    seen = (determinism(worker), determinism(gateway))
    rounding, enough = max(side.rounding for side in seen), _enough(seen)
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
            pairs.append(Comparison(baseline, theirs, repeats, steady, rounding))
    return pairs


def comparisons(streams: Iterable[Stream], seen: Determinism) -> list[Comparison]:
    """Pair each stream with a whole answer to the same request, and with a stream at another interval.

    The baseline is the answer that has the most per-token series in common with the other, and of several
    one with the same result, and then one with the most details in common.
    """
    pairs: list[Comparison] = []
    for group in _grouped(filter(seen.trusts, streams), lambda stream: stream.asked.key).values():
        whole = [stream for stream in group if not stream.asked.stream]
        streamed = [stream for stream in group if stream.asked.stream]
        for position, other in enumerate(streamed):
            elsewhere = [
                s for s in streamed[:position] if s.asked.stream_interval != other.asked.stream_interval
            ]
            pairs += [Comparison(_nearest(each, other), other) for each in (whole, elsewhere) if each]
    return pairs


def _nearest(answers: Sequence[Stream], other: Stream) -> Stream:
    result = _result(other)

    def near(one: Stream) -> tuple[int, bool, int]:
        return _series_in_common(one, other), _result(one) == result, _details_in_common(one, other)

    return max(answers, key=near)
