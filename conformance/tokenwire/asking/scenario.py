"""Scenarios: the requests to a target, and the behaviour that each provokes.

A scenario yields its requests as data. If an answer decides the next request, for example the stop string
that will match, the scenario is a coroutine and uses a conversation. It does not judge.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from tokenwire.ask import Ask, Budget, in_words
from tokenwire.asking.tap import SlowReader, Tap
from tokenwire.dialects.control import Control, ControlCall, load_controls
from tokenwire.dialects.dialect import Dialect, Unsupported, vocabulary_told
from tokenwire.parrot.speaker import Speaker
from tokenwire.record import Choice, Stream
from tokenwire.target.advertised import Advertised
from tokenwire.target.determinism import AnswerPair
from tokenwire.target.tokenizer import LocalTokenizer, Tokenizer
from tokenwire.wire.exchange import Exchange, HttpRequest, exchange_name

PROMPT = (73, 39, 78, 220, 112, 31, 66, 205, 97, 154, 18, 243)
"""The ids of most prompts, small so that they are valid in nearly every vocabulary."""

_WORDS_TOKENS = 64
"""An upper bound of the tokens in the short texts and messages of scenarios."""

_READ_BYTES = 8_000_000
"""The most bytes of a stream, slightly less than the recorder's limit."""
_READ_EVENTS = 4000
"""The most events of a stream, slightly less than the recorder's limit."""
_AROUND = 1000
"""Bytes of an event that do not depend on tokens: names, counters, the request id."""
_PER_TOKEN = 30
"""Bytes of a token in an event: its id, its text, and series of a sampler."""


_INTERVALS = {
    Budget.QUICK: (1, 7),
    Budget.STANDARD: (1, 3, 7, 50),
    Budget.SOAK: (1, 2, 3, 7, 16, 50, 1000),
}
"""Values of stream_interval; the last exceeds the tokens of most answers."""


Asks = Mapping[str, Ask | HttpRequest]
"""Concurrent requests, by label."""


class NotAsked(Exception):  # noqa: N818  # not an error: the run may ask no more; the message says why
    """The dialect cannot express a request, or the sender may not send it."""


_Result = TypeVar("_Result")


async def together(*doings: Coroutine[Any, Any, _Result]) -> list[_Result]:
    """Run coroutines concurrently. If one fails, cancel the others, so that no request is sent after a
    run.
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
    """A sender of requests: the recorder, or a stand-in in tests. Raises NotAsked if it may not send."""

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
    """The answers in the order in which they ended, and the skipped requests."""

    streams: list[Stream] = field(default_factory=list)
    tokenizer: Tokenizer | None = None
    """A local tokenizer; otherwise the server's own, once it has returned texts."""
    not_asked: dict[str, str] = field(default_factory=dict)
    """Requests that a dialect cannot express, or that the limits forbid, with the reason."""
    beside: list[AnswerPair] = field(default_factory=list)
    """Answers of a gateway and its worker to the same requests, in pairs."""
    exhibits: list[Stream] = field(default_factory=list)
    """The worker's answers to the requests of the gateway's failures."""
    on_answer: Callable[[Stream], None] = lambda _: None
    """Called with each answer, for a progress bar."""
    calls: list[ControlCall] = field(default_factory=list)
    """Control calls: aborts, flushes and load queries."""


@dataclass(frozen=True)
class Conversation:
    """The requests and answers of one scenario at one endpoint."""

    scenario: str
    dialect: Dialect
    sender: Sender
    advertised: Advertised
    transcript: Transcript
    model: str = ""
    """The model's name in requests; empty to leave it out."""
    budget: Budget = Budget.STANDARD
    """The budget of the run. With a larger one, a scenario may send more kinds of requests."""
    parrot: Speaker | None = None
    """Writes prompts for a target that is a parrot; None for others."""
    tool_calls: str = ""
    """The model's form of tool calls; empty if it has to be detected."""
    declared: frozenset[str] = frozenset()
    """Capabilities that the user declares. A scenario may send some requests only with these."""

    @property
    def intervals(self) -> tuple[int, ...]:
        """Return the values of stream_interval within the run's budget, smallest first."""
        return _INTERVALS[self.budget]

    @property
    def vocabulary_size(self) -> int | None:
        """Return the number of ids of the target, by its own information, a refusal, or a local tokenizer."""
        reported, local = vocabulary_told(self.transcript.streams), self.transcript.tokenizer
        size = local.size if isinstance(local, LocalTokenizer) else None
        return self.advertised.vocab_size or reported or size

    @property
    def chat(self) -> bool:
        """True if this endpoint takes messages."""
        return self.dialect.chat

    def can_say(self, ask: Ask) -> bool:
        """True if the dialect can express an ask completely."""
        return self.dialect.can_say(ask, self.model)

    def fitting(self, max_new_tokens: int, prompt_tokens: int = len(PROMPT)) -> int:
        """Return the number of tokens, reduced to fit into the context with the prompt."""
        room = self.advertised.context - prompt_tokens - 8
        return max(1, min(max_new_tokens, room))

    @staticmethod
    def readable(choices: int = 1) -> int:
        """Return the most tokens of each choice whose stream fits into the recorder's limits. This
        assumes one event for each token, with all tokens so far.
        """
        room = _READ_BYTES / choices
        # Each event has all tokens so far, so n events are n * _AROUND + _PER_TOKEN * n² / 2 bytes.
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
        """Send one request; None if the dialect cannot express it, or the limits forbid it.

        A label occurs once in a scenario. With the dialect it names the exchange. `tap` follows the progress
        of the answer, and can hang up. An `HttpRequest` is sent unchanged.
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
        """Return the request for an ask, with the tokens reduced to the context, and ids as words if only
        text is accepted.

        Raises NotAsked if the dialect cannot express it.
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
        """Return the name of the exchange with this label."""
        return exchange_name(self.scenario, label, self.dialect.name)

    def _read(self, exchange: Exchange) -> Stream:
        advertised = self.advertised
        read = self.dialect.read(exchange, delivery_hint=advertised.delivery, adapters=advertised.adapters)
        # packed, because a run keeps all exchanges until they are judged
        stream = replace(read, exchange=exchange.packed())
        self.transcript.streams.append(stream)
        self.transcript.on_answer(stream)
        return stream

    def recall(self, exchange: Exchange) -> None:
        """Add an exchange of an earlier run."""
        if (call := self.control.read(exchange)) is not None:
            self.transcript.calls.append(call)
        else:
            self._read(exchange)

    @property
    def control(self) -> Control:
        """Return the control endpoints of the target's family."""
        family = self.dialect.family
        return load_controls().get(family, Control(family, {}))

    async def call(self, label: str, request: HttpRequest) -> ControlCall | None:
        """Send a request to a control endpoint at once, without a limit of concurrency.

        Returns None if the limits forbid it, or if the request is not a control call.
        """
        name = self.name_of(label)
        try:
            exchange = await self.sender.send(name, self.scenario, request, aside=True)
        except NotAsked as reason:
            self.transcript.not_asked[name] = str(reason)
            return None
        if (call := self.control.read(exchange)) is not None:
            self.transcript.calls.append(call)
        return call

    @property
    def id_prefix(self) -> str:
        """Return the prefix that the server's answers put before a client's request id."""
        policy = self.dialect.policy
        if policy.request_id_prefix_is_optional and any(map(self._tells_id_bare, self.transcript.streams)):
            return ""
        return policy.request_id_prefix

    def _tells_id_bare(self, stream: Stream) -> bool:
        """True if an answer of this endpoint carries the client's request id without the prefix."""
        sent_id = stream.asked.request_id
        if sent_id is None or stream.dialect != self.dialect.name:
            return False
        first = next(iter(stream.emissions()), None)
        return first is not None and first.details.get("request_id") == sent_id

    async def abort(self, label: str, request_id: str, *, as_sent: bool = False) -> ControlCall | None:
        """Abort one request by its client's id, with the prefix of the server's answers or as it was sent.

        Returns None if the family cannot abort requests of this endpoint.
        """
        named = request_id if as_sent else f"{self.id_prefix}{request_id}"
        request = self.control.abort_request(named, self.dialect.endpoint.path)
        if request is None:
            self.transcript.not_asked[self.name_of(label)] = f"{self.dialect.name} has no abort by id"
            return None
        return await self.call(label, request)

    async def ask_all(self, asks: Asks, *, slow_reader: SlowReader | None = None) -> dict[str, Stream]:
        """Send several requests concurrently; return the answers to those that the dialect can express, by
        label.
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
    """A named set of requests."""

    name: str
    provokes: str
    """The provoked behaviour and its evidence, in a sentence or two."""
    run: Run
    chat: bool | None = None
    """True: only for endpoints with messages. False: only for others. None: for all."""
    items: bool = False
    """True if it is only for endpoints that answer with typed items."""
    results: bool = False
    """True if it is for endpoints that return results without sampling. They run only such scenarios."""
    budget: Budget = Budget.QUICK
    """The smallest budget that includes it."""
    worker: bool = False
    """True if it is only for a gateway with a named worker."""
    alone: bool = False
    """True if it runs after all others, with no concurrent requests."""
    perilous: int = 0
    """Above 0, the scenario sends requests that killed real servers.

    It runs after all others, one request at a time, in the order of this number over all dialects.
    """
    storm: bool = False
    """True if it sends very many concurrent requests or resets connections, which is too much for a shared
    server.
    """
    parrot: bool = False
    """True if it is only for a target that is a parrot; its conversations have a `parrot`."""
    at_most: int = 0
    """The most requests to an endpoint, if a rehearsal may underestimate them."""

    def fits(self, dialect: Dialect) -> bool:
        """True if the scenario is for an endpoint of this kind."""
        fits = self.chat in (None, dialect.chat) and (dialect.has_items or not self.items)
        return fits and dialect.gives_results == self.results


SCENARIOS: dict[str, Scenario] = {}


def scenario(**kind: Any) -> Callable[[Given], Given]:
    """Register a function as the scenario of its name; its docstring describes what it provokes.

    The function yields concurrent requests, step by step, or it is a coroutine that sends them. `kind`:
    fields of `Scenario`. A perilous one sends one request at a time, and after each bad one a valid one as
    its control.
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
    """Return a coroutine function: a coroutine function unchanged, or one that sends the yielded asks."""

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
    """Return the choice of an answer with exactly one; None otherwise."""
    return stream.choices[0] if stream is not None and stream.answered and len(stream.choices) == 1 else None


def token_ids(stream: Stream | None) -> tuple[int, ...]:
    """Return the output ids of an answer with one choice; empty if it has none, or not integers."""
    choice = only_choice(stream)
    ids = choice.output_ids if choice else None
    return tuple(ids) if ids and all(type(token) is int for token in ids) else ()


def text_of(stream: Stream | None) -> str:
    """Return the text of an answer with one choice; empty without one."""
    choice = only_choice(stream)
    text = choice.text if choice else None
    return text if isinstance(text, str) else ""
