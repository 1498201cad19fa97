"""A gateway beside its worker: the same requests to both, so that their answers can be compared."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tokenwire.asking.preflight import Preflight
from tokenwire.asking.scenario import Budget, Conversation, Sender, Transcript, load_scenarios
from tokenwire.target.beside import GATEWAY, WORKER
from tokenwire.target.determinism import side_by_side


def shared(worker: Preflight, gateway: Preflight) -> Preflight:
    """What the worker speaks at endpoints that the gateway has too, whatever the gateway makes of it."""
    paths = {dialect.endpoint.path for dialect in gateway.speaks}
    return replace(worker, speaks=tuple(one for one in worker.speaks if one.endpoint.path in paths))


async def ask_both(
    worker: Preflight, to_worker: Sender, gateway: Preflight, to_gateway: Sender, transcript: Transcript
) -> None:
    """Ask the worker and its gateway the same, in the words of the worker; the transcript gets the pairs."""
    asked = load_scenarios()[GATEWAY]
    theirs = Transcript()
    told = Transcript(not_asked=transcript.not_asked, on_answer=transcript.on_answer)
    talks = []
    for dialect in shared(worker, gateway).speaks:
        for name, side, sender, heard in (
            (WORKER, worker, to_worker, theirs),
            (GATEWAY, gateway, to_gateway, told),
        ):
            talk = Conversation(name, dialect, sender, worker.advertised, heard, side.model, Budget.STANDARD)
            talks.append(asked.run(talk))
    await asyncio.gather(*talks)
    transcript.beside += side_by_side(theirs.streams, told.streams)
