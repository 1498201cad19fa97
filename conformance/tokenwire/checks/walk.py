"""One walk through a stream in wire order, with the running count of each choice's output ids.

Everything that a target wrote is untrusted JSON: what is read here may have any type, and is never trusted
to have the right one.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from itertools import accumulate, compress
from operator import eq, sub
from types import NoneType
from typing import Any, NamedTuple, TypeVar, cast

from tokenwire.checks.check import Look, Observation
from tokenwire.record import (
    Choice,
    Columns,
    Delivery,
    Emission,
    Finish,
    Place,
    Stream,
    in_short,
)
from tokenwire.wire.exchange import Ending
from tokenwire.wire.json_pointer import ABSENT


class Step(NamedTuple):
    """One emission, and how many output ids of its choice were delivered before and after it.

    Counts come from the ids; where no emission of the choice carries ids, from completion_tokens.
    """

    emission: Emission
    delivery: Delivery
    ids: list[Any] | None
    """The output ids as they stand in the emission, new ones or all so far; None where there is no list."""
    before: int
    after: int
    first: bool
    """The first emission of its choice."""
    last: bool
    counted: bool = True
    """Whether `after` is known: the emission carries ids, or its mode lets their absence mean none."""

    @property
    def new(self) -> int:
        return self.after - self.before

    @property
    def expected_entries(self) -> int:
        """How many entries a per-token series of this emission must hold."""
        return self.new if self.delivery is Delivery.INCREMENTAL else self.after

    def unseen(self, entries: list[Any]) -> list[Any]:
        """Those of a list's entries that no emission before this one carried."""
        return entries if self.delivery is Delivery.INCREMENTAL else entries[self.before :]


def as_list(value: object) -> list[Any] | None:
    """A JSON array as a list, itself where it is one; None for everything else."""
    if isinstance(value, list):
        return value
    return list(value) if isinstance(value, tuple) else None


def integer(value: object) -> int | None:
    """A JSON integer; None for everything else, true and 1.0 among them."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def is_error(finish: Finish | None) -> bool:
    """Whether a choice was ended by a failure instead of being finished; see `Finish.failed`."""
    return finish is not None and finish.failed


def ended(stream: Stream) -> bool:
    """Whether the answer came to its end, so that what is missing will not come."""
    return stream.exchange.ending is Ending.COMPLETE and stream.error is None


def streamed(stream: Stream) -> bool:
    """Whether a record was delivered in events."""
    return stream.answered and stream.delivery is not Delivery.WHOLE


def finished_choices(stream: Stream) -> list[Choice]:
    """The choices of a record that reached a finish reason, an abort that a client asked for among them."""
    if stream.refused:
        return []
    return [choice for choice in stream.choices if choice.finish is not None and not is_error(choice.finish)]


One = TypeVar("One")
Source = TypeVar("Source", Stream, Choice)
Result = TypeVar("Result")


def read_once(read: Callable[[Source], Result]) -> Callable[[Source], Result]:
    """Keep with a stream, or a choice, what is read of it, as a cached property does: nearly every check asks
    for it.
    """
    name = f"{read.__module__}.{read.__qualname__}"

    @wraps(read)
    def read_or_kept(source: Source) -> Result:
        kept = vars(source.whole)
        if name not in kept:
            kept[name] = read(source.whole)
        return cast(Result, kept[name])

    return read_or_kept


@read_once
def steps_of(choice: Choice) -> tuple[Step, ...]:
    """The emissions of one choice in wire order."""
    own = all_of(choice)
    return tuple(map(own.step, own.at))


@dataclass(frozen=True, eq=False)
class Field:
    """A field where a choice tells it: the positions of those emissions, and what each says."""

    at: Sequence[int]
    values: Sequence[Any]

    @cached_property
    def integers(self) -> bool:
        """Whether all are integers."""
        return set(map(type, self.values)) <= {int}

    def __getitem__(self, at: int) -> Any:
        """What the emission at a position says, which tells the field."""
        return self.values[bisect_left(self.at, at)]

    def some(self, which: Iterable[object]) -> Field:
        """The field in those of the emissions for which something is true."""
        kept = list(map(bool, which))
        if all(kept):
            return self
        return Field(list(compress(self.at, kept)), list(compress(self.values, kept)))

    def after_the_first(self) -> Field:
        return Field(self.at[1:], self.values[1:])

    def of(self, column: Sequence[Any]) -> Sequence[Any]:
        """What another column of the choice holds there."""
        return column if len(column) == len(self.at) else [column[at] for at in self.at]

    def equals(self, expected: Iterable[int]) -> Iterable[bool]:
        """Whether each is the integer that is expected."""
        if self.integers:
            return map(eq, self.values, expected)
        return (type(one) is int and one == due for one, due in zip(self.values, expected, strict=False))


NOWHERE = Field((), ())


@dataclass(frozen=True, eq=False)
class Walked:
    """One choice as a client follows it, field by field, and how many of its output ids were delivered before
    and after each emission; see `Step`.
    """

    choice: Choice
    columns: Columns
    ids: Sequence[list[Any] | None]
    before: Sequence[int]
    after: Sequence[int]
    counted: Sequence[bool] | None
    """None where all are."""
    kept: Sequence[int]
    """Where its emissions stand among those of the choice."""

    @property
    def at(self) -> range:
        """The positions of all emissions."""
        return range(len(self.kept))

    @property
    def incremental(self) -> bool:
        return self.choice.delivery is Delivery.INCREMENTAL

    def emission(self, at: int) -> Emission:
        return self.choice.emissions[self.kept[at]]

    def counts(self, at: int) -> bool:
        """Whether `after` is known at a position; see `Step`."""
        return self.counted is None or self.counted[at]

    def step(self, at: int) -> Step:
        position = self.kept[at]
        return Step(
            self.choice.emissions[position],
            self.choice.delivery,
            self.ids[at],
            self.before[at],
            self.after[at],
            position == 0,
            position == len(self.choice.emissions) - 1,
            self.counts(at),
        )

    def where(self, column: Sequence[Any]) -> Field:
        """A column where it is neither absent nor null."""
        if None not in column:
            return self.present(column)
        if column.count(None) == len(column):
            return NOWHERE
        return self.present([ABSENT if value is None else value for value in column])

    def present(self, column: Sequence[Any] | None) -> Field:
        """A column where it is not absent; none is nowhere."""
        if column is None:
            return NOWHERE
        told = Field(self.at, column)
        return told if ABSENT not in column else told.some(value is not ABSENT for value in column)

    def details(self, name: str) -> Sequence[Any]:
        """What each emission says of a detail; None where it is absent or null."""
        column = self.columns.details.get(name)
        return [None] * len(self.at) if column is None else [None if one is ABSENT else one for one in column]

    def detail(self, name: str) -> Field:
        """A detail, be it null."""
        return self.present(self.columns.details.get(name))

    @cached_property
    def _counters(self) -> dict[str, Field]:
        return {}

    def counter(self, name: str) -> Field:
        """A counter, where it is told."""
        if name not in self._counters:
            self._counters[name] = self.present(self.columns.counters.get(name))
        return self._counters[name]

    @cached_property
    def new(self) -> list[int]:
        """How many ids of the choice each emission is the first to carry."""
        return list(map(sub, self.after, self.before))

    @property
    def due(self) -> Sequence[int]:
        """How many entries a per-token series of each emission must hold."""
        return self.new if self.incremental else self.after

    @cached_property
    def carrying(self) -> Field:
        """The output ids where there are any, or an empty list of them."""
        return self.where(self.ids)

    @cached_property
    def _series(self) -> dict[str, Field]:
        return {}

    def unseen(self, name: str) -> Field:
        """The entries of a series that no emission before carried, where it is a list."""
        if name not in self._series:
            column = self.columns.series.get(name)
            self._series[name] = NOWHERE if column is None else self._unseen(column)
        return self._series[name]

    def _unseen(self, column: Sequence[Any]) -> Field:
        told = self.where(list(map(as_list, column)) if not set(map(type, column)) <= {list} else column)
        if self.incremental:
            return told
        return Field(
            told.at, [part[self.before[at] :] for at, part in zip(told.at, told.values, strict=True)]
        )

    @cached_property
    def unseen_ids(self) -> Field:
        return self._unseen(self.ids)

    def look(
        self, at: Sequence[int], surely: Iterable[bool] | None, look: Callable[[int], Observation]
    ) -> Look:
        """The look at some of the emissions."""
        events = self.columns.events
        if isinstance(at, range):
            events = events[at.start : at.stop : at.step]
        elif len(at) < len(events):
            events = [events[one] for one in at]
        return Look(at, events, surely, look)

    def look_at(
        self,
        things: Sequence[tuple[int, One]],
        surely: Callable[[One], bool],
        look: Callable[[One], Observation],
    ) -> Look:
        """The look at things, of which several may stand in an emission, each with its position."""
        events = [self.columns.events[at] for at, _ in things]
        sure = (surely(one) for _, one in things)
        return Look(range(len(things)), events, sure, lambda at: look(things[at][1]))


def _walked(choice: Choice, kept: Sequence[int]) -> Walked:
    columns = choice.columns
    ids: Sequence[list[Any] | None] = columns.output_ids
    if not set(map(type, ids)) <= {list, NoneType}:
        ids = list(map(as_list, ids))
    after, counted = _counts(columns, ids, incremental=choice.delivery is Delivery.INCREMENTAL)
    before = [0, *after[:-1]]
    if len(kept) == len(after):
        return Walked(choice, columns, ids, before, after, counted, kept)
    ids = [ids[at] for at in kept]
    before, after = ([column[at] for at in kept] for column in (before, after))
    counted = counted and [counted[at] for at in kept]
    return Walked(choice, columns.cut(kept), ids, before, after, counted, kept)


def _counts(
    columns: Columns, ids: Sequence[list[Any] | None], *, incremental: bool
) -> tuple[list[int], list[bool] | None]:
    """How many ids were delivered after each emission, and which of them are known; None for all."""
    if None not in ids:
        sizes = map(len, cast("Sequence[list[Any]]", ids))
        return list(accumulate(sizes) if incremental else sizes), None
    carries_ids = any(told is not None for told in ids)
    counts = [integer(one) for one in columns.counters.get("completion_tokens", [None] * len(ids))]
    delivered, counted = 0, carries_ids and incremental
    after, known = [], []
    for told, count in zip(ids, counts, strict=True):
        if told is not None:
            delivered = delivered + len(told) if incremental else len(told)
        elif not carries_ids and count is not None:
            delivered = count
        after.append(delivered)
        known.append(counted or told is not None or (not carries_ids and count is not None))
    return after, None if all(known) else known


@read_once
def all_of(choice: Choice) -> Walked:
    """One choice, with all of its emissions."""
    return _walked(choice, range(len(choice.emissions)))


@read_once
def walked_choice(choice: Choice) -> Walked:
    """One choice, without emissions that report a failure."""
    if not choice.columns.failed:
        return all_of(choice)
    return _walked(choice, [at for at, finish in enumerate(choice.columns.finish) if not is_error(finish)])


def walked(stream: Stream) -> Iterator[Walked]:
    """The choices of an answered stream that have an emission which reports no failure."""
    every = map(walked_choice, stream.choices if stream.answered else ())
    return (own for own in every if own.kept)


def times_of(own: Walked) -> list[float]:
    """When the emissions of a choice came."""
    return [own.emission(at).event.place.time for at in own.at]


def walked_as_begun(stream: Stream) -> list[Walked]:
    """The same, in the order in which they begin."""
    return sorted(walked(stream), key=lambda own: own.columns.events[0])


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


def by_choice(steps: Iterable[Step]) -> dict[int, list[Step]]:
    """Steps of a walk, gathered by choice."""
    gathered: dict[int, list[Step]] = {}
    for step in steps:
        gathered.setdefault(step.emission.choice, []).append(step)
    return gathered


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
    for at, text in enumerate(choice.columns.text):
        if isinstance(text, str):
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
    columns, emissions = choice.columns, choice.emissions
    carrying = [at for at, keys in enumerate(columns.keys) if field in keys]
    if not carrying:
        return choice.last_at()
    return emissions[_bringing(choice, field, position, carrying)].at(field)


def _bringing(choice: Choice, field: str, position: int | None, carrying: Sequence[int]) -> int:
    """Which of the emissions that carry a field brings an entry."""
    if position is None:
        return carrying[-1]
    columns = choice.columns
    single = {"output_ids": columns.output_ids, "text": columns.text}
    column = single.get(field, columns.series.get(field, []))
    values = [_listed(column[at]) if column else () for at in carrying]
    if choice.delivery is Delivery.INCREMENTAL:
        held = accumulate(map(len, values))
        own = zip(carrying, held, strict=True)
        return next((at for at, size in own if position < size), carrying[-1])
    # What a later emission took back or wrote anew counts from there on.
    upto = slice(position + 1)
    changed = (at for at in range(len(values) - 1, 0, -1) if values[at - 1][upto] != values[-1][upto])
    return carrying[next(changed, 0)]


def _listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple, str)) else ()


def first_list(choice: Choice, column: Iterable[Any]) -> tuple[Emission, list[Any]] | None:
    """The first emission of a choice that has a list in a column, and that list."""
    lists = enumerate(map(as_list, column))
    return next(((choice.emissions[at], told) for at, told in lists if told is not None), None)


def first_of_prompt(choice: Choice, name: str) -> tuple[Emission, list[Any]] | None:
    """The first emission of a choice that carries a prompt-side series as a list, and that list."""
    return first_list(choice, choice.columns.prompt_series[name]) if name in names_of_prompt(choice) else None


@in_short(Choice)
def names_of_prompt(choice: Choice) -> frozenset[str]:
    """The prompt-side series of a choice."""
    return frozenset(choice.columns.prompt_series)


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


@in_short(Stream)
def _ends(stream: Stream) -> tuple[Place, Place]:
    nowhere = Place(stream.exchange.name)
    return (stream.events[0].place, stream.events[-1].place) if stream.events else (nowhere, nowhere)


def end_place(stream: Stream) -> Place:
    """The end of an answer: its last event, or the exchange where there is none."""
    return _ends(stream)[1]


def start_place(stream: Stream) -> Place:
    return _ends(stream)[0]


@in_short(Choice)
def told_prompt(choice: Choice) -> tuple[Place, list[Any]] | None:
    """The first list of prompt_token_ids of a choice, and where it stands; None where there is none."""
    lists = ((at, as_list(ids)) for at, ids in enumerate(choice.columns.prompt_token_ids))
    found = next(((at, ids) for at, ids in lists if ids is not None), None)
    return None if found is None else (choice.emissions[found[0]].at("prompt_token_ids"), found[1])


def witnessed(stream: Stream, observations: Iterable[Observation]) -> Iterator[Observation]:
    """Let observations that hold count only where the answer carries a record: `{}` proves nothing."""
    return (seen for seen in observations if stream.answered or not seen.holds)
