"""From requests to an answer: whole or as a stream, refused, or dropped when the client leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.api.errors import RefusalError
from tokenwire_reference.api.event_stream import Chunks, EventStream, once_client_leaves, unless_client_leaves
from tokenwire_reference.api.json_answer import Json, json_answer
from tokenwire_reference.api.served import Served
from tokenwire_reference.api.submission import raise_for_server_abort, submit
from tokenwire_reference.delivery.request_manager import Delivery, Emission
from tokenwire_reference.request import Request


async def answer_whole(
    http_request: HttpRequest,
    served: Served,
    requests: Sequence[Request],
    *,
    group: str | None,
    write: Callable[[Sequence[Emission]], Json],
) -> Response:
    """Run requests to their end and answer once. Raises RefusalError where the server aborted one."""
    generation = submit(served, requests, group=group)
    try:
        choices = await unless_client_leaves(http_request, generation.whole())
    finally:
        generation.close()
    raise_for_server_abort(choices)
    return json_answer(write(choices))


async def answer_stream(
    http_request: HttpRequest,
    served: Served,
    requests: Sequence[Request],
    *,
    group: str | None,
    chunks: Chunks,
    last_words: Callable[[RefusalError], Json],
    delivery: Delivery = Delivery.INCREMENTAL,
) -> Response:
    """Run requests and answer as they go. What fails before the first token is a refusal, not a stream."""
    generation = submit(served, requests, group=group)
    leaving = once_client_leaves(http_request, generation.hang_up)
    try:
        first = await generation.first(delivery)
        raise_for_server_abort([first], unless_it_has_ids=True)
    except BaseException:
        leaving.cancel()
        generation.close()
        raise
    return EventStream(generation, first, chunks, leaving=leaving, delivery=delivery, last_words=last_words)
