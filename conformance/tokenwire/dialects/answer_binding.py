"""The answer side of a dialect: one document or event read into emissions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import groupby
from sys import intern
from types import NoneType
from typing import Any, Final, Literal, NamedTuple, get_args

from tokenwire.dialects.echoed_prompt import Echoed
from tokenwire.record import CallPiece, Columns, Emission, Event, Finish
from tokenwire.wire.json_pointer import ABSENT, Keys, find, join, parse
from tokenwire.wire.template import Alike, Made, chosen, hole_at, joined

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
_SINGLE: tuple[Kind, ...] = ("text", "reasoning", "output_ids", "prompt_token_ids")
_NAMED: tuple[Kind, ...] = ("counters", "series", "prompt_series", "details")
_FIELDS = {*_SINGLE, *_NAMED}
_OF_A_CALL = ("index", "id", "type", "name", "arguments")
"""What a piece of a tool call may hold, beside the place of the list (`at`)."""
_CALLS: tuple[Kind, str] = ("tool_calls", "tool_calls")
_SEVERAL: Final = object()
_NONE_CUSTOMIZED: frozenset[str] = frozenset()
_KNOWN = {
    *get_args(Kind),
    "choices",
    "index",
    "document",
    "usage",
    "customized_info",
    "echoed",
    "nulls",
    "carrier",
    "empty_is_absent",
}


@dataclass(frozen=True)
class _Field:
    """One field of the record that a key is bound to."""

    kind: Kind
    name: str
    pointer: str

    @cached_property
    def keys(self) -> Keys:
        return parse(self.pointer)


def _fields(table: Mapping[str, Any]) -> list[_Field]:
    bound: list[_Field] = []
    for kind in _SINGLE:
        places = table.get(kind, ())
        bound += [_Field(kind, kind, at) for at in ([places] if isinstance(places, str) else places)]
    for kind in _NAMED:
        bound += [_Field(kind, name, at) for name, at in table.get(kind, {}).items()]
    return bound


@dataclass(eq=False)
class _Parent:
    """One object of a choice that holds bound fields; found once and walked once for each emission."""

    keys: Keys
    fields: dict[str, list[_Field]] = field(default_factory=dict)
    holds_customized_info: bool = False
    other_lists: frozenset[str] = frozenset()

    @lru_cache(maxsize=1 << 10)  # noqa: B019  # the tables of the dialects live as long as the program
    def placed(self, at: str) -> Mapping[str, tuple[tuple[Kind, str, str], ...]]:
        """By key, the kinds and names of the fields, and where they stand in a choice at a pointer."""
        return {
            key: tuple((one.kind, one.name, intern(at + one.pointer)) for one in bound)
            for key, bound in self.fields.items()
        }


class _Bound(NamedTuple):
    """A field that a choice of some shape has: its kind, its name, and where it stands."""

    kind: Kind
    name: str
    parent: int
    key: str


class _Shape(NamedTuple):
    """What choices have that hold the same keys."""

    fields: tuple[_Bound, ...]
    others: tuple[_Bound, ...]
    """Lists that a sampler may have brought."""


def _each(things: Sequence[Any], tell: Callable[[Any], Any]) -> list[Any]:
    """What is told of each thing. Where one stands several times in a row, it is asked once."""
    told: list[Any] = []
    before, last = object(), None
    for one in things:
        if one is not before:
            before, last = one, tell(one)
        told.append(last)
    return told


def _shape_of(value: Any) -> tuple[str, ...] | None:
    return tuple(value) if type(value) is dict else None


@dataclass(frozen=True)
class _Choices:
    """Choices of one shape that stand one behind the other, each read by itself."""

    items: Sequence[dict[str, Any]]
    holders: Sequence[Sequence[Any]]
    """For each parent, the objects in them."""
    data: Sequence[Any]
    """Their events."""

    def held(self, parent: int, key: str) -> Sequence[Any]:
        """What each says by a key."""
        return [one[key] for one in self.holders[parent]]

    def beside(self, keys: Keys) -> Sequence[Any]:
        """What each event says at a place."""
        return [find(value, keys) for value in self.data]


@dataclass(frozen=True)
class _AlikeChoices:
    """Those of events that fit a template."""

    items: Sequence[dict[str, Any]]
    """Of each, what the model has instead."""
    places: Sequence[Keys]
    """For each parent, where it stands in an event."""
    data: Alike
    events: Sequence[int]

    def held(self, parent: int, key: str) -> Sequence[Any]:
        return self.beside((*self.places[parent], key))

    def beside(self, keys: Keys) -> Sequence[Any]:
        column, first, end = self.data.at(keys), self.events[0], self.events[-1] + 1
        return column[first:end] if end - first == len(self.events) else chosen(column, self.events)


class _Parts:
    """A column, part by part."""

    def __init__(self) -> None:
        self._parts: list[Sequence[Any]] = []
        self._end = 0

    def add(self, begin: int, part: Sequence[Any]) -> None:
        """Add what begins at a row; before that, nothing is told."""
        if begin > self._end:
            self._parts.append([ABSENT] * (begin - self._end))
        self._parts.append(part)
        self._end = begin + len(part)

    def joined(self, size: int) -> Sequence[Any]:
        self.add(size, ())
        return joined(self._parts)


_Run = dict[tuple[Kind, str], tuple[Sequence[Any], bool]]
"""What choices of one shape that stand one behind the other hold, and whether all of them do."""


def _keys(run: _Run, size: int) -> Iterable[frozenset[str]]:
    """The names of the fields that each choice of a run has."""
    everywhere = frozenset(name for (_, name), (_, whole) in run.items() if whole)
    partly = [(name, part) for (_, name), (part, whole) in run.items() if not whole]
    if not partly:
        return [everywhere] * size
    names = [name for name, _ in partly]
    told = zip(*(part for _, part in partly), strict=True)
    return [
        everywhere.union(name for name, value in zip(names, row, strict=True) if value is not ABSENT)
        for row in told
    ]


@dataclass(frozen=True, eq=False)
class AnswerBinding:
    """Where an answer says what. Made from `answer.whole` or `answer.stream` of a dialect."""

    choices: Keys
    index: Keys | None
    parents: tuple[_Parent, ...]
    finish: Mapping[str, Keys]
    finish_types: Mapping[str, str]
    """The record's word for a finish type, by the server's, where they differ."""
    document: tuple[_Field, ...]
    """Fields that stand beside the choices and hold for all of the event's choices."""
    of_a_call: Mapping[str, Keys]
    """Where a piece of a tool call says what."""
    usage: Keys | None
    echoed: Echoed | None
    nulls_are_absent: bool
    """The server writes null where it has nothing to say."""
    carrier: Keys | None
    """What a choice has that delivers something; one without it delivers only what is not null."""
    empty_is_absent: frozenset[str]
    """Series that the server writes as an empty list where it has nothing to say."""

    @classmethod
    def load(cls, dialect: str, table: Mapping[str, Any]) -> AnswerBinding:
        """Raises ValueError for a name that the record does not have."""
        unknown = table.keys() - _KNOWN
        if unknown:
            raise ValueError(
                f"dialect {dialect}: the record has no {sorted(unknown)[0]!r}; it has {sorted(_KNOWN)}"
            )
        bound = _fields(table)
        finish = dict(table.get("finish", {}))
        finish_types = finish.pop("types", {})
        beside = table.get("document", {})
        if beside.keys() - _FIELDS:
            wrong = sorted(beside.keys() - _FIELDS)[0]
            raise ValueError(f"dialect {dialect}: document has no {wrong!r}; it has {sorted(_FIELDS)}")
        if finish:
            bound.append(_Field("finish", "finish", finish["reason"]))
        calls = dict(table.get("tool_calls", {}))
        if calls:
            bound.append(_Field("tool_calls", "tool_calls", calls.pop("at")))
        if calls.keys() - set(_OF_A_CALL):
            wrong = sorted(calls.keys() - set(_OF_A_CALL))[0]
            raise ValueError(f"dialect {dialect}: a tool call has no {wrong!r}; it has {list(_OF_A_CALL)}")
        parents: dict[Keys, _Parent] = {}
        for one in bound:
            *way, last = one.keys
            parent = parents.setdefault(tuple(way), _Parent(tuple(way)))
            parent.fields.setdefault(last, []).append(one)
        if "customized_info" in table:
            keys = parse(table["customized_info"]["under"])
            parent = parents.setdefault(keys, _Parent(keys))
            parent.holds_customized_info = True
            parent.other_lists = frozenset(table["customized_info"]["other_lists"])
        return cls(
            choices=parse(table["choices"]),
            index=parse(table["index"]) if table.get("index") else None,
            parents=tuple(parents.values()),
            finish={name: parse(at) for name, at in finish.items()},
            finish_types=finish_types,
            document=tuple(_fields(beside)),
            of_a_call={name: parse(at) for name, at in calls.items()},
            usage=parse(table["usage"]) if "usage" in table else None,
            echoed=Echoed(tuple(table["echoed"]["series"]), table["echoed"].get("from_top_logprobs", 0))
            if "echoed" in table
            else None,
            nulls_are_absent=table.get("nulls") == "absent",
            carrier=parse(table["carrier"]) if "carrier" in table else None,
            empty_is_absent=frozenset(table.get("empty_is_absent", ())),
        )

    def usage_of(self, data: Any) -> Any:
        """The usage of an answer or event, or `ABSENT`."""
        return find(data, self.usage) if self.usage is not None else ABSENT

    @property
    def usage_pointer(self) -> str:
        return join(*self.usage) if self.usage is not None else ""

    @cached_property
    def _at(self) -> str:
        return join(*self.choices)

    @cached_property
    def _calls_at(self) -> str:
        """Where the calls of the one choice of an event stand."""
        held = (one for parent in self.parents for bound in parent.fields.values() for one in bound)
        own = next((one.pointer for one in held if one.kind == "tool_calls"), "")
        return f"{self._at}/0{own}" if self.choices else own

    def emissions(self, event: Event) -> Iterator[Emission]:
        """What the data of an event delivers, choice by choice; nothing where it holds no bound field."""
        found = find(event.data, self.choices)
        if isinstance(found, list):
            items = [(position, f"{self._at}/{position}", item) for position, item in enumerate(found)]
        else:
            items = [(0, self._at, found)]
        document = [
            (one, value)
            for one in self.document
            if (value := find(event.data, one.keys)) is not ABSENT and not self._is_nothing(value, one.name)
        ]
        for position, pointer, item in items:
            if isinstance(item, dict):
                emission = self._emission(event, position, pointer, item, document)
                if emission is not None:
                    yield emission

    def columns(self, data: Sequence[Any]) -> dict[int, Columns] | None:
        """What the data of a stream's events delivers, choice by choice and field by field; None where an
        event is not plainly of a shape: then it takes `emissions` to tell.
        """
        if isinstance(data, Alike) and not self._is_told_in(data):
            data = list(data)
        found = _each(data.models if isinstance(data, Alike) else data, self._found)
        if _SEVERAL in found:
            return None
        at = [event for event, item in enumerate(found) if item is not None]
        items = found if len(at) == len(found) else [found[event] for event in at]
        indices = self._indices(items)
        rows: dict[int, list[int]] = {index: [] for index in sorted(set(indices))}
        if len(rows) > 1:
            for row, index in enumerate(indices):
                rows[index].append(row)
        columns: dict[int, Columns] = {}
        for index, own in rows.items():
            some = ([at[row] for row in own], [items[row] for row in own]) if own else (at, items)
            told = self._told(*some, data)
            if told is None:
                return None
            columns[index] = told
        return columns

    @property
    def _choice(self) -> Keys:
        """Where the one choice of an event stands."""
        return (*self.choices, "0") if self.choices else ()

    def _is_told_in(self, alike: Alike) -> bool:
        """Whether what fills the holes of a template leaves all choices their shape, index and end."""
        whole = [(*self._choice, *parent.keys) for parent in self.parents]
        constant = [(*self._choice, *keys) for keys in (self.index or (), *self.finish.values()) if keys]
        holes = alike.template.holes
        return not any(isinstance(hole_at(holes, keys)[0], int) for keys in whole) and all(
            hole_at(holes, keys)[0] is None for keys in constant
        )

    def _found(self, value: Any) -> Any:
        """The one choice of an event, None for none; or `_SEVERAL`, where it takes a closer look."""
        if not self.choices:
            return _SEVERAL if type(value) is list else value if type(value) is dict else None
        held = find(value, self.choices)
        if type(held) is not list:
            return None if held is ABSENT or held is None else _SEVERAL
        if len(held) > 1:
            return _SEVERAL
        return held[0] if held and type(held[0]) is dict else None

    def _indices(self, items: Sequence[Any]) -> list[int]:
        if self.index is not None and len(self.index) == 1:
            told = [item.get(self.index[0]) for item in items]
            if set(map(type, told)) <= {int} and min(told, default=0) >= 0:
                return told
        return _each(items, lambda item: self.index_of(item, 0))

    def _told(self, at: list[int], items: list[dict[str, Any]], data: Sequence[Any]) -> Columns | None:
        """The columns of one choice, made of runs of the same shape."""
        model = find(data.template.model, self._choice) if isinstance(data, Alike) else ABSENT
        holders = [
            _each(items, partial(find, keys=parent.keys)) if parent.keys else items for parent in self.parents
        ]
        shapes = zip(
            [item is model for item in items], *(_each(held, _shape_of) for held in holders), strict=True
        )
        named: dict[tuple[Kind, str], _Parts] = {}
        keys: list[frozenset[str]] = []
        customized: set[str] = set()
        for (alike, *shape), same in groupby(shapes):
            rows = slice(len(keys), len(keys) + sum(1 for _ in same))
            known = self._shape(tuple(shape))
            if known is None:
                return None
            choices: _Choices | _AlikeChoices
            if alike and isinstance(data, Alike):
                places = [(*self._choice, *parent.keys) for parent in self.parents]
                choices = _AlikeChoices(items[rows], places, data, at[rows])
            else:
                beside = [data[one] for one in at[rows]] if self.document else []
                choices = _Choices(items[rows], [held[rows] for held in holders], beside)
            run = self._run(known, choices)
            if not any(whole for _, whole in run.values()):  # such a choice may deliver nothing
                return None
            customized.update(one.name for one in known.others if ("series", one.name) in run)
            self._beside(choices, run)
            for bound, (part, _) in run.items():
                named.setdefault(bound, _Parts()).add(rows.start, part)
            keys += _keys(run, rows.stop - rows.start)
        columns = {bound: parts.joined(len(at)) for bound, parts in named.items()}
        return self._as_columns(at, keys, columns, frozenset(customized))

    @lru_cache(maxsize=1 << 10)  # noqa: B019  # the tables of the dialects live as long as the program
    def _shape(self, shape: tuple[tuple[str, ...] | None, ...]) -> _Shape | None:
        """What choices have whose parents hold these keys; None where the values have to tell."""
        fields: list[_Bound] = []
        others: list[_Bound] = []
        carried = self.carrier is None
        for at, (parent, held) in enumerate(zip(self.parents, shape, strict=True)):
            carried |= parent.keys == self.carrier and held is not None
            for key in held or ():
                bound = parent.fields.get(key)
                fields += (_Bound(one.kind, one.name, at, key) for one in bound or ())
                if bound is None and parent.holds_customized_info and key not in parent.other_lists:
                    others.append(_Bound("series", key, at, key))
        told = [(one.kind, one.name) for one in (*fields, *others) if one.kind != "reasoning"]
        plain = carried and len(set(told)) == len(told) and len({name for _, name in told}) == len(told)
        return _Shape(tuple(fields), tuple(others)) if plain else None

    def _run(self, shape: _Shape, choices: _Choices | _AlikeChoices) -> _Run:
        run: _Run = {}
        for kind, name, parent, key in shape.fields:
            part = choices.held(parent, key)
            if kind == "finish":
                finishes = zip(choices.items, part, strict=True)
                run[kind, name] = (
                    [None if why is None else self._finish(item, why) for item, why in finishes],
                    True,
                )
                continue
            part, whole = self._without_nothing(part, name)
            if not whole and part.count(ABSENT) == len(part):
                continue
            if (kind, name) in run:  # a reasoning by another name
                other, others = run[kind, name]
                both = zip(other, part, strict=True)
                part = [two if two is not ABSENT and not one else one for one, two in both]
                whole |= others
            run[kind, name] = part, whole
        for kind, name, parent, key in shape.others:
            part = [one if type(one) is list else ABSENT for one in choices.held(parent, key)]
            absent = part.count(ABSENT)
            if absent < len(part):
                run[kind, name] = part, not absent
        return run

    def _without_nothing(self, part: Sequence[Any], name: str) -> tuple[Sequence[Any], bool]:
        """Values, or `ABSENT` for those that say nothing, and whether all of them do."""
        if isinstance(part, Made):  # of objects
            return part, True
        if not (self.nulls_are_absent and None in part) and name not in self.empty_is_absent:
            return part, True
        said = [ABSENT if not value and self._is_nothing(value, name) else value for value in part]
        return said, ABSENT not in said

    def _beside(self, choices: _Choices | _AlikeChoices, run: _Run) -> None:
        """Add the fields that stand beside the choices to those of the choices, which count more."""
        for one in self.document:
            part = [
                ABSENT if value is not ABSENT and self._is_nothing(value, one.name) else value
                for value in choices.beside(one.keys)
            ]
            if (one.kind, one.name) in run:
                own, _ = run[one.kind, one.name]
                part = [two if mine is ABSENT else mine for mine, two in zip(own, part, strict=True)]
            absent = part.count(ABSENT)
            if absent < len(part):
                run[one.kind, one.name] = part, not absent

    def _as_columns(
        self,
        at: list[int],
        keys: list[frozenset[str]],
        named: Mapping[tuple[Kind, str], Sequence[Any]],
        customized: frozenset[str],
    ) -> Columns:

        def single(kind: Kind, of_type: type) -> Sequence[Any]:
            column = named.get((kind, kind), [None] * len(at))
            known = set(map(type, column)) <= {of_type, NoneType}
            return column if known else [one if type(one) is of_type else None for one in column]

        mappings: dict[Kind, dict[str, Sequence[Any]]] = {kind: {} for kind in _NAMED}
        for (kind, name), column in named.items():
            if kind in mappings:
                no_nulls = kind == "counters" and None in column
                said = [ABSENT if value is None else value for value in column] if no_nulls else column
                mappings[kind][name] = said
        return Columns(
            at,
            keys,
            text=single("text", str),
            reasoning=single("reasoning", str),
            calls=[self._calls(told, self._calls_at) for told in named[_CALLS]]
            if _CALLS in named
            else [()] * len(at),
            output_ids=single("output_ids", list),
            prompt_token_ids=single("prompt_token_ids", list),
            finish=single("finish", Finish),
            series=mappings["series"],
            prompt_series=mappings["prompt_series"],
            counters={
                name: column
                for name, column in mappings["counters"].items()
                if any(one is not ABSENT for one in column)
            },
            details=mappings["details"],
            customized=customized,
        )

    def _is_nothing(self, value: Any, name: str) -> bool:
        return (value is None and self.nulls_are_absent) or (value == [] and name in self.empty_is_absent)

    def _says_nothing(self, item: dict[str, Any], values: Mapping[Kind, Mapping[str, Any]]) -> bool:
        """Whether a choice stands in an event only for what no field of the record is bound to."""
        if self.carrier is None or find(item, self.carrier) is not ABSENT:
            return False
        return all(value is None for named in values.values() for value in named.values())

    def index_of(self, item: Any, position: int) -> int:
        """The index that a choice says it has; else the position where it stands."""
        index = find(item, self.index) if self.index else ABSENT
        return index if type(index) is int and index >= 0 else position

    def _emission(
        self,
        event: Event,
        position: int,
        at: str,
        item: dict[str, Any],
        document: Sequence[tuple[_Field, Any]],
    ) -> Emission | None:
        pointers: dict[str, str] = {}
        values: defaultdict[Kind, dict[str, Any]] = defaultdict(dict)
        customized: set[str] = set()
        for parent in self.parents:
            holder = find(item, parent.keys) if parent.keys else item
            if not isinstance(holder, dict):
                continue
            placed = parent.placed(at)
            for key, value in holder.items():
                bound = placed.get(key)
                if bound is not None:
                    for kind, name, pointer in bound:
                        if not value and kind != "finish" and self._is_nothing(value, name):
                            continue
                        if kind == "reasoning" and values[kind].get(name):
                            continue  # by another name
                        values[kind][name] = value
                        pointers[name] = pointer
                elif (
                    parent.holds_customized_info and isinstance(value, list) and key not in parent.other_lists
                ):
                    values["series"][key] = value
                    pointers[key] = intern(at + join(*parent.keys, key))
                    customized.add(key)
        if not pointers or self._says_nothing(item, values):
            return None
        for one, value in document:
            values[one.kind].setdefault(one.name, value)
            pointers.setdefault(one.name, one.pointer)
        text, reasoning = values["text"].get("text"), values["reasoning"].get("reasoning")
        output_ids = values["output_ids"].get("output_ids")
        prompt_token_ids = values["prompt_token_ids"].get("prompt_token_ids")
        return Emission(
            event=event,
            choice=self.index_of(item, position),
            pointers=pointers,
            text=text if isinstance(text, str) else None,
            reasoning=reasoning if isinstance(reasoning, str) else None,
            calls=self._calls(values["tool_calls"].get("tool_calls"), pointers.get("tool_calls", "")),
            output_ids=output_ids if isinstance(output_ids, list) else None,
            prompt_token_ids=prompt_token_ids if isinstance(prompt_token_ids, list) else None,
            series=values["series"],
            customized=frozenset(customized) if customized else _NONE_CUSTOMIZED,
            prompt_series=values["prompt_series"],
            counters={name: value for name, value in values["counters"].items() if value is not None},
            details=values["details"],
            finish=self._finish(item, values["finish"].get("finish")),
        )

    def _calls(self, told: Any, at: str) -> tuple[CallPiece, ...]:
        """The pieces of tool calls in a list; what is no object in it is none."""
        if not isinstance(told, list):
            return ()
        pieces = []
        for position, piece in enumerate(told):
            if isinstance(piece, dict):
                found = {name: find(piece, keys) for name, keys in self.of_a_call.items()}
                said = {name: value for name, value in found.items() if value is not ABSENT}
                pieces.append(CallPiece(f"{at}/{position}", position, **said))
        return tuple(pieces)

    def _finish(self, item: dict[str, Any], reason: Any) -> Finish | None:
        if reason is None:
            return None
        found = {name: find(item, keys) for name, keys in self.finish.items()}
        kind = found["type"]
        length = found.get("length", ABSENT)
        matched, code = found.get("matched", ABSENT), found.get("code")
        return Finish(
            type=self.finish_types.get(kind, kind) if isinstance(kind, str) else "",
            matched=None if matched is ABSENT or matched == "" else matched,
            length=length if type(length) is int else None,
            raw=reason,
            code=None if code is ABSENT else code,
        )
