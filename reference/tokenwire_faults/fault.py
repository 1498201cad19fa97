"""Applies a fault to one HTTP request, with all its samples and prompts: runs the fault's acts at the seams.

The seams of the engine are those of `Seams`. `faulty_wire` calls further seams for bodies, answers and
events. An act changes the value at a seam (`acts`).
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
"""A function whose arguments are the fault, the context of a seam and, last, the value at the seam."""


def _passing(seam: str) -> Any:
    """Return a method for a seam. The last argument of the method is the value at the seam."""

    def through(self: Fault, *given: Any) -> Any:
        return self._through(seam, *given)

    return through


class Fault(Seams):
    """A fault, with the seams of the engine and of the HTTP side at which its acts may change values."""

    def __init__(self, known: KnownFault, path: str, tokenizer: Tokenizer | None) -> None:
        self.known = known
        self.path = path
        """The path of the HTTP request."""
        self.tokenizer = tokenizer
        """The server's tokenizer."""
        self.request: Mapping[str, Any] = {}
        """The body as the client sent it; empty without one."""
        self.memory: dict[str, Any] = {}
        """Values that an act stores for later."""
        self._records: dict[str, AlteredRecord] = {}
        self.events = 0
        """The number of events of a stream so far, including the current one."""
        self.frames = 0

    @property
    def streams(self) -> bool:
        """True if the request is for a stream."""
        return bool(self.request.get("stream"))

    def _act(self, seam: str) -> Act | None:
        """Return the act at a seam if the fault affects the request."""
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
        """Return the value at a seam (the last argument).

        If the fault has an act at the seam, the act changes the value.
        """
        act = self._act(seam)
        return given[-1] if act is None else act(self, *given)

    # Seams of the HTTP side, described in `faulty_wire`.

    asked = _passing("asked")
    """The body as the routes read it."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        """Return the status and the body of a JSON answer or refusal.

        A body of type `bytes` is sent unchanged.
        """
        act = self._act("answered")
        answered: tuple[int, Json] = (status, answer) if act is None else act(self, status, answer)
        return answered

    media_type = _passing("media_type")
    """The media type of an answer or of a stream."""

    def event(self, event: Object) -> Iterable[Object]:
        """Return the events to send in place of one event of a stream."""
        self.events += 1
        act = self._act("events")
        return [event] if act is None else act(self, event)

    def frame(self, frame: bytes) -> Iterable[bytes]:
        """Return the bytes to write for one framed event, including `[DONE]`.

        If an act raises ConnectionAbortedError, the stream is cut.
        """
        self.frames += 1
        act = self._act("frame")
        return [frame] if act is None else act(self, frame)

    cut = _passing("cut")
    """The framed events after a cut, as a gateway writes them whose worker broke off."""

    # Seams of the engine, described in `Seams`.

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

    def pausing(self) -> bool:
        return bool(self._through("pausing", True))
