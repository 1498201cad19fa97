"""Fields of a choice or an answer: the final value that a client has, and the emission that brought it.

Everything that a server wrote is untrusted JSON, so values here may have any type.
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
from tokenwire.wire.joined_text import join_text

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
    """Return the emissions that have a detail, even if it is null, each with its value."""
    return ((emission, emission.details[name]) for emission in emissions if name in emission.details)


def counters(emissions: Iterable[Emission], name: str) -> Iterator[tuple[Emission, Any]]:
    """Return the emissions that have a counter, each with its unparsed value."""
    return ((emission, emission.counters[name]) for emission in emissions if name in emission.counters)


def counts_its_ids(choice: ChoiceFacts) -> bool:
    """True if a choice has as many output ids as it reports, or reports no number.

    Otherwise ids were lost or doubled. This is a violation of the answer itself, so the answer is not
    evidence against another answer.
    """
    ids, count = choice.output_ids, choice.counter("completion_tokens")
    return ids is None or count is None or len(ids) == count


def running_texts(choice: Choice) -> list[tuple[Emission, str]]:
    """Return each emission with text, and the text that a client has after it."""
    texts: list[tuple[Emission, str]] = []
    held = ""
    for emission in choice.emissions:
        if emission.text is not None:
            held = join_text((held, emission.text)) if choice.text_is_incremental else emission.text
            texts.append((emission, held))
    return texts


def bringing(choice: ChoiceFacts, field: str, position: int | None = None) -> Place:
    """Return the place at which a client gets the final value of an entry of `output_ids`, `text` or a
    series. If no position is given, or no emission brings the entry, return the last emission with the field.
    If no emission has the field, return the last emission.
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
    """Return the emission that brings the final value of an entry, out of the emissions with the field."""
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
    # If a later emission removed or replaced an entry, the entry has its final value from this emission on.
    upto = slice(position + 1)
    changed = (
        index for index in range(len(values) - 1, 0, -1) if values[index - 1][upto] != values[-1][upto]
    )
    return carrying[next(changed, 0)]


_SINGLE = ("output_ids", "text")


def _sequence_or_empty(value: object) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple, str)) else ()


def first_prompt_ids(choice: Choice, *, empty: bool = True) -> tuple[Emission, list[Any]] | None:
    """Return the first emission with a list of prompt_token_ids, and this list. `empty`: True if the list may
    be empty.
    """
    lists = ((emission, as_list(emission.prompt_token_ids)) for emission in choice.emissions)
    return next(((emission, ids) for emission, ids in lists if ids or (empty and ids is not None)), None)


def first_of_prompt(choice: Choice, name: str, *, empty: bool = True) -> tuple[Emission, list[Any]] | None:
    """Return the first emission with a list of a prompt-side series, and this list. `empty`: True if the list
    may be empty.
    """
    lists = ((emission, as_list(emission.prompt_series.get(name))) for emission in choice.emissions)
    return next(
        ((emission, found) for emission, found in lists if found or (empty and found is not None)), None
    )


@fact(Choice)
def names_of_prompt(choice: Choice) -> frozenset[str]:
    """Return the names of the prompt-side series of a choice."""
    return frozenset(name for emission in choice.emissions for name in emission.prompt_series)


def usage_count(stream: Answer, name: str = "completion_tokens") -> int | None:
    """Return a counter in the usage of an answer. None if it is not an integer."""
    return integer((stream.usage or {}).get(name))


def count_of(stream: Answer, choice: ChoiceFacts) -> int | None:
    """Return the number of output ids of a choice: the length of its list, else completion_tokens, else the
    usage.

    The usage counts for a choice only if the request asked for a single choice.
    """
    ids = choice.output_ids
    if ids is not None:
        return len(ids)
    count = choice.counter("completion_tokens")
    alone = len(stream.choices) == 1 and stream.asked.prompts * stream.asked.n == 1
    return usage_count(stream) if count is None and alone else count


def total_count(stream: Answer, choices: Iterable[ChoiceFacts]) -> int | None:
    """Return the number of output ids of all choices together, from the usage or else from the choices."""
    if (stated := usage_count(stream)) is not None:
        return stated
    counts = [count_of(stream, choice) for choice in choices]
    return None if None in counts else sum(filter(None, counts))


def untold_count(stream: Stream, choice: Choice) -> int | None:
    """Return the number of output ids of a choice without ids from the usage, if it is the only choice.

    None if it is unknown, or if the last token may be a stop that the answer hides.
    """
    spent = choice.finish is not None and choice.finish.type == "length"
    if choice.output_ids is not None or not spent or stream.asked.echo or len(stream.choices) != 1:
        return None
    return count_of(stream, choice) or None


def prompt_of(stream: Answer, choice: int) -> list[int] | None:
    """Return the input_ids of the prompt of a choice. None if the request sent no ids. Choices are ordered by
    prompt.
    """
    prompts, n = stream.asked.input_ids, stream.asked.n
    if prompts is None or n < 1 or not 0 <= choice // n < len(prompts):
        return None
    return list(prompts[choice // n])


STOPS = ("stop", "stop_token_ids", "stop_regex", "no_stop_trim", "ignore_eos", "min_new_tokens")
SHOWN = ("skip_special_tokens", "spaces_between_special_tokens", "echo")
LOGPROBS = ("logprobs", "logprob_start", "top_logprobs", "chosen_ids")
EXTRAS = ("return_prompt_token_ids", "return_token_ids", "return_meta_info")


def asked_alike(stream: Answer, *fields: str) -> tuple[object, ...]:
    """Return a key that is equal for requests of one dialect with equal values of the given fields of
    `Asked`.
    """
    return (stream.dialect, *(getattr(stream.asked, name) for name in fields))


def prompt_sent(stream: Answer) -> tuple[Any, Mapping[str, Any]] | None:
    """Return the model and the prompt of a request, with the field names of the dialect tables. None if they
    cannot be parsed.
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
    """Return the place of the last event of an answer, or of the exchange if the answer has no events."""
    return _ends(stream)[1]


def start_place(stream: Answer) -> Place:
    return _ends(stream)[0]


@fact(Choice)
def told_prompt(choice: Choice) -> tuple[Place, list[Any]] | None:
    """Return the place and the value of the first list of prompt_token_ids of a choice. None if it has no
    such list.
    """
    found = first_prompt_ids(choice)
    return None if found is None else (found[0].at("prompt_token_ids"), found[1])


def stated_by_both(*choices: ChoiceFacts) -> list[Sequence[Any]]:
    """Return the ids of the choices, or their texts if a choice has no ids."""
    ids = [choice.output_ids for choice in choices]
    return [choice.text or "" for choice in choices] if None in ids else [found or () for found in ids]
