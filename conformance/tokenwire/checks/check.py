"""What a check is: a pure function from a stream, or from two streams, to observations.

An observation is a statement about something that the target wrote and that could have been wrong. A check
that looked at nothing yields nothing, and a requirement without witnesses cannot pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, wraps
from operator import attrgetter
from typing import Any, NamedTuple, Self, TypeVar, cast

from tokenwire.checks.about import ANY, About, traits_of
from tokenwire.dialects.control import Action, ControlCall
from tokenwire.dialects.markup import Markup
from tokenwire.parrot.recognition import KnownModel
from tokenwire.record import Delivery, Emission, Place, Stream, fact
from tokenwire.requirement import Level
from tokenwire.target.advertised import Advertised
from tokenwire.target.alike import ROUNDING
from tokenwire.target.death import Death
from tokenwire.target.determinism import Comparison
from tokenwire.target.tokenizer import Tokenizer


class Observation(NamedTuple):
    """What a check saw at one place: as it should be, or not. There are dozens for each event."""

    source: Place | Emission
    """Where it stands; or the emission, of which `field` names a field. Most observations hold, and nobody
    asks for their place: it is made for the few that are shown.
    """
    expected: Any
    actual: Any
    holds: bool
    message: str = ""
    """What is wrong, as one clause; made from expected and actual where empty."""
    related: tuple[Place, ...] = ()
    condition_only: bool = False
    """The observation shows only that the condition of the requirement occurred; it is no witness."""
    level: Level | None = None
    """How grave a violation here is at most; None for as grave as its requirement."""
    by_chance: bool = False
    """What differs is what two answers to one request may differ in (a near tie, rounding): it is a violation
    only where the target was seen to repeat the answers here and in `related`.
    """
    witnesses: int = 1
    """How many observations it stands for: the last violation that is kept of an answer stands for all others
    of its level (`tally`).
    """
    field: str = ""

    @property
    def place(self) -> Place:
        source = self.source
        return source if isinstance(source, Place) else source.at(self.field)

    @property
    def event(self) -> int:
        """The index of the event in which it stands; 0 for an answer that is one document."""
        source = self.source
        return (source.event or 0) if isinstance(source, Place) else source.event.index

    @property
    def located(self) -> Observation:
        """The same with its place, for those that are kept longer than their answer."""
        return self if isinstance(self.source, Place) else self._replace(source=self.place, field="")


def equal(expected: object, actual: object) -> bool:
    """Whether two values are equal and of one JSON type: 1 is not true."""
    return bool(expected == actual) and isinstance(expected, bool) == isinstance(actual, bool)


def observe(
    place: Place,
    *,
    expected: Any,
    actual: Any,
    message: str = "",
    related: tuple[Place, ...] = (),
    by_chance: bool = False,
) -> Observation:
    """Look whether two values are equal, of the same JSON type."""
    holds = equal(expected, actual)
    return Observation(place, expected, actual, holds, message, related, by_chance=by_chance)


def demand(
    place: Place,
    holds: bool,
    *,
    expected: Any,
    actual: Any,
    message: str = "",
    related: tuple[Place, ...] = (),
    by_chance: bool = False,
) -> Observation:
    """Look whether a condition holds; `expected` is said in words."""
    return Observation(place, expected, actual, holds, message, related, by_chance=by_chance)


@dataclass(frozen=True)
class Target:
    """What is known of the target as a whole, for checks that need more than one stream."""

    capabilities: frozenset[str] = frozenset()
    stream_interval: int | None = None
    """The server's default interval, where it advertises one."""
    advertised_delivery: Delivery | None = None
    tito_stream_refused: bool = True
    """The dialect's policy: token-in-token-out fields are refused in chat streams."""
    tokenizer: Tokenizer | None = None
    """What says the text of ids, where anything does."""
    model: KnownModel | None = None
    """The model behind the answers, where it is one whose right answers are known."""
    calls: tuple[ControlCall, ...] = ()
    """What was asked of control endpoints beside the streams, in the order of asking."""
    advertised: Advertised = field(default_factory=Advertised)
    """What the server says of itself."""
    repeated: frozenset[str] = frozenset()
    """Keys of requests that were answered alike when asked again."""
    contradicted: frozenset[str] = frozenset()
    """Keys of requests that were answered whole with different results."""
    deaths: tuple[Death, ...] = ()
    """The ends of the server in the run."""
    rounding: float = ROUNDING
    """How far numbers of two answers may lie apart: by the tolerance, or more where the target varies."""
    markup: Markup = field(default_factory=Markup)
    """What its parsers take out of text, as far as answers show it."""

    @cached_property
    def aborts(self) -> tuple[ControlCall, ...]:
        """The aborts that were answered."""
        return tuple(call for call in self.calls if call.action is Action.ABORT and call.done)

    @cached_property
    def aborted(self) -> tuple[bool, frozenset[str]]:
        """Whether an abort named all requests, and the ids that aborts named."""
        aborts = [call for call in self.calls if call.action is Action.ABORT]
        return any(call.everything for call in aborts), frozenset().union(*(call.ids for call in aborts))


class Answers(tuple[Stream, ...]):
    """The answers of a run, and a cache of what several checks compute from all of them (`once_per_run`)."""

    cache: dict[Any, Any]

    def __new__(cls, streams: Iterable[Stream] = ()) -> Self:
        self = super().__new__(cls, streams)
        self.cache = {}
        return self


Computed = TypeVar("Computed")


def once_per_run(
    compute: Callable[[tuple[Stream, ...]], Computed],
) -> Callable[[tuple[Stream, ...]], Computed]:
    """Cache with the answers of a run what a function computes from them."""

    @wraps(compute)
    def cached(streams: tuple[Stream, ...]) -> Computed:
        cache = streams.cache if isinstance(streams, Answers) else {}
        if compute not in cache:
            cache[compute] = compute(streams)
        return cast(Computed, cache[compute])

    return cached


def select(holds: Callable[[Stream], object]) -> Callable[[tuple[Stream, ...]], list[Stream]]:
    """Select the answers of which a predicate holds; whether it does is a fact of each (`record.fact`)."""

    @fact(Stream)
    @wraps(holds)
    def known(stream: Stream) -> bool:
        return bool(holds(stream))

    @once_per_run
    @wraps(holds)
    def selected(streams: tuple[Stream, ...]) -> list[Stream]:
        return [stream for stream in streams if known(stream)]

    return selected


StreamCheck = Callable[[Stream, Target], Iterator[Observation]]
ComparisonCheck = Callable[[Comparison, Target], Iterator[Observation]]
RunCheck = Callable[[tuple[Stream, ...], Target], Iterator[Observation]]


@dataclass(frozen=True)
class Check:
    """The one check of one requirement."""

    requirement: str
    observe: StreamCheck | None = None
    """Observes one answer, of those that it is about."""
    on_comparison: ComparisonCheck | None = None
    on_run: RunCheck | None = None
    """For requirements that relate exchanges by content: a continuation, the request after a refusal."""
    about: About = ANY

    @property
    def function(self) -> Callable[..., Iterator[Observation]] | None:
        """The function that the requirement's owner is."""
        return self.observe or self.on_comparison or self.on_run

    @property
    def on_stream(self) -> StreamCheck | None:
        """Observes any answer: nothing in one that it is not about."""
        return None if self.observe is None else self._on_stream

    def _on_stream(self, stream: Stream, target: Target) -> Iterator[Observation]:
        if self.observe is not None and self.about.admits(traits_of(stream)):
            yield from self.observe(stream, target)


CHECKS: dict[str, Check] = {}


def _register(check: Check) -> None:
    if check.requirement in CHECKS:
        raise ValueError(f"requirement {check.requirement!r} has two checks; a requirement has one owner")
    CHECKS[check.requirement] = check


def check(requirement: str, about: About = ANY) -> Callable[[StreamCheck], StreamCheck]:
    """Make a function the check of a requirement, called once for each stream that it is about."""

    def register(function: StreamCheck) -> StreamCheck:
        _register(Check(requirement, observe=function, about=about))
        return function

    return register


def compare(requirement: str) -> Callable[[ComparisonCheck], ComparisonCheck]:
    """Make a function the check of a requirement, called once for each comparison."""

    def register(function: ComparisonCheck) -> ComparisonCheck:
        _register(Check(requirement, on_comparison=function))
        return function

    return register


def check_run(requirement: str) -> Callable[[RunCheck], RunCheck]:
    """Make a function the check of a requirement, called once with all streams of a run."""

    def register(function: RunCheck) -> RunCheck:
        _register(Check(requirement, on_run=function))
        return function

    return register


def condition_seen(place: Place, what: str) -> Observation:
    """Note that the condition of a requirement occurred."""
    return Observation(place, what, what, holds=True, condition_only=True)


def in_wire_order(observations: Iterable[Observation]) -> list[Observation]:
    """Sort observations by the event in which they stand; those of one event keep their order."""
    return sorted(observations, key=attrgetter("event"))
