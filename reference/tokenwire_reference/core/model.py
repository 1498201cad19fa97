"""The interface of a model for the engine.

A model of transformers (`loaded_model`) or a script implements it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from tokenwire_reference.core.attention import PagedCache
from tokenwire_reference.core.batch import Batch
from tokenwire_reference.core.hooks import Adapters, Experts, HiddenStates
from tokenwire_reference.core.request import Drafter, Request


class Model(Protocol):
    """A model that is ready to run, with its tokenizer."""

    @property
    def name(self) -> str: ...

    @property
    def module(self) -> Any:
        """The transformers model; None if nothing is computed."""

    tokenizer: Any
    """The tokenizer; None without one."""
    context_length: int

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def hidden_states(self) -> HiddenStates: ...

    @property
    def experts(self) -> Experts: ...

    @property
    def adapters(self) -> Adapters: ...

    @property
    def row_sizes(self) -> tuple[int, ...]:
        """Numbers of rows at which every linear layer computes the same bits for a row."""

    def drafter(self, request: Request) -> Drafter | None:
        """Return a drafter for a request if the model itself drafts; None otherwise. Raises ValueError."""

    def bytes_per_token(self) -> int:
        """Return the bytes of a position of the KV cache in all layers."""

    def fingerprint(self) -> str:
        """Return a digest of everything that determines the bits of a page of the cache."""

    def other_weights(self, path: str) -> Callable[[], None]:
        """Read the weights of a model of the same shapes; return a function that installs them.

        Raises ValueError or OSError if they are invalid.
        """

    def new_cache(self, num_pages: int, page_size: int, seats: int) -> PagedCache:
        """Return a cache of `num_pages` pages, and page tables for `seats` sequences."""

    def forward(self, batch: Batch, cache: Any) -> Tensor:
        """Run a batch that `cache.plan` prepared; return the logits of its `logit_rows`: [R, vocabulary],
        float32.
        """

    def pad_rows(self, rows: int) -> int:
        """Return the number of rows to which a batch of `rows` rows is padded."""

    def probe_row_sizes(self, largest: int) -> None:
        """Determine `row_sizes` up to `largest` rows."""
