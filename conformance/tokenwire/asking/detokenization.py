"""Detokenization by the server: at the end of a run, the server is asked for the text of the ids that it
sent.

The checks compare these texts with the output. Only the texts that the checks need are requested. The answers
are recorded, so a replay uses them too.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, zip_longest

from tokenwire.asking.scenario import PROMPT, Sender
from tokenwire.checks.about import finished_choices
from tokenwire.checks.check import CHECKS, StreamCheck, Target
from tokenwire.dialects.detokenize import Detokenize, Ids, can_be_joined, joined, joined_label
from tokenwire.dialects.dialect import Dialect
from tokenwire.record import BROKEN, Stream
from tokenwire.requirement import load_requirements
from tokenwire.target.tokenizer import (
    Question,
    RemoteTokenizer,
    is_spelled_out,
    tokenizer_of,
    ways_of,
)
from tokenwire.wire.exchange import Exchange, HttpRequest, exchange_name

SCENARIO = "detokenize"
MOST_REQUESTS = 48
"""The most requests to an endpoint that takes one list of ids per request."""
_MOST_BATCHES = 16
_FOR_DOUBTS = 12
"""The number of requests, out of `MOST_REQUESTS`, that find out which ids are special tokens."""
_HALF_FULL = 2
"""The number of requests that may have fewer lists than allowed: one with special tokens, and one without."""
_IN_ONE_REQUEST = 256
_IDS_IN_ONE_REQUEST = 8192
"""The most ids in one request for joined lists, dividers not counted."""
_MOST_JOINED = 1 << 14
"""The most lists that are joined."""
_MOST_DIVIDERS = 3
_MOST_PROOFS = 8
"""The most joined lists that are also requested alone, to verify that joining does not change the text."""

_Questions = dict[Question, None]
"""A set of questions in the order in which they were asked. A question is a list of ids and a flag."""


class _Inquiring:
    """A stand-in for a tokenizer: returns no texts, and records the ids that the checks want to decode."""

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
    """Return at most `most` different lists of ids that the checks want to decode.

    `skips`: the endpoint can omit special tokens. For one answer, a check gets all its lists or none. Each
    check has an equal share of `most`; unused parts go to checks with more lists. The few answers that were
    requested with special tokens come first.
    """
    known, by_check = sorted(streams, key=lambda stream: stream.asked.skip_special_tokens), []
    for row in load_requirements().values():
        check = CHECKS.get(row.id)
        if row.oracle == "tokenizer" and check is not None and check.on_stream is not None:
            wanted = [(stream.exchange.scenario, _wanted(check.on_stream, stream, skips)) for stream in known]
            by_check.append(_in_turns(wanted))
    asked: _Questions = {}
    # Checks with few questions come first, so that the unused part of their share goes to the others.
    by_check.sort(key=lambda groups: len({question for group in groups for question in group}))
    shares = range(len(by_check), 0, -1)
    # If no answer fits into a check's share, the first such answer gets what is left at the end.
    for parts, groups in (*zip(shares, by_check, strict=True), *((1, groups) for groups in by_check)):
        share = len(asked) + (most - len(asked)) // parts
        for group in groups:
            if len(asked) + sum(question not in asked for question in group) <= share:
                asked |= group
    return list(asked)


def _wanted(check: StreamCheck, stream: Stream, skips: bool) -> _Questions:
    """Return the lists of ids that a check decodes when it checks this answer."""
    inquiring = _Inquiring()
    deque(check(stream, Target(tokenizer=inquiring)), maxlen=0)
    return {(ids, skip and skips): None for ids, skip in inquiring.asked}


def _in_turns(groups: Iterable[tuple[str, _Questions]]) -> list[_Questions]:
    """Order groups so that each scenario gets its first turn before any scenario gets its second.

    Different scenarios provoke different bugs.
    """
    by_scenario: dict[str, list[_Questions]] = {}
    for scenario, group in groups:
        if group:
            by_scenario.setdefault(scenario, []).append(group)
    turns = zip_longest(*by_scenario.values(), fillvalue={})
    return [group for turn in turns for group in turn if group]


def _requests(way: Detokenize, wanted: Sequence[Question]) -> Iterator[HttpRequest]:
    """Yield requests for the texts of lists, each with as many lists as the endpoint accepts."""
    size = _IN_ONE_REQUEST if way.batches else 1
    for skip in (True, False):
        many = [ids for ids, skipping in wanted if skipping is skip]
        for start in range(0, len(many), size):
            yield way.request(many[start : start + size], skip_special_tokens=skip)


def _joined_requests(way: Detokenize, lists: Iterable[Ids], divider: int) -> Iterator[HttpRequest]:
    """Yield requests with many lists of ids joined by a divider.

    Lists that contain the divider are skipped.
    """
    part: list[Ids] = []
    size = 0
    for ids in filter(partial(can_be_joined, divider=divider), lists):
        if part and size + len(ids) > _IDS_IN_ONE_REQUEST:
            yield way.request([joined(part, divider)], skip_special_tokens=False)
            part, size = [], 0
        part.append(ids)
        size += len(ids)
    if part:
        yield way.request([joined(part, divider)], skip_special_tokens=False)


def _dividers(streams: Iterable[Stream]) -> list[int]:
    """Return the ids that end most choices.

    A divider must have a visible text, as an end-of-sequence token has.
    """
    ends: Counter[int] = Counter()
    for stream in streams:
        for choice in finished_choices(stream):
            last = (choice.output_ids or [None])[-1]
            if type(last) is int and choice.finish is not None and choice.finish.type == "stop":
                ends[last] += 1
    return [token for token, _ in ends.most_common(_MOST_DIVIDERS)]


def _proofs(texts: Mapping[Question, str]) -> list[Ids]:
    """Return lists of ids whose text may change when they are joined with other lists.

    Lists whose text begins or ends with a space or an incomplete character come first.
    """

    def risk(text: str) -> tuple[bool, bool]:
        return text.startswith((BROKEN, " ")), text.endswith((BROKEN, " "))

    kinds: dict[tuple[bool, bool], list[Ids]] = {}
    for (ids, _), text in texts.items():
        kinds.setdefault(risk(text), []).append(ids)
    turns = zip_longest(*kinds.values())
    return [ids for turn in turns for ids in turn if ids is not None][:_MOST_PROOFS]


class _Asking:
    """Requests texts from one detokenize endpoint, up to its limit of requests."""

    def __init__(self, sender: Sender, way: Detokenize) -> None:
        self._sender, self.way = sender, way
        self._exchanges: list[Exchange] = []

    @property
    def left(self) -> int:
        """Return the number of requests that may still be sent."""
        return _most_requests(self.way) - len(self._exchanges)

    @property
    def tokenizer(self) -> RemoteTokenizer | None:
        """Return the tokenizer made from the answers so far."""
        return tokenizer_of(self._exchanges)

    async def send(self, requests: Iterable[HttpRequest], divider: int | None = None) -> list[Exchange]:
        """Send requests concurrently, up to the limit.

        `divider`: the id between joined lists in the requests.
        """
        first = len(self._exchanges)
        family = self.way.name
        exchanges = await asyncio.gather(
            *(
                self._sender.send(
                    exchange_name(
                        SCENARIO,
                        f"{family}-{number}" if divider is None else joined_label(family, divider, number),
                    ),
                    SCENARIO,
                    request,
                )
                for number, request in enumerate(islice(requests, self.left), first)
            )
        )
        self._exchanges += exchanges
        return exchanges

    async def is_answered(self, questions: Sequence[Question]) -> bool:
        """Send one request with the first lists; True if the endpoint returns their text."""
        first = await self.send(islice(_requests(self.way, questions), 1))
        return any(map(self.way.texts, first))

    async def alone(self, questions: Sequence[Question]) -> None:
        """Send the lists that `is_answered` has not sent, unjoined."""
        await self.send(islice(_requests(self.way, questions), 1, None))

    async def find_divider(self, streams: Iterable[Stream]) -> int | None:
        """Return the first candidate for a divider that the server shows as visible text, or None."""
        for token in _dividers(streams):
            request = self.way.request([(token,)], skip_special_tokens=False)
            for exchange in await self.send([request]):
                if is_spelled_out(self.way.texts(exchange).get(((token,), False), "")):
                    return token
        return None

    async def ask_joined(self, lists: Sequence[Ids], divider: int) -> bool:
        """Request the texts of joined lists, and of a few lists alone; True if the texts are equal."""
        most = max(0, self.left - _FOR_DOUBTS)
        exchanges = await self.send(islice(_joined_requests(self.way, lists, divider), most), divider)
        texts = {key: text for found in map(self.way.joined_texts, exchanges) for key, text in found.items()}
        await self.send(self.way.request([ids], skip_special_tokens=False) for ids in _proofs(texts))
        known = self.tokenizer
        return known is not None and all(
            known.decode(ids, skip_special_tokens=False) == text for (ids, _), text in texts.items()
        )


async def ask_for_texts(
    sender: Sender, speaks: Iterable[Dialect], streams: Sequence[Stream]
) -> RemoteTokenizer | None:
    """Request the texts of the ids that the server sent; return a tokenizer made from them.

    Return None if no detokenize endpoint answers.
    """
    for way in ways_of(speaks):
        asking = _Asking(sender, way)
        skips = way.skip_special_tokens is not None
        if way.batches:
            wanted = questions(streams, (asking.left - _HALF_FULL) * _IN_ONE_REQUEST, skips=skips)
            if await asking.is_answered(wanted):
                await asking.alone(wanted)
                return asking.tokenizer
        else:
            wanted = questions(streams, asking.left - _FOR_DOUBTS, skips=skips)
            if await asking.is_answered(wanted):
                await _ask_one_list_at_a_time(asking, wanted, streams)
                return asking.tokenizer
    return None


async def _ask_one_list_at_a_time(
    asking: _Asking, wanted: Sequence[Question], streams: Sequence[Stream]
) -> None:
    """Request texts from an endpoint that takes one list per request and always shows special tokens.

    Lists are joined in one request. If joining changes the text, only some lists are requested, one by one.
    """
    divider = await asking.find_divider(streams)
    every = [ids for ids, _ in questions(streams, _MOST_JOINED, skips=False)]
    if divider is not None and await asking.ask_joined(every, divider):
        # First find out which ids are special tokens, then use the remaining requests for texts without them.
        for left_out in (RemoteTokenizer.doubtful, RemoteTokenizer.without_special):
            known = asking.tokenizer
            lists = left_out(known) if known is not None else []
            await asking.send(_joined_requests(asking.way, lists, divider), divider)
        return
    await asking.alone(wanted[: asking.left - _FOR_DOUBTS + 1])
    known = asking.tokenizer
    if known is not None:
        await asking.send(_requests(asking.way, [(ids, False) for ids in known.doubtful()]))


def _most_requests(way: Detokenize) -> int:
    """Return the maximum number of requests to this endpoint."""
    return _MOST_BATCHES if way.batches else MOST_REQUESTS


async def rehearse_texts(sender: Sender, speaks: Iterable[Dialect]) -> None:
    """Send the largest number of requests that `ask_for_texts` can send.

    Raises NotAsked at a limit of the run.
    """
    for way in ways_of(speaks)[:1]:
        for number in range(_most_requests(way)):
            request = way.request([PROMPT], skip_special_tokens=False)
            await sender.send(exchange_name(SCENARIO, f"{way.name}-{number}"), SCENARIO, request)
