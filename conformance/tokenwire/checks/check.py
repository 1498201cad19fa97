"""The registration of checks.

A check is a function that returns observations about a choice, an answer, two answers or a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, update_wrapper, wraps
from itertools import chain
from typing import Any, Self, TypeVar, cast

from tokenwire.checks.about import ANY, FINISHED, About, finished_choices, traits_of
from tokenwire.checks.evidence import Observation, Row, expect_each, expect_equal, in_wire_order
from tokenwire.checks.reading.deeds import Deeds
from tokenwire.dialects.control import ControlCall
from tokenwire.dialects.markup import Markup
from tokenwire.parrot.recognition import KnownModel
from tokenwire.record import Answer, Choice, Delivery, Emission, Stream, fact
from tokenwire.target.advertised import Advertised
from tokenwire.target.death import Death
from tokenwire.target.determinism import Comparison
from tokenwire.target.noise import Noise
from tokenwire.target.tokenizer import Tokenizer, detokenizer_of


@dataclass(frozen=True)
class Target:
    """Facts about the server under test, for checks that need more than one answer."""

    capabilities: frozenset[str] = frozenset()
    stream_interval: int | None = None
    """The server's default interval, if it advertises one."""
    advertised_delivery: Delivery | None = None
    tokenizer: Tokenizer | None = None
    """Returns the text of ids. None if no tokenizer is known."""
    model: KnownModel | None = None
    """The model that the server runs, if its right answers are known."""
    calls: tuple[ControlCall, ...] = ()
    """Control requests such as aborts and flushes, in the order in which they were sent."""
    advertised: Advertised = field(default_factory=Advertised)
    """Facts that the server reports about itself."""
    repeated: frozenset[str] = frozenset()
    """Keys of requests that were repeated with the same answer."""
    contradicted: frozenset[str] = frozenset()
    """Keys of requests whose complete answers differed from each other."""
    deaths: tuple[Death, ...] = ()
    """The deaths of the server during the run, each with its time and the request that most likely caused it.
    """
    severed: tuple[Answer, ...] = ()
    """The streams of a gateway whose worker was cut. They are not among the answers of the run."""
    noise: Noise = field(default_factory=Noise)
    """The allowed difference between numbers of two answers. It exceeds the tolerance if the server's numbers
    vary.
    """
    markup: Markup = field(default_factory=Markup)
    """The markup that the server's parsers remove, inferred from its answers."""

    @cached_property
    def detokenizer(self) -> Tokenizer | None:
        """The tokenizer that returns the text of ids including special tokens."""
        return detokenizer_of(self.model, self.tokenizer)

    @cached_property
    def aborts(self) -> tuple[ControlCall, ...]:
        """The answered aborts, pauses and weight updates that abort at least one request."""
        return tuple(call for call in self.calls if call.aborts and call.done)

    @cached_property
    def deeds(self) -> Deeds:
        """The control requests and the deaths of the server, with their times."""
        return Deeds(self.calls, self.deaths)


class Answers(tuple[Answer, ...]):
    """The answers of a run, with a cache for results that several checks share (`once_per_run`)."""

    cache: dict[Any, Any]

    def __new__(cls, streams: Iterable[Answer] = ()) -> Self:
        self = super().__new__(cls, streams)
        self.cache = {}
        return self


Computed = TypeVar("Computed")


def once_per_run(
    compute: Callable[[tuple[Answer, ...]], Computed],
) -> Callable[[tuple[Answer, ...]], Computed]:
    """Cache a function's result with the answers of a run."""

    @wraps(compute)
    def cached(streams: tuple[Answer, ...]) -> Computed:
        cache = streams.cache if isinstance(streams, Answers) else {}
        if compute not in cache:
            cache[compute] = compute(streams)
        return cast(Computed, cache[compute])

    return cached


def select(holds: Callable[[Stream], object]) -> Callable[[tuple[Answer, ...]], list[Answer]]:
    """Return a function that selects the answers with a property. The property is cached for each answer
    (`record.fact`).
    """

    @fact(Stream)
    @wraps(holds)
    def known(stream: Stream) -> bool:
        return bool(holds(stream))

    @once_per_run
    @wraps(holds)
    def selected(streams: tuple[Answer, ...]) -> list[Answer]:
        return [stream for stream in streams if known(stream)]

    return selected


StreamCheck = Callable[[Stream, Target], Iterator[Observation]]
ChoiceCheck = Callable[[Choice, Stream, Target], Iterator[Observation]]
ComparisonCheck = Callable[[Comparison, Target], Iterator[Observation]]
RunCheck = Callable[[tuple[Answer, ...], Target], Iterator[Observation]]


@dataclass(frozen=True)
class Check:
    """The check of one requirement. A requirement has exactly one check."""

    requirement: str
    observe: StreamCheck | None = None
    """The function that observes one answer, if the answer matches `about`."""
    on_comparison: ComparisonCheck | None = None
    on_run: RunCheck | None = None
    """The function that relates several answers by their content, such as a continuation to its beginning."""
    about: About = ANY
    alone: bool = False
    """True if the check of a run can find some violations in a single answer."""

    @property
    def seen_in_one_answer(self) -> bool:
        """True if a single answer can violate the requirement."""
        return self.observe is not None or self.alone

    @property
    def function(self) -> Callable[..., Iterator[Observation]] | None:
        """The function that implements the check. For a table row, it is the function of the relation."""
        function = self.observe or self.on_comparison or self.on_run
        return function.func if isinstance(function, partial) else function

    @property
    def on_stream(self) -> StreamCheck | None:
        """The function that observes any answer. It yields nothing for an answer that does not
        match `about`.
        """
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
    """Register a function as the check of a requirement.

    The function is called once for each matching stream.
    """

    def register(function: StreamCheck) -> StreamCheck:
        _register(Check(requirement, observe=function, about=about))
        return function

    return register


def _of_each_choice(observe: ChoiceCheck) -> StreamCheck:
    """Return a check that observes each choice with content, and yields the observations in the order of
    events.
    """

    @wraps(observe)
    def on_stream(stream: Stream, target: Target) -> Iterator[Observation]:
        every = (observe(choice, stream, target) for choice in stream.delivering)
        yield from in_wire_order(chain.from_iterable(every))

    return on_stream


def check_choices(requirement: str, about: About = ANY) -> Callable[[ChoiceCheck], ChoiceCheck]:
    """Register a function as the check of a requirement.

    The function is called with each choice that delivered content. Its observations are reported in the order
    of events.
    """

    def register(function: ChoiceCheck) -> ChoiceCheck:
        check(requirement, about)(_of_each_choice(function))
        return function

    return register


def check_finished(requirement: str, about: About = FINISHED) -> Callable[[ChoiceCheck], ChoiceCheck]:
    """Register a function as the check of a requirement.

    The function is called with each choice that has a finish reason.
    """

    def register(function: ChoiceCheck) -> ChoiceCheck:
        @wraps(function)
        def on_stream(stream: Stream, target: Target) -> Iterator[Observation]:
            for choice in finished_choices(stream):
                yield from function(choice, stream, target)

        check(requirement, replace(about, finished=True))(on_stream)
        return function

    return register


Values = Callable[[Choice], Iterable[tuple[Emission, str, Any, Any]]]
"""A function that reads pairs of values that must be equal: emission, field, expected and actual value."""
_Reading = TypeVar("_Reading", bound=Callable[[Choice], Iterable[Any]])
Conditions = Callable[[Choice], Iterable[Row]]
"""A function that reads conditions that must be true: emission, field, condition, expected and actual value.
"""


def check_equal(requirement: str, about: About, words: str) -> Callable[[Values], Values]:
    """Register a function as the check of a requirement.

    The function reads pairs of values that must be equal. `words` is the error message. It may contain
    `{emission}`, `{field}`, `{expected}` and `{actual}`.
    """
    return _check_read(requirement, about, lambda rows: expect_equal(rows, words))


def check_each(requirement: str, about: About, words: str) -> Callable[[Conditions], Conditions]:
    """Register a function as the check of a requirement. The function reads conditions that must be true."""
    return _check_read(requirement, about, lambda rows: expect_each(rows, words))


def _check_read(
    requirement: str, about: About, observe: Callable[[Any], Iterator[Observation]]
) -> Callable[[_Reading], _Reading]:
    """Register a check that applies `observe` to the rows that a function reads from a choice."""

    def register(read: _Reading) -> _Reading:
        @wraps(read)
        def of_choice(choice: Choice, _stream: Stream, _target: Target) -> Iterator[Observation]:
            return observe(read(choice))

        check(requirement, about)(_of_each_choice(of_choice))
        return read

    return register


@dataclass(frozen=True)
class Relation:
    """A relation between fields of an answer, as data: a table row for one requirement.

    A subclass adds the fields, and one function observes all of its rows (`check_rows`).
    """

    requirement: str
    about: About


Relating = TypeVar("Relating", bound=Relation)


def check_rows(observe: Callable[[Relating, Stream, Target], Iterator[Observation]], *rows: Relating) -> None:
    """Register a function as the check of each row's requirement."""
    for row in rows:
        check(row.requirement, row.about)(partial(observe, row))


def check_choice_rows(
    observe: Callable[[Relating, Choice, Stream], Iterator[Observation]], *rows: Relating
) -> None:
    """Register a function as the check of each row's requirement. It is called with each choice that
    delivered content.
    """

    def of_stream(row: Relating, stream: Stream, _target: Target) -> Iterator[Observation]:
        every = (observe(row, choice, stream) for choice in stream.delivering)
        yield from in_wire_order(chain.from_iterable(every))

    check_rows(update_wrapper(of_stream, observe), *rows)


def compare_rows(
    observe: Callable[[Relating, Comparison, Target], Iterator[Observation]], *rows: Relating
) -> None:
    """Register a function that compares two answers to one request, as the check of each row's
    requirement.
    """
    for row in rows:
        compare(row.requirement)(partial(observe, row))


def compare(requirement: str) -> Callable[[ComparisonCheck], ComparisonCheck]:
    """Register a function as the check of a requirement. The function is called once for each comparison."""

    def register(function: ComparisonCheck) -> ComparisonCheck:
        _register(Check(requirement, on_comparison=function))
        return function

    return register


def check_run(requirement: str, *, alone: bool = False) -> Callable[[RunCheck], RunCheck]:
    """Register a function as the check of a requirement.

    The function is called once with all streams of a run. alone: True if it finds some violations even in a
    single answer.
    """

    def register(function: RunCheck) -> RunCheck:
        _register(Check(requirement, on_run=function, alone=alone))
        return function

    return register


def check_run_rows(
    observe: Callable[[Relating, tuple[Answer, ...], Target], Iterator[Observation]], *rows: Relating
) -> None:
    """Register a function that observes all answers of a run, as the check of each row's requirement."""
    for row in rows:
        check_run(row.requirement)(partial(observe, row))
