"""Edits of a stream, and the interface that chooses where they are made."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from proofs.mutation.source import Source
from tokenwire.record import Emission
from tokenwire.wire.exchange import Ending
from tokenwire.wire.json_pointer import find, parse

_T = TypeVar("_T")


class Hand(Protocol):
    """A source of choices for an edit, such as its position."""

    def choose(self, options: Sequence[_T]) -> _T:
        """Return one of the options, of which there must be at least one."""
        ...


@dataclass
class Body:
    """A stream that is being edited: the data of each event, and how events are framed."""

    data: list[str]
    end_of_line: str = "\n"
    name: str = "data: "
    before: dict[int, str] = field(default_factory=dict)
    """Lines before an event, each with its line end, by the event's index."""
    prefix: bytes = b""
    cut: int | None = None
    """The number of bytes that are sent. None for all bytes."""
    ending: Ending = Ending.COMPLETE
    as_it_is: dict[int, bytes] = field(default_factory=dict)
    """The bytes of events that are not framed from `data`, by index."""
    named: bool = False
    """True if each event has a name, which is the type in its data."""

    def frames(self) -> list[bytes]:
        """Return the bytes of each event."""
        frames = []
        for position, data in enumerate(self.data):
            lines = [f"{self.name}{line}{self.end_of_line}" for line in data.split("\n")]
            if self.named and (kind := type_of(data)):
                lines.insert(0, f"event: {kind}{self.end_of_line}")
            before = self.before.get(position, "").replace("\n", self.end_of_line)
            text = before + "".join(lines) + self.end_of_line
            frames.append(self.as_it_is.get(position, text.encode()))
        return frames

    def bytes(self) -> bytes:
        """Return the bytes of the whole stream."""
        whole = self.prefix + b"".join(self.frames())
        return whole if self.cut is None else whole[: self.cut]


@dataclass(frozen=True)
class Edit:
    """An edited stream, and the first event that can show the edit."""

    body: Body
    event: int = 0
    """The index, in the edited stream, of the first event at which an error can be detected."""


Make = Callable[[Source, Hand], Edit | None]
"""A function that makes an edit. It returns None if the edit does not apply to the stream."""


def written(value: Any) -> str:
    """Return a JSON value as servers write it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def type_of(data: str) -> str | None:
    """Return the type in an event's data. None if the data is not an object with a type."""
    try:
        value = json.loads(data)
    except ValueError:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else None


def body_of(source: Source) -> Body:
    """Return the unedited stream."""
    return Body(list(source.data), named=any(event.name for event in source.stream.events))


def value_at(source: Source, emission: Emission, name: str) -> Any:
    """Return a copy of the value of an emission's field in its event."""
    return copy.deepcopy(find(source.values[emission.event.index], parse(emission.pointers[name])))


def place(document: Any, pointer: str, new: Any) -> None:
    """Replace the value at an existing place."""
    *way, last = parse(pointer)
    holder = find(document, tuple(way)) if way else document
    holder[int(last) if isinstance(holder, list) else last] = new


def with_value(body: Body, emission: Emission, **changed: Any) -> None:
    """Replace the values of some fields of an emission."""
    value = json.loads(body.data[emission.event.index])
    for name, new in changed.items():
        place(value, emission.pointers[name], new)
    body.data[emission.event.index] = written(value)


def carrying(source: Source, name: str) -> list[Emission]:
    """Return the emissions in which a field is not empty, in the order of events."""
    return [
        emission
        for emission in source.stream.emissions()
        if name in emission.pointers
        and find(source.values[emission.event.index], parse(emission.pointers[name]))
    ]


def following(source: Source, emission: Emission) -> Emission | None:
    """Return the next emission of the same choice, or None."""
    emissions = next(choice for choice in source.stream.choices if choice.index == emission.choice).emissions
    index = emissions.index(emission)
    return emissions[index + 1] if index + 1 < len(emissions) else None


def preceding(source: Source, emission: Emission) -> Emission | None:
    """Return the previous emission of the same choice, or None."""
    emissions = next(choice for choice in source.stream.choices if choice.index == emission.choice).emissions
    index = emissions.index(emission)
    return emissions[index - 1] if index else None
