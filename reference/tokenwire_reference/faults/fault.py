"""The seams: where a request can be made to go wrong. No torch, no HTTP.

The base class is no fault at all: every seam gives back what it was given. A fault overrides one seam, seldom
two. There is one object for each HTTP request, shared by its samples and prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenwire_reference.core.detokenizer import Detokenizer
    from tokenwire_reference.core.request import OutputRow, Request
    from tokenwire_reference.core.stopping import StopRules
    from tokenwire_reference.core.tokenizer import Tokenizer
    from tokenwire_reference.doors.request_manager import Emission, Record
    from tokenwire_reference.extras.channels.parser import ChannelParser, Delta, Format

Json = Any
"""What JSON can say."""


class Fault:
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

    # In the engine and the output streamer, on the engine's thread.

    def stop_rules(self, rules: StopRules) -> StopRules:
        """What decides when the request is done."""
        return rules

    def due(self, request: Request, sent: int, due: bool) -> bool:
        """Whether a live request emits now, `sent` of its tokens being sent."""
        del request, sent
        return due

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        """What the output streamer emits; the same range of tokens."""
        del request
        return row

    # In the request manager and the detokenizer, on the event loop.

    def detokenizer(self, detokenizer: Detokenizer) -> Detokenizer:
        """What turns ids into text."""
        return detokenizer

    def text(self, record: Record, text: str) -> str:
        """The whole text of a finished record."""
        del record
        return text

    def format(self, format: Format) -> Format:  # noqa: A002
        """How the text of a chat is taken apart into channels."""
        return format

    def deltas(self, parser: ChannelParser, deltas: list[Delta], *, ended: bool) -> list[Delta]:
        """What is new in the channels of a choice; each choice has a parser of its own."""
        del parser, ended
        return deltas

    def taken(self, record: Record, emission: Emission) -> Emission:
        """What a consumer takes. The record's cursors still stand where the emission before it ended."""
        del record
        return emission

    def leaving(self) -> bool:
        """Whether it is noticed that the client has left."""
        return True

    def aborting(self, rid: str, names: Sequence[str], live: Collection[str]) -> Sequence[str]:
        """The requests that an abort of `rid` ends."""
        del rid, live
        return names

    def colliding(self, rid: str, abort: Callable[[str], None]) -> None:
        """A request was refused for the id of a live one; `abort` ends that one."""

    def ended(self, rid: str, abort: Callable[[str], None]) -> None:
        """A request has ended; `abort` ends the one that has its id by then, if any."""


_current: ContextVar[Fault] = ContextVar("fault", default=Fault())  # noqa: B039 - it has no state to share


def current_fault() -> Fault:
    """The fault of the HTTP request that is being served; the one that is none, where there is no such."""
    return _current.get()


def commit(fault: Fault) -> None:
    """Let a fault go with everything that is done from here on for the HTTP request that is being served."""
    _current.set(fault)


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
