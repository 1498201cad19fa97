"""The grammar of a stream of named events: a small machine, declared in `spec/grammars/`.

An event begins or ends the stream, opens or closes a frame (an item, a part, a block), or stands within one
that is open. Frames are numbered from 0 in the order in which they open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

from tokenwire.record import Event
from tokenwire.spec_files import read_yaml, spec_root
from tokenwire.typed_table import typed
from tokenwire.wire.json_pointer import ABSENT, find, gather, parse


class Rule(StrEnum):
    """What an event may break."""

    ENDS = "ends"
    """It begins, ends, or stands behind the end."""
    OPEN = "open"
    """What it belongs to is not open, or of another kind."""
    CLOSED = "closed"
    """What it closes is not open, or is still open where it should not be."""
    NUMBERED = "numbered"
    """What it opens has not the next number, or opens beside another."""


@dataclass(frozen=True)
class FrameRule:
    """A kind of frame: what opens and closes it, and where its events tell which one it is."""

    opens: str
    closes: str
    index: str
    kind: str
    object: str
    within: str = ""
    id: str = ""
    """What names the frame in its events."""
    same: tuple[str, ...] = ()
    """Fields of its object that no event changes."""
    overlaps: bool = False
    """Several may be open at once."""


@dataclass(frozen=True)
class FinalObject:
    """The object that the last event repeats: its list of items, and what is the same of each."""

    items: str
    id: str
    same: tuple[str, ...]


@dataclass(frozen=True)
class EventGrammar:
    """One grammar, as its file says it. All pointers are JSON pointers into the data of an event."""

    kind: tuple[str, ...]
    begins: str
    ends: Mapping[str, str | None]
    """The last event by its kind, and the status that its object has then."""
    frames: Mapping[str, FrameRule]
    inside: Mapping[str, Mapping[str, tuple[str, ...]]]
    """By kind, the frame in which an event stands, and of which kinds that may be."""
    within: tuple[str, ...] = ()
    """What may stand anywhere before the end."""
    once: str = ""
    """What comes once, when all frames are closed, before the end."""
    numbered: str = ""
    status: str = ""
    final: FinalObject | None = None
    pieces: Mapping[str, str] = field(default_factory=dict)
    restated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def kind_of(self, data: Any) -> str:
        """The kind of an event: its type, with that of what it brings where the grammar tells these apart."""
        names = [name for pointer in self.kind if isinstance(name := find(data, parse(pointer)), str)]
        return " ".join(names)

    def walk(self, events: Iterable[Event]) -> Walk:
        """Go through the events of a stream, each as if all before it had been legal."""
        walk = Walk(self)
        for event in events:
            if not event.problem:
                walk.take(event)
        return walk


@dataclass(eq=False)
class Frame:
    """One item, part or block of a stream, and the events that belong to it."""

    name: str
    index: int
    kind: Any
    opened: Event
    parent: Frame | None = None
    events: list[tuple[str, Event]] = field(default_factory=list)
    """With the kind of each."""
    closed: Event | None = None

    @property
    def words(self) -> str:
        return f"{self.name} {self.index}"


@dataclass(frozen=True)
class Misplaced:
    """An event that stands where the grammar has no place for it."""

    event: Event
    rule: Rule
    words: str


@dataclass(eq=False)
class Walk:
    """What a stream is by its grammar: its frames, and what is misplaced."""

    grammar: EventGrammar
    frames: list[Frame] = field(default_factory=list)
    misplaced: list[Misplaced] = field(default_factory=list)
    seen: dict[Rule, Event] = field(default_factory=dict)
    """The last event to which a rule applied."""
    kinds: list[tuple[str, Event]] = field(default_factory=list)
    end: Event | None = None

    def _fails(self, event: Event, rule: Rule, words: str) -> None:
        self.misplaced.append(Misplaced(event, rule, words))

    def take(self, event: Event) -> None:
        """Read the next event."""
        kind, grammar = self.grammar.kind_of(event.data), self.grammar
        first = not self.kinds
        self.kinds.append((kind, event))
        if self.end is not None:
            self._fails(event, Rule.ENDS, f"{kind} stands behind the end")
        elif first != (kind == grammar.begins) and kind not in grammar.ends:
            where = f"the stream begins with {kind}" if first else f"{kind} comes again"
            self._fails(event, Rule.ENDS, f"{where}, and {grammar.begins} begins it once")
        self.seen[Rule.ENDS] = event
        if kind in grammar.ends:
            self._close_all(event, kind)
            self.end = self.end or event
        elif kind and kind == grammar.once:
            self._take_once(event, kind)
        for name, rule in grammar.frames.items():
            if kind == rule.opens:
                self._open(event, name, rule)
            elif kind == rule.closes:
                self._close(event, name, rule)
        for name, kinds in grammar.inside.get(kind, {}).items():
            self._stand_inside(event, kind, name, kinds)

    def _take_once(self, event: Event, kind: str) -> None:
        self.seen[Rule.CLOSED] = event
        if sum(one == kind for one, _ in self.kinds) > 1:
            self._fails(event, Rule.ENDS, f"{kind} comes again")
        for frame in self._open_ones():
            self._fails(event, Rule.CLOSED, f"{kind} comes while {frame.words} is open")

    def _close_all(self, event: Event, kind: str) -> None:
        """Whether the end comes in time; after an error, nothing has to be closed."""
        if self.end is not None or kind == "error":
            return
        for frame in self._open_ones():
            self._fails(event, Rule.CLOSED, f"{kind} comes while {frame.words} is open")
        if self.grammar.once and all(one != self.grammar.once for one, _ in self.kinds):
            self._fails(event, Rule.ENDS, f"{kind} comes without {self.grammar.once}")

    def _open_ones(self) -> list[Frame]:
        return [frame for frame in self.frames if frame.closed is None]

    def _parent(self, event: Event, rule: FrameRule) -> Frame | None:
        """The open frame around a frame, as an event tells it."""
        return self._find(event, rule.within) if rule.within else None

    def _index(self, event: Event, rule: FrameRule) -> Any:
        return find(event.data, parse(rule.index))

    def _find(self, event: Event, name: str) -> Frame | None:
        """The open frame that an event names."""
        rule = self.grammar.frames[name]
        parent = self._parent(event, rule)
        found = (
            frame
            for frame in reversed(self.frames)
            if frame.name == name and frame.closed is None and frame.parent is parent
        )
        return next((frame for frame in found if frame.index == self._index(event, rule)), None)

    def _open(self, event: Event, name: str, rule: FrameRule) -> None:
        index, parent = self._index(event, rule), self._parent(event, rule)
        self.seen[Rule.NUMBERED] = event
        if rule.within and parent is None:
            self._fails(event, Rule.OPEN, f"{name} {index} opens in no open {rule.within}")
        siblings = [frame for frame in self.frames if frame.name == name and frame.parent is parent]
        due = len(siblings)
        if type(index) is not int or index != due:
            shown = "no number" if index is ABSENT else index
            self._fails(event, Rule.NUMBERED, f"{name} {shown} opens, and the next is {due}")
        for frame in siblings:
            if frame.closed is None and (not rule.overlaps or frame.index == index):
                self._fails(event, Rule.NUMBERED, f"{name} {index} opens while {frame.words} is open")
        number = index if type(index) is int else due
        frame = Frame(name, number, find(event.data, parse(rule.kind)), event, parent)
        self.frames.append(frame)

    def _close(self, event: Event, name: str, rule: FrameRule) -> None:
        frame = self._find(event, name)
        self.seen[Rule.CLOSED] = event
        if frame is None:
            self._fails(event, Rule.CLOSED, f"{name} {self._index(event, rule)} closes, and is not open")
            return
        for inner in self._open_ones():
            if inner.parent is frame:
                self._fails(event, Rule.CLOSED, f"{frame.words} closes while its {inner.words} is open")
        frame.events.append((rule.closes, event))
        frame.closed = event

    def _stand_inside(self, event: Event, kind: str, name: str, kinds: tuple[str, ...]) -> None:
        frame, rule = self._find(event, name), self.grammar.frames[name]
        self.seen[Rule.OPEN] = event
        if frame is None:
            index = self._index(event, rule)
            words = f"{kind} belongs to {name} {'without a number' if index is ABSENT else index}"
            self._fails(event, Rule.OPEN, f"{words}, which is not open")
            return
        if frame.kind not in kinds:
            self._fails(event, Rule.OPEN, f"{kind} stands in {frame.words}, which is of kind {frame.kind!r}")
        frame.events.append((kind, event))

    def events_of(self, frame: Frame) -> list[tuple[str, Event]]:
        """The events of a frame and of the frames within it, each with its kind."""
        inner = [one for child in self.frames if child.parent is frame for one in child.events]
        return [*frame.events, *inner]

    def joined(self) -> Iterator[tuple[Event, str, str, str]]:
        """Each event that says again what the pieces of a frame said: where, what it says, and what they did.

        A frame without pieces says nothing twice.
        """
        for frame in self.frames:
            places = {kind: (pointer,) for kind, pointer in self.grammar.pieces.items()}
            pieces = self._texts(self.events_of(frame), places)
            for kind, event in frame.events:
                for pointer in self.grammar.restated.get(kind, ()):
                    said = self._texts([(kind, event)], {kind: (pointer,)})
                    if pieces and said:
                        yield event, pointer.partition("/*")[0], "".join(said), "".join(pieces)

    @staticmethod
    def _texts(events: Iterable[tuple[str, Event]], pointers: Mapping[str, tuple[str, ...]]) -> list[str]:
        """The texts that stand at the pointers of their kind in events."""
        found = (
            value
            for kind, event in events
            for pointer in pointers.get(kind, ())
            for value in gather(event.data, parse(pointer))
        )
        return [value for value in found if isinstance(value, str)]


@cache
def load_grammar(name: str) -> EventGrammar:
    """The grammar of `spec/grammars/<name>.yaml`. Raises FileNotFoundError where there is none."""
    return typed(EventGrammar, read_yaml(spec_root() / "grammars" / f"{name}.yaml"), f"grammar {name}")
