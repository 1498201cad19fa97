"""A gateway and its worker: both get the same requests, so that their answers can be compared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tokenwire.ask import Budget
from tokenwire.asking.confirmation import ACROSS_TARGETS, confirm, send_again
from tokenwire.asking.preflight import Preflight
from tokenwire.asking.scenario import Conversation, Sender, Transcript, load_scenarios
from tokenwire.judging.beside import GATEWAY, WORKER, side_by_side
from tokenwire.judging.run import Run
from tokenwire.record import Answer


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
