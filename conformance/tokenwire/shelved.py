"""Streams that outlive their content: what a stream says in short is kept, how it travelled is read again.

A run of many answers has to be known as a whole before the first is judged, and is too large to be held. What
most checks ask of all answers (what was asked, how it ended, its ids and text) lies on a shelf in short; its
events lie there as they came, and are read again, by the same dialect, by whoever looks at one of them. So
nothing is known of a stream that its bytes do not say, and verdicts are the same.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from functools import cached_property
from itertools import accumulate
from sys import intern
from typing import Any

from tokenwire.record import IN_SHORT, Asked, Choice, Delivery, Stream, ToolCall
from tokenwire.wire.exchange import Exchange, HttpRequest, Read, Server
from tokenwire.wire.shelf import AtHand, Shelf, Slip

_HELD = 16 << 20
"""So many bytes of answers are held before all are put away: what is read of them takes some ten times as
much, and to read it again a third of the time.
"""
_CONTENT_AT_HAND, _SHORT_AT_HAND = 2 << 20, 8 << 20
"""Bytes of answers whose content is at hand, and bytes of what is said in short."""

ReadBy = Callable[[Exchange], Stream]


class Cabinet:
    """Where the answers of a replay are, once there are many."""

    def __init__(
        self, held: int = _HELD, content: int = _CONTENT_AT_HAND, short: int = _SHORT_AT_HAND
    ) -> None:
        self._left = held
        self._shelf: Shelf | None = None
        self._servers: dict[Server, Server] = {}
        self.content = AtHand(content, _forget)
        """Answers with all that they hold, by where it lies on the shelf."""
        self.short = AtHand(short)
        """What is kept of them in short."""

    @property
    def shelf(self) -> Shelf:
        """Made when the first exchange is put away."""
        if self._shelf is None:
            self._shelf = Shelf()
        return self._shelf

    def server(self, server: Server) -> Server:
        """One object for all exchanges with a server."""
        return self._servers.setdefault(server, server)

    @property
    def full(self) -> bool:
        """Whether there were more answers than are held."""
        return self._left < 0

    def keep(self, exchanges: Iterable[Exchange]) -> list[Exchange]:
        """The same exchanges; all of them are put away where they are more than are held."""
        kept: list[Exchange] = []
        for exchange in exchanges:
            if not self.full:
                self._left -= sum(len(read.data) for read in exchange.reads)
                if self.full:
                    kept = list(map(self.put_away, kept))
            kept.append(self.put_away(exchange) if self.full else exchange)
        return kept

    def put_away(self, exchange: Exchange) -> Exchange:
        """The same exchange, on the shelf."""
        there = isinstance(exchange, _ShelvedExchange)
        put_away: Exchange = exchange if there else _ShelvedExchange(exchange, self)
        return put_away

    def read(self, exchange: Exchange, read: ReadBy) -> Stream:
        """What a dialect reads of an exchange; of one that was put away, in short."""
        return _ShelvedStream(exchange, read) if isinstance(exchange, _ShelvedExchange) else read(exchange)


def _forget(content: object) -> None:
    """Drop what was read of a stream that has to go: some of it points back, and would stay while the garbage
    collector rests (`settled`).
    """
    if isinstance(content, Stream):
        for kept in map(vars, (content, *content.choices)):
            for name in [name for name in kept if "." in name]:  # by module and function; see `read_once`
                del kept[name]


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

    def __init__(self, of: _ShelvedExchange, request: HttpRequest) -> None:
        _set(self, _of=of, method=intern(request.method), path=intern(request.path))

    @property
    def _sent(self) -> HttpRequest:
        return self._of.head[0]

    body, raw_body, headers = (_from("_sent", name) for name in ("body", "raw_body", "headers"))


class _ShelvedExchange(Exchange):
    """An exchange whose reads, bodies and headers are on the shelf."""

    __slots__ = (
        *("name", "request", "scenario", "status", "ending", "detail", "duration", "started", "server"),
        *("last_read", "cabinet", "size", "_head", "_reads"),
    )
    __new__ = _held
    cabinet: Cabinet
    size: int
    """Bytes of the answer."""
    _head: Slip
    _reads: Slip

    def __init__(self, exchange: Exchange, cabinet: Cabinet) -> None:
        data = exchange.body
        arrivals = array("d", [read.time for read in exchange.reads])
        sizes = array("q", [len(read.data) for read in exchange.reads])
        _set(
            self,
            name=exchange.name,
            request=_ShelvedRequest(self, exchange.request),
            scenario=intern(exchange.scenario),
            status=exchange.status,
            ending=exchange.ending,
            detail=exchange.detail,
            duration=exchange.duration,
            started=exchange.started,
            server=cabinet.server(exchange.server),
            last_read=exchange.last_read,
            cabinet=cabinet,
            size=len(data),
            _head=cabinet.shelf.put((exchange.request, exchange.headers)),
            _reads=cabinet.shelf.put((data, arrivals, sizes), compressed=True),
        )

    @property
    def head(self) -> tuple[HttpRequest, tuple[tuple[str, str], ...]]:
        return self.cabinet.short.get(self._head, self._head.size, self._fetch_head)

    def _fetch_head(self) -> tuple[HttpRequest, tuple[tuple[str, str], ...]]:
        head: tuple[HttpRequest, tuple[tuple[str, str], ...]] = self.cabinet.shelf.fetch(self._head)
        return head

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return self.head[1]

    @property
    def reads(self) -> tuple[Read, ...]:
        return self.cabinet.content.get(self._reads, self.size, self._fetch_reads)

    def _fetch_reads(self) -> tuple[Read, ...]:
        data, arrivals, sizes = self.cabinet.shelf.fetch(self._reads)
        ends = accumulate(sizes)
        return tuple(
            Read(time, data[end - size : end]) for time, size, end in zip(arrivals, sizes, ends, strict=True)
        )

    @property
    def whole(self) -> Exchange:
        """The same exchange, with all that it holds."""
        request, headers = self.head
        return Exchange(
            self.name,
            request,
            self.scenario,
            self.status,
            headers,
            self._fetch_reads(),
            self.ending,
            self.detail,
            self.duration,
            self.started,
            self.server,
        )


_SAID = ("delivery", "refused", "answered", "error", "usage", "usage_place", "schema", "undecodable_at")
_USUAL = {one.name: one.default for one in fields(Asked) if one.default is not MISSING}
_OF_A_CHOICE = ("output_ids", "text", "reasoning", "finish", "series_names", "parsed")


class _Short:
    """What a stream says in short, as it comes from the shelf; what is seldom looked at is unpacked then."""

    delivery: Delivery

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
        return tuple(_ShelvedChoice(self._stream, at, self.delivery, *one) for at, one in told)


class _ShelvedStream(Stream):
    """A stream whose content is on the shelf."""

    __slots__ = ("_read", "_short", "dialect", "exchange")
    __new__ = _held
    exchange: _ShelvedExchange
    _read: ReadBy
    _short: Slip

    def __init__(self, exchange: _ShelvedExchange, read: ReadBy) -> None:
        whole = read(exchange.whole)
        said = tuple(getattr(whole, name) for name in _SAID)
        facts = {name: tell(whole) for name, tell in IN_SHORT[Stream].items()}
        unusual = {name: value for name, value in vars(whole.asked).items() if not _is_usual(name, value)}
        more = [_said_of(choice) for choice in whole.choices], facts
        slip = exchange.cabinet.shelf.put((said, *(pickle.dumps(part, 5) for part in (unusual, more))))
        _forget(whole)
        _set(self, exchange=exchange, dialect=whole.dialect, _read=read, _short=slip)

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

    @property
    def facts(self) -> dict[str, Any]:
        return self.in_short.facts

    delivery, refused, answered, error, usage, usage_place, schema, undecodable_at = (
        _from("in_short", name) for name in _SAID
    )
    asked, choices = _from("in_short", "asked"), _from("in_short", "choices")
    events, usages, unterminated, in_order, _emissions = (
        _from("whole", name) for name in ("events", "usages", "unterminated", "in_order", "_emissions")
    )


def _is_usual(name: str, value: object) -> bool:
    """Whether a field of what was asked has its default: the same value of the same type."""
    usual = _USUAL.get(name, MISSING)
    return type(value) is type(usual) and value == usual


def _said_of(choice: Choice) -> tuple[Any, ...]:
    """What a choice says in short."""
    kept = {name: getattr(choice, name) for name in _OF_A_CHOICE}
    counters = {name: choice.counter(name) for name in choice.columns.counters}
    facts = {name: tell(choice) for name, tell in IN_SHORT[Choice].items()}
    called, customized = bool(choice.calls), choice.customized
    own = {"index": choice.index, "likeliest": choice.likeliest}
    return own | kept | facts, counters, called, customized


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

    emissions, columns = (_from("whole", name) for name in ("emissions", "columns"))
