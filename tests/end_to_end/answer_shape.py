"""What an answer looks like, and how two answers differ: status, JSON paths with their types, and values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tokenwire.wire.event_stream import parse_event_stream
from tokenwire.wire.exchange import Ending, Exchange

LOGPROB_TOLERANCE = 1e-3
JOINED_TEXTS = {"text", "content", "reasoning_content"}
KEPT_WHOLE = ("input_", "prompt_", "weight_versions")
"""Lists that an event gives whole, also where events give only what is new of the others."""
VOLATILE = {"created", "e2e_latency", "response_sent_to_client_ts", "timestamp"}
MADE_UP_ID = re.compile(r"([a-z-]+-)?[0-9a-f-]{16,36}(_\d+|-\d+)*")

Json = Any


@dataclass(frozen=True)
class Answer:
    """What came back for one request."""

    status: int | None
    documents: tuple[Json, ...]
    """The JSON body, or the events of a stream; a body that is not JSON is its text."""
    is_stream: bool
    is_cut: bool = False
    """Somebody hung up in the middle."""

    @classmethod
    def of(cls, exchange: Exchange) -> Answer:
        if (exchange.header("content-type") or "").startswith("text/event-stream"):
            events, _, _ = parse_event_stream(exchange.body, cut_off=True)
            documents = (json.loads(event.data) for event in events if event.data != "[DONE]")
            cut = exchange.ending is not Ending.COMPLETE
            return cls(exchange.status, tuple(documents), is_stream=True, is_cut=cut)
        try:
            body = json.loads(exchange.body)
        except ValueError:
            body = exchange.body.decode()
        return cls(exchange.status, (body,), is_stream=False)

    def shape(self) -> set[tuple[str, str]]:
        """All (path, type) of all documents; list entries share the path of their list with `[]` behind."""
        return {place for document in self.documents for place in _places("", document)}

    def settled_shape(self) -> set[tuple[str, str]]:
        """The shape, in a stream without each null that becomes something.

        How many events a stream has before its last is left to time.
        """
        shape = self.shape()
        if not self.is_stream:
            return shape
        known = {path for path, kind in shape if kind != "null"}
        return {(path, kind) for path, kind in shape if kind != "null" or path not in known}

    def folded(self, *, cumulative: bool) -> Json:
        """One document for each index: the last of a cumulative stream, the sum of an incremental one."""
        folded: dict[int, Json] = {}
        for document in self.documents:
            index = document.get("index", 0) if isinstance(document, dict) else 0
            known = folded.get(index)
            folded[index] = document if known is None or cumulative else _add("", known, document)
        return [folded[index] for index in sorted(folded)]


def _places(path: str, value: Json) -> Iterator[tuple[str, str]]:
    match value:
        case dict():
            yield path, "object"
            for key, inner in value.items():
                yield from _places(f"{path}.{key}", inner)
        case list():
            yield path, "array"
            for inner in value:
                yield from _places(f"{path}[]", inner)
        case _:
            yield path, {"NoneType": "null", "str": "string"}.get(type(value).__name__, type(value).__name__)


def _add(name: str, known: Json, new: Json) -> Json:
    match known, new:
        case _, None:
            return known
        case None, _:
            return new
        case dict(), dict():
            return known | {key: _add(key, known.get(key), value) for key, value in new.items()}
        case list(), list() if name == "choices":
            choices = {choice["index"]: choice for choice in known}
            for choice in new:
                choices[choice["index"]] = _add("", choices.get(choice["index"]), choice)
            return [choices[index] for index in sorted(choices)]
        case list(), list() if name.startswith(KEPT_WHOLE):
            return max(known, new, key=len)
        case list(), list():
            return known + new
        case str(), str() if name in JOINED_TEXTS:
            return known + new
    return new


def shape_differences(recorded: Answer, ours: Answer) -> Iterator[str]:
    """`status A B`, or `lacks PATH TYPE` and `adds PATH TYPE` for what only one of two answers has.

    Where the recorded stream was cut, nobody knows what would have come: ours may add to it.
    """
    if recorded.status != ours.status:
        yield f"status {recorded.status} {ours.status}"
        return
    if recorded.is_cut:
        yield from (f"lacks {path} {kind}" for path, kind in sorted(recorded.shape() - ours.shape()))
        return
    theirs, mine = recorded.settled_shape(), ours.settled_shape()
    yield from (f"lacks {path} {kind}" for path, kind in sorted(theirs - mine))
    yield from (f"adds {path} {kind}" for path, kind in sorted(mine - theirs))


@dataclass
class ValueComparison:
    """Compares values where both answers have one; `value PATH` for each that differs."""

    compared: int = 0

    def differences(self, recorded: Answer, ours: Answer, *, cumulative: bool) -> set[str]:
        theirs, mine = (answer.folded(cumulative=cumulative) for answer in (recorded, ours))
        return {f"value {path}" for path in self._unequal("", theirs, mine)}

    def _unequal(self, path: str, theirs: Json, mine: Json) -> Iterator[str]:
        match theirs, mine:
            case dict(), dict():
                for key in theirs.keys() & mine.keys() - VOLATILE:
                    yield from self._unequal(f"{path}.{key}", theirs[key], mine[key])
            case list(), list() if len(theirs) == len(mine):
                for event, other in zip(theirs, mine, strict=True):
                    yield from self._unequal(f"{path}[]", event, other)
            case str(), str() if path.endswith("id") and MADE_UP_ID.fullmatch(theirs):
                pass
            case float(), float():
                self.compared += 1
                if abs(theirs - mine) > LOGPROB_TOLERANCE:
                    yield path
            case _:
                self.compared += 1
                if theirs != mine:
                    yield path
