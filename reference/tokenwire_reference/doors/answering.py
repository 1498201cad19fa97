"""Runs requests and sends their answer, whole or as a stream.

A client that disconnects aborts its requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.core.request import Request
from tokenwire_reference.doors.disaggregation import rooms_of
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.event_stream import (
    UNNAMED,
    EventStream,
    Framing,
    Writer,
    once_client_leaves,
    unless_client_leaves,
)
from tokenwire_reference.doors.json_answer import Json, json_answer
from tokenwire_reference.doors.limits import (
    MOST_ENTRIES_OF_EVENT,
    refuse_many_hidden_states,
    refuse_many_logprobs,
    refuse_wide_masks,
)
from tokenwire_reference.doors.reader import Delivery, Emission
from tokenwire_reference.doors.request_manager import DuplicateRequestIdError, Generation
from tokenwire_reference.doors.served import Served
from tokenwire_reference.running.ranks import DP_RANK

MOST_ENTRIES_AT_ONCE = 5000
"""The maximum number of entries of an answer that is written on the event loop, which takes some
milliseconds. Larger answers are written in a thread.
"""


async def _started(
    http_request: HttpRequest, served: Served, requests: Sequence[Request], *, group: str | None
) -> Generation:
    """Start the requests of a call.

    With disaggregation, another server does a part of the work. Raises RefusalError and ClientLeftError.
    """
    if any(request.sampling.constraint is not None for request in requests):
        preparing = served.constraining.prepare(requests, served.tokenizer, served.model)
        await unless_client_leaves(http_request, preparing)
    if served.disaggregation is None:
        return submit(served, requests, group=group)
    rooms = rooms_of(http_request.state.body, requests)
    generation = submit(served, requests, group=group, start=False)
    try:
        await unless_client_leaves(http_request, served.disaggregation.share(rooms, generation.aborted_early))
    except BaseException:
        generation.start()
        generation.close()
        raise
    generation.start()
    return generation


def submit(
    served: Served, requests: Sequence[Request], *, group: str | None, start: bool = True
) -> Generation:
    """Start the requests of one call, or let the caller start them.

    Raises RefusalError if the requests exceed a limit, if a request id is in use, or if the server is closed.
    """
    if (reason := served.why_closed) is not None:
        raise RefusalError(reason, type="503", status=503)
    rank, size = DP_RANK.of(requests[0]), served.args.dp_size
    if rank is not None and not 0 <= rank < size:
        raise RefusalError(f"{rank} is not a data-parallel rank; ranks are 0 to {size - 1}")
    refuse_wide_masks(requests)
    refuse_many_hidden_states(requests)
    refuse_many_logprobs(requests)
    try:
        return served.manager.submit(requests, group=group, start=start)
    except DuplicateRequestIdError as error:
        raise RefusalError(str(error)) from error


def raise_for_server_abort(emissions: Sequence[Emission], *, unless_it_has_ids: bool = False) -> None:
    """Raise RefusalError if the server aborted one of the requests.

    In a stream, the ids that were sampled before are sent first.
    """
    for emission in emissions:
        refusal = RefusalError.of_abort(emission.finish) if emission.finish else None
        if refusal and not (unless_it_has_ids and emission.output_ids):
            raise refusal


async def answer_whole(
    http_request: HttpRequest,
    served: Served,
    requests: Sequence[Request],
    *,
    group: str | None,
    write: Callable[[Sequence[Emission]], Json],
) -> Response:
    """Run requests to their end, and send one whole answer.

    Raises RefusalError if the server aborted a request.
    """
    generation = await _started(http_request, served, requests, group=group)
    choices = await _choices(generation, unless_client_leaves(http_request, generation.whole()))
    if sum(map(_size, choices)) <= MOST_ENTRIES_AT_ONCE:
        return json_answer(write(choices))
    return await unless_client_leaves(http_request, asyncio.to_thread(lambda: json_answer(write(choices))))


async def answer_later(
    served: Served,
    requests: Sequence[Request],
    *,
    group: str | None,
    write: Callable[[Sequence[Emission]], Json],
) -> Json:
    """Run requests to their end without a client, and return the answer.

    Cancelling aborts the requests. Raises RefusalError if the server aborted a request.
    """
    if any(request.sampling.constraint is not None for request in requests):
        await served.constraining.prepare(requests, served.tokenizer, served.model)
    generation = submit(served, requests, group=group)
    return await asyncio.to_thread(write, await _choices(generation, generation.whole()))


async def _choices(generation: Generation, whole: Awaitable[Sequence[Emission]]) -> Sequence[Emission]:
    """Wait for the choices of requests that run, and close the generation.

    Raises RefusalError if the server aborted a request.
    """
    try:
        choices = await whole
    finally:
        generation.close()
    raise_for_server_abort(choices)
    return choices


def _size(choice: Emission) -> int:
    """Return the approximate number of entries that a choice has in a whole answer."""
    request = choice.record
    positions = len(request.output_ids) + len(request.prompt_token_ids)
    return 10 + positions * (1 + request.top_logprobs_num + len(request.token_ids_logprob))


async def answer(
    http_request: HttpRequest,
    served: Served,
    requests: Sequence[Request],
    writer: Writer,
    *,
    group: str | None,
    stream: bool,
    delivery: Delivery = Delivery.INCREMENTAL,
    framing: Framing = UNNAMED,
) -> Response:
    """Run requests, and answer as a whole or as a stream.

    If a request fails before the first token, the answer is a refusal.
    """
    if stream and delivery is Delivery.CUMULATIVE:
        for request in requests:
            refuse_many_logprobs([request], MOST_ENTRIES_OF_EVENT)
    if not stream:
        return await answer_whole(http_request, served, requests, group=group, write=writer.whole)
    generation = await _started(http_request, served, requests, group=group)
    leaving = once_client_leaves(http_request, generation.hang_up)
    try:
        first = await generation.first(delivery)
        raise_for_server_abort([first], unless_it_has_ids=True)
    except BaseException:
        leaving.cancel()
        generation.close()
        raise
    return EventStream(generation, first, writer, leaving=leaving, delivery=delivery, framing=framing)
