"""Computes the drawing of a stream's timeline. The page's template writes it as SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

WIDTH, HEIGHT = 640, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 12, 12, 28
_ROOM = 4
"""A token limit is drawn only if it is at most this multiple of the delivered tokens."""
_ROOM_FOR_WORDS = 70
_LONGEST_PAUSE = 0.3
"""The largest width of a pause in the drawing, relative to the time without pauses."""
Span = tuple[float, float]
"""Beginning and end of a time range, in seconds."""


@dataclass(frozen=True)
class _Mark:
    """A mark for one event."""

    x: float
    y: float
    illegal: bool
    words: str


@dataclass(frozen=True)
class _Tick:
    """A label on an axis."""

    position: float
    words: str


@dataclass(frozen=True)
class _Pause:
    """A pause of the stream in which nothing was read."""

    x: float
    width: float
    words: str


@dataclass(frozen=True)
class Plot:
    """A drawing of `WIDTH` by `HEIGHT` units."""

    unit: str
    steps: str
    """The delivered output over time, as an SVG path."""
    least: str
    """The output that `stream_interval` demands over time, as an SVG path.

    Empty if the request has no `stream_interval`.
    """
    budget: float | None
    """The y coordinate of a line at the token limit; None if it is not drawn."""
    marks: tuple[_Mark, ...]
    times: tuple[_Tick, ...]
    totals: tuple[_Tick, ...]
    pauses: tuple[_Pause, ...] = ()
    width: int = WIDTH
    height: int = HEIGHT


def _staircase(points: Sequence[tuple[float, float]]) -> str:
    """Return an SVG path that is horizontal from each point to the next, and then vertical."""
    if not points:
        return ""
    x, y = points[0]
    path = [f"M{x:.1f} {y:.1f}"]
    path += [f"H{to_x:.1f}V{to_y:.1f}" for _, (to_x, to_y) in pairwise(points)]
    return "".join(path)


def _round_step(span: float, parts: int) -> float:
    """Return the distance between labels with which a range has at most `parts` labels.

    The distance is 1, 2 or 5 times a power of ten.
    """
    step = 10.0**-6
    while True:
        for factor in (1, 2, 5):
            if span <= step * factor * parts:
                return step * factor
        step *= 10


def _shortened(span: float, pauses: Sequence[Span]) -> list[tuple[float, float, float]]:
    """Return the pauses, each with the number of seconds to cut from the pause.

    Otherwise a long pause would leave no room for the events.
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
    """Draw the timeline in a JSON report.

    Return None if the report has no timeline. `illegal`: indices of events to mark. `pauses`: time ranges in
    which nothing was read.
    """
    if timeline is None or not timeline["points"]:
        return None
    points = timeline["points"]
    most = max(1, *(point["total"] for point in points))
    budget: int | None = timeline["budget"]
    if budget is not None and budget > _ROOM * most:  # a line this high would flatten the drawing
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
    # the time axis is not linear, so its ends and the pauses are labelled
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
