"""Edits of a stream, and the hand that draws where they are made."""

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
    """Draws what an edit leaves open."""

    def choose(self, options: Sequence[_T]) -> _T:
        """One of some options, at least one."""
        ...


@dataclass
class Body:
    """A stream in the making: the data of each event, and how it is framed."""

    data: list[str]
    end_of_line: str = "\n"
    name: str = "data: "
    before: dict[int, str] = field(default_factory=dict)
    """Lines before an event, each with its end."""
    prefix: bytes = b""
    cut: int | None = None
    """The bytes that are sent; None for all."""
    ending: Ending = Ending.COMPLETE
    as_it_is: dict[int, bytes] = field(default_factory=dict)
    """Events whose frame is given in bytes."""
    named: bool = False
    """True if the stream names its events: by the type that their data carry."""

    def frames(self) -> list[bytes]:
        """The bytes of each event."""
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
        """All of it."""
        whole = self.prefix + b"".join(self.frames())
        return whole if self.cut is None else whole[: self.cut]


@dataclass(frozen=True)
class Edit:
    """An edited stream."""

    body: Body
    event: int = 0
    """The first event, as counted in the edited stream, at which anything can be seen to be wrong."""


Make = Callable[[Source, Hand], Edit | None]
"""Makes an edit; None where a stream has no place for it."""


def written(value: Any) -> str:
    """A JSON value as servers write it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def type_of(data: str) -> str | None:
    """The type that an event's data carry; None for text that is not an object with one."""
    try:
        value = json.loads(data)
    except ValueError:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else None


def body_of(source: Source) -> Body:
    """The stream as it was."""
    return Body(list(source.data), named=any(event.name for event in source.stream.events))


def value_at(source: Source, emission: Emission, name: str) -> Any:
    """Return a copy of an emission's field in its event."""
    return copy.deepcopy(find(source.values[emission.event.index], parse(emission.pointers[name])))


def place(document: Any, pointer: str, new: Any) -> None:
    """Put another value at a place that there is."""
    *way, last = parse(pointer)
    holder = find(document, tuple(way)) if way else document
    holder[int(last) if isinstance(holder, list) else last] = new


def with_value(body: Body, emission: Emission, **changed: Any) -> None:
    """Put other values into the fields of an emission."""
    value = json.loads(body.data[emission.event.index])
    for name, new in changed.items():
        place(value, emission.pointers[name], new)
    body.data[emission.event.index] = written(value)


def carrying(source: Source, name: str) -> list[Emission]:
    """The emissions that carry a field which is not empty, in wire order."""
    return [
        emission
        for emission in source.stream.emissions()
        if name in emission.pointers
        and find(source.values[emission.event.index], parse(emission.pointers[name]))
    ]


def following(source: Source, emission: Emission) -> Emission | None:
    """The next emission of the same choice."""
    emissions = next(choice for choice in source.stream.choices if choice.index == emission.choice).emissions
    index = emissions.index(emission)
    return emissions[index + 1] if index + 1 < len(emissions) else None


def preceding(source: Source, emission: Emission) -> Emission | None:
    """The emission of the same choice before it."""
    emissions = next(choice for choice in source.stream.choices if choice.index == emission.choice).emissions
    index = emissions.index(emission)
    return emissions[index - 1] if index else None
