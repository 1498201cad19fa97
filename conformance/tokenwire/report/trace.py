"""The run in Chrome's trace event format, for viewers such as Perfetto.

A dialect is shown as a process, and requests that do not overlap share a thread. An event of a stream is
shown as an instant.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any

from tokenwire.judging.judge import Judgement
from tokenwire.record import Answer, Stream
from tokenwire.wire.inert import inert

_MOST_INSTANTS = 200
"""The most events of one stream that the trace contains."""
_MICROSECONDS = 1_000_000


def _began(stream: Answer) -> float | None:
    """Return the time at which a request was sent, as a Unix time.

    None if the capture does not contain the time.
    """
    try:
        return datetime.fromisoformat(stream.exchange.started).timestamp()
    except ValueError:
        return None


def _lane(free: list[float], start: float, end: float) -> int:
    """Return the first thread that is free at `start`, and reserve it until `end`."""
    for lane, until in enumerate(free):
        if until <= start:
            free[lane] = end
            return lane
    free.append(end)
    return len(free) - 1


def _starts(streams: Sequence[Answer]) -> Iterator[tuple[float, Answer]]:
    """Yield each answer with its start in seconds since the first one.

    Answers without a known start come last.
    """
    known = [(began, stream) for stream in streams if (began := _began(stream)) is not None]
    zero = min((began for began, _ in known), default=0.0)
    following = max((began - zero + stream.exchange.duration for began, stream in known), default=0.0)
    for began, stream in sorted(known, key=itemgetter(0)):
        yield began - zero, stream
    for stream in streams:
        if _began(stream) is None:
            yield following, stream
            following += stream.exchange.duration + 0.001


def _instants(stream: Stream, start: float, where: dict[str, Any], illegal: set[int]) -> Iterator[Any]:
    ids: Counter[int] = Counter()
    for emission in stream.emissions():
        ids[emission.event.index] += len(emission.output_ids or ())
    for event in stream.events[:_MOST_INSTANTS]:
        bad = event.index in illegal
        yield {
            **where,
            "name": f"event {event.index}{' (illegal)' * bad}",
            "ph": "i",
            "s": "t",
            "ts": round((start + event.place.time) * _MICROSECONDS),
            "args": {"bytes": event.place.end - event.place.start, "ids": ids[event.index]},
            **({"cname": "terrible"} if bad else {}),
        }


def trace(title: str, judgements: Sequence[Judgement]) -> str:
    """Return the trace of all judged runs as JSON text."""
    violated: defaultdict[str, dict[str, None]] = defaultdict(dict)
    illegal: defaultdict[str, set[int]] = defaultdict(set)
    for judgement in judgements:
        for violation in judgement.violations:
            place = violation.place
            violated[place.exchange][judgement.requirement.id] = None
            illegal[place.exchange] |= set() if place.event is None else {place.event}
    runs = {id(judgement.run): judgement.run for judgement in judgements}
    processes: dict[str, list[float]] = {}
    events: list[dict[str, Any]] = []
    streams = [stream for run in runs.values() for stream in run.by_exchange.values()]
    for start, answer in _starts(streams):
        stream = answer.load()
        exchange, wrong = stream.exchange, list(violated[stream.exchange.name])
        free = processes.setdefault(stream.dialect, [])
        where = {
            "pid": 1 + list(processes).index(stream.dialect),
            "tid": 1 + _lane(free, start, start + exchange.duration),
        }
        events.append(
            {
                **where,
                "name": inert(exchange.name),
                "cat": inert(exchange.scenario),
                "ph": "X",
                "ts": round(start * _MICROSECONDS),
                "dur": max(1, round(exchange.duration * _MICROSECONDS)),
                "args": {
                    "status": exchange.status,
                    "delivery": stream.delivery.value,
                    "ending": exchange.ending.value,
                    "events": len(stream.events),
                    **({"violates": wrong} if wrong else {}),
                },
                **({"cname": "terrible"} if wrong else {}),
            }
        )
        events += _instants(stream, start, where, illegal[exchange.name])
    names = [
        {"ph": "M", "name": "process_name", "pid": number, "args": {"name": dialect}}
        for number, dialect in enumerate(processes, 1)
    ]
    about = {"target": inert(title), "made-by": "tokenwire"}
    return json.dumps(
        {"traceEvents": [*names, *events], "displayTimeUnit": "ms", "otherData": about},
        ensure_ascii=True,
        separators=(",", ":"),
    )
