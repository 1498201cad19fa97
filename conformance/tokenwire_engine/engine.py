"""The engine: keeps the running requests, and computes the output of each step.

It is independent of protocols and sockets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any

from tokenwire.parrot.law import Parrot
from tokenwire_engine.front_end import UncomputedError
from tokenwire_engine.grammar import Grammar
from tokenwire_engine.schedule import Schedule

RETRACTED_STEPS = 5
"""The number of steps without output after a preemption."""
PATIENCE_STEPS = 5000
"""The number of steps after which a request starts although its batch is not complete."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The sampling parameters of a request. Without them, the parrot determines the ids."""

    budget: int
    least: int = 0
    """The minimum number of tokens."""
    ends: frozenset[int] = frozenset()
    """Ids that end the answer."""
    barred: frozenset[int] = frozenset()
    """Ids that are excluded while the answer has fewer than `least` tokens."""
    bias: Mapping[int, float] = field(default_factory=dict)
    allowed: frozenset[int] | None = None
    words: tuple[tuple[int, ...], ...] = ()
    """Sequences of ids that the answer may not contain."""
    language: Grammar | None = None
    """The constraint of the answer; None without one."""
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0

    @property
    def is_plain(self) -> bool:
        """True if no parameter changes the ids that the parrot would output."""
        changed = (self.presence, self.frequency, self.repetition) != (0.0, 0.0, 1.0)
        limited = self.allowed is not None or self.language is not None or bool(self.words)
        return not (self.bias or limited or changed)

    def candidates(self, law: Parrot, banned: frozenset[int]) -> frozenset[int]:
        """Return the ids that may be next. Raises UncomputedError if all ids are excluded."""
        allowed = frozenset(range(law.vocab_size)) if self.allowed is None else self.allowed
        if self.language is not None:
            allowed &= self.language.allowed()
        if not allowed - banned:
            raise UncomputedError("an answer for which all ids are excluded")
        return allowed - banned

    def logit(
        self, logits: Callable[[int], float], asked: Set[int], given: Counter[int], token: int
    ) -> float:
        """Return the logit of an id after penalties and its bias.

        `logits`: the logits without them. `asked`, `given`: the ids of the prompt, and of the answer so far.
        """
        logit = logits(token)
        if token in asked or token in given:
            logit = logit / self.repetition if logit > 0 else logit * self.repetition
        logit -= self.frequency * given[token] + self.presence * (token in given)
        return logit + self.bias.get(token, 0.0)


@dataclass(frozen=True)
class Outcome:
    """The way in which a request ended."""

    kind: str
    """`stop`, `length`, `abort`, `error` or `repeat`."""
    matched: int | None = None
    """The id that ended the answer; None if no id did."""
    status: HTTPStatus | None = None


@dataclass(frozen=True)
class Emitted:
    """The output of a request in one step."""

    start: int
    """The number of tokens that the request had output before."""
    ids: tuple[int, ...]
    outcome: Outcome | None = None
    is_first: bool = False
    was_preempted: bool = False


class EngineDiedError(Exception):
    """A request's schedule demands that the engine crashes."""


@dataclass(frozen=True)
class Answer:
    """The complete answer to a prompt."""

    ids: tuple[int, ...]
    likeliest: tuple[int, ...]
    """The id that the parrot would output at each position.

    Because of biases, penalties or constraints, the answer may have another id there.
    """
    outcome: Outcome


def answer(law: Parrot, prompt: Sequence[int], sampling: Sampling) -> Answer:
    """Return the complete answer to a prompt.

    Raises UncomputedError if an id of the prompt is not in the vocabulary, or if all ids are excluded.
    """
    if not prompt or not all(0 <= token < law.vocab_size for token in prompt):
        raise UncomputedError("a prompt with ids outside of the vocabulary")
    ids: list[int] = []
    law_says: list[int] = []
    length = len(prompt)
    asked, given = frozenset(prompt), Counter[int]()
    for place in range(sampling.budget):
        source = length + place - law.lag(length + place)
        likeliest = prompt[source] if source < length else ids[source - length]
        banned = sampling.barred if place < sampling.least else frozenset()
        banned |= {word[-1] for word in sampling.words if tuple(ids[place + 1 - len(word) :]) == word[:-1]}
        token = likeliest
        if not sampling.is_plain or likeliest in banned:
            logit = partial(sampling.logit, partial(law.logit, likeliest), asked, given)
            token = max(sorted(sampling.candidates(law, banned)), key=logit)
        ids.append(token)
        law_says.append(likeliest)
        given[token] += 1
        if sampling.language is not None:
            sampling.language.take(token)
        if token in sampling.ends and place + 1 > sampling.least:
            return Answer(tuple(ids), tuple(law_says), Outcome("stop", token))
    return Answer(tuple(ids), tuple(law_says), Outcome("length"))


@lru_cache(maxsize=1 << 14)
def rank(law: Parrot, likeliest: int, token: int) -> int:
    """Return the rank of an id at a position at which the parrot would output `likeliest`.

    The best rank is 1.
    """
    own = law.logit(likeliest, token)
    return sum(law.logit(likeliest, other) >= own for other in range(law.vocab_size))


class Running:
    """A request in progress."""

    def __init__(
        self, name: str, prompt: Sequence[int], right: Answer, schedule: Schedule, request: Any = None
    ) -> None:
        """Create a request. `request`: the request in the form of its protocol."""
        self.name, self.prompt, self.right, self.schedule = name, tuple(prompt), right, schedule
        self.request = request
        self.given = 0
        """The number of tokens that the request has output."""
        self.waited = 0
        """The number of steps in which the request has waited for its batch."""
        self.accepted: list[int] = []
        """The number of accepted draft tokens in each step."""
        self._steps = 0
        self._idle = schedule.wait
        self._fresh = True
        self._was_preempted = False
        self._held: list[Emitted] = []
        self._order: Outcome | None = None

    def end(self, outcome: Outcome) -> None:
        """End the request at the next step, regardless of its schedule."""
        self._order = outcome

    def step(self) -> list[Emitted]:
        """Run a step, and return the outputs to send. The list is empty if the step has no output, or if
        outputs are held back.

        Raises EngineDiedError.
        """
        emitted = self._next()
        if emitted is None:
            return []
        self._held.append(emitted)
        if emitted.outcome is None and len(self._held) < self.schedule.hold:
            return []
        sent, self._held = self._held, []
        return sent

    def _next(self) -> Emitted | None:
        schedule = self.schedule
        if self._order is not None:
            return self._emit(0, self._order)
        if self._idle > 0:
            self._idle -= 1
            return None
        if schedule.retract is not None and not self._was_preempted and self.given >= schedule.retract:
            self._was_preempted, self._idle = True, RETRACTED_STEPS - 1
            return None
        count = min(schedule.step(self._steps), len(self.right.ids) - self.given)
        self._steps += 1
        if self._is_reached(schedule.die, count):
            raise EngineDiedError(self.name)
        end = schedule.end
        if end is not None and self._is_reached(end.at, count):
            outcome = Outcome(end.kind, status=end.status if end.kind == "error" else None)
            return self._emit(max(0, end.at - self.given), outcome)
        is_last = self.given + count == len(self.right.ids)
        if count == 0 and not is_last:
            return None
        return self._emit(count, self.right.outcome if is_last else None)

    def _is_reached(self, place: int | None, count: int) -> bool:
        return place is not None and self.given + count >= place

    def _emit(self, count: int, outcome: Outcome | None) -> Emitted:
        start, ids = self.given, self.right.ids[self.given : self.given + count]
        self.given += count
        if count:
            self.accepted.append(min(count - 1, self.schedule.drafts))
            outcome = None if self.schedule.late else outcome
        fresh, self._fresh = self._fresh, False
        return Emitted(start, ids, outcome, fresh, self._was_preempted)


class Engine:
    """Runs all requests, which are stored by name.

    In a step of the engine, each running request does one step.
    """

    def __init__(self) -> None:
        self.running: dict[str, Running] = {}
        self._waiting: dict[str, Running] = {}

    @property
    def requests(self) -> list[Running]:
        """All requests that have not ended."""
        return [*self._waiting.values(), *self.running.values()]

    def add(self, request: Running) -> None:
        """Add a request.

        If the schedule of the request names a batch, the request waits for the other requests of the batch.
        """
        self._waiting[request.name] = request
        join = request.schedule.join
        batch = [name for name, one in self._waiting.items() if one.schedule.join == join]
        if len(batch) >= join[0]:
            self.running |= {name: self._waiting.pop(name) for name in batch}

    def take(self, name: str) -> Running | None:
        """Remove a request and return it; None for an unknown name."""
        return self._waiting.pop(name, None) or self.running.pop(name, None)

    def step(self) -> Iterator[tuple[Running, Emitted]]:
        """Run a step of each request, remove the requests that end, and return the outputs.

        Raises EngineDiedError.
        """
        for name, request in list(self._waiting.items()):
            request.waited += 1
            if request.waited > PATIENCE_STEPS:
                self.running[name] = self._waiting.pop(name)
        for request in list(self.running.values()):
            for emitted in request.step():
                if emitted.outcome is not None:
                    self.running.pop(request.name, None)
                yield request, emitted
