"""A fault of one HTTP request, shared by its samples and prompts: what it does at which seam.

The seams of the engine are those of `Seams`; around the HTTP side, `faulty_wire` has more. What is done at a
seam is an act (`acts`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tokenwire_faults.altered_rows import AlteredRecord, OutputRow
from tokenwire_faults.answers import Json, Object
from tokenwire_reference.core.seams import Seams

if TYPE_CHECKING:
    from tokenwire_faults.catalogue import KnownFault
    from tokenwire_reference.core.tokenizer import Tokenizer

T = TypeVar("T")
Act = Callable[..., Any]
"""What is done at a seam: a function of the fault, of what passes, and before that of what it is about."""


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
        """What an act keeps for later."""
        self._records: dict[str, AlteredRecord] = {}
        self.events = 0
        """How many events of a stream have come, the present one too."""
        self.frames = 0

    @property
    def streams(self) -> bool:
        """Whether the request is for a stream."""
        return bool(self.request.get("stream"))

    def _act(self, seam: str) -> Act | None:
        """What is done at a seam, where the fault concerns the request."""
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

    def _through(self, seam: str, passing: T, *about: Any) -> T:
        act = self._act(seam)
        passed: T = passing if act is None else act(self, *about, passing)
        return passed

    # Around the HTTP side: `faulty_wire`.

    def asked(self, body: Object) -> Object:
        """The body that the routes read."""
        return self._through("asked", body)

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        """Status and body of a JSON answer, whole or a refusal. A body that is `bytes` is sent as it is."""
        act = self._act("answered")
        answered: tuple[int, Json] = (status, answer) if act is None else act(self, status, answer)
        return answered

    def media_type(self, given: str) -> str:
        """The media type of an answer or of a stream."""
        return self._through("media_type", given)

    def event(self, event: Object) -> Iterable[Object]:
        """What is sent in the place of one event of a stream."""
        self.events += 1
        act = self._act("events")
        return [event] if act is None else act(self, event)

    def frame(self, frame: bytes) -> Iterable[bytes]:
        """What is written for one framed event, `[DONE]` too. ConnectionAbortedError cuts the stream."""
        self.frames += 1
        act = self._act("frame")
        return [frame] if act is None else act(self, frame)

    # Of the engine: what each is, `Seams` says.

    def stop_rules(self, rules: T) -> T:
        return self._through("stop_rules", rules)

    def prefix_secrets(self, secrets: T) -> T:
        return self._through("prefix_secrets", secrets)

    def due(self, request: Any, sent: int, due: bool) -> bool:
        return self._through("due", due, request, sent)

    def published(self, request: Any, row: Any) -> Any:
        if self._act("row") is None:
            return row
        record = self._records.setdefault(request.rid, AlteredRecord(request))
        record.append(self._through("row", OutputRow.of(row), request))
        return row._replace(record=record, series={**record.series})

    def detokenizer(self, detokenizer: T) -> T:
        return self._through("detokenizer", detokenizer)

    def text(self, reader: Any, text: str) -> str:
        return self._through("text", text, reader)

    def format(self, format: T) -> T:  # noqa: A002
        return self._through("format", format)

    def deltas(self, parser: Any, deltas: list[T], *, ended: bool) -> list[T]:
        return list(self._through("deltas", deltas, parser, ended))

    def taken(self, reader: Any, emission: T) -> T:
        return self._through("taken", emission, reader)

    def leaving(self) -> bool:
        return self._through("leaving", True)

    def flushing(self) -> bool:
        return self._through("flushing", True)

    def aborting(self, rid: str, names: Sequence[str], live: Collection[str]) -> Sequence[str]:
        return self._through("aborting", names, rid, live)

    def colliding(self, rid: str, abort: Callable[[str], None]) -> None:
        self._through("colliding", abort, rid)

    def ended(self, rid: str, abort: Callable[[str], None]) -> None:
        self._through("ended", abort, rid)
