"""Determinism: where the target was seen to repeat itself, so that answers may be compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire.judging.check import Comparison
from tokenwire.record import Stream
from tokenwire.wire.exchange import Ending

PROBE = "probe"
"""The scenario whose repetition speaks for the whole run."""


@dataclass(frozen=True)
class Determinism:
    """Which requests, by their key, the target answered alike when asked again."""

    repeated: frozenset[str] = frozenset()
    """Keys of which two answers were alike, and no whole answers differed."""
    contradicted: frozenset[str] = frozenset()
    """Keys whose whole answers differed from each other."""
    probed: bool = False
    """The probe was answered twice alike, and nothing in the run contradicts it."""

    def trusts(self, key: str) -> bool:
        """Whether answers to requests of this key may be compared."""
        return bool(key) and (key in self.repeated or self.probed)

    @property
    def anywhere(self) -> bool:
        return bool(self.repeated) or self.probed

    @property
    def reason(self) -> str:
        """Why comparisons were not made, and what to do, in words."""
        if self.contradicted:
            return (
                "the target did not repeat itself: the same request was answered whole with different "
                "results; start it so that greedy requests are repeatable (SGLang: "
                "--enable-deterministic-inference), or ask it alone, with --max-concurrency 1"
            )
        return (
            "the target was not seen to repeat itself: no request was answered twice alike; "
            "ask the scenario `probe` too, and raise --timeout if its answers did not come to an end"
        )


def completed(stream: Stream) -> bool:
    """Whether the stream delivered a record to its end: all of it, without an error or an abort."""
    return (
        stream.answered
        and stream.error is None
        and stream.exchange.ending is Ending.COMPLETE
        and all(choice.finish is not None and choice.finish.type != "abort" for choice in stream.choices)
    )


def _result(stream: Stream) -> tuple[Any, ...]:
    return tuple((choice.index, choice.output_ids, choice.text) for choice in stream.choices)


def _groups(streams: Iterable[Stream]) -> dict[str, list[Stream]]:
    groups: dict[str, list[Stream]] = defaultdict(list)
    for stream in streams:
        if stream.asked.key and completed(stream):
            groups[stream.asked.key].append(stream)
    return groups


def _carried(stream: Stream) -> tuple[bool, bool]:
    """Which of ids and text the answer carries; results are compared only where they carry the same."""
    return (
        any(choice.output_ids is not None for choice in stream.choices),
        any(choice.text is not None for choice in stream.choices),
    )


def determinism(streams: Iterable[Stream]) -> Determinism:
    """Look for requests that were answered more than once.

    Only whole answers can contradict each other: streams of one request may differ through a fault of
    delivery, and that fault must not switch off the comparison that finds it.
    """
    repeated, contradicted = set(), set()
    probed = False
    for key, group in _groups(streams).items():
        alike: dict[tuple[Any, ...], list[Stream]] = defaultdict(list)
        for stream in group:
            alike[stream.asked.stream, stream.asked.stream_interval, _carried(stream)].append(stream)
        for (streamed, *_), same_delivery in alike.items():
            results = [_result(stream) for stream in same_delivery]
            if not streamed and any(result != results[0] for result in results):
                contradicted.add(key)
            elif any(results.count(result) > 1 for result in results):
                repeated.add(key)
                probed = probed or any(stream.exchange.scenario == PROBE for stream in same_delivery)
    return Determinism(
        frozenset(repeated - contradicted), frozenset(contradicted), probed and not contradicted
    )


def _series_in_common(one: Stream, other: Stream) -> int:
    names = [{name for choice in stream.choices for name in choice.series_names} for stream in (one, other)]
    return len(names[0] & names[1])


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
    ours = {asked(stream): stream for stream in worker}
    pairs = []
    for theirs in gateway:
        baseline = ours.get(asked(theirs))
        if baseline is not None:
            keys = (baseline.asked.key, theirs.asked.key)
            repeats = all(
                key and side.anywhere and key not in side.contradicted
                for key, side in zip(keys, seen, strict=True)
            )
            pairs.append(Comparison(baseline, theirs, repeats))
    return pairs


def comparisons(streams: Iterable[Stream], seen: Determinism) -> list[Comparison]:
    """Pair each stream with a whole answer to the same request, and with a stream at another interval.

    The baseline is the answer that has the most per-token series in common with the other.
    """
    pairs: list[Comparison] = []
    for key, group in _groups(streams).items():
        if not seen.trusts(key):
            continue
        whole = [stream for stream in group if not stream.asked.stream]
        streamed = [stream for stream in group if stream.asked.stream]
        for position, other in enumerate(streamed):
            if whole:
                pairs.append(Comparison(max(whole, key=lambda one: _series_in_common(one, other)), other))
            elsewhere = [
                s for s in streamed[:position] if s.asked.stream_interval != other.asked.stream_interval
            ]
            if elsewhere:
                pairs.append(Comparison(max(elsewhere, key=lambda one: _series_in_common(one, other)), other))
    return pairs
