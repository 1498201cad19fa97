"""Reading logprob entries: `[logprob, id, text]` as SGLang writes them, or an object with those names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenwire.checks.walk import as_list, integer

SAMPLED = "output_token_logprobs"
TOP = "output_top_logprobs"
CHOSEN = "output_token_ids_logprobs"
PROMPT = "input_token_logprobs"
PROMPT_TOP = "input_top_logprobs"
PROMPT_CHOSEN = "input_token_ids_logprobs"
LENGTH = "output_token_logprobs_length"


@dataclass(frozen=True)
class LogprobEntry:
    """One token id and the logprob that it had at its position; either may be any JSON value."""

    logprob: Any
    token_id: Any


def read_entry(value: object) -> LogprobEntry | None:
    """An entry of a logprob series; None where the value is not one."""
    if isinstance(value, Mapping):
        if "logprob" not in value:
            return None
        return LogprobEntry(value["logprob"], value.get("token_id", value.get("id")))
    entry = as_list(value)
    if entry is None or len(entry) < 2 or isinstance(entry[0], (list, tuple, Mapping)):
        return None
    return LogprobEntry(entry[0], entry[1])


def read_position(value: object) -> list[LogprobEntry] | None:
    """The entries of one position of a top or chosen-id series; None where it is not a list of entries."""
    entries = as_list(value)
    if entries is None:
        return None
    read = [read_entry(entry) for entry in entries]
    complete = [entry for entry in read if entry is not None]
    return complete if len(complete) == len(read) else None


def entries_of(value: object) -> list[LogprobEntry]:
    """All entries that one position of any logprob series holds; none where it is null or malformed."""
    single = read_entry(value)
    return [single] if single is not None else read_position(value) or []


def is_legal_logprob(value: object) -> bool:
    """A finite JSON number that is not above 0."""
    if isinstance(value, float):
        return math.isfinite(value) and value <= 0
    number = integer(value)
    return number is not None and number <= 0


def illegal_logprobs(value: object) -> Iterator[Any]:
    """The logprobs at one position that are not finite and up to 0; the position itself if it has none."""
    entries = entries_of(value)
    if not entries:
        yield value
    yield from (entry.logprob for entry in entries if not is_legal_logprob(entry.logprob))
