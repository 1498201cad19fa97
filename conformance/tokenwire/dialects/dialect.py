"""Dialects: the wire format of the record at one endpoint of one server family.

A dialect is a table (`spec/dialects/<name>.yaml`) that locates each field by a JSON pointer. A new server
family needs a new table. It needs new code only if a table cannot express its format.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import jsonschema_rs
import yaml

from tokenwire.ask import Ask, Asked
from tokenwire.dialects.answer_binding import AnswerBinding
from tokenwire.dialects.arrays import ArrayRule
from tokenwire.dialects.delivery_mode import infer_delivery
from tokenwire.dialects.detokenize import Detokenize
from tokenwire.dialects.echoed_prompt import without_echo
from tokenwire.dialects.event_grammar import load_grammar
from tokenwire.dialects.item_binding import ItemBinding
from tokenwire.dialects.policy import Policy
from tokenwire.dialects.request_binding import RequestBinding, Unsupported
from tokenwire.dialects.request_reading import read_request
from tokenwire.foreign_files import read_foreign_yaml
from tokenwire.record import Answer, Choice, Delivery, Detail, Emission, Event, Place, Stream, Usage
from tokenwire.spec_files import load_schema, schema_in, spec_folders
from tokenwire.typed_table import typed
from tokenwire.wire import strict_json
from tokenwire.wire.event_stream import parse_event_stream, stray_line
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, RequestHead
from tokenwire.wire.json_pointer import ABSENT, Keys, find, join, parse
from tokenwire.wire.sharing import sharing

__all__ = [
    "Dialect",
    "Endpoint",
    "Unsupported",
    "arrays_of",
    "dialect_of",
    "gives_results",
    "has_items",
    "is_chat",
    "is_ranked",
    "known_as",
    "load_dialects",
    "named_dialects",
    "policy_of",
    "vocabulary_told",
]

_SCHEMA_ERRORS = 8
_SCHEMA_MESSAGE = 240
_SHAPES = (jsonschema_rs.ValidationErrorKind.AnyOf, jsonschema_rs.ValidationErrorKind.OneOfNotValid)
"""Errors of a value that matches none of the alternatives in a schema."""
_CHOICES = "choices"
"""The name of the list of choices, which is not itself an output field."""
_TOTAL = "completion_tokens"
_LONG = 1024
"""The size in bytes from which an event shares equal values with the previous event, to save memory."""
_NO_NAMES: frozenset[str] = frozenset()
_JSON_STARTS = (b"{", b"[")
_HEAD = 4
"""The number of bytes that are examined to decide if a body is JSON."""
_BEFORE_JSON = b"\xef\xbb\xbf \t\r\n"
_USUAL = Policy()
_VOLATILE = frozenset({"id", "created", "request_id"})
"""The volatile fields of a dialect whose table does not list any."""

Binding = AnswerBinding | ItemBinding
SchemaSource = Callable[[str], dict[str, Any]]


@dataclass(frozen=True)
class Endpoint:
    """The HTTP methods and the path of a dialect. The suite sends requests with the first method."""

    methods: tuple[str, ...]
    path: str

    def __contains__(self, request: RequestHead) -> bool:
        return request.method in self.methods and request.path.partition("?")[0] == self.path


def _faults(error: jsonschema_rs.ValidationError) -> Iterator[str]:
    """Yield the schema errors, each as `pointer: message`.

    If a value matches none of several alternatives, the errors of the alternative that was probably meant are
    yielded. This is an alternative with the same `type`, and with at most one other constant that differs. If
    several alternatives remain, the first one whose errors are all in deeper values is chosen, or else the
    first of all.
    """
    if isinstance(error.kind, _SHAPES):
        position = list(error.instance_path)
        shapes = [shape for shape in error.kind.context if shape]
        of_type = [s for s in shapes if all(list(f.instance_path) != [*position, "type"] for f in s)]
        shapes = of_type or shapes
        shapes = [s for s in shapes if sum(_is_another(fault, position) for fault in s) < 2] or shapes
        inside = (shape for shape in shapes if all(list(fault.instance_path) != position for fault in shape))
        for fault in next(inside, shapes[0] if shapes else []):
            yield from _faults(fault)
        return
    pointer = "".join(f"/{part}" for part in error.instance_path) or "(document)"
    words = error.message
    if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Constant):
        words = f"{error.instance!r} instead of {error.kind.expected_value!r}"
    yield f"{pointer}: {words[:_SCHEMA_MESSAGE]}"


def _is_another(fault: jsonschema_rs.ValidationError, position: list[str | int]) -> bool:
    """True if the error is that a member of the value at `position` differs from a constant."""
    constant = isinstance(fault.kind, jsonschema_rs.ValidationErrorKind.Constant)
    return constant and list(fault.instance_path)[:-1] == position


@dataclass(frozen=True)
class Mark:
    """Keys by which an answer is recognized as one of this dialect.

    An answer has the mark if it has all keys in `all`, and no key in `none`.
    """

    all: tuple[Keys, ...]
    none: tuple[Keys, ...] = ()

    @classmethod
    def of(cls, row: str | Mapping[str, list[str]]) -> Mark:
        if isinstance(row, str):
            return cls((parse(row),))
        return cls(tuple(map(parse, row["all"])), tuple(map(parse, row.get("none", ()))))

    def may_stand_in(self, body: bytes) -> bool:
        """True if a body may contain the keys, as plain text or with escapes.

        This is a quick test before parsing.
        """
        names = (key for keys in self.all for key in keys if not key.isdecimal())
        return b"\\u" in body or all(b'"%b"' % name.encode() in body for name in names)

    def seen_in(self, data: Any) -> bool:
        """True if a document or event has the mark."""
        there = all(find(data, keys) is not ABSENT for keys in self.all)
        return there and all(find(data, keys) is ABSENT for keys in self.none)

    def __str__(self) -> str:
        without = f" without {' or '.join(join(*keys) for keys in self.none)}" if self.none else ""
        return " and ".join(join(*keys) for keys in self.all) + without


def _told_names(table: Any) -> Iterator[str]:
    """Yield the last member name of each pointer in a part of a table."""
    if isinstance(table, Mapping):
        for value in table.values():
            yield from _told_names(value)
    elif isinstance(table, list):
        for value in table:
            yield from _told_names(value)
    elif isinstance(table, str):
        yield table.rpartition("/")[2]


class _Schemas:
    """The schema validators of a dialect. They are built at first use and cached."""

    def __init__(self, names: Mapping[str, str], source: SchemaSource, borrowed: Collection[str]) -> None:
        self._names = names
        self._source = source
        self._borrowed = borrowed
        self._validators: dict[str, jsonschema_rs.Draft202012Validator] = {}

    def name(self, kind: str) -> str:
        return self._names[kind]

    def validator(self, kind: str) -> jsonschema_rs.Draft202012Validator:
        """Return the validator for `whole`, `stream` or `error`.

        Raises FileNotFoundError if its schema is missing.
        """
        name = self._names[kind]
        if name not in self._validators:
            self._validators[name] = jsonschema_rs.Draft202012Validator(self._source(name))
        return self._validators[name]

    def errors(self, kind: str, data: Any) -> tuple[str, ...]:
        """Return the schema errors of a value, each as `pointer: message`.

        Raises FileNotFoundError if the schema is missing.
        """
        validator = self.validator(kind)
        try:
            if validator.is_valid(data):
                return ()
            name = self._names[kind]
            of = f" (by the schema {name} of Tokenwire; copy it to schemas/{name}.json and adapt it)"
            whose = of if name in self._borrowed else ""
            reported = (fault + whose for error in validator.iter_errors(data) for fault in _faults(error))
            return tuple(islice(reported, _SCHEMA_ERRORS))
        except UnicodeEncodeError:
            return (": a key holds a lone surrogate, which no reader can carry on as UTF-8",)


class _Places:
    """Computes the byte range and the arrival time of each event in a body."""

    def __init__(self, exchange: Exchange) -> None:
        self._name = exchange.name
        self._times = [read.time for read in exchange.reads]
        self._read_ends = list(accumulate(len(read.data) for read in exchange.reads))

    def place(self, index: int, start: int, end: int) -> Place:
        """Return the place of an event. Its time is the arrival time of its last byte."""
        read = min(bisect_left(self._read_ends, end), len(self._times) - 1)
        return Place(self._name, index, "", start, end, self._times[read] if self._times else 0.0)


class Dialect:
    """One endpoint of one server family, as a table describes it."""

    def __init__(
        self,
        table: Mapping[str, Any],
        *,
        schemas: SchemaSource = load_schema,
        borrowed: Collection[str] = (),
        given: bool = False,
    ) -> None:
        """Build a dialect from its table.

        Raises KeyError or ValueError for an invalid table. `borrowed`: the names of schemas that belong to
        other dialects. Error messages about such a schema say this. `given`: the table is a file of the user.
        """
        self.table = table
        self.given = given
        self.name: str = table["name"]
        self.family: str = table["family"]
        where = f"dialect {self.name}"
        self.endpoint = Endpoint(tuple(table["endpoint"]["methods"]), table["endpoint"]["path"])
        self.policy = typed(Policy, table["policy"], "policy")
        for name in self.policy.least.keys() - table["request"]["fields"].keys():
            raise ValueError(f"policy: least: {name!r} is not a field of this dialect's requests")
        self.marks = tuple(map(Mark.of, table.get("recognised_by", ())))
        """Marks that only answers of this dialect have. Each of its answers has all of them. May be empty."""
        self.likeliest: bool = table.get("likeliest", not self.marks)
        """True if this dialect is assumed for its endpoint as long as no answer has a mark."""
        detokenize = table.get("detokenize")
        self.detokenize = (
            typed(Detokenize, {"name": self.family, **detokenize}, f"{where}: detokenize")
            if detokenize
            else None
        )
        """The detokenize endpoint of the server family; None if it has none."""
        self.volatile = frozenset(table.get("volatile", _VOLATILE))
        """Names or patterns of fields that differ even between two equal answers, such as ids and times."""
        self.error_types: Mapping[str, int] = table.get("error_types", {})
        """The HTTP status that belongs to each error type, for errors that do not contain a status."""
        self.request = typed(RequestBinding, {"dialect": self.name, **table["request"]}, f"{where}: request")
        arrays = table.get("arrays", {})
        self.arrays = tuple(
            typed(ArrayRule, {"name": name, **row}, f"{where}: {name}") for name, row in arrays.items()
        )
        """The per-token arrays with an encoding of their own."""
        self.has_items = "kinds" in table["answer"]["stream"]
        """True if an answer is a list of typed items, such as in /v1/responses, and events carry pieces of
        them.
        """
        self._whole: Binding = self._bound("whole")
        self._stream: Binding = self._bound("stream")
        self.grammar_name: str = table.get("grammar", "")
        self.grammar = load_grammar(self.grammar_name) if self.grammar_name else None
        """The legal order of a stream's events; None if events have no types."""
        self.gives_results: bool = "result" in table["answer"]["whole"].get("details", {})
        """True if the endpoint does not sample. A choice is then a result for an input, such as a vector."""
        self.is_ranked: bool = table["answer"]["whole"].get("ranked", False)
        """True if results are sorted, the best one first."""
        self.outside: frozenset[str] = frozenset(
            table["answer"]["whole"].get("document", {}).get("details", {})
        )
        """The details that an answer has outside of its choices."""
        self.tells_ids: bool = "output_ids" in table["answer"]["whole"]
        """True if answers contain the output ids."""
        self.told_names = frozenset(_told_names([table["answer"], table["request"].get("asks", {})])) - {
            "",
            _CHOICES,
        }
        """The names of all output fields: those of the record, and others that requests can enable."""
        self._schemas = _Schemas(table["schemas"], schemas, borrowed)
        self.fixed_delivery = Delivery(table["delivery"]) if "delivery" in table else None
        """The delivery mode of all streams of this endpoint; None if it depends on the server."""

    def _bound(self, form: str) -> Binding:
        table = self.table["answer"][form]
        return (
            typed(ItemBinding, table, f"dialect {self.name}: {form}")
            if self.has_items
            else AnswerBinding.load(self.name, table)
        )

    def begun_counts(self, data: Any) -> Mapping[str, Any] | None:
        """Return the usage counts in the first event of a stream with items; None for other events."""
        return self._stream.begun_counts(data) if isinstance(self._stream, ItemBinding) else None

    def demand_schema(self, kind: str) -> None:
        """Check that a schema file exists. Raises ValueError if it does not."""
        try:
            self._schemas.validator(kind)
        except FileNotFoundError as error:
            raise ValueError(f"schemas: {kind}: the file {error.filename} is missing") from error

    def placed(self, form: str) -> Mapping[str, tuple[str, ...]]:
        """Return the JSON pointers of each field of a response, for the form `whole` or `stream`.

        Return an empty dict for answers with typed items.
        """
        binding = self._whole if form == "whole" else self._stream
        return {} if isinstance(binding, ItemBinding) else binding.placed

    @property
    def chat(self) -> bool:
        """True if the endpoint takes chat messages."""
        return "messages" in self.request.prompt

    @property
    def takes_ids(self) -> bool:
        """True if a prompt may be token ids."""
        return "input_ids" in self.request.prompt

    @property
    def names_stops(self) -> bool:
        """True if responses say which stop ended a choice."""
        return self._whole.names_stops and self._stream.names_stops

    def __repr__(self) -> str:
        return f"Dialect({self.name!r})"

    def can_say(self, ask: Ask, model: str = "") -> bool:
        """True if the endpoint can express each field of an ask."""
        return not isinstance(self.render(ask, model), Unsupported)

    def limited(self, name: str, count: int) -> dict[str, Any]:
        """Return body fields that truncate inputs (`truncate`) or limit the number of results (`most`).

        Return an empty dict if the endpoint has no such field.
        """
        keys = self.request.limits.get(name)
        return {str(keys[-1]): count} if keys else {}

    def render(self, ask: Ask, model: str = "") -> HttpRequest | Unsupported:
        """Return the request for an ask, or the reason why the endpoint cannot express it.

        `model`: the model name. If it is empty, a name is used that servers with a single model accept.
        """
        body = self.request.render(ask, model)
        if isinstance(body, Unsupported):
            return body
        return HttpRequest(self.endpoint.methods[0], self.endpoint.path, body)

    def as_wanted(self, refusal: str) -> tuple[Dialect, str] | None:
        """Return the dialect adapted to the error message of a refusal, and a description of the change.

        Return None if the message does not name a field that can be changed.
        """
        wanted = self.request.as_wanted(refusal)
        if wanted is None:
            return None
        other = copy.copy(self)
        other.request = wanted[0]
        return other, wanted[1]

    @property
    def in_words(self) -> Dialect | None:
        """The same dialect without prompts as ids, for a server that refuses them; None if it cannot take
        text instead.
        """
        if not self.takes_ids or self.chat or "text" not in self.request.prompt:
            return None
        other = copy.copy(self)
        other.request = self.request.without("input_ids")
        return other

    def read_asked(self, request: HttpRequest) -> Asked:
        """Parse a request into the fields that all dialects have in common."""
        return read_request(self.request, request)

    def read(
        self,
        exchange: Exchange,
        *,
        delivery_hint: Delivery | None = None,
        adapters: Collection[str] = (),
    ) -> Stream:
        """Parse an exchange into the record.

        Never raises an exception, whatever the target has sent. If the dialect does not fix the delivery mode
        of a stream, it is `delivery_hint` (what the server declares), unless the stream clearly contradicts
        it; without a hint, it is inferred from the stream. `adapters`: names of adapters. Answers of an
        adapter have another distribution, so they are not compared with those of the model.
        """
        asked = self.read_asked(exchange.request)
        names = (asked.model, *(asked.adapter.values if asked.adapter is not None else ()))
        if any(isinstance(name, str) and name in adapters for name in names):
            asked = replace(asked, ids_key="", other_sampling=f"{asked.model} {asked.other_sampling}")
        # If an answer exceeded the size limit, only its beginning was recorded, so it is not parsed.
        if exchange.status is None or exchange.ending is Ending.OUTGROWN:
            return Stream(exchange, self.name, asked, Delivery.WHOLE, (), ())
        if exchange.status != 200:
            return self._read_error(exchange, asked)
        if _is_event_stream(exchange, asked):
            return self._read_stream(exchange, asked, delivery_hint)
        return self._read_whole(exchange, asked)

    def _read_error(self, exchange: Exchange, asked: Asked) -> Stream:
        event, undecodable_at = self._document(exchange, "error")
        return Stream(
            exchange,
            self.name,
            asked,
            Delivery.WHOLE,
            (event,),
            (),
            refused=400 <= (exchange.status or 0) < 500,
            error=exchange.body.decode(errors="replace") if event.data is None else event.data,
            schema=self._schemas.name("error"),
            undecodable_at=undecodable_at,
        )

    def _read_whole(self, exchange: Exchange, asked: Asked) -> Stream:
        event, undecodable_at = self._document(exchange, "whole")
        emissions, usages = self._delivered(self._whole, (event,), asked)
        return Stream(
            exchange,
            self.name,
            asked,
            Delivery.WHOLE,
            (event,),
            _choices(emissions, Delivery.WHOLE, asked),
            error=event.error,
            usage=usages[-1].counts if usages else None,
            usage_place=usages[-1].place if usages else None,
            usages=usages,
            schema=self._schemas.name("whole"),
            undecodable_at=undecodable_at,
        )

    def _read_stream(self, exchange: Exchange, asked: Asked, hint: Delivery | None) -> Stream:
        events, unterminated, undecodable_at = self._events(exchange)
        emissions, usages = self._delivered(self._stream, events, asked)
        by_choice = _by_choice(emissions)
        delivery = self.fixed_delivery or infer_delivery(by_choice.values(), hint)
        return Stream(
            exchange,
            self.name,
            asked,
            delivery,
            events,
            _choices(emissions, delivery, asked),
            error=next((event.error for event in events if event.error is not None), None),
            usage=usages[-1].counts if usages else None,
            usage_place=usages[-1].place if usages else None,
            usages=usages,
            schema=self._schemas.name("stream"),
            unterminated=unterminated,
            undecodable_at=undecodable_at,
        )

    def _events(self, exchange: Exchange) -> tuple[tuple[Event, ...], bytes, int | None]:
        """Return the events of a body, the unterminated rest, and the offset of the first non-UTF-8 byte."""
        cut_off = exchange.ending is not Ending.COMPLETE
        sent, unterminated, undecodable_at = parse_event_stream(exchange.body, cut_off=cut_off)
        places = _Places(exchange)
        latest: dict[int, Any] = {}
        events = []
        for index, event in enumerate(sent):
            place = places.place(index, event.start, event.end)
            if event.data == self.policy.end_mark:
                events.append(Event(index, place, None, event.name, done=True))
                continue
            data, problem, schema_errors = self._value(event.data)
            if problem and (stray := stray_line(exchange.body[event.start : event.end])):
                problem += f"; behind it, {stray!r} is not a field: a line break within the data cuts it"
            # Values are shared with the latest event of the same choice, because events of several choices
            # alternate.
            if len(event.data) >= _LONG:
                choice = self._stream.index_of(data)
                latest[choice] = data = sharing(data, latest.get(choice))
            error = self._stream.error_in(data)
            events.append(Event(index, place, data, event.name, False, problem, schema_errors, error))
        return tuple(events), unterminated, undecodable_at

    def _value(self, text: str) -> tuple[Any, str, tuple[str, ...]]:
        """Return the parsed data of an event, a problem if it is not a strict JSON object, and its schema
        errors.
        """
        try:
            value = strict_json.loads(text)
        except strict_json.StrictJsonError as error:
            return None, f"not strict JSON: {error}", ()
        if not isinstance(value, dict):
            return value, "strict JSON, but not an object", ()
        return value, "", self._schemas.errors("stream", value)

    def _document(self, exchange: Exchange, kind: str) -> tuple[Event, int | None]:
        """Return the JSON document of a response as an event, and the offset of the first non-UTF-8 byte."""
        body = exchange.body
        place = Place(exchange.name, None, "", 0, len(body), exchange.last_read or 0.0)
        undecodable_at = None
        data, problem = None, ""
        try:
            data = strict_json.loads(body.decode())
        except UnicodeDecodeError as error:
            undecodable_at = error.start
            problem = f"byte {error.start} is not UTF-8"
        except strict_json.StrictJsonError as error:
            problem = f"not strict JSON: {error}" if body else "the body is empty"
        errors = () if problem else self._schemas.errors(kind, data)
        found = self._whole.error_in(data)
        return Event(0, place, data, problem=problem, schema_errors=errors, error=found), undecodable_at

    def _delivered(
        self, binding: Binding, events: Iterable[Event], asked: Asked
    ) -> tuple[list[Emission], tuple[Usage, ...]]:
        """Return the emissions and the usage objects in events."""
        emissions: list[Emission] = []
        usages: list[Usage] = []
        # With `continuous_usage`, the usage of each event counts only the choice in that event.
        of_all = asked.stream and asked.prompts * asked.n > 1 and not asked.continuous_usage
        for event, delivered, counts, pointer, details in binding.deliveries(events, of_all=of_all):
            emissions += delivered
            if counts is not None:
                choices = tuple(emission.choice for emission in delivered)
                alone = {name: Detail(value, event.place.at(at)) for name, (value, at) in details.items()}
                usages.append(Usage(event.place.at(pointer), counts, choices, alone))
        beside = [usage for usage in usages if usage.choices]
        if asked.stream and not asked.continuous_usage and len(beside) == 1:
            emissions = [_without_total(emission, beside[0]) for emission in emissions]
        if isinstance(binding, AnswerBinding):
            last = usages[-1].counts if usages else None
            emissions = list(without_echo(emissions, asked, binding.echoed, last))
        return emissions, tuple(usages)


def _without_total(emission: Emission, usage: Usage) -> Emission:
    """Return an emission without `completion_tokens`, if this count is the total of a single usage object.

    Such a total counts the tokens of the whole answer, not the tokens up to the event of the emission.
    """
    place = usage.place
    counter = emission.pointers.get(_TOTAL, "")
    if (
        emission.finish is None
        or emission.event.index != place.event
        or not counter.startswith(place.pointer)
    ):
        return emission
    counters = {name: value for name, value in emission.counters.items() if name != _TOTAL}
    return replace(emission, counters=counters)


def _begins_as_json(body: bytes) -> bool:
    return body[:_HEAD].lstrip(_BEFORE_JSON).startswith(_JSON_STARTS)


def _is_event_stream(exchange: Exchange, asked: Asked) -> bool:
    """True if a response of status 200 is to be parsed as an event stream.

    A body that begins like JSON is not. Otherwise the request or the media type decides.
    """
    if _begins_as_json(exchange.begin(_HEAD)):
        return False
    media_type = (exchange.header("content-type") or "").partition(";")[0].strip().lower()
    return asked.stream or media_type == "text/event-stream"


def beginning(exchange: Exchange, events: int) -> bytes:
    """Return the bytes of the first events of a stream; the whole body for a JSON document or a shorter
    stream.
    """
    body, end = exchange.body, 0
    if _begins_as_json(body):
        return body
    for _ in range(events):
        # A stream with CR line ends has no empty line of this form, so it is returned completely.
        end = body.find(b"\n\n", end) + 2
        if end < 2:
            return body
    return body[:end]


def json_values(body: bytes, *, cut_off: bool) -> Iterator[Any]:
    """Yield the JSON values in a body: the data of each event, or the document."""
    if _begins_as_json(body):
        texts = [body.decode(errors="replace")]
    else:
        texts = [event.data for event in parse_event_stream(body, cut_off=cut_off)[0]]
    for text in texts:
        with contextlib.suppress(strict_json.StrictJsonError):
            yield strict_json.loads(text)


def _by_choice(emissions: Iterable[Emission]) -> dict[int, list[Emission]]:
    choices: dict[int, list[Emission]] = {}
    for emission in emissions:
        choices.setdefault(emission.choice, []).append(emission)
    return dict(sorted(choices.items()))


def _choices(emissions: Iterable[Emission], delivery: Delivery, asked: Asked) -> tuple[Choice, ...]:
    return tuple(
        Choice(index, delivery, asked.likeliest, tuple(of_choice))
        for index, of_choice in _by_choice(emissions).items()
    )


def dialect_of(stream: Answer) -> Dialect | None:
    """Return the dialect by which an answer was parsed; None if its name is unknown."""
    return load_dialects().get(stream.dialect)


def family_of(dialect: str) -> str:
    """Return the server family in the name of a dialect, such as `sglang`."""
    return dialect.partition("-")[0]


def is_chat(stream: Answer) -> bool:
    """True if the answer comes from an endpoint for chat messages. False if its dialect is unknown."""
    dialect = dialect_of(stream)
    return dialect is not None and dialect.chat


def has_items(stream: Answer) -> bool:
    """True if the answer comes from an endpoint whose answers are lists of typed items."""
    dialect = dialect_of(stream)
    return dialect is not None and dialect.has_items


def gives_results(stream: Answer) -> bool:
    """True if the answer comes from an endpoint without sampling, such as embeddings."""
    dialect = dialect_of(stream)
    return dialect is not None and dialect.gives_results


def is_ranked(stream: Answer) -> bool:
    """True if the answer comes from an endpoint that sorts its results, the best one first."""
    dialect = dialect_of(stream)
    return dialect is not None and dialect.is_ranked


def policy_of(stream: Answer) -> Policy:
    """Return the policy of an answer's dialect; the default policy if its dialect is unknown."""
    dialect = dialect_of(stream)
    return dialect.policy if dialect is not None else _USUAL


def arrays_of(stream: Answer) -> tuple[ArrayRule, ...]:
    """Return the per-token arrays of an answer's dialect; empty if its dialect is unknown."""
    dialect = dialect_of(stream)
    return dialect.arrays if dialect is not None else ()


def known_as(stream: Answer) -> str | None:
    """Return the request id as the server writes it, if the client chose one: prefix and the client's id."""
    sent_id = stream.asked.request_id
    return None if sent_id is None else f"{policy_of(stream).request_id_prefix}{sent_id}"


def names_of(stream: Answer) -> frozenset[str]:
    """Return the ids by which an abort may name a request: the client's id and the server's id."""
    sent_id = stream.asked.request_id
    return _NO_NAMES if sent_id is None else frozenset((sent_id, known_as(stream) or sent_id))


def vocabulary_told(streams: Iterable[Answer]) -> int | None:
    """Return the vocabulary size that an error message mentions; None if none does.

    The policy of the dialect has the regular expression for it.
    """
    for stream in streams:
        words = policy_of(stream).vocabulary_told
        stated = re.search(words, json.dumps(stream.error)) if words and stream.error is not None else None
        if stated is not None:
            return int(stated.group(1))
    return None


@cache
def load_dialects() -> dict[str, Dialect]:
    """Return all dialects by name; those of extensions come last. Raises ValueError for an invalid table."""
    known: dict[str, Dialect] = {}
    for folder in spec_folders():
        for path in sorted((folder / "dialects").glob("*.yaml")):
            _add(_load(path), path, known)
    return known


def named_dialects(names: Iterable[str]) -> set[str]:
    """Return the names of dialects that are given by name or by file. Dialects in files are registered.

    Their schemas may be in the folder `schemas` beside the file. Raises ValueError for an invalid file.
    """
    return {_dialect_in(Path(name).resolve()) if _is_dialect_file(name) else name for name in names}


def _is_dialect_file(name: str) -> bool:
    """True if a name is the path of a YAML file."""
    return name.endswith((".yaml", ".yml"))


@cache
def _dialect_in(path: Path) -> str:
    own = {file.stem for file in (path.parent / "schemas").glob("*.json")}
    dialect = _load(path, lambda name: schema_in((path.parent, *spec_folders()), name), own)
    for kind in dialect.table["schemas"]:
        dialect.demand_schema(kind)
    _add(dialect, path, load_dialects())
    return dialect.name


def _add(dialect: Dialect, path: Path, known: dict[str, Dialect]) -> None:
    if dialect.name in known:
        raise ValueError(f"{path}: the name {dialect.name!r} is taken by another dialect; choose another")
    known[dialect.name] = dialect


def _load(path: Path, schemas: SchemaSource = load_schema, own: Collection[str] | None = None) -> Dialect:
    """Load a dialect.

    `own`: the names of the schemas that are beside the file of the dialect. With None, all schemas of the
    dialect belong to the dialect.
    """
    try:
        table = read_foreign_yaml(path)
        borrowed = () if own is None else set(table["schemas"].values()) - set(own)
        return Dialect(table, schemas=schemas, borrowed=borrowed, given=own is not None)
    except KeyError as error:
        raise ValueError(f"{path}: {error.args[0]!r} is missing") from error
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror}; name an existing YAML file, or a dialect of "
            "`tokenwire list dialects`"
        ) from error
    except (ValueError, TypeError, AttributeError, RecursionError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: {error}") from error
