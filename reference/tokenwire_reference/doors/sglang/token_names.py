"""How a logprob entry names its token."""

from __future__ import annotations

from tokenwire_reference.core.tokenizer import Tokenizer, token_bytes


def token_name(tokenizer: Tokenizer | None, token_id: int) -> str:
    """The token's text; without a tokenizer its id, as vLLM writes it."""
    return f"token_id:{token_id}" if tokenizer is None else tokenizer.decode([token_id])


def bytes_of_token(tokenizer: Tokenizer | None, token_id: int) -> list[int] | None:
    """The token's bytes; None without a tokenizer."""
    return None if tokenizer is None else list(token_bytes(tokenizer, token_id))
