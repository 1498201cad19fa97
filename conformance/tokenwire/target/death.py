"""Deaths of the server: the time at which the server stopped answering, and the request that most likely
caused the death. Deaths are inferred from the exchanges alone, so that a replay finds the same deaths as the
live run. Exchanges that a death cut off show only that the server died. Such exchanges are neither
witnesses nor violations of any requirement.
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
"""The scenario with a small valid request, which tests if the server still answers."""
RESTARTED = "restarted"
"""The scenario of the first answered request after a restart."""

DIED = "the server died"
"""The description of an exchange that a death cut off."""

_NO_ROOM_NOW = 503
NO_ROOM = frozenset({501, _NO_ROOM_NOW})
"""Statuses of a healthy server that lacks a feature, or that has no capacity now."""
IN_A_ROW = 8
"""The number of unanswered requests, with no answer after them, that proves a death."""
UNSATISFIABLE = 2
"""The suspicion of a request whose fields are valid, but cannot be satisfied together."""
ORDINARY = 9
"""The suspicion of a valid request. A smaller number means a more suspicious request."""

_BROKEN = frozenset({Ending.TIMEOUT, Ending.UNREACHABLE, Ending.TRUNCATED})
_NOT_LISTENING = ("ConnectError", "ConnectionRefusedError")
_MOST_NAMED = 3
"""The maximum number of requests that a message names if any of them may be the cause."""
_CLOCK_S = 0.001
"""The precision of the start time of an exchange, in seconds."""

Suspicion = Callable[[Answer], int]


@dataclass(frozen=True)
class Death:
    """One death of the server."""

    of: Answer
    """The request that most likely caused the death."""
    suspects: int
    """The number of requests that were running. If it is 1, this request is the cause."""
    cut: frozenset[str]
    """Names of the exchanges that the death cut off, including its most likely cause."""
    early: bool
    """True if the death cut off requests unrelated to its cause, so that the run was far from its end."""
    final: bool
    """True if the server was not restarted."""
    began: float | None = None
    """The time of the last sign of life, in seconds since the Unix epoch."""
    ended: float | None = None
    """The time of the first failed request, in seconds since the Unix epoch."""
    call: ExchangeHead | None = None
    """The control request that most likely caused the death. None if another request did."""
    equals: tuple[str, ...] = ()
    """Names of further requests that are equally likely to be the cause."""

    @property
    def name(self) -> str:
        return (self.call or self.of.exchange).name

    @property
    def blamed(self) -> str:
        """The name of the most likely cause, for a message."""
        return f"{self.name} or a request beside it" if self.equals else self.name

    @property
    def _candidates(self) -> str:
        """The names of the equally likely causes, for a message."""
        named = ", ".join((self.name, *self.equals[: _MOST_NAMED - 1]))
        more = f" and {len(self.equals) - _MOST_NAMED + 1} more" if len(self.equals) >= _MOST_NAMED else ""
        return f"one of {len(self.equals) + 1} requests ({named}{more})"

    @property
    def words(self) -> str:
        """A description of the death, as a clause."""
        silent = "it answered, and then answered nothing else"
        how = _no_answer(self.call) if self.call is not None else failure(self.of) or silent
        probes = (VITALS, RESTARTED)  # the suite sends these requests to find out if the server lives
        others = {name for name in self.cut if not any(f"/{probe}/" in name for probe in probes)} - {
            self.name
        }
        cut = f"; {len(others)} other requests were cut" if others else ""
        if self.suspects == 1:
            return f"the server died of this request ({how}){cut}"
        likely = f"most likely of {self._candidates if self.equals else 'this one'}"
        return f"the server died with {self.suspects} requests under way, {likely} ({how}){cut}"


def nobody_listened(exchange: ExchangeHead) -> bool:
    """True if no server accepted the connection, so that no server received the request."""
    return exchange.ending is Ending.UNREACHABLE and exchange.detail.startswith(_NOT_LISTENING)


def failure(stream: Answer) -> str:
    """Describe the failure of the server at a request. Empty if the server did not fail."""
    exchange = stream.exchange
    # The requirement stream-ends-cleanly covers streams that break off.
    if exchange.status is None or (exchange.ending in _BROKEN and not stream.asked.stream):
        return _no_answer(exchange)
    if exchange.ending in {Ending.OUTGROWN, Ending.TIMEOUT}:
        return f"{exchange.ending}: {exchange.detail or 'no end'}"
    wrong = [code for code in codes_of(stream) if code >= 500 and code not in NO_ROOM]
    return f"status {wrong[0]}" if wrong else ""


def _no_answer(exchange: ExchangeHead) -> str:
    return f"{exchange.ending}: {exchange.detail or 'no reason known'}"


def codes_of(stream: Answer) -> list[int]:
    """Return all status codes of an answer: of the response, of its error, and of its failed choices."""
    codes = [stream.exchange.status, error_code(stream.error)]
    finishes = (choice.finish for choice in stream.choices)
    codes += [integer(finish.code) for finish in finishes if finish is not None and finish.failed]
    return [code for code in codes if code is not None]


def error_code(error: object) -> int | None:
    """Return the numeric code of an error, from any of the places where servers write it."""
    if not isinstance(error, Mapping):
        return None
    nested = error.get("error")
    return integer((nested if isinstance(nested, Mapping) else error).get("code"))


@dataclass(frozen=True)
class _Timed:
    """An answer with the times of its exchange, in seconds since the Unix epoch."""

    stream: Answer
    begun: float

    @property
    def over(self) -> float:
        return self.begun + self.stream.exchange.duration

    @property
    def sign(self) -> float | None:
        """The time of the last output of the model. None if there was no output."""
        exchange = self.stream.exchange
        reported = exchange.status == 200 and self.stream.answered
        return self.begun + exchange.last_read if reported and exchange.last_read is not None else None

    @property
    def talk(self) -> tuple[str, str]:
        return self.stream.exchange.scenario, self.stream.dialect

    @property
    def failed(self) -> bool:
        """True if neither the server nor a proxy answered, and the suite did not end the exchange itself."""
        exchange = self.stream.exchange
        if exchange.ending in {Ending.CANCELLED, Ending.HUNG_UP}:
            return False
        # A gateway may answer 503 for a dead server. This status alone does not prove a death (`_is_dead`).
        return (
            bool(failure(self.stream))
            or exchange.ending is Ending.TRUNCATED
            or exchange.status == _NO_ROOM_NOW
        )

    @property
    def open(self) -> bool:
        """True if the answer may be incomplete: the suite ended the exchange, or a choice has no finish
        reason.
        """
        finishes = [choice.finish for choice in self.stream.choices]
        return self.stream.exchange.ending is Ending.CANCELLED or None in finishes


def _timed(streams: Iterable[Answer]) -> list[_Timed]:
    """Return the answers in the order of time. Empty if a time is unknown."""
    try:
        timed = [
            _Timed(stream, datetime.fromisoformat(stream.exchange.started).timestamp()) for stream in streams
        ]
    except ValueError:
        return []
    return sorted(timed, key=lambda sent: sent.begun)


def _lives(streams: Iterable[Answer]) -> Iterator[list[_Timed]]:
    """Yield the requests of each life of the server, from a start to the next restart."""
    life: list[_Timed] = []
    for sent in _timed(streams):
        if sent.stream.exchange.scenario == RESTARTED and sent.stream.answered:
            yield life
            life = []
        life.append(sent)
    yield life


def closed_silently(exchange: ExchangeHead) -> bool:
    """True if a server accepted the connection and closed it without sending a byte."""
    unanswered = exchange.status is None and exchange.ending is Ending.UNREACHABLE
    return unanswered and not exchange.detail.startswith(_NOT_LISTENING)


def question_of(stream: Answer) -> tuple[str, str]:
    """Return the path and the body of a request, which identify equal requests."""
    request = stream.exchange.load().request
    body: Any = request.body if request.raw_body is None else repr(request.raw_body)
    return request.path, json.dumps(body, sort_keys=True)


def clouded(streams: Iterable[Answer], suspicion: Suspicion) -> frozenset[str]:
    """Return the names of the bad requests that failed in the same way as the valid request after them.

    These failures do not show if the server would have refused the bad requests.
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
    """Find the deaths of the server in a run, in order. `suspicion` returns how suspicious a request is."""
    unanswered = [
        call.exchange
        for call in calls
        # If no server received the call, the server had died before.
        if call.exchange.ending in _BROKEN and not call.exchange.detail.startswith(_NOT_LISTENING)
    ]
    lives = list(_lives(streams))
    found: list[Death] = []
    # Lives are visited backwards. A request that ended a later life is also the most likely cause of an
    # earlier death.
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
    """Return the death that ended a life. None if there was none, or if it cannot be decided.

    `killers`: requests that ended later lives. `unanswered`: control requests that were cut off.
    """
    signs = [sent for sent in life if sent.sign is not None]
    if not signs:
        return None
    last = max(signs, key=lambda sent: sent.sign or 0.0)
    # The server lived at its last sign of life and was dead at the first failure. So a request that was
    # running between them killed it.
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
    # Hostile requests come last and may kill a server. A death among valid requests leaves requirements
    # undecided.
    early = strangers or suspicion(of.stream) >= ORDINARY
    call = next((call for call in unanswered if _met(call, since, until)), None)
    # If a bad request was running, it is the more likely cause.
    call = call if suspicion(of.stream) >= ORDINARY else None
    suspects = max(1, len(under_way))
    names = () if call is not None else tuple(sent.stream.exchange.name for sent in equals)
    return Death(of.stream, suspects, frozenset(cut), early, final, since, until, call, names)


def _met(call: ExchangeHead, since: float, until: float) -> bool:
    """True if a control request was running between the last sign of life and the first failure."""
    try:
        begun = datetime.fromisoformat(call.started).timestamp()
    except ValueError:
        return False
    return begun <= until and begun + call.duration >= since


def _is_dead(failed: Sequence[_Timed], signs: Sequence[_Timed]) -> bool:
    """True if the failures at the end of a life prove that the server had died.

    A single failure may be the fault of its request. The proof is a second failure: a refused connection, a
    request that was answered before, or many failures in a row. A server that answers 503 is alive, so this
    status proves nothing.
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
    """Return the most likely causes of a death. The one that a message names comes first.

    A request that killed the server in another life is the cause. Otherwise bad requests are more likely than
    valid requests. Valid requests are equally likely, and the last one before the death comes first.
    `reported`: requests that were answered just before the death, so that they may be the cause as well.
    """
    # A request that no server received was sent after the death.
    met = [sent for sent in under_way if not sent.stream.exchange.detail.startswith(_NOT_LISTENING)]
    under_way = met or under_way
    again = [sent for sent in under_way if question_of(sent.stream) in killers]
    if again:
        return again[:1]
    ranks = {id(sent): suspicion(sent.stream) for sent in (*under_way, *reported)}
    # An answered request with valid values is not the cause. A bad value may kill a server after its answer.
    bad = [sent for sent in under_way if ranks[id(sent)] < ORDINARY]
    bad += [sent for sent in reported if ranks[id(sent)] < UNSATISFIABLE]
    if bad:
        worst = min(ranks[id(sent)] for sent in bad)
        # If two requests began together, the one without a chat template reaches the model first.
        return sorted(
            (sent for sent in bad if ranks[id(sent)] == worst),
            key=lambda sent: (sent.begun, is_chat(sent.stream)),
        )
    return sorted(under_way or reported, key=lambda sent: sent.begun, reverse=True)
