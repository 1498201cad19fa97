"""What is needed of a tokenizer: transformers' tokenizers have all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Tokenizer(Protocol):
    """Text to ids and back."""

    chat_template: str | None

    def __hash__(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False, **options: bool) -> str: ...

    def convert_ids_to_tokens(self, token_id: int) -> str: ...

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str: ...
