"""The timeline of a stream as coordinates of a drawing, which the page's template writes as SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

WIDTH, HEIGHT = 640, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 12, 12, 28
_ROOM = 4
"""The largest budget to draw, as a multiple of the tokens."""
_ROOM_FOR_WORDS = 70
_LONGEST_PAUSE = 0.3
"""The greatest drawn length of a pause, relative to the time without pauses."""
Span = tuple[float, float]
"""The beginning and the end of a time."""


@dataclass(frozen=True)
class _Mark:
    """One event."""

    x: float
    y: float
    illegal: bool
    words: str


@dataclass(frozen=True)
class _Tick:
    """A label of an axis."""

    position: float
    words: str


@dataclass(frozen=True)
class _Pause:
    """A time without a read."""

    x: float
    width: float
    words: str


@dataclass(frozen=True)
class Plot:
    """A drawing of `WIDTH` by `HEIGHT` units."""

    unit: str
    steps: str
    """The total over time, as an SVG path."""
    least: str
    """The least that the interval demands, as an SVG path; empty if unknown."""
    budget: float | None
    """The y of the line at `max_new_tokens`; None if unknown."""
    marks: tuple[_Mark, ...]
    times: tuple[_Tick, ...]
    totals: tuple[_Tick, ...]
    pauses: tuple[_Pause, ...] = ()
    width: int = WIDTH
    height: int = HEIGHT


def _staircase(points: Sequence[tuple[float, float]]) -> str:
    """Return an SVG path of horizontal steps up to the next point."""
    if not points:
        return ""
    x, y = points[0]
    path = [f"M{x:.1f} {y:.1f}"]
    path += [f"H{to_x:.1f}V{to_y:.1f}" for _, (to_x, to_y) in pairwise(points)]
    return "".join(path)


def _round_step(span: float, parts: int) -> float:
    """Return the smallest step of 1, 2 or 5 times a power of ten that cuts a span into at most `parts`."""
    step = 10.0**-6
    while True:
        for factor in (1, 2, 5):
            if span <= step * factor * parts:
                return step * factor
        step *= 10


def _shortened(span: float, pauses: Sequence[Span]) -> list[tuple[float, float, float]]:
    """Return the pauses, each with the seconds to cut from it, because a long pause leaves no room for
    events.
    """
    active = span - sum(end - start for start, end in pauses)
    longest = max(_LONGEST_PAUSE * active, span / 1000)
    return [(start, end, max(0.0, end - start - longest)) for start, end in pauses]


def _apart(times: Sequence[float], x: Callable[[float], float]) -> list[float]:
    """Return the times whose labels do not overlap."""
    kept: list[float] = []
    for time in times:
        if not kept or x(time) - x(kept[-1]) >= _ROOM_FOR_WORDS:
            kept.append(time)
    return kept


def plot(
    timeline: Mapping[str, Any] | None,
    illegal: Sequence[int],
    pauses: Sequence[Span] = (),
) -> Plot | None:
    """Draw a timeline of the JSON report; None without one.

    `illegal` are indexes of events, `pauses` the beginnings and ends of times without a read.
    """
    if timeline is None or not timeline["points"]:
        return None
    points = timeline["points"]
    most = max(1, *(point["total"] for point in points))
    budget: int | None = timeline["budget"]
    if budget is not None and budget > _ROOM * most:  # it would flatten the staircase
        budget = None
    highest: int = max(most, budget or 0)
    first: float = min([points[0]["time"], *(start for start, _ in pauses)])
    last: float = points[-1]["time"]
    shortened = _shortened(last - first, pauses)
    span = max(last - first - sum(less for _, _, less in shortened), 1e-6)

    def x(time: float) -> float:
        gone = sum(
            less * min(1.0, max(0.0, (time - start) / (end - start))) for start, end, less in shortened
        )
        return _LEFT + (time - first - gone) / span * (WIDTH - _LEFT - _RIGHT)

    def y(total: float) -> float:
        return HEIGHT - _BOTTOM - total / highest * (HEIGHT - _TOP - _BOTTOM)

    marks = tuple(
        _Mark(
            round(x(point["time"]), 1),
            round(y(point["total"]), 1),
            point["event"] in illegal,
            f"event {point['event']} at {point['time']:.3f} s: {point['total']} {timeline['unit']}",
        )
        for point in points
    )
    step = _round_step(span, 5)
    total_step = max(1, round(_round_step(highest, 4)))
    decimals = max(0, -int(f"{step:e}".partition("e")[2]))
    times = [first + n * step for n in range(int(span / step) + 1)]
    # the axis is not linear, so mark its edges and those of the pauses
    if any(less for _, _, less in shortened):
        times = _apart([first, *(edge for pause in pauses for edge in pause), last], x)
    return Plot(
        unit=timeline["unit"],
        steps=_staircase([(x(point["time"]), y(point["total"])) for point in points]),
        least=_staircase([(x(p["time"]), y(p["least"])) for p in points if p["least"] is not None]),
        budget=None if budget is None else round(y(budget), 1),
        marks=marks,
        times=tuple(_Tick(round(x(time), 1), f"{time:.{decimals}f} s") for time in times),
        totals=tuple(_Tick(round(y(total), 1), str(total)) for total in range(0, highest + 1, total_step)),
        pauses=tuple(
            _Pause(
                round(x(start), 1), round(x(end) - x(start), 1), f"nothing was read for {end - start:.3f} s"
            )
            for start, end in pauses
        ),
    )
