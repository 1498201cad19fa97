"""Hooks of the engine: a protocol for each, and its default.

The core runs with the defaults alone; `assembly` hooks in the parts from `extras`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from tokenwire_reference.core.kv import PageStore, Tiers
from tokenwire_reference.core.request import Drafter

if TYPE_CHECKING:
    from tokenwire_reference.core.attention import PagedCache
    from tokenwire_reference.core.batch import Batch
    from tokenwire_reference.core.model import Model
    from tokenwire_reference.core.request import Adapter, Request


class DeviceBrokenError(RuntimeError):
    """The device is of no use any more: the engine ends."""


class HiddenStates:
    """Sees the hidden states of the last layer. This one sees none."""

    available = False

    def rows(self, start: int, stop: int) -> list[list[float]]:
        """Return the hidden states of some rows of the last pass."""
        raise NotImplementedError

    def embedding(self, row: int) -> list[float]:
        """Return the embedding of a row of the last pass that wanted logits, scaled to length 1:
        [hidden size].
        """
        raise NotImplementedError


class Experts:
    """Sees which experts a model chooses. This one sees none."""

    available = False

    def room(self, slots: int) -> Tensor:
        """Make room for the experts of the positions of a cache: [slots, experts]."""
        del slots
        return torch.zeros(0, 0, dtype=torch.int32)

    def keep(self, room: Tensor, slots: Tensor) -> None:
        """Keep what the last pass chose for its rows, whose keys and values went to these slots."""

    def in_base64(self, chosen: Tensor) -> str:
        """Experts of some positions as a client gets them."""
        raise NotImplementedError


class Adapters:
    """Lets rows of a pass go through other weights. This one knows no adapter."""

    def read(self, name: str, path: str) -> Adapter:
        """Read an adapter from a directory. Raises ValueError, with the reason, for what is none."""
        raise ValueError(f"{path} cannot be loaded as adapter {name!r}; start the server with --enable-lora")

    def applied(self, batch: Batch) -> AbstractContextManager[None]:
        """Within it, each row of a pass over the batch has the weights of its request."""
        raise NotImplementedError


class Passes:
    """Runs the batches of one engine, each as it comes."""

    def __init__(self, model: Model, cache: PagedCache, *, most_rows: int) -> None:
        """`most_rows` is how many padded rows a decode has at most."""
        del most_rows
        self._model = model
        self._cache = cache

    def forward(self, batch: Batch) -> Tensor:
        """Return the logits of the batch's `logit_rows`, in order: they stay valid until the next pass."""
        self._cache.plan(batch)
        return self._model.forward(batch, self._cache)


class PassesOf(Protocol):
    """Makes the passes of an engine."""

    def __call__(self, model: Model, cache: PagedCache, *, most_rows: int) -> Passes: ...


class Logits:
    """Sees all logits before they are scored or sampled; gives them as they are."""

    def jitter(self, logits: Tensor) -> Tensor:
        """Rows of logits [R, V] of a prompt."""
        return logits

    def sway(self, logits: Tensor, positions: Iterable[tuple[Request, int]]) -> Tensor:
        """Adjusted logits [R, V]; each row belongs to a position in the output of a request."""
        del positions
        return logits


@dataclass(frozen=True)
class Hooks:
    """All that is hooked into one engine."""

    tiers: Callable[[PageStore], Tiers] = lambda _: Tiers()
    """Makes what keeps the pages that the cache evicts."""
    passes: PassesOf = Passes
    drafter: Callable[[int], Drafter | None] = lambda _: None
    """Makes a drafter for one sequence, with the most tokens that it drafts in a step."""
    logits: Logits = Logits()  # noqa: RUF009 - it has no state
