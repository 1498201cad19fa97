"""Parses responses by the table of a dialect: a JSON document or an event becomes emissions of the record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from sys import intern
from typing import Any, Literal, NamedTuple, get_args

from tokenwire.dialects.echoed_prompt import Echoed
from tokenwire.dialects.logprobs import MASK
from tokenwire.record import CallPiece, Emission, Event, Finish
from tokenwire.wire.json_pointer import ABSENT, Keys, find, join, parse

Kind = Literal[
    "text",
    "reasoning",
    "tool_calls",
    "output_ids",
    "prompt_token_ids",
    "finish",
    "counters",
    "series",
    "prompt_series",
    "details",
]
_KINDS = get_args(Kind)
_SINGLE: tuple[Kind, ...] = ("text", "reasoning", "output_ids", "prompt_token_ids")
_NAMED: tuple[Kind, ...] = ("counters", "series", "prompt_series", "details")
_FIELDS = {*_SINGLE, *_NAMED}
_SLOTS: Mapping[Kind, int] = {kind: slot for slot, kind in enumerate(_NAMED, 1)}
"""Index of the dict that collects the fields of each kind while a choice is parsed.

Single fields share index 0.
"""
_OF_A_CALL = ("index", "id", "type", "name", "arguments")
"""The members of a tool-call piece that a table may locate, besides `at`, the list of pieces."""
_NONE_CUSTOMIZED: frozenset[str] = frozenset()
_NOTHING: Mapping[str, Any] = {}
_KNOWN = {
    *_KINDS,
    "choices",
    "index",
    "document",
    "usage",
    "customized_info",
    "echoed",
    "nulls",
    "carrier",
    "empty_is_absent",
    "ends",
    "ranked",
}


class EventContent(NamedTuple):
    """The parsed content of one event."""

    event: Event
    emissions: Sequence[Emission]
    usage: Mapping[str, Any] | None
    """The usage object of the event, with the server's own names; None without one."""
    usage_pointer: str
    details: Mapping[str, tuple[Any, str]] = {}
    """The details of an event without choices, by name: the value, and its pointer."""


@dataclass(frozen=True)
class _Field:
    """A field of the record, with the JSON pointer at which a dialect has it."""

    kind: Kind
    name: str
    pointer: str

    @cached_property
    def keys(self) -> Keys:
        return parse(self.pointer)

    @property
    def slot(self) -> int:
        return _SLOTS.get(self.kind, 0)


def _as_sets(entries: Any) -> Any:
    """Sort each list of ids within a list; return other values unchanged."""
    if not isinstance(entries, list):
        return entries
    return [
        sorted(entry)
        if isinstance(entry, list) and all(type(token_id) is int for token_id in entry)
        else entry
        for entry in entries
    ]


def _fields(table: Mapping[str, Any]) -> list[_Field]:
    bound: list[_Field] = []
    for kind in _SINGLE:
        places = table.get(kind, ())
        bound += [
            _Field(kind, kind, pointer) for pointer in ([places] if isinstance(places, str) else places)
        ]
    for kind in _NAMED:
        bound += [_Field(kind, name, pointer) for name, pointer in table.get(kind, {}).items()]
    return bound


@dataclass(eq=False)
class _Parent:
    """A JSON object of a choice with the fields that it contains directly.

    It is visited once for each emission.
    """

    keys: Keys
    fields: dict[str, list[_Field]] = field(default_factory=dict)
    holds_customized_info: bool = False
    other_lists: frozenset[str] = frozenset()

    # The cache is bounded, because `pointer` contains the position of the choice, and a server may write any
    # number.
    @lru_cache(maxsize=1 << 10)  # noqa: B019  # the tables of the dialects live as long as the program
    def placed(self, pointer: str) -> Mapping[str, tuple[tuple[int, str, str], ...]]:
        """Map each key to its fields, for a choice at `pointer`: index of the dict, name, full pointer."""
        return {
            key: tuple((field.slot, field.name, intern(pointer + field.pointer)) for field in bound)
            for key, bound in self.fields.items()
        }


@dataclass(frozen=True, eq=False)
class AnswerBinding:
    """The JSON pointers of all fields in a response, from `answer.whole` or `answer.stream` of a dialect's
    table.
    """

    choices: Keys
    index: Keys | None
    parents: tuple[_Parent, ...]
    finish: Mapping[str, Keys]
    finish_types: Mapping[str, str]
    """The record's finish type for each finish type of the server that has another name."""
    document: tuple[_Field, ...]
    """Fields outside of the choices. These fields apply to each choice in the event."""
    of_a_call: Mapping[str, Keys]
    """The pointer of each member within a tool-call piece."""
    usage: Keys | None
    echoed: Echoed | None
    nulls_are_absent: bool
    """True if the server writes null for a missing value."""
    carrier: Keys | None
    """The key that a choice with content always has.

    If it is missing, a choice whose fields are all null is ignored.
    """
    empty_is_absent: frozenset[str]
    """Series for which an empty list means that the series is missing."""
    ends: Finish | None
    """The finish of each choice, for endpoints without sampling, whose answers contain no finish; None for
    others.
    """

    @classmethod
    def load(cls, dialect: str, table: Mapping[str, Any]) -> AnswerBinding:
        """Build the binding from a table. Raises ValueError for a name that is not a field of the record."""
        unknown = table.keys() - _KNOWN
        if unknown:
            raise ValueError(
                f"dialect {dialect}: unknown key {sorted(unknown)[0]!r}; known keys are {sorted(_KNOWN)}"
            )
        bound = _fields(table)
        finish = dict(table.get("finish", {}))
        finish_types = finish.pop("types", {})
        beside = table.get("document", {})
        if beside.keys() - _FIELDS:
            wrong = sorted(beside.keys() - _FIELDS)[0]
            raise ValueError(
                f"dialect {dialect}: unknown key {wrong!r} in document; known keys are {sorted(_FIELDS)}"
            )
        if finish:
            bound.append(_Field("finish", "finish", finish["reason"]))
        calls = dict(table.get("tool_calls", {}))
        if calls:
            bound.append(_Field("tool_calls", "tool_calls", calls.pop("at")))
        if calls.keys() - set(_OF_A_CALL):
            wrong = sorted(calls.keys() - set(_OF_A_CALL))[0]
            raise ValueError(
                f"dialect {dialect}: unknown key {wrong!r} in tool_calls; known keys are {list(_OF_A_CALL)}"
            )
        parents: dict[Keys, _Parent] = {}
        for bound_field in bound:
            *way, last = bound_field.keys
            parent = parents.setdefault(tuple(way), _Parent(tuple(way)))
            parent.fields.setdefault(last, []).append(bound_field)
        if "customized_info" in table:
            keys = parse(table["customized_info"]["under"])
            parent = parents.setdefault(keys, _Parent(keys))
            parent.holds_customized_info = True
            parent.other_lists = frozenset(table["customized_info"]["other_lists"])
        return cls(
            choices=parse(table["choices"]),
            index=parse(table["index"]) if table.get("index") else None,
            parents=tuple(parents.values()),
            finish={name: parse(pointer) for name, pointer in finish.items()},
            finish_types=finish_types,
            document=tuple(_fields(beside)),
            of_a_call={name: parse(pointer) for name, pointer in calls.items()},
            usage=parse(table["usage"]) if "usage" in table else None,
            echoed=Echoed(tuple(table["echoed"]["series"]), table["echoed"].get("from_top_logprobs", 0))
            if "echoed" in table
            else None,
            nulls_are_absent=table.get("nulls") == "absent",
            carrier=parse(table["carrier"]) if "carrier" in table else None,
            empty_is_absent=frozenset(table.get("empty_is_absent", ())),
            ends=Finish(table["ends"]) if "ends" in table else None,
        )

    @cached_property
    def placed(self) -> Mapping[str, tuple[str, ...]]:
        """The JSON pointers of each field as the table has them, by the name of the field."""
        bound = [*self.document, *chain.from_iterable(chain(*(p.fields.values() for p in self.parents)))]
        bound.sort(key=lambda one: _KINDS.index(one.kind))
        found: dict[str, tuple[str, ...]] = {}
        for one in bound:
            found[one.name] = (*found.get(one.name, ()), one.pointer)
        return found

    @property
    def names_stops(self) -> bool:
        """True if responses say which stop ended a choice."""
        return "matched" in self.finish

    def deliveries(self, events: Iterable[Event], *, of_all: bool = False) -> Iterator[EventContent]:
        """Yield the content of each event: the emission of each choice, and the usage.

        `of_all`: counters outside of the choices are totals over several choices, so they are not given to
        each choice.
        """
        pointer = join(*self.usage) if self.usage is not None else ""
        pointers: Mapping[str, str] = {}
        for event in events:
            usage = find(event.data, self.usage) if self.usage is not None else ABSENT
            emissions = list(self.emissions(event, of_all=of_all))
            # Pointers seldom change between events, so emissions share one mapping.
            for emission in emissions:
                if emission.pointers == pointers:
                    emission.pointers = pointers
                pointers = emission.pointers
            details = {} if emissions else self._details_beside(event)
            counts = usage if isinstance(usage, dict) else None
            yield EventContent(event, emissions, counts, pointer, details)

    def _details_beside(self, event: Event) -> dict[str, tuple[Any, str]]:
        """Return the details outside of the choices of an event."""
        found = ((field, find(event.data, field.keys)) for field in self.document if field.kind == "details")
        return {
            field.name: (value, field.pointer)
            for field, value in found
            if value is not ABSENT and not self._is_nothing(value, field.name)
        }

    @cached_property
    def _pointer(self) -> str:
        return join(*self.choices)

    def emissions(self, event: Event, *, of_all: bool = False) -> Iterator[Emission]:
        """Yield an emission for each choice in an event that has at least one known field."""
        found = find(event.data, self.choices)
        if isinstance(found, list):
            items = [(position, f"{self._pointer}/{position}", item) for position, item in enumerate(found)]
        else:
            # SGLang's /generate answers a batch with a list of choices, and a single prompt with one object.
            items = [(0, self._pointer, found)]
        document = [
            (field, value)
            for field in self.document
            if not (of_all and field.kind == "counters")
            and (value := find(event.data, field.keys)) is not ABSENT
            and not self._is_nothing(value, field.name)
        ]
        for position, pointer, item in items:
            if isinstance(item, dict):
                emission = self._emission(event, position, pointer, item, document)
                if emission is not None:
                    yield emission

    def _is_nothing(self, value: Any, name: str) -> bool:
        """True if this value of a field means that the field is missing."""
        if value is None:
            # A null finish is kept, because its pointer is the place at which a missing finish is reported.
            return self.nulls_are_absent and name != "finish"
        return value == [] and name in self.empty_is_absent

    def _says_nothing(self, item: dict[str, Any], values: Iterable[Mapping[str, Any]]) -> bool:
        """True if the event has no content for this choice."""
        if self.carrier is None or find(item, self.carrier) is not ABSENT:
            return False
        return all(value is None for fields in values for value in fields.values())

    def error_in(self, data: Any) -> Any:
        """Return the member `error` of an event or document; None without one."""
        return data.get("error") if isinstance(data, dict) else None

    def index_of(self, item: Any, position: int = 0) -> int:
        """Return the index that a choice reports; its position in the list if it reports none."""
        index = find(item, self.index) if self.index else ABSENT
        return index if type(index) is int and index >= 0 else position

    def _emission(
        self,
        event: Event,
        position: int,
        place: str,
        item: dict[str, Any],
        document: Sequence[tuple[_Field, Any]],
    ) -> Emission | None:
        pointers: dict[str, str] = {}
        slots: tuple[dict[str, Any], ...] = ({}, {}, {}, {}, {})
        single, counters, series, prompt_series, details = slots
        customized: set[str] = set()
        for parent in self.parents:
            holder = find(item, parent.keys) if parent.keys else item
            if not isinstance(holder, dict):
                continue
            placed = parent.placed(place)
            for key, value in holder.items():
                if key in placed:
                    for slot, name, pointer in placed[key]:
                        if not value and self._is_nothing(value, name):
                            continue
                        if slot == 0 and single.get(name):
                            continue  # another key has already delivered this field
                        slots[slot][name] = value
                        pointers[name] = pointer
                elif (
                    parent.holds_customized_info and isinstance(value, list) and key not in parent.other_lists
                ):
                    series[key] = value
                    pointers[key] = place + join(*parent.keys, key)
                    customized.add(key)
        if not pointers or self._says_nothing(item, slots):
            return None
        for beside, value in document:
            slots[beside.slot].setdefault(beside.name, value)
            pointers.setdefault(beside.name, beside.pointer)
        text, reasoning = single.get("text"), single.get("reasoning")
        output_ids, prompt_token_ids = single.get("output_ids"), single.get("prompt_token_ids")
        # Servers sort a mask by probability, so nearly equal ids may swap places. Sorted by id, masks are
        # comparable.
        if MASK in series:
            series[MASK] = _as_sets(series[MASK])
        if None in counters.values():
            counters = {name: value for name, value in counters.items() if value is not None}
        return Emission(
            event=event,
            choice=self.index_of(item, position),
            pointers=pointers,
            text=text if isinstance(text, str) else None,
            reasoning=reasoning if isinstance(reasoning, str) else None,
            calls=self._calls(single.get("tool_calls"), pointers.get("tool_calls", "")),
            output_ids=output_ids if isinstance(output_ids, list) else None,
            prompt_token_ids=prompt_token_ids if isinstance(prompt_token_ids, list) else None,
            series=series or _NOTHING,
            customized=frozenset(customized) if customized else _NONE_CUSTOMIZED,
            prompt_series=prompt_series or _NOTHING,
            counters=counters or _NOTHING,
            details=details or _NOTHING,
            finish=self._finish(item, single.get("finish")),
        )

    def _calls(self, value: Any, pointer: str) -> tuple[CallPiece, ...]:
        """Return the tool-call pieces in a list. Items that are not objects are ignored."""
        if not isinstance(value, list):
            return ()
        pieces = []
        for position, piece in enumerate(value):
            if isinstance(piece, dict):
                found = {name: find(piece, keys) for name, keys in self.of_a_call.items()}
                present = {name: value for name, value in found.items() if value is not ABSENT}
                pieces.append(CallPiece(f"{pointer}/{position}", position, **present))
        return tuple(pieces)

    def _finish(self, item: dict[str, Any], reason: Any) -> Finish | None:
        if reason is None:
            return self.ends
        found = {name: find(item, keys) for name, keys in self.finish.items()}
        kind = found["type"]
        length = found.get("length", ABSENT)
        matched, code = found.get("matched", ABSENT), found.get("code")
        return Finish(
            type=self.finish_types.get(kind, kind) if isinstance(kind, str) else "",
            # llama.cpp writes an empty stopping_word if no stop string matched.
            matched=None if matched is ABSENT or matched == "" else matched,
            length=length if type(length) is int else None,
            raw=reason,
            code=None if code is ABSENT else code,
        )
