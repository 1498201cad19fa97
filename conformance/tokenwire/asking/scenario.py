"""Scenarios: what is asked of a target, and what each asking provokes.

A scenario yields what it asks for, as data. If an answer decides what to ask next, for example which stop
string will match, it is a coroutine and asks through a conversation. It judges nothing.
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
"""The ids that most requests send: small, so that they are valid in nearly every vocabulary."""

_WORDS_TOKENS = 64
"""More tokens than the short texts and messages of scenarios have."""

_READ_BYTES = 8_000_000
"""Of a stream that the recorder reads to its end; a little less than it may read."""
_READ_EVENTS = 4000
"""The most events of a stream; a little less than it may read."""
_AROUND = 1000
"""Bytes of an event that say nothing of tokens: names, counters, the id of the request."""
_PER_TOKEN = 30
"""Bytes that a token takes in an event: its id, its text, what a sampler attaches."""


_INTERVALS = {
    Budget.QUICK: (1, 7),
    Budget.STANDARD: (1, 3, 7, 50),
    Budget.SOAK: (1, 2, 3, 7, 16, 50, 1000),
}
"""Values of stream_interval; the last is more than most answers have tokens."""


Asks = Mapping[str, Ask | HttpRequest]
"""Requests that are sent at once, by label."""


class NotAsked(Exception):  # noqa: N818  # not an error: the run may ask no more; the message says why
    """A dialect cannot say a request, or a sender may not send it."""


Answer = TypeVar("Answer")


async def together(*doings: Coroutine[Any, Any, Answer]) -> list[Answer]:
    """Run coroutines concurrently; if one fails, cancel the others: no request is sent after a run."""
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
    """The answers in the order in which they ended, and what was not asked."""

    streams: list[Stream] = field(default_factory=list)
    tokenizer: Tokenizer | None = None
    """A local tokenizer; without one, the server's own, once it was asked for texts."""
    not_asked: dict[str, str] = field(default_factory=dict)
    """Exchanges that a dialect cannot express, or that the run may not send, with the reason."""
    beside: list[AnswerPair] = field(default_factory=list)
    """Where a gateway and its worker were asked the same: their answers, side by side."""
    on_answer: Callable[[Stream], None] = lambda _: None
    """Called with each answer; for a progress bar."""
    calls: list[ControlCall] = field(default_factory=list)
    """Control calls: aborts, flushes, loads."""


@dataclass(frozen=True)
class Conversation:
    """One scenario's talk with one endpoint of the target."""

    scenario: str
    dialect: Dialect
    sender: Sender
    advertised: Advertised
    transcript: Transcript
    model: str = ""
    """The name of the model in requests; empty if any will do."""
    budget: Budget = Budget.STANDARD
    """What this run may ask; a scenario may ask in more shapes where it allows more."""
    parrot: Speaker | None = None
    """Makes prompts for a target that is a parrot; None for others."""
    tool_calls: str = ""
    """The form in which the model writes tool calls; empty if that is to be found out."""
    declared: frozenset[str] = frozenset()
    """Capabilities that the user says the target has; a scenario may need one as leave to ask."""

    @property
    def intervals(self) -> tuple[int, ...]:
        """The values of stream_interval that the run's budget pays for, smallest first."""
        return _INTERVALS[self.budget]

    @property
    def vocabulary_size(self) -> int | None:
        """The number of ids of the target, by its own information, by a refusal, or by a local tokenizer."""
        reported, local = vocabulary_told(self.transcript.streams), self.transcript.tokenizer
        size = local.size if isinstance(local, LocalTokenizer) else None
        return self.advertised.vocab_size or reported or size

    @property
    def chat(self) -> bool:
        """True if this endpoint takes messages."""
        return self.dialect.chat

    def can_say(self, ask: Ask) -> bool:
        """True if the endpoint has a request for all that an ask wants."""
        return self.dialect.can_say(ask, self.model)

    def fitting(self, max_new_tokens: int, prompt_tokens: int = len(PROMPT)) -> int:
        """Return a budget, cut to what the target's context holds beside the prompt."""
        room = self.advertised.context - prompt_tokens - 8
        return max(1, min(max_new_tokens, room))

    @staticmethod
    def readable(choices: int = 1) -> int:
        """Return the most tokens of each choice whose stream the recorder reads to its end, however it is
        cut: an event for each token, and in it all tokens so far.
        """
        room = _READ_BYTES / choices
        # Each event holds all tokens so far, so n events are n * _AROUND + _PER_TOKEN * n² / 2 bytes.
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
        """Ask for one exchange; None if the dialect cannot express it, or the run may not send more.

        A label occurs once in a scenario. With the dialect it names the exchange. `tap` follows the progress
        of the answer, and can hang up. A request that no dialect would write is sent as it is.
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
        """Return the request for an ask: its budget within the context, ids in words where only texts are
        taken.

        Raises NotAsked if the dialect has no words for it.
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
        """Return the name of the exchange that has this label."""
        return exchange_name(self.scenario, label, self.dialect.name)

    def _read(self, exchange: Exchange) -> Stream:
        advertised = self.advertised
        read = self.dialect.read(exchange, delivery_hint=advertised.delivery, adapters=advertised.adapters)
        stream = replace(read, exchange=exchange.packed())  # a run keeps all of them until it was judged
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
        """The control endpoints of the target's family, as far as any are known."""
        family = self.dialect.family
        return load_controls().get(family, Control(family, {}))

    async def call(self, label: str, request: HttpRequest) -> ControlCall | None:
        """Send a request to a control endpoint, at once, however many others are under way.

        None if the run may ask no more, or for a request that is not a call.
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
        """The prefix that the server's answers put before the id that a client gave its request."""
        policy = self.dialect.policy
        if policy.request_id_prefix_is_optional and any(map(self._tells_id_bare, self.transcript.streams)):
            return ""
        return policy.request_id_prefix

    def _tells_id_bare(self, stream: Stream) -> bool:
        """True if an answer of this endpoint carries the id that its client chose, without the prefix."""
        sent_id = stream.asked.request_id
        if sent_id is None or stream.dialect != self.dialect.name:
            return False
        first = next(iter(stream.emissions()), None)
        return first is not None and first.details.get("request_id") == sent_id

    async def abort(self, label: str, request_id: str, *, as_sent: bool = False) -> ControlCall | None:
        """Abort one request by the id that its client gave it, as the server's answers
        carry it or as it was sent; None if the family has no way to, for this endpoint.
        """
        named = request_id if as_sent else f"{self.id_prefix}{request_id}"
        request = self.control.abort_request(named, self.dialect.endpoint.path)
        if request is None:
            self.transcript.not_asked[self.name_of(label)] = f"{self.dialect.name} has no abort by id"
            return None
        return await self.call(label, request)

    async def ask_all(self, asks: Asks, *, slow_reader: SlowReader | None = None) -> dict[str, Stream]:
        """Ask for several exchanges at once; those that the dialect has words for, by label."""
        answers = await together(
            *(self.ask(label, ask, slow_reader=slow_reader) for label, ask in asks.items())
        )
        return {label: answer for label, answer in zip(asks, answers, strict=True) if answer is not None}


Run = Callable[[Conversation], Awaitable[None]]
Steps = Iterator[Asks]
Given = TypeVar("Given", Run, Callable[[Conversation], Steps])


@dataclass(frozen=True)
class Scenario:
    """A named asking."""

    name: str
    provokes: str
    """The thing that it provokes, and how to see it, in a sentence or two."""
    run: Run
    chat: bool | None = None
    """Only for endpoints that talk in messages (True), only for the others (False), or for all (None)."""
    items: bool = False
    """Only for endpoints that answer with typed items."""
    results: bool = False
    """For endpoints that sample nothing and answer with results; no other is asked of them."""
    budget: Budget = Budget.QUICK
    """The smallest budget that pays for it."""
    worker: bool = False
    """Asked only of a gateway and of the worker behind it, if one is named."""
    alone: bool = False
    """Asked after all others, while nothing else of the run is under way."""
    perilous: int = 0
    """Above 0, the scenario sends what real servers died of. It is asked when all else was, one exchange at a
    time; what is more perilous comes later, over all dialects.
    """
    storm: bool = False
    """It sends very many requests at once, or resets connections: too much for a server that others use."""
    parrot: bool = False
    """Only for a target that is a parrot: its conversations have a `parrot`."""
    at_most: int = 0
    """The most requests to an endpoint, if real answers may lead to more than rehearsed ones."""

    def fits(self, dialect: Dialect) -> bool:
        """True if an endpoint of this kind is asked this scenario."""
        fits = self.chat in (None, dialect.chat) and (dialect.has_items or not self.items)
        return fits and dialect.gives_results == self.results


SCENARIOS: dict[str, Scenario] = {}


def scenario(**kind: Any) -> Callable[[Given], Given]:
    """Make a function a scenario, named like it; its docstring says what it provokes. The function yields
    what is asked at once, one step after the other, or it is a coroutine that asks. `kind`: fields of
    `Scenario`.

    A perilous one sends one request at a time, and behind each bad one a good one: its control.
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
    """Return a coroutine as it is, and of a function that yields asks the one that asks for them."""

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
    """Return the one choice of an answer that carries exactly one; None if there is no such answer."""
    return stream.choices[0] if stream is not None and stream.answered and len(stream.choices) == 1 else None


def token_ids(stream: Stream | None) -> tuple[int, ...]:
    """Return the output ids of an answer with one choice; empty if it has none or where they are not ids."""
    choice = only_choice(stream)
    ids = choice.output_ids if choice else None
    return tuple(ids) if ids and all(type(token) is int for token in ids) else ()


def text_of(stream: Stream | None) -> str:
    """Return the text of an answer with one choice; empty if there is none."""
    choice = only_choice(stream)
    text = choice.text if choice else None
    return text if isinstance(text, str) else ""
