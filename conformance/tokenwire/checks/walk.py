"""The steps of a stream: its emissions, with the running count of each choice's output ids.

Everything that a target wrote is untrusted JSON: what is read here may have any type, and is never trusted
to have the right one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import accumulate, chain
from typing import Any, NamedTuple, TypeVar, cast

from tokenwire.checks.about import ANY, About, is_error
from tokenwire.checks.check import Observation, Target, check, equal, in_wire_order
from tokenwire.record import (
    Choice,
    Delivery,
    Emission,
    Place,
    Stream,
    fact,
)


class Step(NamedTuple):
    """One emission of a choice, and how many output ids of the choice were delivered before and after it.

    Counts come from the ids; where no emission of the choice carries ids, from completion_tokens.
    """

    choice: Choice
    emission: Emission
    position: int
    """Which of the emissions of its choice it is."""
    ids: list[Any] | None
    """The output ids as they stand in the emission, new ones or all so far; None where there is no list."""
    before: int
    after: int
    counted: bool = True
    """Whether `after` is known: the emission carries ids, or its mode lets their absence mean none."""

    @property
    def delivery(self) -> Delivery:
        return self.choice.delivery

    @property
    def incremental(self) -> bool:
        return self.choice.delivery is Delivery.INCREMENTAL

    @property
    def first(self) -> bool:
        """Whether it is the first emission of its choice."""
        return self.position == 0

    @property
    def last(self) -> bool:
        return self.position == len(self.choice.emissions) - 1

    @property
    def new(self) -> int:
        return self.after - self.before

    @property
    def expected_entries(self) -> int:
        """How many entries a per-token series of this emission must hold."""
        return self.new if self.incremental else self.after

    @property
    def entries_in_words(self) -> str:
        """`expected_entries` with what they are, for messages."""
        of = {Delivery.WHOLE: "of the answer", Delivery.INCREMENTAL: "of this event"}
        count = self.expected_entries
        return f"{count} output {'id' if count == 1 else 'ids'} {of.get(self.delivery, 'delivered so far')}"

    @property
    def seen_entries(self) -> int:
        """How many entries at the head of a list of this emission an earlier one carried."""
        return 0 if self.incremental else self.before

    def unseen(self, entries: list[Any]) -> list[Any]:
        """Those of a list's entries that no emission before this one carried."""
        return entries[self.seen_entries :]

    def series(self, name: str) -> list[Any] | None:
        """The entries of a series as they stand in the emission; None where there is no list."""
        return as_list(self.emission.series.get(name))

    def counter(self, name: str) -> int | None:
        """A counter of the emission, where it is an integer."""
        return integer(self.emission.counters.get(name))

    def expect(
        self, field: str, expected: object, actual: object, message: str = "", holds: bool | None = None
    ) -> Observation:
        """Observe a field of the emission: whether two values are equal and of one JSON type, or `holds`."""
        if holds is None:
            holds = equal(expected, actual)
        return Observation(self.emission, expected, actual, holds, message, field=field)


def as_list(value: object) -> list[Any] | None:
    """A JSON array as a list, itself where it is one; None for everything else."""
    if isinstance(value, list):
        return value
    return list(value) if isinstance(value, tuple) else None


def integer(value: object) -> int | None:
    """A JSON integer; None for everything else, true and 1.0 among them."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


One = TypeVar("One")
Source = TypeVar("Source", Stream, Choice)
Result = TypeVar("Result")


def read_once(read: Callable[[Source], Result]) -> Callable[[Source], Result]:
    """Cache with a stream, or a choice, what a function reads of it: nearly every check asks for it."""

    @wraps(read)
    def read_or_kept(source: Source) -> Result:
        cache = source.whole.cache
        if read not in cache:
            cache[read] = read(source.whole)
        return cast(Result, cache[read])

    return read_or_kept


def _steps(choice: Choice) -> Iterator[Step]:
    lists = [as_list(emission.output_ids) for emission in choice.emissions]
    incremental = choice.delivery is Delivery.INCREMENTAL
    carries_ids = any(ids is not None for ids in lists)
    delivered = 0
    for position, (emission, ids) in enumerate(zip(choice.emissions, lists, strict=True)):
        before, counted = delivered, carries_ids and incremental
        if ids is not None:
            delivered, counted = len(ids) + (delivered if incremental else 0), True
        elif not carries_ids and (count := integer(emission.counters.get("completion_tokens"))) is not None:
            delivered, counted = count, True
        yield Step(choice, emission, position, ids, before, delivered, counted)


@read_once
def steps_of(choice: Choice) -> tuple[Step, ...]:
    """The emissions of one choice in wire order."""
    return tuple(_steps(choice))


@read_once
def sound_steps(choice: Choice) -> tuple[Step, ...]:
    """The same, without emissions that report a failure."""
    return tuple(step for step in steps_of(choice) if not is_error(step.emission.finish))


def choices_in_steps(stream: Stream) -> list[tuple[Step, ...]]:
    """The sound steps of each choice of an answered stream that has any."""
    steps = map(sound_steps, stream.choices if stream.answered else ())
    return [of_choice for of_choice in steps if of_choice]


def choices_as_begun(stream: Stream) -> list[tuple[Step, ...]]:
    """The same, in the order in which the choices begin."""
    return sorted(choices_in_steps(stream), key=lambda steps: steps[0].emission.event.index)


ChoiceCheck = Callable[[tuple[Step, ...], Stream, Target], Iterator[Observation]]


def check_choices(requirement: str, about: About = ANY) -> Callable[[ChoiceCheck], ChoiceCheck]:
    """Make a function the check of a requirement, called with the sound steps of each choice of a stream.

    What it sees is reported in wire order.
    """

    def register(function: ChoiceCheck) -> ChoiceCheck:
        @wraps(function)
        def on_stream(stream: Stream, target: Target) -> Iterator[Observation]:
            every = (function(steps, stream, target) for steps in choices_in_steps(stream))
            yield from in_wire_order(chain.from_iterable(every))

        check(requirement, about)(on_stream)
        return function

    return register


def demand_each(rows: Iterable[tuple[Step, str, bool, Any, Any]], words: str) -> Iterator[Observation]:
    """Observe a field in each of several steps: step, field, whether it holds, what was expected and there.

    `words` says what is wrong, as one clause, of `{step}`, `{field}`, `{expected}` and `{actual}`.
    What holds is one observation, that of the furthest step, which stands for all others: nearly everything
    holds, and to make an observation takes ten times as long as to compare two values.
    """
    furthest: tuple[Step, str, Any, Any] | None = None
    reached, count = -1, 0
    for step, field, holds, expected, actual in rows:
        if not holds:
            message = words.format(step=step, field=field, expected=expected, actual=actual)
            yield step.expect(field, expected, actual, message, holds=False)
            continue
        count += 1
        if step.emission.event.index > reached:
            furthest, reached = (step, field, expected, actual), step.emission.event.index
    if furthest is not None:
        step, field, expected, actual = furthest
        yield step.expect(field, expected, actual, holds=True)._replace(witnesses=count)


def expect_each(rows: Iterable[tuple[Step, str, Any, Any]], words: str) -> Iterator[Observation]:
    """The same, for values that must be equal and of one JSON type: step, field, expected, actual."""
    compared = (
        (step, field, equal(expected, actual), expected, actual) for step, field, expected, actual in rows
    )
    yield from demand_each(compared, words)


def details(steps: Iterable[Step], name: str) -> Iterator[tuple[Step, Any]]:
    """The steps whose emissions hold a detail, be it null, each with the value."""
    return ((step, step.emission.details[name]) for step in steps if name in step.emission.details)


def counters(steps: Iterable[Step], name: str) -> Iterator[tuple[Step, Any]]:
    """The steps whose emissions hold a counter, each with the value as it stands on the wire."""
    return ((step, step.emission.counters[name]) for step in steps if name in step.emission.counters)


def times_of(steps: Iterable[Step]) -> list[float]:
    """When the emissions of a choice came."""
    return [step.emission.event.place.time for step in steps]


@read_once
def walk(stream: Stream) -> tuple[Step, ...]:
    """All emissions of an answered stream in wire order, without those that report a failure."""
    if not stream.answered:
        return ()
    every = (step for choice in stream.choices for step in steps_of(choice))
    steps = [step for step in every if not is_error(step.emission.finish)]
    if len(stream.choices) > 1:
        steps.sort(key=lambda step: (step.emission.event.index, step.emission.choice))
    return tuple(steps)


def joined_ids(choice: Choice) -> list[Any] | None:
    """All output ids of a choice, put together by its delivery mode; None where no emission has a list."""
    return None if choice.output_ids is None else list(choice.output_ids)


def counts_its_ids(choice: Choice) -> bool:
    """Whether a choice has as many output ids as it says, if it says so.

    Where not, ids were lost or doubled on the way: that is told of the answer itself, and it then is no
    evidence against another one.
    """
    ids, count = joined_ids(choice), choice.counter("completion_tokens")
    return ids is None or count is None or len(ids) == count


def running_texts(choice: Choice) -> list[tuple[Emission, str]]:
    """The text that a client holds after each emission that carries text."""
    return [(choice.emissions[at], held) for at, held in texts_so_far(choice)]


def texts_so_far(choice: Choice) -> list[tuple[int, str]]:
    """The same, with the position of each emission."""
    texts: list[tuple[int, str]] = []
    held = ""
    for at, text in enumerate(emission.text for emission in choice.emissions):
        if text is not None:
            held = held + text if choice.text_is_incremental else text
            texts.append((at, held))
    return texts


def joined_text(choice: Choice) -> str | None:
    """The whole text of a choice; None where no emission carries text."""
    return choice.text


def bringing(choice: Choice, field: str, position: int | None = None) -> Place:
    """Where a client first holds an entry of a choice as it stands in the end: that at a position of
    `output_ids`, of `text` or of a series. Without a position, or if no emission brings it, the field in the
    last emission that carries it; the last emission of all if none does.
    """
    if position is None and choice.ends_with(field):
        return choice.last_at(field)
    carrying = [emission for emission in choice.emissions if field in emission.pointers]
    if not carrying:
        return choice.last_at()
    return _bringing(choice, field, position, carrying).at(field)


def _bringing(choice: Choice, field: str, position: int | None, carrying: Sequence[Emission]) -> Emission:
    """Which of the emissions that carry a field brings an entry."""
    if position is None:
        return carrying[-1]
    values = [
        _listed(getattr(emission, field) if field in _SINGLE else emission.series.get(field))
        for emission in carrying
    ]
    if choice.delivery is Delivery.INCREMENTAL:
        held = accumulate(map(len, values))
        held_after = zip(carrying, held, strict=True)
        return next((emission for emission, size in held_after if position < size), carrying[-1])
    # What a later emission took back or wrote anew counts from there on.
    upto = slice(position + 1)
    changed = (at for at in range(len(values) - 1, 0, -1) if values[at - 1][upto] != values[-1][upto])
    return carrying[next(changed, 0)]


_SINGLE = ("output_ids", "text")


def _listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple, str)) else ()


def first_prompt_ids(choice: Choice, *, empty: bool = True) -> tuple[Emission, list[Any]] | None:
    """The first emission of a choice that has a list of prompt_token_ids, and that list; `empty`: or an empty
    one.
    """
    lists = ((emission, as_list(emission.prompt_token_ids)) for emission in choice.emissions)
    return next(((emission, ids) for emission, ids in lists if ids or (empty and ids is not None)), None)


def first_of_prompt(choice: Choice, name: str, *, empty: bool = True) -> tuple[Emission, list[Any]] | None:
    """The first emission of a choice that carries a prompt-side series as a list, and that list; `empty`: or
    an empty one.
    """
    lists = ((emission, as_list(emission.prompt_series.get(name))) for emission in choice.emissions)
    return next(
        ((emission, found) for emission, found in lists if found or (empty and found is not None)), None
    )


@fact(Choice)
def names_of_prompt(choice: Choice) -> frozenset[str]:
    """The prompt-side series of a choice."""
    return frozenset(name for emission in choice.emissions for name in emission.prompt_series)


def count_of(stream: Stream, choice: Choice) -> int | None:
    """How many output ids a choice has: its ids counted, else completion_tokens, else the answer's usage."""
    ids = joined_ids(choice)
    if ids is not None:
        return len(ids)
    count = choice.counter("completion_tokens")
    if count is None and len(stream.choices) == 1 and isinstance(stream.usage, Mapping):
        count = integer(stream.usage.get("completion_tokens"))
    return count


def untold_count(stream: Stream, choice: Choice) -> int | None:
    """How many output ids a choice has that tells none, by the usage of an answer that has no other choice;
    None where nothing tells, or where its last token may be left out as a stop.
    """
    spent = choice.finish is not None and choice.finish.type == "length"
    if joined_ids(choice) is not None or not spent or stream.asked.echo or len(stream.choices) != 1:
        return None
    return count_of(stream, choice) or None


def carries(emission: Emission, name: str) -> bool:
    """Whether a key stands in the emission, be it with the value null."""
    return (
        name in emission.pointers
        or getattr(emission, name, None) is not None
        or name in emission.details
        or name in emission.series
    )


def prompt_of(stream: Stream, choice: int) -> tuple[int, ...] | None:
    """The input_ids that a choice answers, where the request sent ids: choices stand prompt by prompt."""
    prompts, n = stream.asked.input_ids, stream.asked.n
    if prompts is None or n < 1 or not 0 <= choice // n < len(prompts):
        return None
    return prompts[choice // n]


def prompt_sent(stream: Stream) -> tuple[Any, Mapping[str, Any]] | None:
    """The model and the prompt that a request names, by the names of the dialect tables; None where it cannot
    be read.
    """
    try:
        model, prompt = json.loads(stream.asked.prompt_key)
    except (ValueError, TypeError):
        return None
    return (model, prompt) if isinstance(prompt, Mapping) else None


@fact(Stream)
def _ends(stream: Stream) -> tuple[Place, Place]:
    nowhere = Place(stream.exchange.name)
    return (stream.events[0].place, stream.events[-1].place) if stream.events else (nowhere, nowhere)


def end_place(stream: Stream) -> Place:
    """The end of an answer: its last event, or the exchange where there is none."""
    return _ends(stream)[1]


def start_place(stream: Stream) -> Place:
    return _ends(stream)[0]


@fact(Choice)
def told_prompt(choice: Choice) -> tuple[Place, list[Any]] | None:
    """The first list of prompt_token_ids of a choice, and where it stands; None where there is none."""
    found = first_prompt_ids(choice)
    return None if found is None else (found[0].at("prompt_token_ids"), found[1])


def witnessed(stream: Stream, observations: Iterable[Observation]) -> Iterator[Observation]:
    """Let observations that hold count only where the answer carries a record: `{}` proves nothing."""
    return (seen for seen in observations if stream.answered or not seen.holds)
