"""Answers of OpenAI's endpoints, in SGLang's dialect and in vLLM's: whole, or chunk by chunk."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.doors.answering import answer
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.event_stream import UNNAMED, Framing, Writer
from tokenwire_reference.doors.openai_call import OpenAICall
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.served import Served

_Call = TypeVar("_Call", bound=OpenAICall)


async def answer_call(
    http_request: HttpRequest, served: Served, call: OpenAICall, writer: Writer, framing: Framing = UNNAMED
) -> Response:
    """Run the requests of a call, and answer as a whole or as a stream."""
    return await answer(
        http_request, served, call.requests, writer, group=call.id, stream=call.stream, framing=framing
    )


class OpenAIAnswer(ABC, Generic[_Call]):
    """Formats the answer to one call, as a whole or in chunks."""

    chunk_kind: str
    """The `object` field of each chunk."""
    may_hold_text: bool = False
    """True if an emission without ids may have text to send, before an error ends the stream."""

    def __init__(self, call: _Call, served: Served) -> None:
        self.call = call
        self.served = served
        self._created = int(time.time())
        self._last: dict[int, Emission] = {}

    async def answer(self, http_request: HttpRequest) -> Response:
        return await answer_call(http_request, self.served, self.call, self)

    def head(self, kind: str) -> dict[str, Any]:
        """Return the first fields of the answer or of a chunk; `kind` is the `object` field."""
        call = self.call
        return {"id": call.id, "object": kind, "created": self._created, "model": call.model}

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """Return one chunk. A chunk without choices follows all others."""
        return {**self.head(self.chunk_kind), "choices": choices, **more}

    @property
    def finals(self) -> list[Emission]:
        """Return the last emission of each choice."""
        return [self._last[index] for index in sorted(self._last)]

    @abstractmethod
    def whole(self, choices: Sequence[Emission]) -> dict[str, Any]:
        """Return the answer as a whole."""

    @abstractmethod
    def chunks(self, emission: Emission) -> Iterable[dict[str, Any]]:
        """Return the chunks of an emission."""

    def of(self, emission: Emission) -> Iterator[dict[str, Any]]:
        """Yield the chunks of an emission. An abort by the server ends the whole stream with an error."""
        self._last[emission.index] = emission
        refusal = RefusalError.of_abort(emission.finish) if emission.finish else None
        if not refusal or self.may_hold_text or emission.output_ids:
            yield from self.chunks(emission)
        if refusal:
            raise refusal

    def failed(self, refusal: RefusalError) -> dict[str, Any]:
        return refusal.flat_event()

    @abstractmethod
    def closing(self) -> Iterable[dict[str, Any]]:
        """Return the chunks after all emissions."""
