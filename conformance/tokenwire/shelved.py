"""Streams whose content is dropped: their facts are kept, and the capture is read again if needed.

A run of many answers has to be known as a whole before the first is judged, and is too large to be held. What
most checks ask of all answers (`Facts`: what was asked, how it ended, its ids and text) lies in a temporary
file; its events stay in the capture, and the same dialect reads them again when a check needs one. So nothing
is known of a stream that its bytes do not say, and verdicts are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple

from tokenwire.facts import ChoiceFacts, Facts, computed
from tokenwire.processes import shared_out, together
from tokenwire.record import Choice, Stream, ToolCall
from tokenwire.wire.capture import Located, Parcel, Span
from tokenwire.wire.exchange import Exchange, HttpRequest, Server
from tokenwire.wire.shelf import AtHand, Captures, Shelf, Slip, packed

_HELD = 96 << 20
"""So many bytes of answers are held before all are put away, those of a standard run among them: what is read
of them takes some six times as much memory, and from the shelf a replay takes three times as long.
"""
_CONTENT_AT_HAND, _FACTS_AT_HAND = 2 << 20, 8 << 20
"""Bytes of answers whose content is at hand, and bytes of facts."""

ReadBy = Callable[[Exchange], Stream]


class Cabinet:
    """Where the answers of a replay are, once there are many."""

    def __init__(
        self,
        held: int = _HELD,
        content: int = _CONTENT_AT_HAND,
        facts: int = _FACTS_AT_HAND,
        *,
        jobs: int = 1,
    ) -> None:
        """`jobs`: how many processes share what is to be done to put answers away."""
        self._left = held
        self._jobs = jobs
        self._shelf: Shelf | None = None
        self._servers: dict[Server, Server] = {}
        self._flags: dict[frozenset[tuple[str, bool]], Mapping[str, bool]] = {}
        self.content = AtHand(content, _clear_caches)
        """Answers with all that they hold, by where it lies on the shelf."""
        self.facts = AtHand(facts)
        """What is kept of them."""
        self.captures = Captures()
        self._paths: dict[Path, Path] = {}

    @property
    def shelf(self) -> Shelf:
        """Made when the first exchange is put away."""
        if self._shelf is None:
            self._shelf = Shelf()
        return self._shelf

    def server(self, server: Server) -> Server:
        """One object for all exchanges with a server."""
        return self._servers.setdefault(server, server)

    def flags(self, flags: Mapping[str, bool]) -> Mapping[str, bool]:
        """One object for all streams of which the same holds: they are few."""
        return self._flags.setdefault(frozenset(flags.items()), flags)

    @property
    def full(self) -> bool:
        """Whether there were more answers than are held."""
        return self._left < 0

    def keep(self, parcels: Iterable[Parcel]) -> Iterator[tuple[Path, list[Located]]]:
        """The exchanges of captures, each with its file; once there are more than are held, put away.

        Raises CaptureError and OSError as `capture.parcels` does.
        """
        coming = iter(parcels)
        while not self.full and (parcel := next(coming, None)) is not None:
            located = list(parcel.located())
            self._left -= sum(one.exchange.size for one in located)
            yield parcel.span.path, located
        parts = together(coming, lambda parcel: len(parcel.data))
        for path, every in chain.from_iterable(shared_out(_packed_exchanges, parts, self._jobs)):
            yield path, [self._put_away(one) for one in every]

    def put_away(self, located: Sequence[Located]) -> list[Exchange]:
        """The exchanges, without their content where there are more than are held."""
        if not self.full:
            return [one.exchange for one in located]
        return [
            one.exchange
            if isinstance(one.exchange, _ShelvedExchange)
            else self._put_away(_packed_exchange(one)).exchange
            for one in located
        ]

    def _put_away(self, exchange: _PackedExchange) -> Located:
        path = self._paths.setdefault(exchange.span.path, exchange.span.path)
        span = exchange.span._replace(path=path)  # one object for all exchanges of a capture
        self.captures.add(path)
        return Located(_ShelvedExchange(exchange, span, self), span)

    def read(self, exchanges: Sequence[tuple[Exchange, ReadBy]]) -> list[Stream]:
        """What dialects read of exchanges; of those that were put away, their facts."""
        there = [(one, read) for one, read in exchanges if isinstance(one, _ShelvedExchange)]

        def facts_of(part: Sequence[int]) -> list[_PackedStream]:
            return [_packed_stream(read(one.whole)) for one, read in map(there.__getitem__, part)]

        parts = together(range(len(there)), lambda at: there[at][0].size)
        told = chain.from_iterable(shared_out(facts_of, parts, self._jobs))
        return [
            _ShelvedStream(one, read, next(told)) if isinstance(one, _ShelvedExchange) else read(one)
            for one, read in exchanges
        ]


def _clear_caches(content: object) -> None:
    if isinstance(content, Stream):
        content.clear_caches()


def _from(holder: str, name: str) -> Any:
    """A field that is one of another object's."""
    return property(lambda self: getattr(getattr(self, holder), name))


def _set(one: object, **fields: object) -> None:
    """Give an object of a frozen class its fields."""
    for name, value in fields.items():
        object.__setattr__(one, name, value)


def _held(cls: Any, *_own: Any, **fields: Any) -> Any:
    """What `dataclasses.replace` makes of an object on the shelf holds all of its fields itself."""
    return cls.__base__(**fields) if fields else object.__new__(cls)


class _ShelvedRequest(HttpRequest):
    __slots__ = ("_of", "method", "path")
    _of: _ShelvedExchange
    __new__ = _held

    def __init__(self, of: _ShelvedExchange, method: str, path: str) -> None:
        _set(self, _of=of, method=intern(method), path=intern(path))

    @property
    def _sent(self) -> HttpRequest:
        return self._of.at_hand.request

    body, raw_body, headers = (_from("_sent", name) for name in ("body", "raw_body", "headers"))


_KEPT = ("name", "status", "ending", "detail", "duration", "started", "last_read")


class _PackedExchange(NamedTuple):
    """An exchange as it is put away."""

    kept: tuple[Any, ...]
    """The fields that `_KEPT` names."""
    scenario: str
    server: Server
    method: str
    path: str
    size: int
    span: Span


def _packed_exchange(located: Located) -> _PackedExchange:
    exchange = located.exchange
    return _PackedExchange(
        tuple(getattr(exchange, name) for name in _KEPT),
        exchange.scenario,
        exchange.server,
        exchange.request.method,
        exchange.request.path,
        exchange.size,
        located.span,
    )


def _packed_exchanges(parcels: Iterable[Parcel]) -> list[tuple[Path, list[_PackedExchange]]]:
    return [(parcel.span.path, list(map(_packed_exchange, parcel.located()))) for parcel in parcels]


class _ShelvedExchange(Exchange):
    """An exchange whose request, headers and reads are in its capture."""

    __slots__ = (
        *("name", "request", "scenario", "status", "ending", "detail", "duration", "started", "server"),
        *("last_read", "cabinet", "size", "_span"),
    )
    __new__ = _held
    cabinet: Cabinet
    size: int
    """Bytes of the answer."""
    _span: Span

    def __init__(self, exchange: _PackedExchange, span: Span, cabinet: Cabinet) -> None:
        _set(
            self,
            **dict(zip(_KEPT, exchange.kept, strict=True)),
            request=_ShelvedRequest(self, exchange.method, exchange.path),
            scenario=intern(exchange.scenario),
            server=cabinet.server(exchange.server),
            cabinet=cabinet,
            size=exchange.size,
            _span=span,
        )

    @property
    def at_hand(self) -> Exchange:
        """The same as `whole`, from memory where it was read a short time ago."""
        return self.cabinet.content.get(self._span, self._span.size, lambda: self.whole)

    headers, reads = _from("at_hand", "headers"), _from("at_hand", "reads")

    @property
    def whole(self) -> Exchange:
        """The same exchange, with all that it holds. Raises CaptureError where its capture has changed."""
        return self.cabinet.captures.exchange(self.name, self._span)


_AT_A_GLANCE = ("delivery", "refused", "answered")
"""What all of a run are asked for again and again."""


class _PackedStream(NamedTuple):
    """What is kept of a stream."""

    dialect: str
    seen: tuple[Any, ...]
    """The fields that `_AT_A_GLANCE` names."""
    flags: dict[str, bool]
    facts: bytes
    computed: bytes
    choices: bytes
    """Their facts. The three are by themselves: unpickling takes time, and a check seldom needs all."""


def _packed_stream(whole: Stream) -> _PackedStream:
    facts, known = Facts.of(whole), computed(whole)
    flags = {name: known.pop(name) for name, value in list(known.items()) if isinstance(value, bool)}
    choices = [ChoiceFacts.of(choice) for choice in whole.choices]
    whole.clear_caches()
    seen = tuple(getattr(whole, name) for name in _AT_A_GLANCE)
    return _PackedStream(whole.dialect, seen, flags, packed(facts), packed(known), packed(choices))


class _ShelvedStream(Stream):
    """A stream whose content is in the capture; a run holds its place there and in the file of facts."""

    __slots__ = ("_read", "_facts", "_computed", "_choices", "dialect", "exchange", "flags", *_AT_A_GLANCE)
    __new__ = _held
    exchange: _ShelvedExchange
    flags: Mapping[str, bool]
    """The facts that are true or false."""
    _read: ReadBy
    _facts: Slip
    _computed: Slip
    _choices: Slip

    def __init__(self, exchange: _ShelvedExchange, read: ReadBy, stream: _PackedStream) -> None:
        _set(
            self,
            **dict(zip(_AT_A_GLANCE, stream.seen, strict=True)),
            exchange=exchange,
            dialect=intern(stream.dialect),
            flags=exchange.cabinet.flags(stream.flags),
            _read=read,
            _facts=exchange.cabinet.shelf.put(stream.facts),
            _computed=exchange.cabinet.shelf.put(stream.computed),
            _choices=exchange.cabinet.shelf.put(stream.choices),
        )

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def whole(self) -> Stream:
        exchange = self.exchange
        return exchange.cabinet.content.get(self._facts, exchange.size, lambda: self._read(exchange.whole))

    at_hand = property(lambda _: False)

    @property
    def facts(self) -> Facts:
        return self.exchange.cabinet.facts.get(self._facts, self._facts.size, self._fetch_facts)

    def _fetch_facts(self) -> Facts:
        facts: Facts = self.exchange.cabinet.shelf.fetch(self._facts)
        return facts

    @property
    def choices(self) -> tuple[Choice, ...]:
        return self.exchange.cabinet.facts.get(self._choices, self._choices.size, self._fetch_choices)

    def _fetch_choices(self) -> tuple[Choice, ...]:
        every: list[ChoiceFacts] = self.exchange.cabinet.shelf.fetch(self._choices)
        return tuple(_ShelvedChoice(self, at, one) for at, one in enumerate(every))

    def _fetch_computed(self) -> dict[str, Any]:
        known: dict[str, Any] = self.exchange.cabinet.shelf.fetch(self._computed)
        return known

    def fact(self, name: str, compute: Callable[[Stream], Any]) -> Any:
        if name in self.flags:
            return self.flags[name]
        known = self.exchange.cabinet.facts.get(self._computed, self._computed.size, self._fetch_computed)
        if name not in known:
            known[name] = compute(self.whole)
        return known[name]

    asked, error, usage, usage_place, schema, undecodable_at = (
        _from("facts", name)
        for name in ("asked", "error", "usage", "usage_place", "schema", "undecodable_at")
    )
    events, usages, unterminated, error_events, _emissions = (
        _from("whole", name) for name in ("events", "usages", "unterminated", "error_events", "_emissions")
    )


class _ShelvedChoice(Choice):
    """A choice whose emissions are in the capture."""

    __new__ = _held
    _stream: _ShelvedStream
    _at: int
    _facts: ChoiceFacts

    def __init__(self, stream: _ShelvedStream, at: int, facts: ChoiceFacts) -> None:
        _set(self, index=facts.index, delivery=stream.delivery, likeliest=facts.likeliest)
        _set(self, cache=facts.computed, _stream=stream, _at=at, _facts=facts)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def whole(self) -> Choice:
        return self._stream.whole.choices[self._at]

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return self.whole.calls if self._facts.called else ()

    output_ids, text, reasoning, finish, series_names, customized, parsed = (
        _from("_facts", name)
        for name in ("output_ids", "text", "reasoning", "finish", "series_names", "customized", "parsed")
    )

    def series(self, name: str) -> list[Any] | None:
        return self.whole.series(name) if name in self.series_names else None

    def counter(self, name: str) -> int | None:
        return self._facts.counters.get(name)

    emissions = _from("whole", "emissions")
