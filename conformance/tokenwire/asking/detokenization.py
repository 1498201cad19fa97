"""The server's own tokenizer: it is asked for the text of the ids that were seen, when all else was asked.

What to ask is what the checks would ask a tokenizer. The answers are recorded like all others, so a replay
judges by them too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from tokenwire.asking.scenario import PROMPT, Sender
from tokenwire.checks.check import CHECKS, StreamCheck, Target
from tokenwire.dialects.detokenize import Detokenize
from tokenwire.dialects.dialect import Dialect
from tokenwire.record import Stream
from tokenwire.requirement import load_requirements
from tokenwire.target.tokenizer import Question, RemoteTokenizer, tokenizer_of, ways_of
from tokenwire.wire.exchange import Exchange, HttpRequest, exchange_name

SCENARIO = "detokenize"
MOST_REQUESTS = 48
"""The most requests for texts, of one list of ids each."""
_MOST_BATCHES = 16
_FOR_DOUBTS = 12
"""Of the requests, those that may ask which ids are special tokens, or be only half full."""
_IN_ONE_REQUEST = 256

_Questions = dict[Question, None]
"""In the order of asking, each once."""


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


def questions(streams: Iterable[Stream], most: int, *, skips: bool = True) -> list[Question]:
    """At most `most` of the questions that the checks have, each once; `skips`: whether the endpoint can
    leave special tokens out.

    What a check wants to know of one answer is asked wholly or not at all. Every check has its share: those
    that have few questions come first, and leave to the others what they do not need. So do answers that
    were to show special tokens: few do.
    """
    known, by_check = sorted(streams, key=lambda stream: stream.asked.skip_special_tokens), []
    for row in load_requirements().values():
        check = CHECKS.get(row.id)
        if row.oracle == "tokenizer" and check is not None and check.on_stream is not None:
            wanted = [(stream.exchange.scenario, _wanted(check.on_stream, stream, skips)) for stream in known]
            by_check.append(_in_turns(wanted))
    asked: _Questions = {}
    # Checks with few questions come first, so that what they leave of their share goes to the others.
    by_check.sort(key=lambda groups: len({question for group in groups for question in group}))
    shares = range(len(by_check), 0, -1)
    # What is left in the end, because an answer needs more than a share, goes to who comes first.
    for parts, groups in (*zip(shares, by_check, strict=True), *((1, groups) for groups in by_check)):
        share = len(asked) + (most - len(asked)) // parts
        for group in groups:
            if len(asked | group) <= share:
                asked |= group
    return list(asked)


def _wanted(check: StreamCheck, stream: Stream, skips: bool) -> _Questions:
    """Collect the questions of a check to a tokenizer about one answer."""
    inquiring = _Inquiring()
    deque(check(stream, Target(tokenizer=inquiring)), maxlen=0)
    return {(ids, skip and skips): None for ids, skip in inquiring.asked}


def _in_turns(groups: Iterable[tuple[str, _Questions]]) -> list[_Questions]:
    """One answer of each scenario, then another of each: a scenario provokes what the others do not."""
    by_scenario: dict[str, list[_Questions]] = {}
    for scenario, group in groups:
        if group:
            by_scenario.setdefault(scenario, []).append(group)
    turns = zip_longest(*by_scenario.values(), fillvalue={})
    return [group for turn in turns for group in turn if group]


def _requests(way: Detokenize, wanted: Sequence[Question]) -> Iterator[HttpRequest]:
    """Yield the questions, as many in one request as the endpoint takes."""
    size = _IN_ONE_REQUEST if way.batches else 1
    for skip in (True, False):
        many = [ids for ids, skipping in wanted if skipping is skip]
        for start in range(0, len(many), size):
            yield way.request(many[start : start + size], skip_special_tokens=skip)


def _most_requests(way: Detokenize) -> int:
    """Return the most requests for texts."""
    return _MOST_BATCHES if way.batches else MOST_REQUESTS


async def ask_for_texts(
    sender: Sender, speaks: Iterable[Dialect], streams: Sequence[Stream]
) -> RemoteTokenizer | None:
    """Ask the server for the text of what it wrote; None if no endpoint does that, or it answered nothing."""
    for way in ways_of(speaks):

        async def ask(number: int, request: HttpRequest, way: Detokenize = way) -> Exchange:
            return await sender.send(exchange_name(SCENARIO, f"{way.name}-{number}"), SCENARIO, request)

        skips = way.skip_special_tokens is not None
        most = (_most_requests(way) - _FOR_DOUBTS) * (_IN_ONE_REQUEST if way.batches else 1)
        requests = list(_requests(way, questions(streams, most, skips=skips)))
        first = [await ask(number, request) for number, request in enumerate(requests[:1])]
        if any(map(way.texts, first)):
            others = (ask(number, request) for number, request in enumerate(requests[1:], 1))
            exchanges = [*first, *await asyncio.gather(*others)]
            tokenizer = tokenizer_of(exchanges)
            if tokenizer is None or skips:
                return tokenizer
            singles = list(_requests(way, [(ids, False) for ids in tokenizer.doubtful()]))
            left = singles[: _most_requests(way) - len(requests)]
            more = (ask(number, request) for number, request in enumerate(left, len(requests)))
            return tokenizer_of([*exchanges, *await asyncio.gather(*more)])
    return None


async def rehearse_texts(sender: Sender, speaks: Iterable[Dialect]) -> None:
    """Send as many requests as `ask_for_texts` does at most. Raises NotAsked if the run may not."""
    for way in ways_of(speaks)[:1]:
        for number in range(_most_requests(way)):
            request = way.request([PROMPT], skip_special_tokens=False)
            await sender.send(exchange_name(SCENARIO, f"{way.name}-{number}"), SCENARIO, request)
