"""Histograms of token latencies: the time to the first token, and the time between tokens."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import chain, pairwise

from tokenwire.record import Emission, Stream

EDGES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""The upper bounds of the buckets in seconds. One more bucket counts longer times."""


@dataclass
class Histogram:
    """A histogram of times. Each time is counted in the first bucket whose bound it does not exceed."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(EDGES) + 1))
    seconds: float = 0.0
    """The sum of all times in seconds."""

    def add(self, seconds: float, number: int = 1) -> None:
        self.counts[bisect_left(EDGES, seconds)] += number
        self.seconds += seconds * number

    def merge(self, other: Histogram) -> None:
        self.counts = [sum(pair) for pair in zip(self.counts, other.counts, strict=True)]
        self.seconds += other.seconds

    def within(self, share: float) -> str:
        """Return the bound that this share of the times does not exceed, as text; empty if nothing was
        counted.
        """
        so_far = 0
        for edge, count in zip((*EDGES, None), self.counts, strict=True):
            so_far += count
            if count and so_far >= share * sum(self.counts):
                return f"{1000 * edge:g} ms" if edge is not None else f"over {EDGES[-1]:g} s"
        return ""


@dataclass
class Latencies:
    """The latencies of one or of several streams."""

    first: Histogram = field(default_factory=Histogram)
    between: Histogram = field(default_factory=Histogram)

    def merge(self, other: Latencies) -> None:
        self.first.merge(other.first)
        self.between.merge(other.between)


def latencies(stream: Stream) -> Latencies | None:
    """Return the latencies of a stream; None for other responses.

    If an event has several tokens, the time since the previous event is divided among them.
    """
    if not stream.asked.stream:
        return None
    found = Latencies()
    brought = [list(filter(_brings, choice.emissions)) for choice in stream.choices]
    if any(brought):
        found.first.add(min(emissions[0].event.place.time for emissions in brought if emissions))
    for before, after in chain.from_iterable(map(pairwise, brought)):
        number = max(1, after.new)
        found.between.add((after.event.place.time - before.event.place.time) / number, number)
    return found


def _brings(emission: Emission) -> bool:
    """True if an emission has new tokens.

    If the server reports no token counts, True if the emission has any content.
    """
    return emission.new > 0 or bool(emission.text or emission.reasoning or emission.calls)
