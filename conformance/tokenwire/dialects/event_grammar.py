"""The legal order of named events in a stream: a small state machine, declared in `spec/grammars/`.

An event begins or ends the stream, opens or closes a frame (an item, a part or a block), or belongs to an
open frame. Frames with the same parent are numbered from 0 in the order in which they open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property
from itertools import chain, product
from typing import Any

from tokenwire.record import Event
from tokenwire.spec_files import read_yaml, spec_root
from tokenwire.typed_table import typed
from tokenwire.wire.joined_text import join_text
from tokenwire.wire.json_pointer import ABSENT, find, gather, parse


class Rule(StrEnum):
    """The rules that an event may violate."""

    ENDS = "ends"
    """The stream begins and ends with the right events, once, and nothing follows the end."""
    OPEN = "open"
    """An event belongs to an open frame of the right kind."""
    CLOSED = "closed"
    """Only an open frame is closed, and all frames are closed before the end."""
    NUMBERED = "numbered"
    """A frame has the next number, and does not open while another is open (unless frames may overlap)."""
    DONE = "done"
    """The event with the whole text of a frame comes once, after all pieces of the text."""


@dataclass(frozen=True)
class FrameRule:
    """One kind of frame: the events that open and close it, and the pointer of its number in events."""

    opens: str
    closes: str
    index: str
    kind: str
    object: str
    within: str = ""
    id: str = ""
    """The pointer of the frame's id in events; empty if it has none."""
    same: tuple[str, ...] = ()
    """Fields of the frame's object that must not change."""
    overlaps: bool = False
    """True if several frames of this kind may be open at a time."""
    done: Mapping[str, str] = field(default_factory=dict)
    """The event that repeats the whole text of a frame, by the type of the frame's object."""
    signed: Mapping[str, str] = field(default_factory=dict)
    """The event that carries the signature of a frame, by the type of the frame's object."""
    empty: tuple[str, ...] = ()
    """Text fields of the frame's object that must be empty when the frame opens, because the text follows in
    pieces.
    """


@dataclass(frozen=True)
class FinalObject:
    """The complete answer as an object, which the last event repeats."""

    object: str
    """The pointer of the object in the last event."""
    items: str
    """The pointer of the list of items."""
    id: str
    same: tuple[str, ...]
    """Fields of an item that must be equal in the event that closes it and in the last event."""
    stays: tuple[str, ...] = ()
    """Fields of the object that must not change during the stream."""
    usage: str = ""
    error: str = ""
    whole: tuple[str, ...] = ()
    """Statuses of the object with which an error is not allowed."""


@dataclass(frozen=True)
class RepeatedContent:
    """Content that a stream sends in pieces and repeats as a whole.

    The class has a pointer for each kind of event with such content.
    """

    pieces: Mapping[str, str]
    again: Mapping[str, tuple[str, ...]]
    entry: tuple[str, ...] = ()
    """For content that is a list and not a text: the fields of an entry that are repeated."""

    def joined(self, data: Any, pointer: str) -> str | list[Any] | None:
        """Return the content at a pointer of an event: a text or a list of entries; None if it is missing."""
        kind = list if self.entry else str
        found: list[Any] = [value for value in gather(data, parse(pointer)) if isinstance(value, kind)]
        if not found:
            return None
        if not self.entry:
            return join_text(found)
        entries = (entry for value in found for entry in value)
        return [
            [part for pointer in self.entry for part in gather(entry, parse(pointer))] for entry in entries
        ]


@dataclass(frozen=True)
class EventGrammar:
    """A grammar as its file declares it. All pointers are JSON pointers into the data of an event."""

    kind: tuple[str, ...]
    begins: str
    ends: Mapping[str, str | None]
    """The kinds of events that end a stream, each with the status that the final object must have."""
    frames: Mapping[str, FrameRule]
    inside: Mapping[str, Mapping[str, tuple[str, ...]]]
    """The frame to which each other kind of event belongs, and the types of frame objects that it may belong
    to.
    """
    within: tuple[str, ...] = ()
    """Kinds of events that may come anywhere before the end."""
    behind: Mapping[str, str] = field(default_factory=dict)
    """For each kind of last event, a kind of event that may follow it once."""
    once: str = ""
    """A kind of event that comes exactly once, after all frames are closed and before the end."""
    numbered: str = ""
    status: str = ""
    final: FinalObject | None = None
    repeated: tuple[RepeatedContent, ...] = ()

    @cached_property
    def pieces(self) -> frozenset[str]:
        """The kinds of events that carry a piece of text."""
        return frozenset(kind for row in self.repeated if not row.entry for kind in row.pieces)

    @cached_property
    def known(self) -> frozenset[str]:
        """All kinds of events in the grammar. Events of other kinds are extensions of the server."""
        framing = (kind for rule in self.frames.values() for kind in (rule.opens, rule.closes))
        kinds = (self.begins, self.once, *self.ends, *self.within, *self.inside, *framing)
        return frozenset((*kinds, *self.behind, *self.behind.values())) - {""}

    def kind_of(self, data: Any) -> str:
        """Return the kind of an event: its type, and the type of its content if the grammar uses that as
        well.
        """
        names = [name for pointer in self.kind if isinstance(name := find(data, parse(pointer)), str)]
        return " ".join(names)

    def goes_on(self, last: Event, event: Event) -> bool:
        """True if `event` may follow `last`, an event that ended the stream."""
        return self.behind.get(self.kind_of(last.data), "") == self.kind_of(event.data) != ""

    def walk(self, events: Iterable[Event]) -> Walk:
        """Parse the events of a stream. After a violation, parsing goes on as if the event were legal."""
        walk = Walk(self)
        for event in events:
            if not event.problem and not event.done:
                walk.take(event)
        return walk


@dataclass(eq=False)
class Frame:
    """An item, part or block of a stream, with the events that belong to it."""

    name: str
    index: int
    kind: Any
    opened: Event
    parent: Frame | None = None
    inner: list[Frame] = field(default_factory=list)
    """The frames that were opened inside this frame."""
    events: list[tuple[str, Event]] = field(default_factory=list)
    """The events that belong to this frame directly, each with its kind."""
    done: Event | None = None
    """The event that repeats the whole text of the frame; None if it has not come."""
    closed: Event | None = None

    @property
    def words(self) -> str:
        return f"{self.name} {self.index}"

    @property
    def all_events(self) -> list[tuple[str, Event]]:
        """Return the events of this frame and of the frames inside it."""
        return [*self.events, *chain.from_iterable(frame.events for frame in self.inner)]


@dataclass(frozen=True)
class Misplaced:
    """An event that violates a rule of the grammar."""

    event: Event
    rule: Rule
    words: str


@dataclass(eq=False)
class Walk:
    """The result of parsing a stream by its grammar: the frames, and the misplaced events.

    An event violates a rule at most once, and its cost does not depend on the number of open frames.
    Otherwise a stream of unclosed frames would take time and memory quadratic in its length.
    """

    grammar: EventGrammar
    frames: list[Frame] = field(default_factory=list)
    misplaced: list[Misplaced] = field(default_factory=list)
    seen: dict[Rule, Event] = field(default_factory=dict)
    """The last event to which each rule was applied."""
    end: Event | None = None
    _begun: bool = False
    _once_seen: bool = False
    _due: Counter[tuple[str, Frame | None]] = field(default_factory=Counter)
    """The number that the next frame must have, by kind of frame and parent."""
    _open: dict[tuple[str, Frame | None], dict[int, list[Frame]]] = field(default_factory=dict)
    """The open frames by kind and parent, then by number.

    Several frames have the same number if the server violates that rule.
    """
    _broken: set[Rule] = field(default_factory=set)
    """The rules that the current event has violated."""

    def _fails(self, event: Event, rule: Rule, words: str) -> None:
        if rule not in self._broken:
            self._broken.add(rule)
            self.misplaced.append(Misplaced(event, rule, words))

    def take(self, event: Event) -> None:
        """Parse the next event."""
        kind, grammar = self.grammar.kind_of(event.data), self.grammar
        first, self._begun = not self._begun, True
        self._broken.clear()
        if self.end is not None and grammar.goes_on(self.end, event):
            self.end = event
        elif self.end is not None:
            self._fails(event, Rule.ENDS, f"{kind} comes after the end")
        # A stream may fail before it begins, so its first event may be an event that ends it.
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
                self._open_frame(event, name, rule)
            elif kind == rule.closes:
                self._close_frame(event, name, rule)
        for name, kinds in grammar.inside.get(kind, {}).items():
            self._stand_inside(event, kind, name, kinds)

    def _take_once(self, event: Event, kind: str) -> None:
        self.seen[Rule.CLOSED] = event
        if self._once_seen:
            self._fails(event, Rule.ENDS, f"{kind} comes again")
        self._once_seen = True
        self._expect_nothing_open(event, kind)

    def _close_all(self, event: Event, kind: str) -> None:
        """Check that the end comes after everything was closed. After an error event, frames may be open."""
        if self.end is not None or kind == "error":
            return
        self._expect_nothing_open(event, kind)
        if self.grammar.once and not self._once_seen:
            self._fails(event, Rule.ENDS, f"{kind} comes without {self.grammar.once}")

    def _expect_nothing_open(self, event: Event, kind: str) -> None:
        still_open = (
            frame for by_number in self._open.values() for same in by_number.values() for frame in same
        )
        if frame := next(still_open, None):
            self._fails(event, Rule.CLOSED, f"{kind} comes while {frame.words} is open")

    def _parent(self, event: Event, rule: FrameRule) -> Frame | None:
        """Return the open parent frame of the frame that an event names; None if the parent frame is not
        open.
        """
        return self._find(event, rule.within) if rule.within else None

    def _index(self, event: Event, rule: FrameRule) -> Any:
        return find(event.data, parse(rule.index))

    def _find(self, event: Event, name: str) -> Frame | None:
        """Return the open frame that an event names.

        If several open frames have this number, return the latest of them.
        """
        rule = self.grammar.frames[name]
        index = self._index(event, rule)
        frames = self._open.get((name, self._parent(event, rule)), {})
        return frames[index][-1] if type(index) is int and index in frames else None

    def _open_frame(self, event: Event, name: str, rule: FrameRule) -> None:
        index, parent = self._index(event, rule), self._parent(event, rule)
        self.seen[Rule.NUMBERED] = event
        if rule.within and parent is None:
            self._fails(event, Rule.OPEN, f"{name} {index} opens in no open {rule.within}")
        due = self._due[name, parent]
        self._due[name, parent] += 1
        number = index if type(index) is int else due
        siblings = self._open.setdefault((name, parent), {})
        beside = siblings.get(number, ()) if rule.overlaps else chain.from_iterable(siblings.values())
        if type(index) is not int or index != due:
            shown = "no number" if index is ABSENT else index
            self._fails(event, Rule.NUMBERED, f"{name} {shown} opens, and the next is {due}")
        elif other := next(iter(beside), None):
            self._fails(event, Rule.NUMBERED, f"{name} {index} opens while {other.words} is open")
        frame = Frame(name, number, find(event.data, parse(rule.kind)), event, parent)
        self.frames.append(frame)
        siblings.setdefault(number, []).append(frame)
        if parent is not None:
            parent.inner.append(frame)

    def _close_frame(self, event: Event, name: str, rule: FrameRule) -> None:
        frame = self._find(event, name)
        self.seen[Rule.CLOSED] = event
        if frame is None:
            self._fails(event, Rule.CLOSED, f"{name} {self._index(event, rule)} closes, and is not open")
            return
        if inner := next((inner for inner in frame.inner if inner.closed is None), None):
            self._fails(event, Rule.CLOSED, f"{frame.words} closes while its {inner.words} is open")
        if due := rule.done.get(frame.kind):
            self.seen[Rule.DONE] = event
            if frame.done is None:
                self._fails(event, Rule.DONE, f"{frame.words} closes without {due}")
        frame.events.append((rule.closes, event))
        frame.closed = event
        self._forget(frame)

    def _forget(self, frame: Frame) -> None:
        """Remove a frame from the open frames."""
        key = frame.name, frame.parent
        same_number = self._open[key][frame.index]
        same_number.pop()
        if not same_number:
            del self._open[key][frame.index]
        if not self._open[key]:
            del self._open[key]

    def _stand_inside(self, event: Event, kind: str, name: str, kinds: tuple[str, ...]) -> None:
        frame, rule = self._find(event, name), self.grammar.frames[name]
        self.seen[Rule.OPEN] = event
        if frame is None:
            index = self._index(event, rule)
            words = f"{kind} belongs to {name} {'without a number' if index is ABSENT else index}"
            self._fails(event, Rule.OPEN, f"{words}, which is not open")
            return
        if frame.kind not in kinds:
            self._fails(event, Rule.OPEN, f"{kind} is in {frame.words}, which is of kind {frame.kind!r}")
        frame.events.append((kind, event))
        due = rule.done.get(frame.kind, "")
        if kind == due:
            self.seen[Rule.DONE] = event
        if frame.done is not None and (kind == due or kind in self.grammar.pieces):
            self._fails(event, Rule.DONE, f"{kind} comes behind {due} of {frame.words}")
        elif kind == due:
            frame.done = event

    def _bringing(self, frame: Frame) -> list[tuple[str, Event]]:
        """Return all events that carry content of a frame or of the frames inside it, in order."""
        opened = [(self.grammar.frames[some.name].opens, some.opened) for some in (frame, *frame.inner)]
        return sorted((*opened, *frame.all_events), key=lambda found: found[1].index)

    def joined(self) -> Iterator[tuple[Event, str, Any, Any]]:
        """Yield each event that repeats content which came in pieces.

        Each tuple has the event, the pointer of the repeated content, this content, and the joined pieces. A
        frame that had no pieces is skipped.
        """
        for frame, row in product(self.frames, self.grammar.repeated):
            pieces = [
                piece
                for kind, event in self._bringing(frame)
                if kind in row.pieces
                and (piece := row.joined(event.data, row.pieces[kind])) not in (None, [], "")
            ]
            whole: Any = list(chain.from_iterable(pieces)) if row.entry else join_text(map(str, pieces))
            for kind, event in frame.events if pieces else ():
                for pointer in row.again.get(kind, ()):
                    if (stated := row.joined(event.data, pointer)) is not None:
                        yield event, pointer.partition("/*")[0], stated, whole


@cache
def load_grammar(name: str) -> EventGrammar:
    """Load the grammar `spec/grammars/<name>.yaml`. Raises FileNotFoundError if it does not exist."""
    return typed(EventGrammar, read_yaml(spec_root() / "grammars" / f"{name}.yaml"), f"grammar {name}")
