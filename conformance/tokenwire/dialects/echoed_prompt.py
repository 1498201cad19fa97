"""Echoed prompts: an echo puts the prompt's entries before those of the output.

The length of the prompt separates them, so that a series of the record has one entry for each output id on
every endpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from tokenwire.ask import Asked
from tokenwire.record import Emission


@dataclass(frozen=True)
class Echoed:
    """The series that begin with the prompt's entries, in a choice's first emission with them."""

    series: tuple[str, ...]
    from_top_logprobs: int
    """The least number of top logprobs with which an echo includes such entries."""


_TOKENS = "tokens"
"""The series with the text of each token."""


def _spelled(emission: Emission, text: str) -> list[int]:
    """Return the possible numbers of leading tokens whose texts form `text`; several if a token has no
    text.
    """
    tokens = emission.series.get(_TOKENS)
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        return []
    heads = enumerate(accumulate(tokens), 1)
    return [size for size, head in heads if head == text]


def _prompt_length(emission: Emission, asked: Asked, usage: Mapping[str, Any] | None) -> int | None:
    """Return the number of tokens in a choice's prompt; None if it is unknown.

    It is derived from the ids sent or returned, or else from the texts of tokens, and last from the answer's
    counter, which may be wrong.
    """
    prompt = emission.choice // max(asked.n, 1)
    if asked.input_ids is not None and prompt < len(asked.input_ids):
        return len(asked.input_ids[prompt])
    if emission.prompt_token_ids is not None:
        return len(emission.prompt_token_ids)
    counted = emission.counters.get("prompt_tokens")
    # Usage counts all prompts together.
    if counted is None and asked.prompts == 1:
        counted = (usage or {}).get("prompt_tokens")
    if prompt < len(asked.texts) and (sizes := _spelled(emission, asked.texts[prompt])):
        return counted if counted in sizes else sizes[0]
    return counted if type(counted) is int else None


def _cut(emission: Emission, names: Sequence[str], length: int | None) -> Emission:
    series, prompt_series = dict(emission.series), dict(emission.prompt_series)
    for name in names:
        entries = series.pop(name)
        if length is not None:
            prompt_series[name], series[name] = entries[:length], entries[length:]
    return replace(emission, series=series, prompt_series=prompt_series)


def without_echo(
    emissions: Iterable[Emission], asked: Asked, echoed: Echoed | None, usage: Mapping[str, Any] | None
) -> Iterator[Emission]:
    """Yield the emissions of an answer with the prompt's entries moved from `series` to `prompt_series`.

    If the prompt's length is unknown, the series of that emission are removed.
    """
    wanted = asked.echo and asked.logprobs and echoed and asked.top_logprobs >= echoed.from_top_logprobs
    seen: set[int] = set()
    for emission in emissions:
        names = [
            name
            for name in (echoed.series if wanted and echoed else ())
            if isinstance(emission.series.get(name), list)
        ]
        if names and emission.choice not in seen:
            seen.add(emission.choice)
            yield _cut(emission, names, _prompt_length(emission, asked, usage))
        else:
            yield emission
