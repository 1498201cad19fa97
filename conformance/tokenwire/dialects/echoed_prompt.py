"""The prompt at the head of an answer: an echo puts the prompt's entries before those of the output.

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
    """The series that begin with the prompt's entries, in the first emission of a choice that
    carries them.
    """

    series: tuple[str, ...]
    from_top_logprobs: int
    """The least number of top logprobs that a request with an echo gets such entries for."""


_TOKENS = "tokens"
"""The series of the texts of the tokens."""


def _spelled(emission: Emission, text: str) -> list[int]:
    """Return how many tokens at the head of an emission spell a text; several if a token has no text."""
    tokens = emission.series.get(_TOKENS)
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        return []
    heads = enumerate(accumulate(tokens), 1)
    return [size for size, head in heads if head == text]


def _prompt_length(emission: Emission, asked: Asked, usage: Mapping[str, Any] | None) -> int | None:
    """Return how many tokens the prompt of a choice has: by the ids that were sent or came back, by the text
    that tokens spell, and only then by the answer's counter, which may be wrong; None if it is not known.
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

    If the length of the prompt is not known, the series of that emission are left out of the record.
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
