"""Limits of one request. Everything that a client sends is bounded here, before anything is computed from it.

`LIMITS` are part of this server's request schemas, which bodies are checked against, and `--help` lists them.
The functions below check values that depend on several fields, or on the model. Beyond these, the context
length bounds prompts and budgets, and the vocabulary bounds ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tokenwire_reference.core.request import Request
from tokenwire_reference.core.stopping import LONGEST_MATCH, MOST_STEPS
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.extras.constraints import MOST_CHARACTERS

Number = int | float

_LONG_TEXT = {"maxLength": 1 << 24}
_GRAMMAR = {"maxLength": MOST_CHARACTERS}
_ID = {"minLength": 1, "maxLength": 256}  # short, because every event repeats it
# The prompts of one batch; a longer prompt exceeds any context.
_PROMPTS = {"maxItems": 1024, "maxIds": 1 << 20, **_LONG_TEXT}
OTHERS: Mapping[str, Number] = {"maxLength": 256, "maxItems": 1024, "maxIds": 1024, "maxProperties": 64}
"""The limits of texts, lists, lists of ids and objects for which `LIMITS` has no entry."""
LIMITS: Mapping[str, Mapping[str, Number]] = {
    "temperature": {"minimum": 0, "maximum": 100},
    "repetition_penalty": {"minimum": 0.01, "maximum": 2},
    "frequency_penalty": {"minimum": -2, "maximum": 2},
    "presence_penalty": {"minimum": -2, "maximum": 2},
    # OpenAI has 100; SGLang has no limit.
    "logit_bias": {"maxProperties": 1024, "minimum": -10_000, "maximum": 10_000},
    "n": {"minimum": 1, "maximum": 128},
    # After every token, the text is searched for the beginning of a stop string.
    "stop": {"maxItems": 32, "maxLength": 1024},
    "stop_regex": {"maxItems": 32, "maxLength": 256},
    "bootstrap_port": {"minimum": 0, "maximum": 2**16 - 1},
    "bootstrap_room": {"minimum": 0, "maximum": 2**63 - 1},
    "rid": _ID,
    "request_id": _ID,
    "request_ids": {"maxItems": 4096, **_ID},
    "text": _PROMPTS,
    "input_ids": _PROMPTS,
    "prompt": _PROMPTS,
    "input": _PROMPTS,
    "tokens": _PROMPTS,
    "token_ids": _PROMPTS,
    "messages": {"maxItems": 4096},
    **dict.fromkeys(("content", "reasoning_content", "description", "image_data", "url"), _LONG_TEXT),
    **dict.fromkeys(("instructions", "system", "thinking", "arguments", "output"), _LONG_TEXT),
    **dict.fromkeys(("json_schema", "regex", "ebnf", "structural_tag"), _GRAMMAR),
    # This is OpenAI's limit. Each tool makes the prompt longer.
    "tools": {"maxItems": 128},
    "chat_template_kwargs": {"maxProperties": 8},
}
"""The limits of request fields in terms of JSON Schema. Within these limits, no float32 logit overflows."""
MOST_SAMPLES = 4096
"""The maximum number of prompts, times samples, of one request."""
MOST_PROMPT_IDS = 1 << 23
"""The maximum number of prompt ids of all samples of one request together, because each
sample stores a copy.
"""
MOST_LOGPROB_ENTRIES = 500_000
"""The maximum number of logprob entries of one HTTP request: its top logprobs, requested ids and sampling
masks at all positions.
"""
MOST_ENTRIES_OF_EVENT = 50_000
"""The maximum number of entries in one event, for cumulative streams, in which every event repeats all
entries.
"""
MOST_HIDDEN_ROWS = 20_000
"""The maximum number of rows of hidden states in one answer, added up over all its events."""
MOST_MASKED_IDS = 256
"""The maximum number of ids in a sampling mask."""
MOST_CHARACTERS_PER_TOKEN = 64
"""The maximum number of characters of a text, as a multiple of the context length.

A longer text is refused before tokenizing.
"""


def limits_in_words() -> str:
    """Describe the limits of the fields for `--help`."""
    of_fields = {**LIMITS, "any other field": OTHERS}.items()
    fields = "; ".join(f"{name} {', '.join(_in_words(limits))}" for name, limits in of_fields)
    patterns = f"all of stop_regex at most {MOST_STEPS} steps of RE2"
    return f"{fields}; {patterns}, and of a match longer than {LONGEST_MATCH} bytes no end is promised"


def _in_words(limits: Mapping[str, Number]) -> Iterator[str]:
    for what, unit in (
        ("Properties", " entries"),
        ("Items", " items"),
        ("Ids", " ids"),
        ("Length", " characters"),
        ("imum", ""),
    ):
        least, most = limits.get(f"min{what}"), limits.get(f"max{what}")
        if most is not None:
            yield (f"at most {most}" if least is None else f"{least} to {most}") + unit


def refuse_more(name: str, count: int, most: int, unit: str) -> None:
    """Raise RefusalError for a number above a limit."""
    if count > most:
        raise RefusalError(f"{name} has {count} {unit}, and may have {most}", param=name)


def refuse_many_samples(prompts: Sequence[Sequence[int]], n: int) -> None:
    """Raise RefusalError if one request has too many samples, or if its samples together have too many prompt
    ids.
    """
    refuse_more("n", n * len(prompts), MOST_SAMPLES, "samples of all prompts together")
    refuse_more("n", n * sum(map(len, prompts)), MOST_PROMPT_IDS, "prompt ids in all samples together")


def refuse_wide_masks(requests: Sequence[Request]) -> None:
    """Raise RefusalError if a sampling mask could contain the vocabulary, or exceed the limit of an
    answer.
    """
    for sampling in (request.sampling for request in requests if request.return_sampling_mask):
        if not (sampling.greedy or 1 <= sampling.top_k <= MOST_MASKED_IDS):
            raise RefusalError(
                f"return_sampling_mask needs a top_k of 1 to {MOST_MASKED_IDS}; it is {sampling.top_k}",
                param="return_sampling_mask",
            )


def refuse_many_hidden_states(requests: Sequence[Request]) -> None:
    """Raise RefusalError for too many rows of hidden states in the answers to one call.

    Each event of a stream repeats all earlier rows.
    """
    rows = 0
    for request in requests:
        if request.return_hidden_states:
            budget = request.sampling.max_new_tokens or 0
            rows += (len(request.prompt_token_ids) + budget) * (budget if request.stream else 1)
    if rows > MOST_HIDDEN_ROWS:
        raise RefusalError(
            f"return_hidden_states makes {rows} rows, more than {MOST_HIDDEN_ROWS}; ask for fewer tokens",
            param="return_hidden_states",
        )


def refuse_many_logprobs(requests: Sequence[Request], most: int = MOST_LOGPROB_ENTRIES) -> None:
    """Raise RefusalError if an answer, or one event of an answer, would have too many logprob entries."""
    entries = sum(
        (request.top_logprobs_num + len(request.token_ids_logprob)) * _scored_positions(request)
        for request in requests
        if request.return_logprob
    ) + sum(
        request.sampling.top_k * (request.sampling.max_new_tokens or 0)
        for request in requests
        if request.return_sampling_mask and not request.sampling.greedy
    )
    if entries > most:
        raise RefusalError(
            f"top logprobs, chosen ids and sampling masks make {entries} entries, more than "
            f"{most}; ask for fewer of them, or for fewer tokens"
        )


def _scored_positions(request: Request) -> int:
    """Return the number of positions of a request that may have logprobs."""
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
