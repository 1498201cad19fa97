"""Sources of mutations: recorded streams without violations, and the answers that they are compared with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tokenwire.checks.evidence import Observation
from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging.judge import Judgement, judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict, overall
from tokenwire.record import Answer, Delivery, Stream
from tokenwire.replay import replay
from tokenwire.target.tokenizer import Tokenizer
from tokenwire.wire import strict_json
from tokenwire.wire.event_stream import parse_event_stream
from tokenwire.wire.exchange import Ending, Exchange, Read

_LONGEST_BODY = 60_000
_FEWEST_EVENTS = 4
_MOST_PARTNERS = 6
_RED = (Verdict.FAIL, Verdict.WARN, Verdict.HARNESS_ERROR)


@dataclass(frozen=True)
class Source:
    """A recorded stream without violations, in its run."""

    stream: Stream
    run: Run
    """The stream, and the answers that it is compared with."""

    @property
    def exchange(self) -> Exchange:
        return self.stream.exchange

    @cached_property
    def data(self) -> tuple[str, ...]:
        """The data of each event, including `[DONE]`."""
        events, _, _ = parse_event_stream(self.exchange.body)
        return tuple(event.data for event in events)

    @cached_property
    def values(self) -> tuple[object, ...]:
        """The JSON value of each event; None for `[DONE]`."""
        return tuple(None if data == "[DONE]" else strict_json.loads(data) for data in self.data)

    @property
    def cumulative(self) -> bool:
        return self.stream.delivery is Delivery.CUMULATIVE

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdicts on the unchanged run, by requirement. Requirements without observations
        are missing.
        """
        return verdicts_of(judge([self.run]))

    def with_reads(self, reads: Iterable[bytes], ending: Ending = Ending.COMPLETE) -> Run:
        """Return the run with another body for this stream."""
        pieces = tuple(Read(n / 1000, piece) for n, piece in enumerate(reads) if piece)
        exchange = replace(self.exchange, reads=pieces, ending=ending)
        read = load_dialects()[self.stream.dialect].read(exchange, delivery_hint=self.run.advertised.delivery)
        streams = tuple(read if stream is self.stream else stream for stream in self.run.streams)
        return replace(self.run, streams=streams)


def verdicts_of(judgements: Iterable[Judgement]) -> dict[str, Verdict]:
    """Return the combined verdict of each requirement that has a judgement."""
    found: dict[str, list[Verdict]] = {}
    for judgement in judgements:
        found.setdefault(judgement.requirement.id, []).append(judgement.verdict)
    return {name: overall(verdicts) for name, verdicts in found.items()}


def violations(judgements: Iterable[Judgement]) -> Iterator[tuple[str, Observation]]:
    """Yield each violation with the id of its requirement."""
    for judgement in judgements:
        for observation in judgement.violations:
            yield judgement.requirement.id, observation


def _partners(stream: Answer, streams: Iterable[Answer]) -> tuple[Answer, ...]:
    """Return other answers to the same request. Answers that are not streams come first."""
    same = [other for other in streams if other is not stream and other.asked.key == stream.asked.key]
    same.sort(key=lambda other: other.asked.stream)
    return tuple(same[:_MOST_PARTNERS]) if stream.asked.key else ()


def sources(paths: Iterable[Path], tokenizer: Tokenizer | None = None) -> Iterator[Source]:
    """Yield all streams of some captures that can be mutated: complete streams of moderate length, without
    violations.
    """
    for run in replay(list(paths), tokenizer=tokenizer).runs:
        for stream in run.streams:
            whole = stream.exchange.ending is Ending.COMPLETE and stream.exchange.status == 200
            if not (whole and stream.asked.stream and stream.answered and stream.error is None):
                continue
            loaded = stream.load()
            if len(loaded.events) < _FEWEST_EVENTS or loaded.exchange.size > _LONGEST_BODY:
                continue
            judged_run = replace(run, streams=(loaded, *_partners(loaded, run.streams)), calls=(), beside=())
            source = Source(loaded, judged_run)
            if not set(source.verdicts.values()) & set(_RED):
                yield source
