"""A fault of one HTTP request, shared by its samples and prompts. It overrides a seam, seldom two.

Those of the engine are in `tokenwire_reference.core.seams`, those around the HTTP side here. The base class
is no fault at all: every seam gives back what it was given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tokenwire_faults.altered_rows import AlteredRecord, OutputRow
from tokenwire_reference.core.seams import Seams

if TYPE_CHECKING:
    from tokenwire_reference.core.request import Request
    from tokenwire_reference.core.tokenizer import Tokenizer

Json = Any
"""What JSON can say."""


class Fault(Seams):
    """No fault."""

    path: str = ""
    """Where the HTTP request went."""
    request: Mapping[str, Any] = {}
    """Its body, as the client sent it; empty where it has none."""
    tokenizer: Tokenizer | None = None
    """The server's."""

    # Around the HTTP side: `faulty_wire`.

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body that the routes read."""
        return body

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        """Status and body of a JSON answer, whole or a refusal. A body that is `bytes` is sent as it is."""
        return status, answer

    def media_type(self, given: str) -> str:
        """The media type of an answer or of a stream."""
        return given

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        """What is sent in the place of one event of a stream."""
        return [event]

    def frame(self, frame: bytes) -> Iterable[bytes]:
        """What is written for one framed event, `[DONE]` too. ConnectionAbortedError cuts the stream."""
        return [frame]

    # Around the output streamer.

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        """What is sent of a request; the same range of tokens."""
        del request
        return row

    def published(self, request: Any, row: Any) -> Any:
        if type(self).row is Fault.row:
            return row
        altered = self.row(request, OutputRow.of(row))
        record = self._records.setdefault(request.rid, AlteredRecord(request))
        record.append(altered)
        return row._replace(record=record, series={**record.series})

    @cached_property
    def _records(self) -> dict[str, AlteredRecord]:
        return {}


class AnswerFault(Fault):
    """A fault of what answers say, in whole ones and in each event of a stream."""

    def rewrite(self, answer: Json) -> None:
        """Change a whole answer, or an event."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        self.rewrite(answer)
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        self.rewrite(event)
        return [event]
