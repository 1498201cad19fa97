"""Hooks of the engine: a protocol for each, and its default.

The core runs with the defaults alone; `assembly` adds the parts of `extras`.
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
    """The device cannot be used any more, so the engine ends."""


class HiddenStates:
    """Receives the hidden states of the last layer. This default ignores them."""

    available = False

    def rows(self, start: int, stop: int) -> list[list[float]]:
        """Return the hidden states of some rows of the last pass."""
        raise NotImplementedError

    def embedding(self, row: int) -> list[float]:
        """Return the embedding of a row of the last pass, scaled to length 1: [hidden size]."""
        raise NotImplementedError


class Experts:
    """Receives the experts that a model chooses. This default ignores them."""

    available = False

    def room(self, slots: int) -> Tensor:
        """Return storage for the experts of the positions of a cache: [slots, experts]."""
        del slots
        return torch.zeros(0, 0, dtype=torch.int32)

    def keep(self, room: Tensor, slots: Tensor) -> None:
        """Store the chosen experts of each row of the last pass, at the slot of the row's keys and values."""

    def in_base64(self, chosen: Tensor) -> str:
        """Return the experts of some positions in base64, as a client gets them."""
        raise NotImplementedError


class Adapters:
    """Lets rows of a pass use adapted weights. This default has no adapters."""

    def read(self, name: str, path: str) -> Adapter:
        """Read an adapter from a directory. Raises ValueError with the reason if it is invalid."""
        raise ValueError(f"{path} cannot be loaded as adapter {name!r}; start the server with --enable-lora")

    def applied(self, batch: Batch) -> AbstractContextManager[None]:
        """Return a context in which each row of a pass over the batch has the weights of its request."""
        raise NotImplementedError


class Passes:
    """Runs the batches of one engine. This default runs each batch directly."""

    def __init__(self, model: Model, cache: PagedCache, *, most_rows: int) -> None:
        """Initialize. `most_rows` is the maximum number of rows of a decode, including padding."""
        del most_rows
        self._model = model
        self._cache = cache

    def forward(self, batch: Batch) -> Tensor:
        """Return the logits of the batch's `logit_rows`, in order, valid until the next pass."""
        self._cache.plan(batch)
        return self._model.forward(batch, self._cache)


class PassesOf(Protocol):
    """Creates the `Passes` of an engine."""

    def __call__(self, model: Model, cache: PagedCache, *, most_rows: int) -> Passes: ...


class Logits:
    """Transforms all logits before they are scored or sampled. This default returns them unchanged."""

    def jitter(self, logits: Tensor) -> Tensor:
        """Transform the logits of a prompt: [R, V]."""
        return logits

    def sway(self, logits: Tensor, positions: Iterable[tuple[Request, int]]) -> Tensor:
        """Transform adjusted logits [R, V]. Each row belongs to one output position of a request."""
        del positions
        return logits


@dataclass(frozen=True)
class Hooks:
    """All hooks of one engine."""

    tiers: Callable[[PageStore], Tiers] = lambda _: Tiers()
    """Creates the lower tiers, which store pages that the cache evicts."""
    passes: PassesOf = Passes
    drafter: Callable[[int], Drafter | None] = lambda _: None
    """Creates a drafter for one sequence, given the maximum number of tokens in a draft."""
    logits: Logits = Logits()  # noqa: RUF009 - it has no state
