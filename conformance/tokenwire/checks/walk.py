"""One walk through a stream in wire order, with the running count of each choice's output ids.

Everything that a target wrote is untrusted JSON: what is read here may have any type, and is never trusted
to have the right one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar, cast

from tokenwire.checks.check import Observation
from tokenwire.record import Choice, Delivery, Emission, Finish, Place, Stream
from tokenwire.wire.exchange import Ending

BROKEN = "\ufffd"
"""Stands in a text for bytes that are no whole character."""


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
    """Whether a choice was ended by a failure instead of being finished: an abort with an HTTP status.

    Such an ending replaces the answer; of what came with it nothing is promised.
    """
    return (
        finish is not None
        and finish.type == "abort"
        and isinstance(finish.raw, Mapping)
        and finish.raw.get("status_code") is not None
    )


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


Source = TypeVar("Source", Stream, Choice)
Result = TypeVar("Result")


def read_once(read: Callable[[Source], Result]) -> Callable[[Source], Result]:
    """Keep with a stream, or a choice, what is read of it, as a cached property does: nearly every check asks
    for it.
    """
    name = f"{read.__module__}.{read.__qualname__}"

    @wraps(read)
    def read_or_kept(source: Source) -> Result:
        kept = vars(source)
        if name not in kept:
            kept[name] = read(source)
        return cast(Result, kept[name])

    return read_or_kept


@read_once
def steps_of(choice: Choice) -> tuple[Step, ...]:
    """The emissions of one choice in wire order."""
    return tuple(_steps(choice))


def _steps(choice: Choice) -> Iterator[Step]:
    carries_ids = any(as_list(emission.output_ids) is not None for emission in choice.emissions)
    incremental = choice.delivery is Delivery.INCREMENTAL
    delivered = 0
    for position, emission in enumerate(choice.emissions):
        ids = as_list(emission.output_ids)
        count = integer(emission.counters.get("completion_tokens"))
        counted = True
        if ids is not None:
            after = delivered + len(ids) if incremental else len(ids)
        elif carries_ids:
            after, counted = delivered, incremental
        else:
            after, counted = (delivered, False) if count is None else (count, True)
        first, last = position == 0, position == len(choice.emissions) - 1
        yield Step(emission, choice.delivery, ids, delivered, after, first, last, counted)
        delivered = after


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
    texts: list[tuple[Emission, str]] = []
    held = ""
    for emission in choice.emissions:
        if isinstance(emission.text, str):
            held = held + emission.text if choice.text_is_incremental else emission.text
            texts.append((emission, held))
    return texts


def joined_text(choice: Choice) -> str | None:
    """The whole text of a choice; None where no emission carries text."""
    return choice.text


def bringing(choice: Choice, field: str, position: int | None = None) -> Emission:
    """The emission with which a client first holds an entry of a choice as it stands in the end: that at a
    position of `output_ids`, of `text` or of a series. Without a position, or if none brings it, the last
    emission that carries the field; the last of all if none does.
    """
    carrying = [emission for emission in choice.emissions if field in emission.pointers]
    if not carrying or position is None:
        return carrying[-1] if carrying else choice.emissions[-1]
    values = [_listed(emission, field) for emission in carrying]
    if choice.delivery is Delivery.INCREMENTAL:
        held = accumulate(map(len, values))
        return next((one for one, size in zip(carrying, held, strict=True) if position < size), carrying[-1])
    # What a later emission took back or wrote anew counts from there on.
    upto = slice(position + 1)
    changed = (at for at in range(len(values) - 1, 0, -1) if values[at - 1][upto] != values[-1][upto])
    return carrying[next(changed, 0)]


def _listed(emission: Emission, field: str) -> Sequence[Any]:
    value = getattr(emission, field) if field in {"output_ids", "text"} else emission.series.get(field)
    return value if isinstance(value, (list, tuple, str)) else ()


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


def end_place(stream: Stream) -> Place:
    """The end of an answer: its last event, or the exchange where there is none."""
    return stream.events[-1].place if stream.events else Place(stream.exchange.name)


def start_place(stream: Stream) -> Place:
    return stream.events[0].place if stream.events else Place(stream.exchange.name)


def witnessed(stream: Stream, observations: Iterable[Observation]) -> Iterator[Observation]:
    """Let observations that hold count only where the answer carries a record: `{}` proves nothing."""
    return (seen for seen in observations if stream.answered or not seen.holds)
