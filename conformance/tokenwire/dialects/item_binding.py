"""Parses responses with typed items, as in /v1/responses and /v1/messages.

A JSON document contains the items as a list. In a stream, each event carries a piece of an item. All items
together are one choice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tokenwire.dialects.answer_binding import EventContent
from tokenwire.record import CallPiece, Emission, Event, Finish
from tokenwire.wire.joined_text import join_text
from tokenwire.wire.json_pointer import ABSENT, Keys, Pointer, find, gather, join

_OfACall = Literal["index", "id", "type", "name", "arguments"]
_CHOICE = 0
INPUT = "input"
"""The name of the argument of a custom tool."""


@dataclass(frozen=True)
class _FinishBinding:
    """The places of the finish reason, and the record's name of each reason.

    The first place that is not null counts.
    """

    reason: tuple[Pointer, ...]
    types: Mapping[str, str | None]
    matched: Pointer | None = None

    def read(self, data: Any) -> tuple[Finish | None, str]:
        """Return the finish in an object, and the pointer of its reason.

        The pointer is empty if the reason is missing.
        """
        empty = ""
        for keys in self.reason:
            reason = find(data, keys)
            kind = self.types.get(reason, reason) if isinstance(reason, str) else None
            if kind is not None:
                matched = find(data, self.matched) if self.matched is not None else ABSENT
                return Finish(type=kind, matched=matched or None, raw=reason), join(*keys)
            # Messages writes null until the message ends. Its pointer is the place where a missing reason is
            # reported.
            empty = empty or ("" if reason is ABSENT else join(*keys))
        return None, empty


@dataclass(frozen=True)
class _PartBinding:
    """The fields of one type of item or event."""

    text: Pointer | None = None
    """The pointer of the text; `*` means all entries of a list."""
    reasoning: Pointer | None = None
    call: Mapping[_OfACall, Pointer] = field(default_factory=dict)
    series: Mapping[str, Pointer] = field(default_factory=dict)
    """The pointers of the lists that are joined to each series. An empty list counts as missing."""
    details: Mapping[str, Pointer] = field(default_factory=dict)
    finish: _FinishBinding | None = None
    opens: bool = False
    """True if the event opens an item or part. If it contains text, this is the first piece."""
    restates: bool = False
    """True if the event repeats the whole text or arguments.

    The repeated content counts only if no pieces came before.
    """

    free: bool = False
    """True if the arguments are the text of a custom tool, which is the argument `input` in the record."""
    opened: Pointer | None = None
    """The pointer of arguments in an event that opens a call.

    These arguments count only if no pieces follow.
    """
    closes: bool = False
    """True if the event closes a call, so that no more pieces of its arguments follow."""

    @property
    def channels(self) -> Mapping[str, Keys]:
        """Return the pointers of text and reasoning, if the item or event has them."""
        places = {"text": self.text, "reasoning": self.reasoning}
        return {name: keys for name, keys in places.items() if keys is not None}


@dataclass(frozen=True)
class _UsageBinding:
    """The pointer of the usage object, and the pointers of its counts.

    Several counts with one name are added.
    """

    at: Pointer
    names: Mapping[str, tuple[Pointer, ...]]
    begun: Pointer | None = None
    """The pointer of the usage object in the first event of a stream."""

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
    """The state while parsing a stream, for later events."""

    calls: dict[Any, int] = field(default_factory=dict)
    """The number of each call among all calls, by the index of its item."""
    spoken: set[tuple[str, ...]] = field(default_factory=set)
    """The items and parts for which a piece of text has come."""
    arguments: set[int] = field(default_factory=set)
    """The calls for which a piece of arguments has come."""
    inputs: set[int] = field(default_factory=set)
    """The calls of custom tools whose input is complete."""
    opened: dict[int, str] = field(default_factory=dict)
    """The arguments in the event that opened each call, if it had any."""
    begun: Mapping[str, Any] = field(default_factory=dict)
    """The usage counts in the first event of the stream."""


@dataclass(frozen=True, eq=False)
class ItemBinding:
    """The JSON pointers of all fields in items and events, from `answer.whole` or `answer.stream` of a
    dialect.
    """

    kind: tuple[Pointer, ...]
    kinds: Mapping[str, _PartBinding]
    usage: _UsageBinding
    items: Pointer | None = None
    """The pointer of the list of items; None for events, which carry a piece of one item."""
    document: _PartBinding | None = None
    place: tuple[Pointer, ...] = ()
    """The pointers of the item number and the part number in an event."""
    calls_finish: str = ""
    """The record's finish type for a choice that stopped with calls, if the server does not distinguish this
    stop.
    """
    errors: Mapping[str, Pointer] = field(default_factory=dict)
    """The pointer of the error, by type of event."""

    @property
    def names_stops(self) -> bool:
        """True if responses say which stop ended a choice."""
        parts = (*self.kinds.values(), *filter(None, [self.document]))
        return any(part.finish is not None and part.finish.matched is not None for part in parts)

    def error_in(self, data: Any) -> Any:
        """Return the error in an event or in its object; None without one."""
        if not isinstance(data, dict):
            return None
        kind = data.get("type")
        keys = self.errors.get(kind) if isinstance(kind, str) else None
        # Responses writes `error: null` into an object without an error.
        return (find(data, keys) if keys is not None else None) or data.get("error")

    def index_of(self, item: Any, position: int = 0) -> int:  # noqa: ARG002
        """Return the index of the choice. It is always the same, because all items belong to one choice."""
        return _CHOICE

    def deliveries(self, events: Iterable[Event], *, of_all: bool) -> Iterator[EventContent]:  # noqa: ARG002
        """Yield the content of each event, and its usage.

        `of_all` is ignored, because there is only one choice.
        """
        progress = _Progress()
        for event in events:
            emission = self._emission(event, progress)
            counts = self._usage(event.data, progress)
            yield EventContent(event, [emission] if emission else [], counts, join(*self.usage.at))

    def begun_counts(self, data: Any) -> Mapping[str, Any] | None:
        """Return the usage counts in the first event of a stream; None for other events."""
        found = find(data, self.usage.begun) if self.usage.begun is not None else ABSENT
        return self.usage.read(found) if isinstance(found, dict) else None

    def _usage(self, data: Any, progress: _Progress) -> Mapping[str, Any] | None:
        if self.usage.begun is not None and isinstance(begun := find(data, self.usage.begun), dict):
            progress.begun = begun
        found = find(data, self.usage.at)
        # Messages reports the prompt's count in the first event, and the output's count at the end.
        return self.usage.read({**progress.begun, **found}) if isinstance(found, dict) else None

    def _parts(self, data: Any) -> Iterator[tuple[_PartBinding, str, Any]]:
        """Yield the items of a document, or the single piece in an event.

        Each tuple has the binding of the item or piece, its JSON pointer, and its value.
        """
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
        if not (channels or calls or series or details or "finish" in pointers):
            return None
        # Some endpoints write the same finish reason after text and after calls. Chat distinguishes them, and
        # so does the record.
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
        """Return the text of each channel in an item or event; None if it only repeats earlier text."""
        found = {
            name: [value for value in gather(part, keys) if isinstance(value, str)]
            for name, keys in binding.channels.items()
        }
        texts = {name: join_text(values) for name, values in found.items() if values}
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
        """Return the tool-call piece in an item or event.

        The number of the call counts only calls, not other items.
        """
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
        # Messages writes the input of a call as an object. The record has it as JSON text, as in chat.
        if isinstance(arguments, dict):
            values["arguments"] = arguments = json.dumps(arguments, ensure_ascii=False)
        if binding.free and isinstance(arguments, str):
            text = self._free_text(binding, arguments, number, progress)
            if text is None:
                return None
            values["arguments"] = text
            return CallPiece(place, position, number, **values)
        if binding.restates and number in progress.arguments:
            return None
        if arguments or binding.restates:
            progress.arguments.add(number)
        return CallPiece(place, position, number, **values)

    def _free_text(self, binding: _PartBinding, text: str, number: int, progress: _Progress) -> str | None:
        """Return a piece of the input of a custom tool as a piece of arguments; None if the event only
        repeats earlier pieces. The record has the input as the argument of a function, as servers show such a
        tool to a model.
        """
        if self.items is not None:
            return json.dumps({INPUT: text}, ensure_ascii=False)
        if number in progress.inputs:
            return None
        begun = number in progress.arguments
        said = "" if binding.restates and begun else json.dumps(text, ensure_ascii=False)[1:-1]
        if not said and not binding.restates:
            return ""
        progress.arguments.add(number)
        if binding.restates:
            progress.inputs.add(number)
        before, behind = "" if begun else f'{{"{INPUT}": "', '"}' if binding.restates else ""
        return f"{before}{said}{behind}"

    @staticmethod
    def _closed_call(place: str, position: int, number: int | None, progress: _Progress) -> CallPiece | None:
        """Return the arguments from the event that opened a call, if the call closes without pieces of
        arguments.
        """
        if number is None or number in progress.arguments or number not in progress.opened:
            return None
        return CallPiece(place, position, number, arguments=progress.opened[number])
