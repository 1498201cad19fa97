"""Streams whose content is dropped: a short form is kept, and the capture is read again if needed.

A run of many answers has to be known as a whole before the first is judged, and is too large to be held. What
most checks ask of all answers (what was asked, how it ended, its ids and text) lies on a shelf in short; its
events stay in the capture, and the same dialect reads them again when a check needs one. So nothing is known
of a stream that its bytes do not say, and verdicts are the same.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from functools import cached_property
from itertools import chain
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple

from tokenwire.processes import shared_out, together
from tokenwire.record import FACTS, Asked, Choice, Delivery, Stream, ToolCall
from tokenwire.wire.capture import Located, Parcel, Span
from tokenwire.wire.exchange import Exchange, HttpRequest, Server
from tokenwire.wire.shelf import AtHand, Captures, Shelf, Slip, packed

_HELD = 96 << 20
"""So many bytes of answers are held before all are put away, those of a standard run among them: what is read
of them takes some six times as much memory, and from the shelf a replay takes three times as long.
"""
_CONTENT_AT_HAND, _SHORT_AT_HAND = 2 << 20, 8 << 20
"""Bytes of answers whose content is at hand, and bytes of what is said in short."""

ReadBy = Callable[[Exchange], Stream]


class Cabinet:
    """Where the answers of a replay are, once there are many."""

    def __init__(
        self,
        held: int = _HELD,
        content: int = _CONTENT_AT_HAND,
        short: int = _SHORT_AT_HAND,
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
        self.short = AtHand(short)
        """What is kept of them in short."""
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
        """What dialects read of exchanges; of those that were put away, in short."""
        there = [(one, read) for one, read in exchanges if isinstance(one, _ShelvedExchange)]

        def in_short(part: Sequence[int]) -> list[_PackedStream]:
            return [_packed_stream(read(one.whole)) for one, read in map(there.__getitem__, part)]

        parts = together(range(len(there)), lambda at: there[at][0].size)
        told = chain.from_iterable(shared_out(in_short, parts, self._jobs))
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
_SAID = ("error", "usage", "usage_place", "schema", "undecodable_at")
_USUAL = {one.name: one.default for one in fields(Asked) if one.default is not MISSING}
_OF_A_CHOICE = ("output_ids", "text", "reasoning", "finish", "series_names", "parsed")


class _Short:
    """What a stream says in short, as it comes from the shelf; what is seldom looked at is unpacked then."""

    def __init__(self, stream: _ShelvedStream, said: tuple[Any, ...], asked: bytes, more: bytes) -> None:
        vars(self).update(zip(_SAID, said, strict=True))
        self._stream, self._asked, self._more = stream, asked, more

    @cached_property
    def asked(self) -> Asked:
        asked = object.__new__(Asked)
        vars(asked).update(_USUAL | pickle.loads(self._asked))
        return asked

    @cached_property
    def _told(self) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
        told: tuple[list[tuple[Any, ...]], dict[str, Any]] = pickle.loads(self._more)
        return told

    @property
    def facts(self) -> dict[str, Any]:
        return self._told[1]

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        told = enumerate(self._told[0])
        return tuple(_ShelvedChoice(self._stream, at, self._stream.delivery, *one) for at, one in told)


class _PackedStream(NamedTuple):
    """What is kept of a stream."""

    dialect: str
    seen: tuple[Any, ...]
    """The fields that `_AT_A_GLANCE` names."""
    flags: dict[str, bool]
    short: bytes


def _packed_stream(whole: Stream) -> _PackedStream:
    said = tuple(getattr(whole, name) for name in _SAID)
    facts = _facts(whole)
    flags = {name: facts.pop(name) for name, value in list(facts.items()) if isinstance(value, bool)}
    unusual = {name: value for name, value in vars(whole.asked).items() if not _is_usual(name, value)}
    more = [_said_of(choice) for choice in whole.choices], facts
    short = packed((said, *(pickle.dumps(part, 5) for part in (unusual, more))))
    whole.clear_caches()
    return _PackedStream(whole.dialect, tuple(getattr(whole, name) for name in _AT_A_GLANCE), flags, short)


class _ShelvedStream(Stream):
    """A stream whose content is on the shelf."""

    __slots__ = ("_read", "_short", "dialect", "exchange", "flags", *_AT_A_GLANCE)
    __new__ = _held
    exchange: _ShelvedExchange
    flags: Mapping[str, bool]
    """The facts that are true or false."""
    _read: ReadBy
    _short: Slip

    def __init__(self, exchange: _ShelvedExchange, read: ReadBy, stream: _PackedStream) -> None:
        _set(
            self,
            **dict(zip(_AT_A_GLANCE, stream.seen, strict=True)),
            exchange=exchange,
            dialect=intern(stream.dialect),
            flags=exchange.cabinet.flags(stream.flags),
            _read=read,
            _short=exchange.cabinet.shelf.put(stream.short),
        )

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def whole(self) -> Stream:
        exchange = self.exchange
        return exchange.cabinet.content.get(self._short, exchange.size, lambda: self._read(exchange.whole))

    @property
    def in_short(self) -> _Short:
        return self.exchange.cabinet.short.get(self._short, self._short.size, self._fetch_short)

    def _fetch_short(self) -> _Short:
        return _Short(self, *self.exchange.cabinet.shelf.fetch(self._short))

    at_hand = property(lambda _: False)

    def fact(self, name: str, compute: Callable[[Stream], Any]) -> Any:
        if name in self.flags:
            return self.flags[name]
        facts = self.in_short.facts
        if name not in facts:
            facts[name] = compute(self.whole)
        return facts[name]

    error, usage, usage_place, schema, undecodable_at = (_from("in_short", name) for name in _SAID)
    asked, choices = _from("in_short", "asked"), _from("in_short", "choices")
    events, usages, unterminated, error_events, _emissions = (
        _from("whole", name) for name in ("events", "usages", "unterminated", "error_events", "_emissions")
    )


def _facts(source: Stream | Choice) -> dict[str, Any]:
    """All facts of a stream or choice, but for those whose computation raises."""
    facts = {}
    for name, compute in FACTS[type(source)].items():
        with suppress(Exception):  # it is computed again where it is asked for, and raises there
            facts[name] = source.fact(name, compute)
    return facts


def _is_usual(name: str, value: object) -> bool:
    """Whether a field of what was asked has its default: the same value of the same type."""
    usual = _USUAL.get(name, MISSING)
    return type(value) is type(usual) and value == usual


def _said_of(choice: Choice) -> tuple[Any, ...]:
    """What a choice says in short."""
    kept = {name: getattr(choice, name) for name in _OF_A_CHOICE}
    names = {name for emission in choice.emissions for name in emission.counters}
    counters = {name: choice.counter(name) for name in names}
    facts = _facts(choice)
    called, customized = bool(choice.calls), choice.customized
    own = {"index": choice.index, "likeliest": choice.likeliest}
    return own | kept | {"cache": facts}, counters, called, customized


class _ShelvedChoice(Choice):
    """A choice whose emissions are on the shelf."""

    __new__ = _held
    _stream: _ShelvedStream
    _at: int
    _counters: dict[str, int | None]
    _called: bool
    _customized: frozenset[str]

    def __init__(
        self, stream: _ShelvedStream, at: int, delivery: Delivery, kept: dict[str, Any], *short: Any
    ) -> None:
        vars(self).update(kept, delivery=delivery, _stream=stream, _at=at)
        _set(self, **dict(zip(("_counters", "_called", "_customized"), short, strict=True)))

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def whole(self) -> Choice:
        return self._stream.whole.choices[self._at]

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return self.whole.calls if self._called else ()

    @property
    def customized(self) -> frozenset[str]:
        return self._customized

    def series(self, name: str) -> list[Any] | None:
        return self.whole.series(name) if name in self.series_names else None

    def counter(self, name: str) -> int | None:
        return self._counters.get(name)

    emissions = _from("whole", "emissions")
