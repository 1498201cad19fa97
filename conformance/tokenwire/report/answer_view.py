"""Shows one answer on a page, with its violations and its playback.

The answer may be complete, or still arriving. All values are computed here, with a limited size, and the
script of the page only displays them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tokenwire.checks.difference import first_difference
from tokenwire.judging.judge import Judgement
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Choice, Stream
from tokenwire.report.excerpt import excerpt_at, written
from tokenwire.report.finding import illegal_events
from tokenwire.report.playback import Spell, played
from tokenwire.report.templates import template
from tokenwire.report.wording import clause, value
from tokenwire.target.alike import alike
from tokenwire.wire.inert import inert

_MOST_BYTES = 20_000
"""The number of bytes at the end of the raw response that are shown."""
_MOST_READS = 200
_SHOWN = (Verdict.HARNESS_ERROR, Verdict.FAIL, Verdict.WARN)


@dataclass(frozen=True)
class _Violated:
    """A requirement that the answer violates, with the place of the first violation."""

    requirement: str
    verdict: str
    message: str
    event: int | None = None
    pointer: str = ""


@dataclass(frozen=True)
class _Row:
    """A row of the table of events."""

    index: int
    time: float
    gap: float
    """Seconds since the previous event."""
    start: int
    end: int
    excerpt: str
    violated: Sequence[str]


def answer_view(
    stream: Stream,
    judgements: Collection[Judgement],
    *,
    number: int,
    most_events: int,
    beside: Stream | None = None,
    spell: Spell = lambda _: None,
    root: str = "",
) -> dict[str, Any]:
    """Return an answer as HTML, with the data for its player.

    `beside`: another answer that the page compares with this one. `root`: relative address of the folder with
    the pages of requirements.
    """
    name = stream.exchange.name
    bad = [judgement for judgement in judgements if judgement.verdict in _SHOWN]
    here = [
        judgement for judgement in bad if any(seen.place.exchange == name for seen in judgement.violations)
    ]
    events = {judgement.requirement.id: illegal_events(judgement.violations, stream) for judgement in here}
    illegal: dict[int, str] = {}
    for pointers in events.values():
        illegal = {**pointers, **illegal}
    illegal = dict(sorted(illegal.items()))
    playback = played(stream, illegal, beside, most=most_events, spell=spell)
    shown = {step.event for step in playback.steps} if playback is not None else set()
    html = template("tokenwire.report", "answer.html.jinja").render(
        number=number,
        root=root,
        exchange=stream.exchange,
        name=inert(name),
        detail=inert(stream.exchange.detail),
        violated=list(_violated(bad, name)),
        difference="" if beside is None else _difference(stream, beside),
        playback=playback,
        rows=list(_rows(stream, events, shown)),
        left_out=len(stream.events) - len(shown),
        reads=list(_reads(stream)),
        size=stream.exchange.size,
    )
    return {"html": html, "playback": playback.embedded() if playback is not None else None}


def _violated(judgements: Collection[Judgement], name: str) -> Iterator[_Violated]:
    for judgement in judgements:
        row, verdict = judgement.requirement.id, judgement.verdict.value
        if not judgement.violations:
            yield _Violated(row, verdict, inert(judgement.message))
            continue
        here = (seen for seen in judgement.violations if seen.place.exchange == name)
        first = next(here, judgement.violations[0])
        event = first.place.event if first.place.exchange == name else None
        yield _Violated(row, verdict, inert(clause(first)), event, inert(first.place.pointer))


def _rows(stream: Stream, illegal: Mapping[str, Mapping[int, str]], shown: Collection[int]) -> Iterator[_Row]:
    before, body = 0.0, stream.exchange.body
    for event in stream.events:
        place, gap = event.place, event.place.time - before
        before = place.time
        if event.index not in shown:
            continue
        violated = [requirement for requirement, pointers in illegal.items() if event.index in pointers]
        pointer = next((illegal[requirement][event.index] for requirement in violated), "")
        excerpt = excerpt_at(stream, place.at(pointer)).text if violated else written(body, place)
        yield _Row(event.index, place.time, gap, place.start, place.end, inert(excerpt), violated)


def _reads(stream: Stream) -> Iterator[tuple[float, str]]:
    """Yield the last bytes of the response, divided as they were read from the connection.

    Each part has the time of its read.
    """
    left = _MOST_BYTES
    last: list[tuple[float, str]] = []
    for read in islice(reversed(stream.exchange.reads), _MOST_READS):
        last.append((read.time, inert(read.data[-left:].decode("utf-8", "backslashreplace"))))
        left -= len(read.data)
        if left <= 0:
            break
    yield from reversed(last)


def _difference(stream: Stream, other: Stream) -> str:
    """Describe the first difference between two answers: a token or a character."""
    pairs = zip(stream.choices, other.choices, strict=False)
    words = (_parting(ours, theirs, other.exchange.name) for ours, theirs in pairs)
    return inert(next(filter(None, words), "as far as both have come, their tokens and texts are the same"))


def _parting(choice: Choice, beside: Choice, name: str) -> str:
    for kind, unit in (("output_ids", "token"), ("text", "character")):
        ours, theirs = getattr(choice, kind), getattr(beside, kind)
        if ours is None or theirs is None or (position := first_difference(ours, theirs, alike)) is None:
            continue
        if position < min(len(ours), len(theirs)):
            where = f"choice {choice.index}, {unit} {position}"
            here, there = value(ours[position]), value(theirs[position])
            return f"first difference: {where} is {here}, and {there} in {name}"
        if choice.finish is not None and beside.finish is not None:
            return f"choice {choice.index} has {len(ours)} {unit}s, and {len(theirs)} in {name}"
    return ""
