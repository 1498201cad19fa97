"""A failure as the user sees it: six lines, then the evidence."""

from __future__ import annotations

import json
from typing import Any

from tokenwire.check import Observation
from tokenwire.judge import Judgement
from tokenwire.record import Event, Place
from tokenwire.report.reproduction import again, curl
from tokenwire.report.subject import Subject

_AROUND = 2
"""How many events are shown before and after the first illegal one."""
_LONGEST_VALUE = 200
_LONGEST_EXCERPT = 170


def cut(text: str, longest: int) -> str:
    """The text on one line, shortened in the middle where it is too long."""
    text = " ".join(text.split())
    if len(text) <= longest:
        return text
    kept = (longest - 3) // 2
    return f"{text[:kept]} … {text[-kept:]}"


def value(thing: Any) -> str:  # whatever stood on the wire
    """A value from the wire, or words, in a readable length."""
    if isinstance(thing, str) and not thing.startswith(("{", "[")) and thing.isprintable() and thing:
        return cut(thing, _LONGEST_VALUE)
    return cut(json.dumps(thing, ensure_ascii=False, default=str), _LONGEST_VALUE)


def where(place: Place) -> str:
    """A place in words: exchange, event, time, bytes, pointer."""
    words = [place.exchange]
    if place.event is not None:
        words.append(f"event {place.event}")
    words.append(f"at {place.time:.3f} s")
    if place.end > place.start:
        words.append(f"bytes {place.start}-{place.end}")
    if place.pointer:
        words.append(place.pointer)
    return ", ".join(words)


def clause(observation: Observation) -> str:
    """What is wrong, as one clause."""
    if observation.message:
        return observation.message
    return f"expected {value(observation.expected)}, found {value(observation.actual)}"


def _event_line(event: Event, *, marked: bool) -> str:
    place = event.place
    mark = ">" if marked else " "
    excerpt = cut(place.excerpt, _LONGEST_EXCERPT)
    return f" {mark} {event.index:>4}  {place.time:8.3f} s  {place.start:>7}-{place.end:<7}  {excerpt}"


def _events_around(judgement: Judgement, place: Place) -> list[str]:
    stream = judgement.run.by_exchange.get(place.exchange)
    if stream is None:
        return []
    around = [
        event for event in stream.events if place.event is None or abs(event.index - place.event) <= _AROUND
    ]
    return [_event_line(event, marked=event.index == place.event) for event in around]


def _more(judgement: Judgement) -> list[str]:
    others = judgement.violations[1:]
    if not others:
        return []
    exchanges = {observation.place.exchange for observation in judgement.violations}
    return [f"and {len(others)} more like it, in {len(exchanges)} exchange{'s' * (len(exchanges) > 1)}"]


def failure(judgement: Judgement, subject: Subject) -> str:
    """All that a violated requirement tells in one scenario, as plain text.

    Raises ValueError for a judgement without a violation.
    """
    if not judgement.violations:
        raise ValueError(f"{judgement.name} has no violation to show; its verdict is {judgement.verdict}")
    requirement, first = judgement.requirement, judgement.violations[0]
    looks_like = ", ".join(requirement.upstream) or "nothing that the catalogue knows"
    lines = [
        f"{judgement.verdict}  {requirement.id}  in {judgement.scenario}",
        f"  sentence    {requirement.sentence}",
        f"  expected    {value(first.expected)}",
        f"  actual      {value(first.actual)}" + (f"  ({first.message})" if first.message else ""),
        f"  first seen  {where(first.place)}",
        f"  looks like  {looks_like}",
        "",
        *_events_around(judgement, first.place),
        *(f"   related    {where(place)}" for place in first.related),
        *(f"   {line}" for line in _more(judgement)),
        "",
    ]
    stream = judgement.run.by_exchange.get(first.place.exchange)
    if stream is not None:
        lines.append(f"  {curl(stream.exchange, subject.url)}")
    lines.append(f"  {again(judgement, subject)}")
    return "\n".join(lines)
