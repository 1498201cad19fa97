"""A gateway beside its worker: the same requests to both, so that their answers can be compared; and the
requests of the gateway's failures to the worker, so that the worker's own failures are known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace

from tokenwire.ask import Budget
from tokenwire.asking.confirmation import ACROSS_TARGETS, confirm, send_again, under_another_id
from tokenwire.asking.preflight import Preflight
from tokenwire.asking.scenario import (
    Conversation,
    NotAsked,
    Sender,
    Transcript,
    load_scenarios,
    together,
)
from tokenwire.dialects.dialect import Dialect
from tokenwire.judging.beside import GATEWAY, WORKER, exhibit_name, in_place, side_by_side
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.workers_own import rows_of_a_server, to_ask
from tokenwire.record import Answer, Stream
from tokenwire.wire.exchange import HttpRequest

_MOST_EXHIBITS = 160
"""Requests of the gateway's failures that the worker is asked."""


async def ask_both(
    worker: Preflight,
    to_worker: Sender,
    gateway: Preflight,
    to_gateway: Sender,
    *,
    transcript: Transcript,
    run_so_far: Callable[[], Run],
) -> None:
    """Send the same requests to the worker and its gateway, and add the pairs of answers to the transcript.

    The requests use the worker's dialects, at endpoints that the gateway has too. Requests whose answers
    differ by chance are repeated.
    """
    asked = load_scenarios()[GATEWAY]
    of_worker = Transcript()
    of_gateway = Transcript(not_asked=transcript.not_asked, on_answer=transcript.on_answer)
    sides = {WORKER: (worker, to_worker, of_worker), GATEWAY: (gateway, to_gateway, of_gateway)}
    talks: dict[tuple[str, str], Conversation] = {}
    paths = {dialect.endpoint.path for dialect in gateway.speaks}
    for dialect in (dialect for dialect in worker.speaks if dialect.endpoint.path in paths):
        for name, (side, sender, answers) in sides.items():
            talks[name, dialect.name] = Conversation(
                name, dialect, sender, worker.advertised, answers, side.model, Budget.STANDARD
            )
    await asyncio.gather(*map(asked.run, talks.values()))

    def run() -> Run:
        transcript.beside = side_by_side(of_worker.streams, of_gateway.streams)
        return run_so_far()

    async def ask_again(stream: Answer, turn: int) -> None:
        await send_again(talks[stream.exchange.scenario, stream.dialect], stream, turn)

    await confirm(run, ask_again, ACROSS_TARGETS)
    transcript.beside = side_by_side(of_worker.streams, of_gateway.streams)


async def ask_for_exhibits(
    worker: Preflight, to_worker: Sender, gateway: Preflight, run: Run, withheld: Collection[str]
) -> list[Stream]:
    """Ask the worker the requests in whose answers the gateway breaks a requirement.

    Return its answers, under the names that the gateway's have. `withheld`: names of headers that are for
    the gateway alone.
    """
    answers = to_ask(judge([run], rows_of_a_server()), run, _MOST_EXHIBITS)
    dialects = {dialect.name: dialect for dialect in gateway.asked}
    advertised = worker.advertised

    async def ask(answer: Answer, dialect: Dialect) -> Stream | None:
        try:
            exchange = await to_worker.send(
                exhibit_name(answer.exchange), WORKER, for_the_worker(answer, worker.model, withheld)
            )
        except NotAsked:  # the limits of the run end here, or the worker does
            return None
        return dialect.read(
            in_place(exchange), delivery_hint=advertised.delivery, adapters=advertised.adapters
        )

    asked = await together(
        *(ask(answer, dialects[answer.dialect]) for answer in answers if answer.dialect in dialects)
    )
    return [stream for stream in asked if stream is not None]


def for_the_worker(answer: Answer, model: str, withheld: Collection[str]) -> HttpRequest:
    """Return the request of a gateway's answer as the worker gets it: under an id and a model of its own."""
    request = answer.exchange.load().request
    if named := answer.asked.request_id:
        request = under_another_id(request, named, f"{named}-{WORKER}")
    if isinstance(request.body, dict) and "model" in request.body and model:
        request = replace(request, body={**request.body, "model": model})
    headers = tuple(header for header in request.headers if header[0].lower() not in withheld)
    return replace(request, headers=headers)
