"""Let an engine fail and die in the middle of answers, and check what its front end sends, then and after a
restart.

First, the engine fails for single requests. Then three requests start in one step: a stream in which the
engine dies, and a stream and a whole answer that run beside it. Each answer must end and must show a failure.
An abort is not a failure, because clients order aborts. Then the front end is started again and must give the
right answer.

    python -m proofs.engine_death 'vllm-rs serve'
    python -m proofs.engine_death --record DIR 'python -m sglang.launch_server'
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from proofs.schedules import TOKENS, FrontEnd, ScheduledRequest, found_at
from tokenwire.asking.recorder import Recorder
from tokenwire.record import Stream
from tokenwire.wire.capture import CaptureWriter
from tokenwire.wire.exchange import Ending, Exchange
from tokenwire_engine.launch import Family, Wanted, front_end
from tokenwire_engine.schedule import parse_schedule

AT = 3
_TIMEOUT_S = 30.0
_JOIN = "join=3:death"
_DIES, _BESIDE, _FAILS = "death", "beside-a-death", "failure"
"""Scenarios of the recorded exchanges: the request that kills the engine, the requests that run beside it,
and the requests for which the engine fails.
"""
_FAILING = {
    f"{form}-that-fails-with-{status}": (form == "stream", f"error={AT}:{status}")
    for form in ("stream", "whole-answer")
    for status in (500, 503)
}
_DYING = {
    "stream-in-which-it-dies": (True, f"{_JOIN};die={AT}"),
    "stream-beside-it": (True, f"{_JOIN};wait=999999"),
    "whole-answer-beside-it": (False, f"{_JOIN};wait=999999"),
}


def shown(exchange: Exchange, stream: Stream) -> str:
    """Describe how an answer ended."""
    error = f", error {stream.error!r}" if stream.error is not None else ""
    finishes = [choice.finish for choice in stream.choices if choice.finish is not None]
    finish = f", finish {finishes[0].type}" if finishes else ""
    finish += f" with code {finishes[0].code}" if finishes and finishes[0].failed else ""
    return f"status {exchange.status}, {exchange.ending.value}{error}{finish}"


def is_honest(exchange: Exchange, stream: Stream) -> bool:
    """True if an answer ended in time, and shows a failure."""
    refused = exchange.status is not None and exchange.status >= 400
    finishes = [choice.finish for choice in stream.choices if choice.finish is not None]
    failed = any(finish.failed or finish.type == "error" for finish in finishes)
    return exchange.ending is Ending.COMPLETE and (refused or failed or stream.error is not None)


async def _answers(
    url: str, requests: Mapping[str, tuple[bool, str]], record: Path | None
) -> Mapping[str, tuple[Exchange, Stream]]:
    """Send requests at once, each with a schedule. Return their answers by name.

    `record` is a folder for a capture of these answers.
    """
    asked = await found_at(Recorder(url, timeout_s=_TIMEOUT_S))
    capture = CaptureWriter(record) if record is not None else None
    recorder = Recorder(url, timeout_s=_TIMEOUT_S, capture=capture)

    async def one(name: str, *, stream: bool, schedule: str) -> tuple[Exchange, Stream]:
        case = ScheduledRequest("plain", parse_schedule(schedule), TOKENS, stream)
        scenario = _DIES if case.schedule.die is not None else _FAILS if case.schedule.end else _BESIDE
        exchange = await recorder.send(f"{scenario}/{name}", scenario, asked.request(case, schedule))
        return exchange, asked.dialect.read(exchange)

    answers = await asyncio.gather(
        *(one(name, stream=stream, schedule=schedule) for name, (stream, schedule) in requests.items())
    )
    return dict(zip(requests, answers, strict=True))


async def fail(url: str, record: Path | None = None) -> Mapping[str, tuple[Exchange, Stream]]:
    """Let the engine fail for single requests. Return their answers by name."""
    return await _answers(url, _FAILING, record)


async def die(url: str, record: Path | None = None) -> Mapping[str, tuple[Exchange, Stream]]:
    """Let the engine die. Return the answers that were running, by the names of their requests."""
    return await _answers(url, _DYING, record)


async def live(url: str) -> list[tuple[str, str]]:
    """Return the requirements that an answer violates after the front end was started again, with
    messages.
    """
    asked: FrontEnd = await found_at(Recorder(url, timeout_s=_TIMEOUT_S))
    return await asked.failures((ScheduledRequest("plain", parse_schedule(""), TOKENS, stream=True),))


def findings(answers: Mapping[str, tuple[Exchange, Stream]]) -> Iterator[str]:
    """Yield a line for each answer that does not show that the engine failed."""
    for name, (exchange, stream) in answers.items():
        if not is_honest(exchange, stream):
            yield f"{name}: {shown(exchange, stream)}"


def main() -> int:
    """Print how each answer ended. Return 1 if one looks complete, or if the answer after the restart is
    wrong.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", help="the command that starts a front end")
    parser.add_argument(
        "--record", type=Path, metavar="DIR", help="write the answers that were under way there"
    )
    options = parser.parse_args()
    command = options.command
    family = Family.SGLANG if "sglang" in command else Family.VLLM
    wanted = Wanted(family, tuple(shlex.split(command)))
    with front_end(wanted) as running:
        answers = {
            **asyncio.run(fail(running.url, options.record)),
            **asyncio.run(die(running.url, options.record)),
        }
    for name, (exchange, stream) in answers.items():
        print(f"{name}: {shown(exchange, stream)}")
    wrong = list(findings(answers))
    with front_end(wanted) as running:
        failures = asyncio.run(live(running.url))
    print(f"started again: {'; '.join(map(str, failures)) or 'the right answer'}")
    print(f"{len(wrong)} of {len(answers)} answers do not show that the engine failed")
    return 1 if wrong or failures else 0


if __name__ == "__main__":
    sys.exit(main())
