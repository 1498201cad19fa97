"""Logprobs of the ids that a request chose for the positions of its prompt, from both formats.

SGLang writes a list of entries for each position, with null for the first one. vLLM writes an array of
numbers in base64, with a row for each position after the first one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

from tokenwire.checks.reading.fields import first_of_prompt, prompt_of
from tokenwire.dialects.arrays import read_npy
from tokenwire.dialects.logprobs import (
    PROMPT,
    PROMPT_CHOSEN,
    PROMPT_TOP,
    RANKED,
    Logprob,
    Logprobs,
    prompt_series,
)
from tokenwire.record import Choice, Emission, Stream

SCORES = "prompt_token_id_logprobs"
PADDING = -1
"""Fills up a short row of ids in a request."""


class ScoredPosition(NamedTuple):
    """The chosen ids at a position of the prompt."""

    position: int
    asked: tuple[int, ...]
    """The ids that the request chose."""
    entries: Logprobs | None
    """The entries of the answer; None if they are malformed or missing."""


class PromptScores(NamedTuple):
    """The logprobs of chosen ids along the prompt of a choice."""

    emission: Emission
    field: str
    fault: str
    """The reason why the positions cannot be read; empty if they can."""
    positions: list[ScoredPosition]


def prompt_scores(stream: Stream, choice: Choice) -> PromptScores | None:
    """Return the logprobs of chosen ids along the prompt. None if the answer has none, or if the request asks
    for none.
    """
    prompt = prompt_of(stream, choice.index)
    if prompt is None or not stream.asked.uniform:
        return None
    if stream.asked.prompt_chosen:
        return _from_array(stream, choice, len(prompt))
    if stream.asked.chosen_ids and stream.asked.logprob_start is not None:
        return _from_lists(stream, choice, len(prompt), stream.asked.logprob_start)
    return None


def _from_lists(stream: Stream, choice: Choice, length: int, start: int) -> PromptScores | None:
    carried = first_of_prompt(choice, PROMPT_CHOSEN)
    read = prompt_series(choice, PROMPT_CHOSEN)
    if carried is None or read is None:
        return None
    emission, values = carried
    due = max(0, length - start)
    if len(values) != due:
        fault = f"has {len(values)} positions for the {due} of the prompt from position {start}"
        return PromptScores(emission, PROMPT_CHOSEN, fault, [])
    # The first entry of the series may be null, because its prediction was not stored.
    scored = [
        ScoredPosition(start + number, stream.asked.chosen_ids, entries)
        for number, (value, entries) in enumerate(zip(values, read[1].positions, strict=True))
        if number or value is not None
    ]
    return PromptScores(emission, PROMPT_CHOSEN, "", scored)


def _from_array(stream: Stream, choice: Choice, length: int) -> PromptScores | None:
    emission = next((e for e in choice.emissions if e.details.get(SCORES) is not None), None)
    if emission is None:
        return None
    asked, start = stream.asked.prompt_chosen, stream.asked.prompt_chosen_start
    due, width = max(0, length - 1 - start), max(map(len, asked))
    try:
        rows = read_npy(emission.details[SCORES]).rows
    except ValueError as error:
        return PromptScores(emission, SCORES, f"cannot be read: {error}", [])
    if len(rows) != due or {len(row) for row in rows} != {width}:
        shape = f"{len(rows)} x {len(rows[0]) if rows else 0}"
        return PromptScores(emission, SCORES, f"has the shape {shape} instead of {due} x {width}", [])
    scored = []
    for number, (ids, numbers) in enumerate(zip(asked, rows, strict=False)):
        filled = (*ids, *[PADDING] * (width - len(ids)))
        entries = [Logprob(value, token) for token, value in zip(filled, numbers, strict=True)]
        scored.append(ScoredPosition(start + 1 + number, filled, entries))
    return PromptScores(emission, SCORES, "", scored)


def fault_at(scored: ScoredPosition, *, is_array: bool) -> str:
    """Describe the error of the entries of a position; empty if they are the logprobs of the chosen ids.

    In an array, minus infinity is the number of padding, and of an id with probability 0.
    """
    if scored.entries is None:
        return "is not a list of entries"
    named = tuple(entry.id for entry in scored.entries)
    if named != scored.asked:
        return f"names {list(named)} instead of {list(scored.asked)}"
    for entry in scored.entries:
        none = is_array and entry.value == -math.inf
        if entry.id == PADDING and not none:
            return f"has {entry.value!r} for padding"
        if not none and (entry.number is None or entry.number > 0):
            return f"has {entry.value!r} for id {entry.id}, which is not a logprob"
    return ""


def entries_elsewhere(choice: Choice, start: int) -> dict[int, dict[object, Logprob]]:
    """Return the entries of the prompt logprobs of an answer, by position and id.

    `start`: the first position of SGLang's series.
    """
    found: dict[int, dict[object, Logprob]] = defaultdict(dict)
    for name, first in ((PROMPT_TOP, start), (PROMPT, start), (RANKED, 0)):
        series = prompt_series(choice, name)
        for position, entries in enumerate(series[1].positions if series is not None else (), first):
            found[position].update((entry.id, entry) for entry in entries or () if type(entry.id) is int)
    return found
