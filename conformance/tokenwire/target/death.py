"""Death: a server that stopped answering, and the request that it most likely died of.

It is inferred from the exchanges alone, so a replay sees what the live run saw. Exchanges that the death cut
off only show that the server died: they are neither witnesses nor violations of anything else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tokenwire.dialects.control import ControlCall
from tokenwire.dialects.dialect import is_chat
from tokenwire.record import Answer, integer
from tokenwire.wire.exchange import Ending, ExchangeHead

VITALS = "vitals"
"""The scenario of a small good request that tells whether the server still answers."""
RESTARTED = "restarted"
"""The scenario of the first request that a server answers after it was started again."""

DIED = "the server died"
"""What is found where an answer should have been."""

_NO_ROOM_NOW = 503
NO_ROOM = frozenset({501, _NO_ROOM_NOW})
"""Statuses of a server that is well: it does not offer this, or has no room now."""
IN_A_ROW = 8
"""The requests in a row without an answer, and without answered ones after them, that are not an accident."""
UNSATISFIABLE = 2
"""The suspicion of a request whose fields are legal one by one and cannot be kept together."""
ORDINARY = 9
"""The suspicion of a request that holds nothing bad; less means more."""

_BROKEN = frozenset({Ending.TIMEOUT, Ending.UNREACHABLE, Ending.TRUNCATED})
_NOT_LISTENING = ("ConnectError", "ConnectionRefusedError")
_MOST_NAMED = 3
"""Requests that a sentence names where one of many was the cause."""
_CLOCK_S = 0.001
"""The unit to which an exchange's start is rounded."""

Suspicion = Callable[[Answer], int]


@dataclass(frozen=True)
class Death:
    """One end of the server."""

    of: Answer
    """The request that it most likely died of."""
    suspects: int
    """The number of requests under way; with one, nothing else can have been the cause."""
    cut: frozenset[str]
    """The exchanges that got no answer for it, by name; the likeliest cause is among them."""
    early: bool
    """It cut requests that have nothing to do with its cause: the asking was far from its end."""
    final: bool
    """The server was not started again."""
    began: float | None = None
    """When the last sign of life came, in seconds of the Unix epoch."""
    ended: float | None = None
    """When the first request failed for it."""
    call: ExchangeHead | None = None
    """The control call that it most likely died of, rather than of a request."""
    equals: tuple[str, ...] = ()
    """Other requests that are as likely to be the cause, by name."""

    @property
    def name(self) -> str:
        return (self.call or self.of.exchange).name

    @property
    def blamed(self) -> str:
        """The request that it died of, in words."""
        return f"{self.name} or a request beside it" if self.equals else self.name

    @property
    def _candidates(self) -> str:
        """The requests that are as likely as each other, in words."""
        named = ", ".join((self.name, *self.equals[: _MOST_NAMED - 1]))
        more = f" and {len(self.equals) - _MOST_NAMED + 1} more" if len(self.equals) >= _MOST_NAMED else ""
        return f"one of {len(self.equals) + 1} requests ({named}{more})"

    @property
    def words(self) -> str:
        """A description of what happened, as a clause."""
        silent = "it answered, and then answered nothing else"
        how = _no_answer(self.call) if self.call is not None else failure(self.of) or silent
        probes = (VITALS, RESTARTED)  # the suite's own, sent when the server was dead
        others = {name for name in self.cut if not any(f"/{probe}/" in name for probe in probes)} - {
            self.name
        }
        cut = f"; {len(others)} other requests were cut" if others else ""
        if self.suspects == 1:
            return f"the server died of this request ({how}){cut}"
        likely = f"most likely of {self._candidates if self.equals else 'this one'}"
        return f"the server died with {self.suspects} requests under way, {likely} ({how}){cut}"


def nobody_listened(exchange: ExchangeHead) -> bool:
    """True if no server took the connection, so that the request reached nobody."""
    return exchange.ending is Ending.UNREACHABLE and exchange.detail.startswith(_NOT_LISTENING)


def failure(stream: Answer) -> str:
    """Describe how the server itself failed at a request; empty if it did not."""
    exchange = stream.exchange
    # A stream that breaks off is judged by stream-ends-cleanly.
    if exchange.status is None or (exchange.ending in _BROKEN and not stream.asked.stream):
        return _no_answer(exchange)
    if exchange.ending in {Ending.OUTGROWN, Ending.TIMEOUT}:
        return f"{exchange.ending}: {exchange.detail or 'no end'}"
    wrong = [code for code in codes_of(stream) if code >= 500 and code not in NO_ROOM]
    return f"status {wrong[0]}" if wrong else ""


def _no_answer(exchange: ExchangeHead) -> str:
    return f"{exchange.ending}: {exchange.detail or 'no reason known'}"


def codes_of(stream: Answer) -> list[int]:
    """The statuses that an answer has: its own, that of its error, those of choices that failed."""
    codes = [stream.exchange.status, error_code(stream.error)]
    finishes = (choice.finish for choice in stream.choices)
    codes += [integer(finish.code) for finish in finishes if finish is not None and finish.failed]
    return [code for code in codes if code is not None]


def error_code(error: object) -> int | None:
    """Return the numeric code of an error, wherever it is."""
    if not isinstance(error, Mapping):
        return None
    nested = error.get("error")
    return integer((nested if isinstance(nested, Mapping) else error).get("code"))


@dataclass(frozen=True)
class _Timed:
    """A stream with the times of its exchange, in seconds of one clock."""

    stream: Answer
    begun: float

    @property
    def over(self) -> float:
        return self.begun + self.stream.exchange.duration

    @property
    def sign(self) -> float | None:
        """The time of the last output of the model; None if there was none."""
        exchange = self.stream.exchange
        reported = exchange.status == 200 and self.stream.answered
        return self.begun + exchange.last_read if reported and exchange.last_read is not None else None

    @property
    def talk(self) -> tuple[str, str]:
        return self.stream.exchange.scenario, self.stream.dialect

    @property
    def failed(self) -> bool:
        """True if the server, or a proxy before it, gave no answer of its own, and was not interrupted."""
        exchange = self.stream.exchange
        if exchange.ending in {Ending.CANCELLED, Ending.HUNG_UP}:
            return False
        # A gateway may answer 503 for a server that is gone; that alone shows no death (`_is_dead`).
        return (
            bool(failure(self.stream))
            or exchange.ending is Ending.TRUNCATED
            or exchange.status == _NO_ROOM_NOW
        )

    @property
    def open(self) -> bool:
        """True if its end is not known: the suite ended it, or it was closed without a finish."""
        finishes = [choice.finish for choice in self.stream.choices]
        return self.stream.exchange.ending is Ending.CANCELLED or None in finishes


def _timed(streams: Iterable[Answer]) -> list[_Timed]:
    """The streams in the order of time; none where their times are not known."""
    try:
        timed = [
            _Timed(stream, datetime.fromisoformat(stream.exchange.started).timestamp()) for stream in streams
        ]
    except ValueError:
        return []
    return sorted(timed, key=lambda sent: sent.begun)


def _lives(streams: Iterable[Answer]) -> Iterator[list[_Timed]]:
    """Yield the requests from each start of the server to its end."""
    life: list[_Timed] = []
    for sent in _timed(streams):
        if sent.stream.exchange.scenario == RESTARTED and sent.stream.answered:
            yield life
            life = []
        life.append(sent)
    yield life


def closed_silently(exchange: ExchangeHead) -> bool:
    """True if a server took a connection and closed it before it sent a byte."""
    unanswered = exchange.status is None and exchange.ending is Ending.UNREACHABLE
    return unanswered and not exchange.detail.startswith(_NOT_LISTENING)


def question_of(stream: Answer) -> tuple[str, str]:
    """Return what a request asks, and of which endpoint."""
    request = stream.exchange.load().request
    body: Any = request.body if request.raw_body is None else repr(request.raw_body)
    return request.path, json.dumps(body, sort_keys=True)


def clouded(streams: Iterable[Answer], suspicion: Suspicion) -> frozenset[str]:
    """The bad requests that failed as the good one behind them did, by name.

    Whether the server would have refused them is not known.
    """
    found: set[str] = set()
    bad: dict[tuple[str, str], Answer] = {}
    for stream in streams:
        talk = (stream.exchange.scenario, stream.dialect)
        if suspicion(stream) < ORDINARY:
            bad[talk] = stream
        elif (before := bad.pop(talk, None)) is not None and failure(before) and failure(stream):
            found.add(before.exchange.name)
    return frozenset(found)


def deaths(
    streams: Iterable[Answer], suspicion: Suspicion, calls: Iterable[ControlCall] = ()
) -> tuple[Death, ...]:
    """Find the ends of the server in a run, in order. `suspicion` ranks how bad a request is."""
    unanswered = [
        call.exchange
        for call in calls
        # A call that met nobody who listened came after the end.
        if call.exchange.ending in _BROKEN and not call.exchange.detail.startswith(_NOT_LISTENING)
    ]
    lives = list(_lives(streams))
    found: list[Death] = []
    # Backwards: a request that a later life ended in, once more, is the likelier suspect of an earlier end.
    for number, life in reversed(list(enumerate(lives))):
        killers = [question_of(death.of) for death in found]
        death = _end(life, suspicion, killers, unanswered, final=number + 1 == len(lives))
        if death is not None:
            found.append(death)
    return tuple(reversed(found))


def _end(
    life: Sequence[_Timed],
    suspicion: Suspicion,
    killers: Sequence[tuple[str, str]],
    unanswered: Sequence[ExchangeHead],
    *,
    final: bool,
) -> Death | None:
    """Return the death that a life ended in; None if it did not, or if that is not decidable.

    `killers`: requests that a later life ended in; `unanswered`: control calls that were cut.
    """
    signs = [sent for sent in life if sent.sign is not None]
    if not signs:
        return None
    last = max(signs, key=lambda sent: sent.sign or 0.0)
    # It lived at its last sign and was dead at the first failure: it died of what was under way between.
    since = (last.sign or 0.0) - _CLOCK_S
    left = [sent for sent in life if sent.over >= since and (sent.failed or sent.open)]
    failed = [sent for sent in left if sent.failed]
    if not _is_dead(failed, signs):
        return None
    until = min(sent.over for sent in failed)
    under_way = [sent for sent in left if sent.begun <= until and sent.stream.exchange.scenario != VITALS]
    reported = [
        sent for sent in life if sent is last or (since <= sent.begun <= until and sent not in under_way)
    ]
    of, *equals = _suspects(under_way, reported, suspicion, killers)
    cut = {sent.stream.exchange.name for sent in left}
    cut |= {sent.stream.exchange.name for sent in life if sent.begun > until}
    cut |= {of.stream.exchange.name}
    strangers = any(sent.talk != of.talk and sent.stream.exchange.scenario != VITALS for sent in left)
    # Hostile requests come last and may end a server; an end amid ordinary ones leaves rows undecided.
    early = strangers or suspicion(of.stream) >= ORDINARY
    call = next((call for call in unanswered if _met(call, since, until)), None)
    # A bad request that was under way is the likelier cause.
    call = call if suspicion(of.stream) >= ORDINARY else None
    suspects = max(1, len(under_way))
    names = () if call is not None else tuple(sent.stream.exchange.name for sent in equals)
    return Death(of.stream, suspects, frozenset(cut), early, final, since, until, call, names)


def _met(call: ExchangeHead, since: float, until: float) -> bool:
    """True if a call was under way between the last sign of life and the first failure."""
    try:
        begun = datetime.fromisoformat(call.started).timestamp()
    except ValueError:
        return False
    return begun <= until and begun + call.duration >= since


def _is_dead(failed: Sequence[_Timed], signs: Sequence[_Timed]) -> bool:
    """True if the failures at the end of a life show that the server could not answer any more.

    One failure may be the request's own fault. A second one is needed: of a connection, of a request that had
    been answered before, or many more. A server that answers 503 has no room, but lives, so that proves
    nothing.
    """
    failed = [sent for sent in failed if not _has_no_room(sent)]
    if len(failed) < 2:
        return False
    if len(failed) >= IN_A_ROW:
        return True
    answered = {question_of(sent.stream) for sent in signs}
    return any(
        sent.stream.exchange.scenario == VITALS
        or sent.stream.exchange.detail.startswith(_NOT_LISTENING)
        or question_of(sent.stream) in answered
        for sent in failed
    )


def _has_no_room(sent: _Timed) -> bool:
    exchange = sent.stream.exchange
    return exchange.status == _NO_ROOM_NOW and exchange.ending is Ending.COMPLETE


def _suspects(
    under_way: Sequence[_Timed],
    reported: Sequence[_Timed],
    suspicion: Suspicion,
    killers: Sequence[tuple[str, str]],
) -> list[_Timed]:
    """Return the likeliest causes, all of one rank, the first to name first.

    What killed the server again is the cause. Otherwise what is bad is likelier than what is not. Of
    ordinary requests none is likelier than another; the one that came last before the end is named first.

    `reported`: requests that were answered so shortly before the end that they may have been the cause too.
    """
    # What met nobody who listened came too late to be the cause.
    met = [sent for sent in under_way if not sent.stream.exchange.detail.startswith(_NOT_LISTENING)]
    under_way = met or under_way
    again = [sent for sent in under_way if question_of(sent.stream) in killers]
    if again:
        return again[:1]
    ranks = {id(sent): suspicion(sent.stream) for sent in (*under_way, *reported)}
    # Legal values that were answered cannot be the cause; a bad value may end a server behind its answer.
    bad = [sent for sent in under_way if ranks[id(sent)] < ORDINARY]
    bad += [sent for sent in reported if ranks[id(sent)] < UNSATISFIABLE]
    if bad:
        worst = min(ranks[id(sent)] for sent in bad)
        # Of two that began together, a prompt that need not be rendered first reaches the model first.
        return sorted(
            (sent for sent in bad if ranks[id(sent)] == worst),
            key=lambda sent: (sent.begun, is_chat(sent.stream)),
        )
    return sorted(under_way or reported, key=lambda sent: sent.begun, reverse=True)
