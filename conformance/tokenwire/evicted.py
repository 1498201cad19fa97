"""Answers of captures that are larger than memory.

All answers of a run must be known before the first answer is judged. If the answers exceed a limit, their
content is evicted from memory. The facts that checks of a run use (`record.Answer`) are written to a
temporary file. The content is read again from the capture with the same dialect. Therefore verdicts do not
depend on the limit.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tokenwire.processes import shared_out, together
from tokenwire.record import FACTS, Answer, Choice, ChoiceFacts, Delivery, Stream
from tokenwire.wire.capture import CaptureChunk, Located, Span
from tokenwire.wire.exchange import Exchange, ExchangeHead, RequestHead
from tokenwire.wire.spill import CaptureReader, Offset, RandomCache, SpillFile

_HELD = 96 << 20
"""The number of bytes of captured answers that stay in memory.

The answers of a standard run are smaller. Parsed answers need six times as much memory as the captured bytes.
A replay that evicts answers takes three times as long.
"""
_CONTENT_CACHE, _FACTS_CACHE = 2 << 20, 8 << 20
"""The sizes, in bytes, of the caches for content and for pickled facts of evicted answers."""

ReadBy = Callable[[Exchange], Stream]
Shared = TypeVar("Shared", bound=Hashable)


class AnswerStore:
    """Keeps the answers of a replay in memory. If the answers exceed a limit, the store evicts them."""

    def __init__(
        self,
        held: int = _HELD,
        content: int = _CONTENT_CACHE,
        facts: int = _FACTS_CACHE,
        *,
        jobs: int = 1,
    ) -> None:
        """Set the limits in bytes. `jobs` is the number of processes that parse the answers to evict."""
        self._left = held
        self._jobs = jobs
        self._shared: dict[Hashable, Hashable] = {}
        self._flags: dict[frozenset[tuple[str, bool]], Mapping[str, bool]] = {}
        self.captures = CaptureReader()
        self.content: RandomCache[Stream] = RandomCache(content, on_evict=Stream.clear_caches)
        self.facts: RandomCache[Any] = RandomCache(facts)
        self.spill = SpillFile()

    @property
    def full(self) -> bool:
        """True if the answers that were parsed so far exceed the memory limit."""
        return self._left < 0

    def share(self, value: Shared) -> Shared:
        """Return the same object for all equal values, to save memory."""
        return self._shared.setdefault(value, value)  # type: ignore[return-value]  # the object is equal, so it has this type

    def flags(self, flags: frozenset[tuple[str, bool]]) -> Mapping[str, bool]:
        """Return the same mapping for all answers with equal flags, because there are few combinations."""
        return self._flags.setdefault(flags, dict(flags))

    def parse(self, chunks: Iterable[CaptureChunk]) -> Iterator[tuple[Path, list[Parsed]]]:
        """Yield the exchanges of each capture file.

        Once the memory limit is reached, the yielded exchanges are evicted. Raises the same exceptions as
        `capture.chunks`.
        """
        coming = iter(chunks)
        while not self.full and (chunk := next(coming, None)) is not None:
            located = list(chunk.located())
            self._left -= sum(found.exchange.size for found in located)
            yield chunk.span.path, [*located]
        # Workers return only the facts about exchanges, because the bodies would exceed the memory.
        parts = together(coming, lambda chunk: len(chunk.data))
        for path, heads in chain.from_iterable(shared_out(_parsed_heads, parts, self._jobs)):
            yield path, [_EvictedExchange(head, self) for head in heads]

    def exchanges(self, parsed: Sequence[Parsed]) -> list[ExchangeHead]:
        """Return the exchanges that `parse` has yielded.

        If the memory limit was reached, all returned exchanges are evicted.
        """
        return [
            exchange
            if isinstance(exchange, _EvictedExchange)
            else _EvictedExchange(_head(exchange), self)
            if self.full
            else exchange.exchange
            for exchange in parsed
        ]

    def read(self, exchanges: Sequence[tuple[ExchangeHead, ReadBy]]) -> list[Answer]:
        """Read exchanges with their dialects. Evicted answers keep only their facts in memory."""
        evicted = [(exchange, read) for exchange, read in exchanges if isinstance(exchange, _EvictedExchange)]

        def facts_of(part: Sequence[int]) -> list[_Facts]:
            return [_facts_of(read(exchange.load())) for exchange, read in map(evicted.__getitem__, part)]

        parts = together(range(len(evicted)), lambda index: evicted[index][0].size)
        # Workers inherit the dialects when they are forked, and return pickled facts.
        facts = chain.from_iterable(shared_out(facts_of, parts, self._jobs))
        return [
            EvictedAnswer(exchange, read, next(facts), self)
            if isinstance(exchange, _EvictedExchange)
            else read(exchange.load())
            for exchange, read in exchanges
        ]


_HEAD = (*ExchangeHead.__annotations__, "size", "last_read")
Head = Mapping[str, Any]
"""The fields of an `ExchangeHead`, and the span of the exchange in its capture."""


def _head(located: Located) -> Head:
    exchange = located.exchange
    request = RequestHead(exchange.request.method, exchange.request.path)
    return {name: getattr(exchange, name) for name in _HEAD} | {"request": request, "span": located.span}


def _parsed_heads(chunks: Iterable[CaptureChunk]) -> list[tuple[Path, list[Head]]]:
    return [(chunk.span.path, list(map(_head, chunk.located()))) for chunk in chunks]


class _EvictedExchange(ExchangeHead):
    """An exchange whose headers and bodies are only in its capture."""

    __slots__ = (*_HEAD, "_captures", "_span")
    size: int
    last_read: float | None

    def __init__(self, head: Head, store: AnswerStore) -> None:
        for name in _HEAD:
            setattr(self, name, head[name])
        self.request, self.server = store.share(self.request), store.share(self.server)
        self.scenario = store.share(self.scenario)
        span: Span = head["span"]
        self._captures, self._span = store.captures, span._replace(path=store.share(span.path))
        store.captures.add(span.path)

    def load(self) -> Exchange:
        return self._captures.exchange(self.name, self._span)


Parsed = Located | _EvictedExchange
"""An exchange of a capture. The exchange is either evicted, or in memory with its span in the file."""

_OF_ANSWER = ("asked", "error", "usage")
_OF_CHOICE = tuple(field.name for field in fields(ChoiceFacts) if field.name != "cache")


class _Facts(NamedTuple):
    """The facts of an evicted answer.

    The facts are pickled in three parts, because a check seldom needs all of them.
    """

    dialect: str
    delivery: Delivery
    refused: bool
    answered: bool
    flags: frozenset[tuple[str, bool]]
    """The computed facts that are booleans. Boolean facts stay in memory."""
    answer: bytes
    choices: bytes
    computed: bytes


def _facts_of(stream: Stream) -> _Facts:
    computed = _computed(stream)
    flags = {name: computed.pop(name) for name, value in list(computed.items()) if isinstance(value, bool)}
    answer = {name: getattr(stream, name) for name in _OF_ANSWER}
    choices = [
        (tuple(getattr(choice, name) for name in _OF_CHOICE), _computed(choice)) for choice in stream.choices
    ]
    stream.clear_caches()
    return _Facts(
        stream.dialect,
        stream.delivery,
        stream.refused,
        stream.answered,
        frozenset(flags.items()),
        _pickled(answer),
        _pickled(choices),
        _pickled(computed),
    )


def _computed(source: Stream | Choice) -> dict[str, Any]:
    """Return the computed facts of a stream or choice. Facts whose computation fails are left out."""
    known = {}
    for name, compute in FACTS[type(source)].items():
        with suppress(Exception):  # a check that needs the fact computes it again and gets the exception
            known[name] = source.fact(name, compute)
    return known


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _spilled(name: str) -> Any:
    return property(lambda answer: answer.of_answer(name))


class EvictedAnswer(Answer):
    """An answer whose content is in its capture, and whose facts are in the temporary file."""

    __slots__ = (
        *("exchange", "dialect", "delivery", "refused", "answered", "_read", "_store"),
        *("_flags", "_of_answer", "_of_choices", "_computed"),
    )
    exchange: _EvictedExchange
    answered: bool

    def __init__(self, exchange: _EvictedExchange, read: ReadBy, facts: _Facts, store: AnswerStore) -> None:
        self.exchange, self._read, self._store = exchange, read, store
        self.dialect = store.share(facts.dialect)
        self.delivery, self.refused, self.answered = facts.delivery, facts.refused, facts.answered
        self._flags = store.flags(facts.flags)
        self._of_answer, self._of_choices, self._computed = map(
            store.spill.write, (facts.answer, facts.choices, facts.computed)
        )

    asked, error, usage = map(_spilled, _OF_ANSWER)

    @property
    def choices(self) -> Any:  # type: ignore[override]  # the attribute is never assigned
        return self._unpickled(self._of_choices, self._evicted_choices)

    def _evicted_choices(self, choices: Any) -> Sequence[ChoiceFacts]:
        return [_EvictedChoice(self, index, *facts) for index, facts in enumerate(choices)]

    def of_answer(self, name: str) -> Any:
        """Return a fact that is named in `_OF_ANSWER`."""
        return self._unpickled(self._of_answer)[name]

    def _unpickled(self, offset: Offset, convert: Callable[[Any], Any] = lambda value: value) -> Any:
        spill = self._store.spill
        return self._store.facts.get(offset, offset.size, lambda: convert(spill.read(offset)))

    def fact(self, name: str, compute: Callable[[Stream], Any]) -> Any:
        if name in self._flags:
            return self._flags[name]
        known = self._unpickled(self._computed)
        if name not in known:
            known[name] = compute(self.load())
        return known[name]

    def load(self) -> Stream:
        size, content = self.exchange.size, self._store.content
        return content.get(self._of_answer, size, lambda: self._read(self.exchange.load()))


class _EvictedChoice(ChoiceFacts):
    """A choice whose emissions are in the capture."""

    def __init__(
        self, answer: EvictedAnswer, position: int, values: Sequence[Any], computed: dict[str, Any]
    ) -> None:
        # Attributes of a frozen dataclass cannot be assigned.
        vars(self).update(zip(_OF_CHOICE, values, strict=True), cache=computed)
        vars(self).update(answer=answer, position=position)

    def load(self) -> Choice:
        answer: EvictedAnswer = vars(self)["answer"]
        choice: Choice = answer.load().choices[vars(self)["position"]]
        return choice
