"""The abstract record (spec chapter 1), into which the formats of all server families are parsed.

Checks use only these classes. The classes do not know any server, file or network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, wraps
from itertools import chain
from typing import Any, NamedTuple, TypeVar, overload

from tokenwire.ask import Asked
from tokenwire.wire.exchange import Exchange, ExchangeHead
from tokenwire.wire.joined_text import join_text

BROKEN = "\ufffd"
"""The character U+FFFD, by which decoders replace the bytes of an incomplete character."""
ID_LIMIT = 2**31
"""The limit of token ids. Every id is below it."""
_IN_NO_CHOICE = -1


def as_list(value: object) -> list[Any] | None:
    """Return a JSON array. None for any other value."""
    return value if isinstance(value, list) else None


def integer(value: object) -> int | None:
    """Return a JSON integer. None for any other value, including true and 1.0."""
    return value if type(value) is int else None


class Delivery(StrEnum):
    """The ways in which an answer may be delivered."""

    WHOLE = "whole"
    CUMULATIVE = "cumulative"
    INCREMENTAL = "incremental"


class Place(NamedTuple):
    """A place in the data that a server sent.

    Every observation has a place as its evidence. This class is not a frozen dataclass, because creating one
    would take five times as long.
    """

    exchange: str
    event: int | None = None
    """The index of the event in its stream. None if the answer is a single document."""
    pointer: str = ""
    """A JSON pointer (RFC 6901) into the event's data or the document."""
    start: int = 0
    """The offset of the first byte in the body."""
    end: int = 0
    time: float = 0.0
    """Seconds from the request to the arrival of the last byte."""

    def at(self, pointer: str) -> Place:
        """Return the place with another pointer into the same data."""
        return Place(self.exchange, self.event, pointer, self.start, self.end, self.time)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream, or the single document of a whole answer."""

    index: int
    place: Place
    data: Any
    """The JSON value. None for the end mark, or if the data is not JSON (see `problem`)."""
    name: str = ""
    """The value of the `event` field. Empty if the event has no name."""
    done: bool = False
    """True for the end mark `[DONE]`."""
    problem: str = ""
    """The reason why the data is not one strict JSON object. Empty if the data is one."""
    schema_errors: tuple[str, ...] = ()
    """The errors found by the endpoint's schema, each as a pointer and a message."""
    error: Any = None
    """The error that the event reports, or None."""

    def at(self, pointer: str) -> Place:
        """Return the place of a value within the event's data."""
        return self.place.at(pointer)


@dataclass(frozen=True, slots=True)
class Finish:
    """A finish reason that is not null."""

    type: str
    matched: Any = None
    """The stop id or stop string that ended the choice. None if the server does not report it."""
    length: int | None = None
    raw: Any = None
    code: Any = None
    """The HTTP status that a failed choice reports, or None."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a call with the fields. The default of dataclasses takes five times as long
        to unpickle.
        """
        return Finish, tuple(getattr(self, name) for name in self.__slots__)

    @property
    def failed(self) -> bool:
        """True if a failure ended the choice, which is an abort with an HTTP status.

        Such a finish replaces the answer, so the other content of the choice has no meaning.
        """
        return self.type == "abort" and self.code is not None


class CallPiece(NamedTuple):
    """The part of a tool call in one emission, exactly as it was sent.

    Fields that are absent or null are None.
    """

    pointer: str
    """JSON pointer into the data of the event."""
    position: int
    """The index in the list of tool calls."""
    index: Any = None
    """The value of the field `index`, which is the number of the call in the choice."""
    id: Any = None
    type: Any = None
    name: Any = None
    arguments: Any = None

    @property
    def call(self) -> int:
        """The number of the call to which a streamed part belongs.

        It is the part's `index`, or its position if it has no index.
        """
        return self.index if type(self.index) is int else self.position


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of a choice, joined from all of its parts."""

    index: int
    pieces: tuple[tuple[Emission, CallPiece], ...]

    def _first(self, field: str) -> Any:
        reported = (getattr(piece, field) for _, piece in self.pieces)
        return next((value for value in reported if value is not None), None)

    @property
    def id(self) -> Any:
        return self._first("id")

    @property
    def type(self) -> Any:
        return self._first("type")

    @property
    def name(self) -> Any:
        return self._first("name")

    @property
    def arguments(self) -> str:
        """The joined text of the arguments. Empty if no part has any."""
        return join_text(p.arguments for _, p in self.pieces if isinstance(p.arguments, str))


@dataclass(slots=True)
class Emission:
    """The content of one event for one choice, exactly as it was sent.

    A field that the event lacks is None, or missing from its mapping. The choice sets the emission's position
    among its emissions. Nothing else changes after creation.
    """

    event: Event
    choice: int
    pointers: Mapping[str, str] = field(default_factory=dict)
    """The JSON pointer of each field that the event has, by the field's name in this class or in one of its
    mappings.
    """
    text: str | None = None
    """The text of the content channel. A parser may have removed reasoning and tool calls from it."""
    reasoning: str | None = None
    calls: tuple[CallPiece, ...] = ()
    output_ids: list[Any] | None = None
    """The ids in the event. A server sends either only the new ids, or all ids so far."""
    prompt_token_ids: list[Any] | None = None
    series: Mapping[str, Any] = field(default_factory=dict)
    """Per-token output series by name, as on the wire. A series normally has one entry for each output id."""
    customized: frozenset[str] = frozenset()
    """The names of the series that come from customized_info, which a custom sampler adds."""
    prompt_series: Mapping[str, Any] = field(default_factory=dict)
    """Per-token series of the prompt, by name."""
    counters: Mapping[str, Any] = field(default_factory=dict)
    """Counters that are present and not null, such as completion_tokens, prompt_tokens and cached_tokens."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Other values by name, such as cached_tokens_details, role, meta_info and request_id."""
    finish: Finish | None = None
    delivery: Delivery = Delivery.WHOLE
    index: int = 0
    """The index of the event."""
    position: int = _IN_NO_CHOICE
    """The position among the emissions of the choice."""
    last: bool = False
    """True for the last emission of the choice."""
    before: int = 0
    """The number of output ids that the choice delivered before this emission.

    The ids are counted; for a choice without ids, completion_tokens is used.
    """
    after: int = 0
    """The number of output ids that the choice has delivered after this emission."""
    seen_entries: int = 0
    """The number of entries at the beginning of this emission's lists that earlier emissions have already
    delivered.
    """
    counted: bool = True
    """True if `after` is known.

    It is known if the emission has ids, or if the server may omit the ids because none are new.
    """

    def at(self, name: str) -> Place:
        """Return the place of a field. If the field is absent, return the place of the whole emission."""
        return self.event.place.at(self.pointers.get(name, ""))

    @property
    def incremental(self) -> bool:
        return self.delivery is Delivery.INCREMENTAL

    @property
    def new(self) -> int:
        """The number of output ids that are new in this emission."""
        return self.after - self.before

    @property
    def expected_entries(self) -> int:
        """The number of entries that a per-token series of this emission must have."""
        return self.new if self.incremental else self.after

    @property
    def entries_in_words(self) -> str:
        """Return `expected_entries` as text with a noun, for messages."""
        of = {Delivery.WHOLE: "of the answer", Delivery.INCREMENTAL: "of this event"}
        count = self.expected_entries
        return f"{count} output {'id' if count == 1 else 'ids'} {of.get(self.delivery, 'delivered so far')}"

    def unseen(self, entries: list[Any]) -> list[Any]:
        """Return the entries of a list that earlier emissions did not deliver."""
        return entries[self.seen_entries :]

    def entries(self, name: str) -> list[Any] | None:
        """Return the entries of a series. None if it is not a list."""
        return as_list(self.series.get(name))

    def counter(self, name: str) -> int | None:
        """Return the value of a counter. None if it is not an integer."""
        return integer(self.counters.get(name))


def _placed(emissions: Iterable[Emission], delivery: Delivery) -> tuple[Emission, ...]:
    """Return the emissions of a choice, with their positions in this choice.

    An emission that already belongs to another choice is copied.
    """
    # A choice may be made from another choice's emissions, which must keep their positions there.
    placed = tuple(
        emission if emission.position == _IN_NO_CHOICE else replace(emission) for emission in emissions
    )
    incremental = delivery is Delivery.INCREMENTAL
    carries_ids = any(emission.output_ids is not None for emission in placed)
    delivered = 0
    for position, emission in enumerate(placed):
        emission.index, emission.delivery = emission.event.index, delivery
        emission.position, emission.last = position, position == len(placed) - 1
        emission.before, emission.counted = delivered, carries_ids and incremental
        # Each list of a cumulative stream begins with the entries of earlier emissions.
        emission.seen_entries = 0 if incremental else delivered
        if emission.output_ids is not None:
            delivered, emission.counted = len(emission.output_ids) + (delivered if incremental else 0), True
        elif not carries_ids and (count := emission.counter("completion_tokens")) is not None:
            delivered, emission.counted = count, True
        emission.after = delivered
    return placed


@dataclass(frozen=True)
class ChoiceFacts:
    """The facts of a choice that a check of a whole run may use: joined values, without the emissions."""

    index: int
    delivery: Delivery
    likeliest: bool = True
    """True if the request samples the most likely id at each position; see `Asked.likeliest`."""
    output_ids: list[Any] | None = field(init=False)
    """All output ids, joined according to the delivery mode. None if no emission has ids."""
    text: str | None = field(init=False)
    """The whole text of the content channel. None if no emission has text."""
    reasoning: str | None = field(init=False)
    """The whole text of the reasoning channel. None if no emission has reasoning."""
    finish: Finish | None = field(init=False)
    series_names: frozenset[str] = field(init=False)
    customized: frozenset[str] = field(init=False)
    """The names of the series that come from a custom sampler."""
    counters: Mapping[str, int] = field(init=False)
    """The last integer value of each counter."""
    has_calls: bool = field(init=False)
    """True if any emission has a part of a tool call."""
    parsed: bool = field(init=False)
    """True if a parser moved a part of the sampled text out of the content channel."""
    cache: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Cached results, by function or by name of the fact; see `Stream.clear_caches`."""

    def counter(self, name: str) -> int | None:
        return self.counters.get(name)

    @property
    def server_series(self) -> frozenset[str]:
        """The names of the series that come from the server itself, not from a custom sampler."""
        return self.series_names - self.customized

    def load(self) -> Choice:
        """Return the choice with its emissions; see `Answer.load`."""
        raise NotImplementedError

    def fact(self, name: str, compute: Callable[[Choice], Any]) -> Any:
        """Return a fact about the emissions, which is computed at most once; see `fact`."""
        if name not in self.cache:
            self.cache[name] = compute(self.load())
        return self.cache[name]

    def ends_with(self, name: str) -> bool:
        """True if the last emission has a field."""
        return name in _last(self)[1]

    def last_at(self, name: str = "") -> Place:
        """Return the place of a field of the last emission. If the field is absent, return the place of the
        whole emission.
        """
        place, pointers = _last(self)
        return place.at(pointers.get(name, ""))


@dataclass(frozen=True)
class Choice(ChoiceFacts):
    """One choice of an answer: everything that was delivered for one index."""

    emissions: Sequence[Emission] = ()
    """The emissions, in the order in which they arrived."""

    def __post_init__(self) -> None:
        emissions = _placed(self.emissions, self.delivery)
        ids = [emission.output_ids for emission in emissions if emission.output_ids is not None]
        # If a choice finishes twice, the last finish is used. The requirement one-finish-per-choice reports
        # the error.
        finishes = (emission.finish for emission in reversed(emissions))
        counters = (counter for emission in emissions for counter in emission.counters.items())
        joined = {
            "emissions": emissions,
            "output_ids": list(self._joined(ids)) if ids else None,
            "text": self._joined_text([emission.text for emission in emissions if emission.text is not None]),
            "reasoning": self._joined_text(
                [emission.reasoning for emission in emissions if emission.reasoning is not None]
            ),
            "finish": next((finish for finish in finishes if finish is not None), None),
            "series_names": frozenset(name for emission in emissions for name in emission.series),
            "customized": frozenset(name for emission in emissions for name in emission.customized),
            "counters": {name: value for name, value in counters if type(value) is int},
            "has_calls": any(emission.calls for emission in emissions),
            "parsed": any(emission.reasoning or emission.calls for emission in emissions),
        }
        for name, value in joined.items():
            object.__setattr__(self, name, value)

    def _joined(self, carried: Sequence[Sequence[Any]]) -> Iterable[Any]:
        return chain.from_iterable(carried) if self.delivery is Delivery.INCREMENTAL else carried[-1]

    def _joined_text(self, carried: list[str]) -> str | None:
        if not carried:
            return None
        return join_text(carried) if self.delivery is Delivery.INCREMENTAL else carried[-1]

    def load(self) -> Choice:
        return self

    @cached_property
    def delivered(self) -> tuple[Emission, ...]:
        """The emissions, except those that report a failure."""
        return tuple(
            emission for emission in self.emissions if emission.finish is None or not emission.finish.failed
        )

    @cached_property
    def held(self) -> frozenset[str]:
        """The names of all series, counters and details that have a value other than null."""
        mappings = (
            mapping
            for emission in self.emissions
            for mapping in (emission.series, emission.counters, emission.details, emission.prompt_series)
        )
        return frozenset(name for mapping in mappings for name, value in mapping.items() if value is not None)

    @cached_property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, in the order in which they begin."""
        pieces: dict[int, list[tuple[Emission, CallPiece]]] = {}
        carrying = [emission for emission in self.emissions if emission.calls]
        # In a cumulative stream, the last emission with calls has all of them.
        for emission in carrying if self.text_is_incremental else carrying[-1:]:
            for piece in emission.calls:
                index = piece.call if self.text_is_incremental else piece.position
                pieces.setdefault(index, []).append((emission, piece))
        return tuple(ToolCall(index, tuple(of_call)) for index, of_call in pieces.items())

    @property
    def text_is_incremental(self) -> bool:
        return self.delivery is Delivery.INCREMENTAL

    def series(self, name: str) -> list[Any] | None:
        """Return a per-token series, joined according to the delivery mode. None if no emission has it."""
        values = (emission.series.get(name) for emission in self.emissions)
        carried = [value for value in values if isinstance(value, list)]
        return list(self._joined(carried)) if carried else None

    def details(self, name: str) -> list[Any]:
        """Return the detail with this name of each emission.

        An entry is None if the emission lacks the detail.
        """
        return [emission.details.get(name) for emission in self.emissions]


class Detail(NamedTuple):
    """A detail outside of the choices."""

    value: Any
    place: Place


@dataclass(frozen=True, slots=True)
class Usage:
    """A usage object in an answer."""

    place: Place
    counts: Mapping[str, Any]
    choices: tuple[int, ...] = ()
    """The indices of the choices in the same event. Empty if the event has only the usage."""
    details: Mapping[str, Detail] = field(default_factory=dict)
    """The details in the same event, if it has no choices."""


class Answer:
    """An answer of a run, with the facts that a check of a whole run may use.

    A `Stream` is an answer whose content is in memory. An `EvictedAnswer` is an answer whose content is only
    in its capture.
    """

    exchange: ExchangeHead
    dialect: str
    asked: Asked
    delivery: Delivery
    refused: bool
    """True if the server answered with a 4xx status instead of choices."""
    error: Any
    """The error body, or the error that a stream reported in an event."""
    usage: Mapping[str, Any] | None
    choices: Sequence[ChoiceFacts]

    @property
    def answered(self) -> bool:
        """True if there is something to judge: status 200 and at least one choice."""
        return bool(self.choices) and not self.refused

    def fact(self, name: str, compute: Callable[[Stream], Any]) -> Any:
        """Return a fact about the content, which is computed at most once; see `fact`."""
        raise NotImplementedError

    def load(self) -> Stream:
        """Return the answer with its content.

        Content that is not in memory is read again from the capture. Raises CaptureError if the capture has
        changed.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Stream(Answer):
    """An answer that a dialect parsed from an exchange, with its content and the way in which it was
    delivered. The repr names the exchange, without the content.
    """

    exchange: Exchange
    dialect: str
    asked: Asked = field(repr=False)
    delivery: Delivery
    events: Sequence[Event] = field(repr=False)
    choices: tuple[Choice, ...] = field(repr=False)
    refused: bool = False
    error: Any = field(default=None, repr=False)
    usage: Mapping[str, Any] | None = field(default=None, repr=False)
    usage_place: Place | None = field(default=None, repr=False)
    usages: tuple[Usage, ...] = field(default=(), repr=False)
    """All usage objects, in the order in which they arrived.

    The property `usage` is the last usage object.
    """
    schema: str = ""
    """The name of the schema with which the events were validated."""
    unterminated: bytes = field(default=b"", repr=False)
    """The bytes after the last complete event."""
    undecodable_at: int | None = None
    """The offset of the first byte that is not UTF-8. None if all bytes are UTF-8."""
    cache: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Cached results, by function or by name of the fact."""

    def clear_caches(self, *, facts: bool = True) -> None:
        """Clear the caches of the stream and its choices.

        With `facts=False`, named facts are kept, because they are small. Cached results refer to their
        choice, and so prevent that its content is freed without the garbage collector.
        """
        for cache in (self.cache, *(choice.cache for choice in self.choices)):
            kept = {} if facts else {key: value for key, value in cache.items() if isinstance(key, str)}
            cache.clear()
            cache.update(kept)

    def fact(self, name: str, compute: Callable[[Stream], Any]) -> Any:
        """Return a fact, which is computed at most once."""
        if name not in self.cache:
            self.cache[name] = compute(self)
        return self.cache[name]

    def load(self) -> Stream:
        return self

    @property
    def document(self) -> Mapping[str, Any]:
        """The JSON object of a whole answer; empty for streams, refusals and other JSON values."""
        data = self.events[0].data if self.answered and self.events and not self.asked.stream else None
        return data if isinstance(data, Mapping) else {}

    @cached_property
    def delivering(self) -> tuple[Choice, ...]:
        """The choices that delivered content, by index. Empty if the answer was refused."""
        return tuple(choice for choice in self.choices if choice.delivered) if self.answered else ()

    @cached_property
    def delivering_as_begun(self) -> tuple[Choice, ...]:
        """The choices that delivered content, in the order in which they begin."""
        return tuple(sorted(self.delivering, key=lambda choice: choice.delivered[0].event.index))

    @cached_property
    def error_events(self) -> tuple[Event, ...]:
        """The events that report an error."""
        return tuple(event for event in self.events if event.error is not None)

    def emissions(self) -> Sequence[Emission]:
        """Return the emissions of all choices, in the order in which they arrived."""
        return self.choices[0].emissions if len(self.choices) == 1 else self._emissions

    @cached_property
    def _emissions(self) -> Sequence[Emission]:
        every = (emission for choice in self.choices for emission in choice.emissions)
        return tuple(sorted(every, key=lambda emission: (emission.event.index, emission.choice)))


_Fact = TypeVar("_Fact")

FACTS: dict[type, dict[str, Callable[[Any], Any]]] = {Stream: {}, Choice: {}}
"""The facts of streams and of choices, by name; see `fact`."""


@overload
def fact(of: type[Stream]) -> Callable[[Callable[[Stream], _Fact]], Callable[[Answer], _Fact]]: ...


@overload
def fact(of: type[Choice]) -> Callable[[Callable[[Choice], _Fact]], Callable[[ChoiceFacts], _Fact]]: ...


def fact(of: type) -> Callable[[Callable[[Any], _Fact]], Callable[[Any], _Fact]]:
    """Register a function that computes a fact from the content of a stream or choice.

    Checks of a whole run use the facts of all answers. Facts are computed before an answer is evicted and
    stored in place of the content, so they must be small.
    """

    def register(compute: Callable[[Any], _Fact]) -> Callable[[Any], _Fact]:
        name = f"{compute.__module__}.{compute.__qualname__}"
        FACTS[of][name] = compute

        @wraps(compute)
        def known(source: Answer | ChoiceFacts) -> _Fact:
            value: _Fact = source.fact(name, compute)
            return value

        return known

    return register


@fact(Choice)
def _last(choice: Choice) -> tuple[Place, Mapping[str, str]]:
    """Return the place of the last emission, and the pointers of its fields."""
    last = choice.emissions[-1]
    return last.event.place, dict(last.pointers)
