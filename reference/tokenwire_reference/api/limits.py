"""What one request may ask for. Whatever a client says is bounded here, before anything is computed from it.

Beyond these, the context length bounds prompts and budgets, and the vocabulary bounds ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenwire_reference.api.errors import RefusalError
from tokenwire_reference.request import Request

Number = int | float

RANGES: Mapping[str, tuple[Number, Number]] = {
    "temperature": (0, 100),
    "repetition_penalty": (0.01, 2),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "n": (1, 128),
}
"""Least and most of sampling parameters. Within these, no logit of float32 overflows."""
MOST_BIAS = 10_000
"""Of `logit_bias`, up and down. OpenAI has 100; SGLang has no limit."""
MOST_BIASED_IDS = 1024
MOST_PROMPTS = 1024
"""In one batch."""
MOST_SAMPLES = 4096
"""Prompts times samples of one request."""
MOST_RID_CHARACTERS = 256
"""A request id is repeated in every event."""
MOST_STOPS = 32
MOST_STOP_CHARACTERS = 1024
"""Of a stop string: what may become one is looked for after every token."""
MOST_PATTERN_CHARACTERS = 256
MOST_LOGPROB_ENTRIES = 500_000
"""Top logprobs and chosen ids of one request, times the positions that have them."""
MOST_CHARACTERS_PER_TOKEN = 64
"""A longer text than this for each position of the context is refused before it is tokenized."""


def refuse_beyond(name: str, value: Number, least: Number, most: Number) -> None:
    """Raise RefusalError for a number that does not lie between two, or is none."""
    if not least <= value <= most:
        raise RefusalError(f"{name} is {value:.6g}; send {least} to {most}", param=name)


def refuse_more(name: str, count: int, most: int, unit: str) -> None:
    """Raise RefusalError for more of something than there may be."""
    if count > most:
        raise RefusalError(f"{name} has {count} {unit}, and may have {most}", param=name)


def refuse_long_stops(name: str, stops: Sequence[str], most_characters: int) -> None:
    """Raise RefusalError for too many stop strings or patterns, and for one that is too long."""
    refuse_more(name, len(stops), MOST_STOPS, "entries")
    for stop in stops:
        refuse_more(name, len(stop), most_characters, "characters")


def refuse_bad_rids(rids: Sequence[str]) -> None:
    """Raise RefusalError for a request id that is empty or too long."""
    for rid in rids:
        if not rid:
            raise RefusalError("rid is empty; send a text, or none for one of the server's", param="rid")
        refuse_more("rid", len(rid), MOST_RID_CHARACTERS, "characters")


def refuse_many_logprobs(requests: Sequence[Request]) -> None:
    """Raise RefusalError for more logprob entries than one call may be answered with."""
    entries = sum(
        (request.top_logprobs_num + len(request.token_ids_logprob)) * _scored_positions(request)
        for request in requests
        if request.return_logprob
    )
    if entries > MOST_LOGPROB_ENTRIES:
        raise RefusalError(
            f"top logprobs and chosen ids for each position make {entries} entries, more than "
            f"{MOST_LOGPROB_ENTRIES}; ask for fewer of them, or for fewer tokens"
        )


def _scored_positions(request: Request) -> int:
    """How many positions of a request may have logprobs."""
    start = request.logprob_start_len
    prompt = len(request.prompt_token_ids) - start if start >= 0 else 0
    return prompt + (request.sampling.max_new_tokens or 0)


def refuse_long_text(name: str, text: str, context_length: int) -> None:
    """Raise RefusalError for a text that cannot fit the context, without tokenizing it."""
    most = MOST_CHARACTERS_PER_TOKEN * context_length
    if len(text) > most:
        raise RefusalError(
            f"{name} has {len(text)} characters; a context of {context_length} tokens holds {most} at most",
            param=name,
        )
