"""Names of tokens in logprob entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenwire_reference.core.tokenizer import Tokenizer, token_bytes
from tokenwire_reference.doors.reader import Emission


def token_name(tokenizer: Tokenizer | None, token_id: int) -> str:
    """Return the token's text; without a tokenizer its id, as in vLLM."""
    return f"token_id:{token_id}" if tokenizer is None else tokenizer.decode([token_id])


def content_entries(emission: Emission, tokenizer: Tokenizer | None) -> list[dict[str, Any]]:
    """Return the logprobs of an emission's new tokens, in the form of chat and Responses."""
    selected = emission.series.get("output_token_logprobs", ())
    rows = emission.series.get("output_top_logprobs") or [()] * len(selected)
    return [
        {**_entry(entry, tokenizer), "top_logprobs": [_entry(other, tokenizer) for other in row or ()]}
        for entry, row in zip(selected, rows, strict=True)
    ]


def _entry(entry: Sequence[Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
    logprob, token_id = entry[0], entry[1]
    data = None if tokenizer is None else list(token_bytes(tokenizer, token_id))
    return {"token": token_name(tokenizer, token_id), "bytes": data, "logprob": logprob}
