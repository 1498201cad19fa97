"""Separates an echoed prompt from the output.

If a response echoes the prompt, its logprobs begin with entries for the prompt tokens. They are moved to
`prompt_series`, so that a series has one entry for each output token at every endpoint.
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
    """The series in which an echo precedes the output, in the first emission of a choice."""

    series: tuple[str, ...]
    from_top_logprobs: int
    """The echo is in these series only if at least this number of top logprobs is requested."""


_TOKENS = "tokens"
"""The series with the text of each token. The prompt's length is found by comparing texts with it."""


def _spelled(emission: Emission, text: str) -> list[int]:
    """Return the possible numbers of leading tokens whose texts make up `text`.

    There are several if a token has an empty text.
    """
    tokens = emission.series.get(_TOKENS)
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        return []
    heads = enumerate(accumulate(tokens), 1)
    return [size for size, head in heads if head == text]


def _prompt_length(emission: Emission, asked: Asked, usage: Mapping[str, Any] | None) -> int | None:
    """Return the number of tokens in a choice's prompt; None if the number is unknown.

    It is the number of ids that were sent or returned. Without ids, the texts of the tokens show the number.
    The last resort is the counter in the answer, which may be wrong.
    """
    prompt = emission.choice // max(asked.n, 1)
    if asked.input_ids is not None and prompt < len(asked.input_ids):
        return len(asked.input_ids[prompt])
    if emission.prompt_token_ids is not None:
        return len(emission.prompt_token_ids)
    counted = emission.counters.get("prompt_tokens")
    # A usage object counts all prompts together.
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
    """Yield the emissions with the entries of the prompt moved from `series` to `prompt_series`.

    If the length of the prompt is unknown, these series are removed.
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
