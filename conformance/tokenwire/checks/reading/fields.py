"""Fields of a choice or an answer: a client's final value, and the emission that brought it.

Everything that a target wrote is untrusted JSON: values here may have any type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import accumulate
from typing import Any, TypeVar, cast

from tokenwire.record import (
    Answer,
    Choice,
    ChoiceFacts,
    Delivery,
    Emission,
    Place,
    Stream,
    as_list,
    fact,
    integer,
)

Source = TypeVar("Source", Stream, Choice)
_Result = TypeVar("_Result")


def read_once(read: Callable[[Source], _Result]) -> Callable[[Source], _Result]:
    """Cache a function's result with a stream or a choice, because nearly every check uses it."""

    @wraps(read)
    def read_or_kept(source: Source) -> _Result:
        cache = source.cache
        if read not in cache:
            cache[read] = read(source)
        return cast(_Result, cache[read])

    return read_or_kept


def details(emissions: Iterable[Emission], name: str) -> Iterator[tuple[Emission, Any]]:
    """Return the emissions with a detail, even null, each with the value."""
    return ((emission, emission.details[name]) for emission in emissions if name in emission.details)


def counters(emissions: Iterable[Emission], name: str) -> Iterator[tuple[Emission, Any]]:
    """Return the emissions with a counter, each with the raw value."""
    return ((emission, emission.counters[name]) for emission in emissions if name in emission.counters)


def counts_its_ids(choice: ChoiceFacts) -> bool:
    """True if a choice has as many output ids as it reports, or does not report a number.

    Otherwise, ids were lost or doubled on the way. That is a finding about the answer itself, which then is
    not evidence against another one.
    """
    ids, count = choice.output_ids, choice.counter("completion_tokens")
    return ids is None or count is None or len(ids) == count


def running_texts(choice: Choice) -> list[tuple[Emission, str]]:
    """Return the client's text after each emission with text."""
    texts: list[tuple[Emission, str]] = []
    held = ""
    for emission in choice.emissions:
        if emission.text is not None:
            held = held + emission.text if choice.text_is_incremental else emission.text
            texts.append((emission, held))
    return texts


def bringing(choice: ChoiceFacts, field: str, position: int | None = None) -> Place:
    """Return the place where a client first gets an entry in its final form, in `output_ids`, `text` or a
    series.

    Without a position, or if no emission brings it, return the field in the last emission that carries it, or
    the last emission of all.
    """
    if position is None and choice.ends_with(field):
        return choice.last_at(field)
    carrying = [emission for emission in choice.load().emissions if field in emission.pointers]
    if not carrying:
        return choice.last_at()
    return _bringing(choice, field, position, carrying).at(field)


def _bringing(
    choice: ChoiceFacts, field: str, position: int | None, carrying: Sequence[Emission]
) -> Emission:
    """Return the emission that brings an entry, among those that carry the field."""
    if position is None:
        return carrying[-1]
    values = [
        _sequence_or_empty(getattr(emission, field) if field in _SINGLE else emission.series.get(field))
        for emission in carrying
    ]
    if choice.delivery is Delivery.INCREMENTAL:
        held = accumulate(map(len, values))
        held_after = zip(carrying, held, strict=True)
        return next((emission for emission, size in held_after if position < size), carrying[-1])
    # A value that a later emission removed or replaced counts from there on.
    upto = slice(position + 1)
    changed = (
        index for index in range(len(values) - 1, 0, -1) if values[index - 1][upto] != values[-1][upto]
    )
    return carrying[next(changed, 0)]


_SINGLE = ("output_ids", "text")


def _sequence_or_empty(value: object) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple, str)) else ()


def first_prompt_ids(choice: Choice, *, empty: bool = True) -> tuple[Emission, list[Any]] | None:
    """Return the first emission with a list of prompt_token_ids, and the list; with `empty`, even an empty
    one.
    """
    lists = ((emission, as_list(emission.prompt_token_ids)) for emission in choice.emissions)
    return next(((emission, ids) for emission, ids in lists if ids or (empty and ids is not None)), None)


def first_of_prompt(choice: Choice, name: str, *, empty: bool = True) -> tuple[Emission, list[Any]] | None:
    """Return the first emission with a prompt-side series as a list, and the list; with `empty`, even an
    empty one.
    """
    lists = ((emission, as_list(emission.prompt_series.get(name))) for emission in choice.emissions)
    return next(
        ((emission, found) for emission, found in lists if found or (empty and found is not None)), None
    )


@fact(Choice)
def names_of_prompt(choice: Choice) -> frozenset[str]:
    """Return the prompt-side series of a choice."""
    return frozenset(name for emission in choice.emissions for name in emission.prompt_series)


def usage_count(stream: Answer, name: str = "completion_tokens") -> int | None:
    """Return a count in the usage of an answer; None if it is not an integer."""
    return integer((stream.usage or {}).get(name))


def count_of(stream: Answer, choice: ChoiceFacts) -> int | None:
    """Return the number of output ids of a choice: of its ids, or else completion_tokens, or else the usage.

    The usage of several choices does not apply to any of them, even if only one of them came.
    """
    ids = choice.output_ids
    if ids is not None:
        return len(ids)
    count = choice.counter("completion_tokens")
    alone = len(stream.choices) == 1 and stream.asked.prompts * stream.asked.n == 1
    return usage_count(stream) if count is None and alone else count


def total_count(stream: Answer, choices: Iterable[ChoiceFacts]) -> int | None:
    """Return the number of output ids of all choices of an answer, by its usage, or else by the choices."""
    if (stated := usage_count(stream)) is not None:
        return stated
    counts = [count_of(stream, choice) for choice in choices]
    return None if None in counts else sum(filter(None, counts))


def untold_count(stream: Stream, choice: Choice) -> int | None:
    """Return the number of output ids of the only choice of an answer without ids, by the usage.

    Returns None if it is unknown, or if the last token may be an omitted stop.
    """
    spent = choice.finish is not None and choice.finish.type == "length"
    if choice.output_ids is not None or not spent or stream.asked.echo or len(stream.choices) != 1:
        return None
    return count_of(stream, choice) or None


def prompt_of(stream: Answer, choice: int) -> list[int] | None:
    """Return the input_ids of a choice, if the request sent ids. Choices are ordered by prompt."""
    prompts, n = stream.asked.input_ids, stream.asked.n
    if prompts is None or n < 1 or not 0 <= choice // n < len(prompts):
        return None
    return list(prompts[choice // n])


STOPS = ("stop", "stop_token_ids", "stop_regex", "no_stop_trim", "ignore_eos", "min_new_tokens")
SHOWN = ("skip_special_tokens", "spaces_between_special_tokens", "echo")
LOGPROBS = ("logprobs", "logprob_start", "top_logprobs", "chosen_ids")
EXTRAS = ("return_prompt_token_ids", "return_token_ids", "return_meta_info")


def asked_alike(stream: Answer, *fields: str) -> tuple[object, ...]:
    """Return a key of requests of one dialect with equal values of some fields of `Asked`."""
    return (stream.dialect, *(getattr(stream.asked, name) for name in fields))


def prompt_sent(stream: Answer) -> tuple[Any, Mapping[str, Any]] | None:
    """Return the model and the prompt of a request, by the names in dialect tables; None if it cannot be
    parsed.
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


def end_place(stream: Answer) -> Place:
    """Return the end of an answer: its last event, or the exchange without events."""
    return _ends(stream)[1]


def start_place(stream: Answer) -> Place:
    return _ends(stream)[0]


@fact(Choice)
def told_prompt(choice: Choice) -> tuple[Place, list[Any]] | None:
    """Return the first list of prompt_token_ids of a choice, and its place; None if there is none."""
    found = first_prompt_ids(choice)
    return None if found is None else (found[0].at("prompt_token_ids"), found[1])


def stated_by_both(*choices: ChoiceFacts) -> list[Sequence[Any]]:
    """Return the ids of two choices, or their texts if either has no ids."""
    ids = [choice.output_ids for choice in choices]
    return [choice.text or "" for choice in choices] if None in ids else [found or () for found in ids]
