"""The answer side of a dialect with typed items: Responses and Messages.

A whole answer lists the items; in a stream, each event has a piece of one. All items together are one choice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tokenwire.dialects.answer_binding import EventContent
from tokenwire.record import CallPiece, Emission, Event, Finish
from tokenwire.wire.json_pointer import ABSENT, Keys, Pointer, find, gather, join

_OfACall = Literal["index", "id", "type", "name", "arguments"]
_CHOICE = 0


@dataclass(frozen=True)
class _FinishBinding:
    """The places of the finish reason (the first that is not null counts), and the record's word for each."""

    reason: tuple[Pointer, ...]
    types: Mapping[str, str | None]
    matched: Pointer | None = None

    def read(self, data: Any) -> tuple[Finish | None, str]:
        """Return the finish in an object, and the place of its reason; "" if it has no place for it."""
        empty = ""
        for keys in self.reason:
            reason = find(data, keys)
            kind = self.types.get(reason, reason) if isinstance(reason, str) else None
            if kind is not None:
                matched = find(data, self.matched) if self.matched is not None else ABSENT
                return Finish(type=kind, matched=matched or None, raw=reason), join(*keys)
            # Messages writes null until the message ends, where a missing reason is reported.
            empty = empty or ("" if reason is ABSENT else join(*keys))
        return None, empty


@dataclass(frozen=True)
class _PartBinding:
    """The content of an item or event of one kind."""

    text: Pointer | None = None
    """The place of the text; `*` means each entry of a list."""
    reasoning: Pointer | None = None
    call: Mapping[_OfACall, Pointer] = field(default_factory=dict)
    series: Mapping[str, Pointer] = field(default_factory=dict)
    """The places of lists that are joined to a series; an empty list counts as missing."""
    details: Mapping[str, Pointer] = field(default_factory=dict)
    finish: _FinishBinding | None = None
    opens: bool = False
    """True if it opens an item or part; its text, if not empty, is the first piece."""
    restates: bool = False
    """True if it repeats the whole text or arguments, which count only if no piece came before."""

    opened: Pointer | None = None
    """The place of arguments in the event that opens a call: they count only if no piece follows."""
    closes: bool = False
    """True if it closes a call, so that no piece of its arguments follows."""

    @property
    def channels(self) -> Mapping[str, Keys]:
        """Return the places of text and reasoning."""
        places = {"text": self.text, "reasoning": self.reasoning}
        return {name: keys for name, keys in places.items() if keys is not None}


@dataclass(frozen=True)
class _UsageBinding:
    """The place of usage, and the places of its counts by name; several are added."""

    at: Pointer
    names: Mapping[str, tuple[Pointer, ...]]
    begun: Pointer | None = None
    """The place of the counts at the beginning of a stream."""

    def read(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        counts: dict[str, Any] = {}
        for name, places in self.names.items():
            found = [value for value in (find(usage, keys) for keys in places) if value is not ABSENT]
            numbers = [value for value in found if type(value) is int]
            if found:
                counts[name] = sum(numbers) if numbers else found[0]
        return counts


@dataclass
class _Progress:
    """The state of a stream that later events refer to."""

    calls: dict[Any, int] = field(default_factory=dict)
    """The number of each call, by item index."""
    spoken: set[tuple[str, ...]] = field(default_factory=set)
    """The items and parts with at least one piece of text."""
    arguments: set[int] = field(default_factory=set)
    """The calls with at least one piece of arguments."""
    opened: dict[int, str] = field(default_factory=dict)
    """The arguments with which calls opened, if there are any."""
    begun: Mapping[str, Any] = field(default_factory=dict)
    """The usage counts of the stream's first event."""


@dataclass(frozen=True, eq=False)
class ItemBinding:
    """The places of items and events. Made from `answer.whole` or `answer.stream` of a dialect."""

    kind: tuple[Pointer, ...]
    kinds: Mapping[str, _PartBinding]
    usage: _UsageBinding
    items: Pointer | None = None
    """The place of the list of items; None if each event has a piece of one."""
    document: _PartBinding | None = None
    place: tuple[Pointer, ...] = ()
    """The places of an event's item and part numbers."""
    calls_finish: str = ""
    """The finish of a stopped choice with calls, if the server uses the same word as for other stops."""
    errors: Mapping[str, Pointer] = field(default_factory=dict)
    """The place of the error in each type of event."""

    @property
    def names_stops(self) -> bool:
        """True if a finish contains the stop of the choice."""
        parts = (*self.kinds.values(), *filter(None, [self.document]))
        return any(part.finish is not None and part.finish.matched is not None for part in parts)

    def error_in(self, data: Any) -> Any:
        """Return the error that an event is or contains, itself or in its object; None without one."""
        if not isinstance(data, dict):
            return None
        kind = data.get("type")
        keys = self.errors.get(kind) if isinstance(kind, str) else None
        # Responses writes null into an object that did not fail.
        return (find(data, keys) if keys is not None else None) or data.get("error")

    def index_of(self, item: Any, position: int = 0) -> int:  # noqa: ARG002
        """Return the index of the single choice, which all items belong to."""
        return _CHOICE

    def deliveries(self, events: Iterable[Event], *, of_all: bool) -> Iterator[EventContent]:  # noqa: ARG002
        """Yield the content of each event and its usage. `of_all` has no effect, because there is one
        choice.
        """
        progress = _Progress()
        for event in events:
            emission = self._emission(event, progress)
            counts = self._usage(event.data, progress)
            yield EventContent(event, [emission] if emission else [], counts, join(*self.usage.at))

    def begun_counts(self, data: Any) -> Mapping[str, Any] | None:
        """Return the counts in the first event of a stream; None for other events."""
        found = find(data, self.usage.begun) if self.usage.begun is not None else ABSENT
        return self.usage.read(found) if isinstance(found, dict) else None

    def _usage(self, data: Any, progress: _Progress) -> Mapping[str, Any] | None:
        if self.usage.begun is not None and isinstance(begun := find(data, self.usage.begun), dict):
            progress.begun = begun
        found = find(data, self.usage.at)
        # Messages counts the prompt in the event that begins a stream, and the output at the end.
        return self.usage.read({**progress.begun, **found}) if isinstance(found, dict) else None

    def _parts(self, data: Any) -> Iterator[tuple[_PartBinding, str, Any]]:
        """Yield the items of a document, or the piece in an event, each with its binding and its place."""
        if self.document is not None:
            yield self.document, "", data
        found = [data] if self.items is None else find(data, self.items)
        for position, part in enumerate(found if isinstance(found, list) else ()):
            names = (name for keys in self.kind if isinstance(name := find(part, keys), str))
            binding = self.kinds.get(kind) if (kind := " ".join(names)) in self.kinds else None
            binding = binding or self.kinds.get(kind.partition(" ")[0])
            if binding is not None:
                yield binding, "" if self.items is None else join(*self.items, position), part

    def _emission(self, event: Event, progress: _Progress) -> Emission | None:
        pointers: dict[str, str] = {}
        channels: dict[str, str] = {}
        calls: list[CallPiece] = []
        series: dict[str, list[Any]] = {}
        details: dict[str, Any] = {}
        finish: Finish | None = None
        for binding, place, part in self._parts(event.data):
            texts = self._texts(binding, part, progress)
            if texts is None:
                continue
            for name, text in texts.items():
                channels[name] = channels.get(name, "") + text
                pointers.setdefault(name, place + join(*binding.channels[name]).partition("/*")[0])
            if binding.call and (piece := self._call(binding, place, part, len(calls), progress)) is not None:
                calls.append(piece)
                pointers["tool_calls"] = place
            for name, keys in binding.series.items():
                lists = (value for value in gather(part, keys) if isinstance(value, list))
                if entries := [entry for value in lists for entry in value]:
                    series.setdefault(name, []).extend(entries)
                    pointers.setdefault(name, place + join(*keys).partition("/*")[0])
            for name, keys in binding.details.items():
                if (value := find(part, keys)) is not ABSENT:
                    details[name] = value
                    pointers[name] = place + join(*keys)
            ended, pointer = binding.finish.read(part) if binding.finish is not None else (None, "")
            if pointer:
                finish, pointers["finish"] = ended, place + pointer
        if not (channels or calls or series or "finish" in pointers):
            return None
        # Some endpoints end text and calls alike. The record has chat's finish, so that they can be compared.
        if finish is not None and finish.type == "stop" and self.calls_finish and (calls or progress.calls):
            finish = Finish(type=self.calls_finish, matched=finish.matched, raw=finish.raw)
        return Emission(
            event=event,
            choice=_CHOICE,
            pointers=pointers,
            text=channels.get("text"),
            reasoning=channels.get("reasoning"),
            calls=tuple(calls),
            series=series,
            details=details,
            finish=finish,
        )

    def _texts(self, binding: _PartBinding, part: Any, progress: _Progress) -> dict[str, str] | None:
        """Return the text of each channel in a part; None if the part only repeats."""
        found = {
            name: [value for value in gather(part, keys) if isinstance(value, str)]
            for name, keys in binding.channels.items()
        }
        texts = {name: "".join(values) for name, values in found.items() if values}
        if not self.place or not texts:
            return texts if any(texts.values()) or not binding.opens else None
        named = (value for keys in self.place if (value := find(part, keys)) is not ABSENT)
        place = tuple(json.dumps(value) for value in named)
        if not any(texts.values()):
            return None if binding.opens or binding.restates else texts
        if binding.restates and place in progress.spoken:
            return None
        progress.spoken.update(place[: depth + 1] for depth in range(len(place)))
        return texts

    def _call(
        self, binding: _PartBinding, place: str, part: Any, position: int, progress: _Progress
    ) -> CallPiece | None:
        """Return the call piece in a part. Its number counts the calls before it, not other items."""
        found = {name: find(part, keys) for name, keys in binding.call.items()}
        values = {name: value for name, value in found.items() if value is not ABSENT}
        index = json.dumps(values.pop("index", position))
        if binding.closes:
            return self._closed_call(place, position, progress.calls.get(index), progress)
        number = progress.calls.setdefault(index, len(progress.calls))
        opened = find(part, binding.opened) if binding.opened is not None else ABSENT
        if isinstance(opened, dict) and opened:
            progress.opened[number] = json.dumps(opened, ensure_ascii=False)
        arguments = values.get("arguments")
        # Messages writes the input of a call as an object; the record has arguments as text, as in chat.
        if isinstance(arguments, dict):
            values["arguments"] = arguments = json.dumps(arguments, ensure_ascii=False)
        if binding.restates and number in progress.arguments:
            return None
        if arguments or binding.restates:
            progress.arguments.add(number)
        return CallPiece(place, position, number, **values)

    @staticmethod
    def _closed_call(place: str, position: int, number: int | None, progress: _Progress) -> CallPiece | None:
        """Return the arguments with which a call opened, if it closes without a piece of them."""
        if number is None or number in progress.arguments or number not in progress.opened:
            return None
        return CallPiece(place, position, number, arguments=progress.opened[number])
