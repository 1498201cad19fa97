"""Comparison of a gateway with the worker behind it.

The same requests are sent to both, so that their answers can be compared. If the gateway violates a
requirement, the failing request is sent to the worker too: the worker may have the same bug.
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
from tokenwire.target.cuts import CUT
from tokenwire.wire.exchange import HttpRequest

_MOST_EXHIBITS = 160
"""The most failing requests of the gateway that are repeated at the worker."""


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

    The worker's dialects are used, at the endpoints that the gateway has too. If two answers differ and
    sampling may be the reason, their requests are repeated.
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


async def ask_with_a_cut_worker(
    worker: Preflight, to_worker: Sender, gateway: Preflight, to_gateway: Sender, transcript: Transcript
) -> None:
    """Send requests to the gateway while its worker breaks off, one endpoint after another."""
    asked = load_scenarios()[CUT]
    for dialect in gateway.speaks:
        talk = Conversation(
            CUT,
            dialect,
            to_gateway,
            worker.advertised,
            transcript,
            gateway.model,
            to_worker=to_worker,
        )
        if asked.fits(dialect):
            await asked.run(talk)


async def ask_for_exhibits(
    worker: Preflight, to_worker: Sender, gateway: Preflight, run: Run, withheld: Collection[str]
) -> list[Stream]:
    """Send the worker each request that made the gateway violate a requirement, except the requests that the
    worker has already received. Return the answers of the worker, under the names of the gateway's exchanges.
    `withheld`: names of headers that must not reach the worker, such as the gateway's credentials.
    """
    known = {exhibit.exchange.name for exhibit in run.exhibits}
    wanted = to_ask(judge([run], rows_of_a_server()), run, _MOST_EXHIBITS)
    answers = [answer for answer in wanted if answer.exchange.name not in known]
    dialects = {dialect.name: dialect for dialect in gateway.asked}
    advertised = worker.advertised

    async def ask(answer: Answer, dialect: Dialect) -> Stream | None:
        try:
            exchange = await to_worker.send(
                exhibit_name(answer.exchange), WORKER, for_the_worker(answer, worker.model, withheld)
            )
        except NotAsked:  # a limit of the run is reached, or the worker is dead
            return None
        return dialect.read(
            in_place(exchange), delivery_hint=advertised.delivery, adapters=advertised.adapters
        )

    known_here = [(answer, dialects[answer.dialect]) for answer in answers if answer.dialect in dialects]
    asked = await together(*(ask(*pair) for pair in known_here if not _is_perilous(pair[0])))
    for pair in known_here:
        if _is_perilous(pair[0]):
            asked.append(await ask(*pair))
    return [stream for stream in asked if stream is not None]


def _is_perilous(answer: Answer) -> bool:
    """True if the request belongs to a scenario whose requests are sent one at a time."""
    scenario = load_scenarios().get(answer.exchange.scenario)
    return scenario is not None and bool(scenario.perilous)


def for_the_worker(answer: Answer, model: str, withheld: Collection[str]) -> HttpRequest:
    """Return the gateway's request for the worker: with another request id and the worker's model name."""
    request = answer.exchange.load().request
    if named := answer.asked.request_id:
        request = under_another_id(request, named, f"{named}-{WORKER}")
    if isinstance(request.body, dict) and "model" in request.body and model:
        request = replace(request, body={**request.body, "model": model})
    headers = tuple(header for header in request.headers if header[0].lower() not in withheld)
    return replace(request, headers=headers)
