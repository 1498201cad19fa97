"""What the answers of vLLM's three endpoints have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference import __version__
from tokenwire_reference.doors import answering
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.served import Served
from tokenwire_reference.doors.usage import Consumed
from tokenwire_reference.doors.vllm.call import VllmCall

FINGERPRINT = {"system_fingerprint": f"tokenwire-reference-{__version__}"}


async def answer(
    http_request: HttpRequest,
    served: Served,
    call: VllmCall,
    *,
    whole: Callable[[Sequence[Emission]], dict[str, Any]],
    chunks: Callable[[Emission], Sequence[dict[str, Any]]],
    usage_chunk: Callable[[dict[str, Any]], dict[str, Any]],
    closing: Mapping[str, Any],
    reasoning: Callable[[], int | None] = lambda: None,
) -> Response:
    """Answer a call whole, or with what `chunks` makes of each emission and the usage after all.

    `closing` stands in the last chunk of a stream. `reasoning` tells, in the end, how many tokens reasoned.
    """
    return await answering.answer(
        http_request,
        served,
        call.requests,
        group=call.id,
        stream=call.stream,
        write=whole,
        chunks=lambda: _Chunks(call, chunks, usage_chunk, closing, reasoning),
        last_words=RefusalError.nested,
    )


@dataclass
class _Chunks:
    """What an endpoint makes of each emission, and the usage after all."""

    call: VllmCall
    chunks: Callable[[Emission], Sequence[dict[str, Any]]]
    usage_chunk: Callable[[dict[str, Any]], dict[str, Any]]
    last_fields: Mapping[str, Any]
    reasoning: Callable[[], int | None]
    last: dict[int, Emission] = field(default_factory=dict)
    ended: int = 0

    def of(self, emission: Emission) -> Iterator[dict[str, Any]]:
        self.last[emission.index] = emission
        self.ended += emission.finish is not None
        refusal = RefusalError.of_abort(emission.finish) if emission.finish else None
        if not refusal or emission.output_ids:
            *earlier, latest = self.chunks(emission)
            yield from earlier
            is_last = self.ended == len(self.call.requests) and not self.call.include_usage
            yield {**latest, **self.last_fields} if is_last else latest
        if refusal:
            raise refusal

    def closing(self) -> Iterator[dict[str, Any]]:
        if self.call.include_usage:
            choices = [self.last[index] for index in sorted(self.last)]
            consumed = Consumed.by(choices, self.call.n, self.reasoning())
            told = {} if consumed.details is None else {"completion_tokens_details": consumed.details}
            yield {**self.usage_chunk({**consumed.totals, **told}), **self.last_fields}


def whole_usage(
    choices: Sequence[Emission], call: VllmCall, served: Served, reasoning: int | None = None
) -> dict[str, Any]:
    """The usage of a whole answer."""
    return Consumed.by(choices, call.n, reasoning).vllm(cache_report=served.args.enable_cache_report)
