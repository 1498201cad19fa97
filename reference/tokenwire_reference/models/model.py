"""What the engine needs of a model."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from tokenwire_reference.cache.prefix_tiers import PageStore
from tokenwire_reference.models.attention import PagedAttention
from tokenwire_reference.models.hidden_state import HiddenStateTap
from tokenwire_reference.request import Request
from tokenwire_reference.scheduling.batch import Batch
from tokenwire_reference.scheduling.drafting import Drafter


class PagedCache(PagedAttention, PageStore, Protocol):
    """Keys and values of one engine: for attention, and page by page for lower tiers of the prefix cache."""


class Model(Protocol):
    """What the engine needs of a model."""

    name: str
    module: Any
    """The transformers model; None where there is none."""
    hidden_states: HiddenStateTap
    tokenizer: Any
    vocab_size: int
    eos_token_ids: frozenset[int]
    context_length: int
    row_sizes: tuple[int, ...]

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def drafter(self, request: Request) -> Drafter | None:
        """What knows the request's tokens beforehand. Raises ValueError for a script that cannot be."""

    def bytes_per_token(self) -> int: ...

    def fingerprint(self) -> str:
        """Equal only where stored keys and values may be shared."""

    def new_cache(self, num_pages: int, page_size: int) -> PagedCache: ...

    def forward(self, batch: Batch, cache: PagedCache) -> Tensor:
        """Run a batch that the cache was told by `plan`."""

    def pad_rows(self, rows: int) -> int: ...

    def probe_row_sizes(self, largest: int) -> None: ...
