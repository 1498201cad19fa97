"""The server's own tokenizer: it is asked for the text of the ids that were seen, when all else was asked.

What to ask is what the checks would ask a tokenizer. The answers are recorded like all others, so a replay
judges by them too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from tokenwire.asking.scenario import Sender
from tokenwire.checks.check import CHECKS, Target
from tokenwire.dialects.detokenize import Detokenize
from tokenwire.dialects.dialect import Dialect
from tokenwire.record import Stream
from tokenwire.requirement import load_requirements
from tokenwire.target.tokenizer import Question, ToldTokenizer, told_by
from tokenwire.wire.exchange import Exchange, HttpRequest, exchange_name

SCENARIO = "detokenize"

_IN_ONE_REQUEST = 256
_SINGLE_REQUESTS = 2048
"""So many requests at most go to an endpoint that takes one list of ids at a time."""


class _Inquiring:
    """A tokenizer that knows nothing and remembers what it was asked."""

    cleans_up = True

    def __init__(self) -> None:
        self.asked: dict[Question, None] = {}

    def decode(
        self,
        ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        del spaces_between_special_tokens
        if ids:
            self.asked[tuple(ids), skip_special_tokens] = None


def questions(streams: Iterable[Stream]) -> list[Question]:
    """What the checks want to know of a tokenizer, each thing once, the modest ones first."""
    known, wanted = list(streams), []
    for one in load_requirements().values():
        check = CHECKS.get(one.id)
        if one.oracle == "tokenizer" and check is not None and check.on_stream is not None:
            inquiring = _Inquiring()
            for stream in known:
                deque(check.on_stream(stream, Target(tokenizer=inquiring)), maxlen=0)
            wanted.append(inquiring.asked)
    # A check that asks for each beginning of each text must not crowd out the others.
    return list(dict.fromkeys(question for asked in sorted(wanted, key=len) for question in asked))


def _requests(way: Detokenize, wanted: Sequence[Question]) -> Iterator[HttpRequest]:
    """The questions, as many in one request as the endpoint takes."""
    if way.skip_special_tokens is None:
        wanted = list(dict.fromkeys((ids, False) for ids, _ in wanted))
    if not way.batches:
        for ids, skip in wanted[:_SINGLE_REQUESTS]:
            yield way.request([ids], skip_special_tokens=skip)
        return
    for skip in (True, False):
        many = [ids for ids, skipping in wanted if skipping is skip]
        for at in range(0, len(many), _IN_ONE_REQUEST):
            yield way.request(many[at : at + _IN_ONE_REQUEST], skip_special_tokens=skip)


async def ask_for_texts(
    sender: Sender, speaks: Iterable[Dialect], streams: Sequence[Stream]
) -> ToldTokenizer | None:
    """Ask the server for the text of what it wrote; None where it has no way to be asked, or told nothing."""
    wanted = questions(streams)
    ways = dict.fromkeys(dialect.detokenize for dialect in speaks if dialect.detokenize is not None)
    for way in ways:

        async def ask(number: int, request: HttpRequest, way: Detokenize = way) -> Exchange:
            return await sender.send(exchange_name(SCENARIO, f"{way.name}-{number}"), SCENARIO, request)

        requests = list(_requests(way, wanted))
        first = [await ask(number, request) for number, request in enumerate(requests[:1])]
        if any(map(way.told, first)):
            others = (ask(number, request) for number, request in enumerate(requests[1:], 1))
            exchanges = [*first, *await asyncio.gather(*others)]
            told = told_by(exchanges)
            if told is None or way.skip_special_tokens is not None:
                return told
            singles = _requests(way, [(ids, False) for ids in told.doubtful()])
            more = (ask(number, request) for number, request in enumerate(singles, len(requests)))
            return told_by([*exchanges, *await asyncio.gather(*more)])
    return None
