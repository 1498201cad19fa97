"""A fault of one HTTP request, shared by its samples and prompts: what it does at which seam.

The seams of the engine are those of `Seams`; around the HTTP side, `faulty_wire` has more. What is done at a
seam is an act (`acts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from tokenwire_faults.answers import Json, Object
from tokenwire_faults.deliveries import AlteredRecord, OutputRow
from tokenwire_reference.core.seams import Seams

if TYPE_CHECKING:
    from tokenwire_faults.catalogue import KnownFault
    from tokenwire_reference.core.tokenizer import Tokenizer

T = TypeVar("T")
Act = Callable[..., Any]
"""What is done at a seam: a function of the fault, of what passes, and before that of what it is about."""


def _passing(seam: str) -> Any:
    """Return the method of a seam that what is given last passes."""

    def through(self: Fault, *given: Any) -> Any:
        return self._through(seam, *given)

    return through


class Fault(Seams):
    """The seams of the engine, and those around the HTTP side, at which an act may change what passes."""

    def __init__(self, known: KnownFault, path: str, tokenizer: Tokenizer | None) -> None:
        self.known = known
        self.path = path
        """Where the HTTP request went."""
        self.tokenizer = tokenizer
        """The server's."""
        self.request: Mapping[str, Any] = {}
        """The body, as the client sent it; empty where it has none."""
        self.memory: dict[str, Any] = {}
        """Values that an act keeps for later."""
        self._records: dict[str, AlteredRecord] = {}
        self.events = 0
        """The events of a stream so far, the present one too."""
        self.frames = 0

    @property
    def streams(self) -> bool:
        """True if the request is for a stream."""
        return bool(self.request.get("stream"))

    def _act(self, seam: str) -> Act | None:
        """Return the act at a seam if the fault concerns the request."""
        known = self.known
        concerned = known.path in self.path and all(
            self.streams
            if word == "stream"
            else not self.streams
            if word == "whole"
            else self.request.get(word)
            for word in known.when
        )
        return known.acts.get(seam) if concerned else None

    def _through(self, seam: str, *given: Any) -> Any:
        """Return the last value given at a seam, changed if there is an act."""
        act = self._act(seam)
        return given[-1] if act is None else act(self, *given)

    # Around the HTTP side: `faulty_wire`.

    asked = _passing("asked")
    """The body that the routes read."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        """Status and body of a JSON answer, whole or a refusal. A body that is `bytes` is sent as it is."""
        act = self._act("answered")
        answered: tuple[int, Json] = (status, answer) if act is None else act(self, status, answer)
        return answered

    media_type = _passing("media_type")
    """The media type of an answer or of a stream."""

    def event(self, event: Object) -> Iterable[Object]:
        """Return the events to send instead of one event of a stream."""
        self.events += 1
        act = self._act("events")
        return [event] if act is None else act(self, event)

    def frame(self, frame: bytes) -> Iterable[bytes]:
        """Return the bytes to write for one framed event, `[DONE]` too. ConnectionAbortedError cuts
        the stream.
        """
        self.frames += 1
        act = self._act("frame")
        return [frame] if act is None else act(self, frame)

    # Of the engine: what each is, `Seams` says.

    stop_rules = _passing("stop_rules")
    prefix_secrets = _passing("prefix_secrets")
    due = _passing("due")
    detokenizer = _passing("detokenizer")
    text = _passing("text")
    format = _passing("format")
    taken = _passing("taken")
    aborting = _passing("aborting")
    colliding = _passing("colliding")
    ended = _passing("ended")

    def published(self, request: Any, row: Any) -> Any:
        if self._act("row") is None:
            return row
        record = self._records.setdefault(request.rid, AlteredRecord(request))
        record.append(self._through("row", request, OutputRow.of(row)))
        return row._replace(record=record, series={**record.series})

    def deltas(self, parser: Any, deltas: list[T], *, ended: bool) -> list[T]:
        return list(self._through("deltas", parser, ended, deltas))

    def leaving(self) -> bool:
        return bool(self._through("leaving", True))

    def flushing(self) -> bool:
        return bool(self._through("flushing", True))
