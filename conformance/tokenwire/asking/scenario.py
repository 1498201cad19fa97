"""Scenarios: the requests that are sent to a target, each meant to provoke one behaviour.

A scenario is a generator that yields requests as data. If an answer decides the next request, for example a
stop string taken from it, the scenario is a coroutine that uses a conversation. Scenarios do not judge.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Protocol, TypeVar

from tokenwire.ask import Ask, Budget, in_words
from tokenwire.asking.tap import SlowReader, Tap
from tokenwire.dialects.control import Action, Control, ControlCall, load_controls, read_call
from tokenwire.dialects.dialect import Dialect, Unsupported, load_dialects, vocabulary_told
from tokenwire.parrot.speaker import Speaker
from tokenwire.record import Choice, Stream
from tokenwire.target.advertised import Advertised
from tokenwire.target.determinism import AnswerPair
from tokenwire.target.tokenizer import LocalTokenizer, Tokenizer
from tokenwire.wire.exchange import Exchange, HttpRequest, RequestHead, exchange_name

PROMPT = (73, 39, 78, 220, 112, 31, 66, 205, 97, 154, 18, 243)
"""The ids of most prompts. They are small, so they are valid in nearly every vocabulary."""

_WORDS_TOKENS = 64
"""An upper bound of the tokens in the short texts and messages of scenarios."""

_READ_BYTES = 8_000_000
"""The most bytes of a requested stream, slightly below the recorder's limit."""
_READ_EVENTS = 4000
"""The most events of a requested stream, slightly below the recorder's limit."""
_AROUND = 1000
"""Upper bound of the bytes of an event without its tokens: field names, counters, the request id."""
_PER_TOKEN = 30
"""Upper bound of the bytes that a token adds to an event: its id, text and per-token arrays."""


_INTERVALS = {
    Budget.QUICK: (1, 7),
    Budget.STANDARD: (1, 3, 7, 50),
    Budget.SOAK: (1, 2, 3, 7, 16, 50, 1000),
}
"""Values of `stream_interval`, by budget. The largest exceeds the length of most answers."""


Asks = Mapping[str, Ask | HttpRequest]
"""Requests to send concurrently, by label."""


class NotAsked(Exception):  # noqa: N818  # not an error: the run may ask no more; the message says why
    """A request was not sent: the dialect cannot express it, or a limit prevents it."""


_Result = TypeVar("_Result")


async def together(*doings: Coroutine[Any, Any, _Result]) -> list[_Result]:
    """Run coroutines concurrently.

    If one fails, the others are cancelled, so that no request is sent after the end of a run.
    """
    tasks = [asyncio.create_task(doing) for doing in doings]
    if not tasks:
        return []
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class Sender(Protocol):
    """A sender of requests: the recorder, or a stand-in in tests.

    Raises NotAsked for a request that it does not send.
    """

    async def send(
        self,
        name: str,
        scenario: str,
        request: HttpRequest,
        *,
        slow_reader: SlowReader | None = None,
        tap: Tap | None = None,
        aside: bool = False,
    ) -> Exchange: ...


@dataclass
class Transcript:
    """The answers of a run in the order of their completion, and the requests that were not sent."""

    streams: list[Stream] = field(default_factory=list)
    tokenizer: Tokenizer | None = None
    """A local tokenizer, or one made from the texts that the server returned; None without either."""
    not_asked: dict[str, str] = field(default_factory=dict)
    """The reason for each request that was not sent, by exchange name."""
    beside: list[AnswerPair] = field(default_factory=list)
    """Pairs of answers of a gateway and its worker to the same request."""
    exhibits: list[Stream] = field(default_factory=list)
    """The worker's answers to requests that made the gateway violate a requirement."""
    on_answer: Callable[[Stream], None] = lambda _: None
    """Called with each answer, for example by a progress bar."""
    calls: list[ControlCall] = field(default_factory=list)
    """Requests to control endpoints: aborts, cache flushes and load queries."""


@dataclass(frozen=True)
class Conversation:
    """The requests and answers of one scenario in one dialect."""

    scenario: str
    dialect: Dialect
    sender: Sender
    advertised: Advertised
    transcript: Transcript
    model: str = ""
    """The model name for requests; empty to leave the field out."""
    budget: Budget = Budget.STANDARD
    """The budget of the run. Some scenarios send more requests with a larger budget."""
    parrot: Speaker | None = None
    """Writes prompts for a parrot; None if the target is not a parrot."""
    tool_calls: str = ""
    """The format of the model's tool calls; empty to detect it."""
    declared: frozenset[str] = frozenset()
    """Capabilities that the user declares with `--declare`. Some requests are sent only with them."""
    draw: Random = field(default_factory=Random, repr=False, compare=False)
    """The random generator for ids, names and prompts that must be new to the server.

    Generators with equal states give equal requests.
    """
    to_worker: Sender | None = field(default=None, repr=False, compare=False)
    """Sends requests to the worker of a gateway; None without one."""

    @property
    def intervals(self) -> tuple[int, ...]:
        """Return the values of `stream_interval` to request, smallest first.

        A larger budget has more values.
        """
        return _INTERVALS[self.budget]

    @property
    def vocabulary_size(self) -> int | None:
        """Return the vocabulary size, from the target's information, a refusal, or a local tokenizer."""
        reported, local = vocabulary_told(self.transcript.streams), self.transcript.tokenizer
        size = local.size if isinstance(local, LocalTokenizer) else None
        return self.advertised.vocab_size or reported or size

    @property
    def chat(self) -> bool:
        """True if this endpoint takes messages."""
        return self.dialect.chat

    def can_say(self, ask: Ask) -> bool:
        """True if the dialect can express each field of the request."""
        return self.dialect.can_say(ask, self.model)

    def new_id(self, separator: str = "-") -> str:
        """Return an id that no request has had. A server would refuse the id of a running request."""
        return f"tokenwire{separator}{self.draw.randbytes(6).hex()}"

    def fitting(self, max_new_tokens: int, prompt_tokens: int = len(PROMPT)) -> int:
        """Return the number of output tokens, reduced so that prompt and output fit into the context."""
        room = self.advertised.context - prompt_tokens - 8
        return max(1, min(max_new_tokens, room))

    @staticmethod
    def readable(choices: int = 1) -> int:
        """Return the most tokens of each choice for which a stream stays within the recorder's limits.

        In the longest stream, each token has an event that repeats all earlier tokens.
        """
        room = _READ_BYTES / choices
        # Each event repeats all earlier tokens, so n events have n * _AROUND + _PER_TOKEN * n² / 2 bytes.
        by_size = int((math.sqrt(_AROUND**2 + 2 * _PER_TOKEN * room) - _AROUND) / _PER_TOKEN)
        return max(1, min(by_size, _READ_EVENTS // choices))

    async def ask(
        self,
        label: str,
        ask: Ask | HttpRequest,
        *,
        slow_reader: SlowReader | None = None,
        tap: Tap | None = None,
    ) -> Stream | None:
        """Send one request; return None if the dialect cannot express it or a limit prevents it.

        `label`: unique in the scenario; part of the exchange name. `tap`: follows the progress of the
        response, and can abort it. An `HttpRequest` is sent unchanged.
        """
        name = self.name_of(label)
        try:
            request = ask if isinstance(ask, HttpRequest) else self._rendered(ask)
            exchange = await self.sender.send(name, self.scenario, request, slow_reader=slow_reader, tap=tap)
        except NotAsked as reason:
            self.transcript.not_asked[name] = str(reason)
            return None
        finally:
            if tap is not None:
                tap.end()
        return self._read(exchange)

    def _rendered(self, ask: Ask) -> HttpRequest:
        """Return the HTTP request for an ask.

        The output tokens are reduced to the context. Ids are replaced by words if the endpoint takes only
        text. Raises NotAsked if the dialect cannot express the ask.
        """
        if ask.max_new_tokens and self.advertised.context_length:
            prompt_tokens = max(map(len, ask.input_ids), default=_WORDS_TOKENS)
            ask = replace(ask, max_new_tokens=self.fitting(ask.max_new_tokens, prompt_tokens))
        if ask.input_ids and not (ask.text or ask.messages or self.chat or self.dialect.takes_ids):
            ask = in_words(ask)
        request = self.dialect.render(ask, self.model)
        if isinstance(request, Unsupported):
            raise NotAsked(request.reason)
        return request

    def name_of(self, label: str) -> str:
        """Return the exchange name for this label."""
        return exchange_name(self.scenario, label, self.dialect.name)

    def _read(self, exchange: Exchange) -> Stream:
        advertised = self.advertised
        dialect = self._dialect_of(exchange.request)
        read = dialect.read(exchange, delivery_hint=advertised.delivery, adapters=advertised.adapters)
        # compressed, because a run holds all exchanges in memory until they are judged
        stream = replace(read, exchange=exchange.packed())
        self.transcript.streams.append(stream)
        self.transcript.on_answer(stream)
        return stream

    def _dialect_of(self, request: RequestHead) -> Dialect:
        """Return this dialect, or the family's dialect at the endpoint of a request, if that is another."""
        others = (
            dialect
            for dialect in load_dialects().values()
            if dialect.family == self.dialect.family and request in dialect.endpoint
        )
        return self.dialect if request in self.dialect.endpoint else next(others, self.dialect)

    def recall(self, exchange: Exchange) -> None:
        """Add a recorded exchange of the run that is resumed."""
        if (call := self.control.read(exchange)) is not None:
            self.transcript.calls.append(call)
        else:
            self._read(exchange)

    @property
    def control(self) -> Control:
        """Return the control endpoints of the server family, such as abort."""
        family = self.dialect.family
        return load_controls().get(family, Control(family, {}))

    async def call(self, label: str, request: HttpRequest) -> ControlCall | None:
        """Send a request to a control endpoint at once, without waiting in the queue.

        Return None if a limit prevents it, or if the request is not for a control endpoint.
        """
        return await self._call(label, self.sender, request, self.control.read)

    async def call_worker(self, label: str, action: Action) -> ControlCall | None:
        """Send a control request to the worker of a gateway; None without a worker, or if a limit prevents
        it.
        """
        request = load_controls()["tokenwire"].plain_request(action)
        if self.to_worker is None or request is None:
            return None
        return await self._call(label, self.to_worker, request, read_call)

    async def _call(
        self,
        label: str,
        sender: Sender,
        request: HttpRequest,
        read: Callable[[Exchange], ControlCall | None],
    ) -> ControlCall | None:
        name = self.name_of(label)
        try:
            exchange = await sender.send(name, self.scenario, request, aside=True)
        except NotAsked as reason:
            self.transcript.not_asked[name] = str(reason)
            return None
        if (call := read(exchange)) is not None:
            self.transcript.calls.append(call)
        return call

    @property
    def id_prefix(self) -> str:
        """Return the prefix that the server adds to a client's request id."""
        policy = self.dialect.policy
        if policy.request_id_prefix_is_optional and any(map(self._tells_id_bare, self.transcript.streams)):
            return ""
        return policy.request_id_prefix

    def _tells_id_bare(self, stream: Stream) -> bool:
        """True if an answer repeats the client's request id without the prefix."""
        sent_id = stream.asked.request_id
        if sent_id is None or stream.dialect != self.dialect.name:
            return False
        first = next(iter(stream.emissions()), None)
        return first is not None and first.details.get("request_id") == sent_id

    async def abort(self, label: str, request_id: str, *, as_sent: bool = False) -> ControlCall | None:
        """Abort the request with this id; return None if the server family cannot abort requests of this
        endpoint.

        `as_sent`: use the client's id without the server's prefix.
        """
        named = request_id if as_sent else f"{self.id_prefix}{request_id}"
        request = self.control.abort_request(named, self.dialect.endpoint.path)
        if request is None:
            self.transcript.not_asked[self.name_of(label)] = f"{self.dialect.name} has no abort by id"
            return None
        return await self.call(label, request)

    async def ask_all(self, asks: Asks, *, slow_reader: SlowReader | None = None) -> dict[str, Stream]:
        """Send several requests concurrently; return the answers by label, without requests that were not
        sent.
        """
        answers = await together(
            *(self.ask(label, ask, slow_reader=slow_reader) for label, ask in asks.items())
        )
        return {label: answer for label, answer in zip(asks, answers, strict=True) if answer is not None}


Run = Callable[[Conversation], Awaitable[None]]
Steps = Iterator[Asks]
Given = TypeVar("Given", Run, Callable[[Conversation], Steps])


@dataclass(frozen=True)
class Scenario:
    """A named scenario, with the conditions under which it runs."""

    name: str
    provokes: str
    """The behaviour that the scenario provokes, in a sentence or two. Reports quote this text."""
    run: Run
    chat: bool | None = None
    """True: only for endpoints with chat messages. False: only for endpoints without. None: for all."""
    items: bool = False
    """True if the scenario is only for endpoints whose output is a list of typed items, such as
    /v1/responses.
    """
    results: bool = False
    """True if the scenario is for endpoints without sampling, such as embeddings.

    These endpoints run no other scenarios.
    """
    budget: Budget = Budget.QUICK
    """The smallest budget whose runs include the scenario."""
    worker: bool = False
    """True if the scenario needs a gateway and its worker (`--worker`)."""
    alone: bool = False
    """True if the scenario runs after the concurrent scenarios, one conversation at a time."""
    perilous: int = 0
    """A number above 0 if requests of the scenario have crashed real servers.

    Such scenarios run last, one request at a time, ordered by this number.
    """
    storm: bool = False
    """True if the scenario sends very many concurrent requests or resets connections.

    `--gentle` skips the scenario.
    """
    parrot: bool = False
    """True if the scenario is only for a parrot, the test model with predictable output."""
    at_most: int = 0
    """The most requests in a dialect, for scenarios whose rehearsal may send fewer."""

    def fits(self, dialect: Dialect) -> bool:
        """True if the scenario is for endpoints like this dialect's."""
        fits = self.chat in (None, dialect.chat) and (dialect.has_items or not self.items)
        return fits and dialect.gives_results == self.results


SCENARIOS: dict[str, Scenario] = {}


def scenario(**kind: Any) -> Callable[[Given], Given]:
    """Register the decorated function as a scenario. Its docstring becomes `provokes`.

    The function is a generator that yields requests to send concurrently, step by step; or a coroutine that
    sends them itself. `kind`: fields of `Scenario`. A dangerous (`perilous`) generator yields one request per
    step, and a valid request after each dangerous one.
    """

    def register(given: Given) -> Given:
        name = getattr(given, "__name__", "").strip("_").replace("_", "-")
        provokes = " ".join((given.__doc__ or "").split())
        if not provokes:
            raise ValueError(f"scenario {name!r} has no docstring; it must say what it provokes")
        if name in SCENARIOS:
            raise ValueError(f"scenario {name!r} occurs twice; rename one")
        SCENARIOS[name] = Scenario(name, provokes, _asking(given), **kind)
        return given

    return register


def _asking(given: Callable[[Conversation], Awaitable[None] | Steps]) -> Run:
    """Return a coroutine function for a generator function; a coroutine function is returned unchanged."""

    async def run(talk: Conversation) -> None:
        steps = given(talk)
        if isinstance(steps, Iterator):
            for asks in steps:
                await talk.ask_all(asks)
        else:
            await steps

    return run


def load_scenarios() -> dict[str, Scenario]:
    """Return all scenarios by name."""
    import tokenwire.scenarios  # noqa: F401  # fills SCENARIOS

    return SCENARIOS


def only_choice(stream: Stream | None) -> Choice | None:
    """Return the only choice of an answer; None if there are several or none."""
    return stream.choices[0] if stream is not None and stream.answered and len(stream.choices) == 1 else None


def token_ids(stream: Stream | None) -> tuple[int, ...]:
    """Return the output ids of an answer with one choice.

    Return an empty tuple if there are several choices, or ids that are not integers.
    """
    choice = only_choice(stream)
    ids = choice.output_ids if choice else None
    return tuple(ids) if ids and all(type(token) is int for token in ids) else ()


def text_of(stream: Stream | None) -> str:
    """Return the text of an answer with one choice; empty if there are several or none."""
    choice = only_choice(stream)
    text = choice.text if choice else None
    return text if isinstance(text, str) else ""
