"""Imitates a correct server whose repeated answers differ: near ties of greedy answers are decided
differently, and logprobs vary slightly. Real servers do this if their arithmetic depends on the batch. Tests
use this module to show that the suite does not blame such servers.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import torch
from torch import Tensor

from tokenwire_reference.core.hooks import Logits
from tokenwire_reference.core.request import Request
from tokenwire_reference.core.request_extras import Extra

NEAR = 0.05
"""The difference of logits below which the two best ids may be exchanged."""
JITTER = 1e-3
"""The greatest change of a logit."""
_WITHIN = 16
"""An answer that diverges does so at a near tie.

The search for the near tie begins at a random position among this many first tokens.
"""

SWAYED = Extra("swayed", default=False)
"""True if a near tie of this request was already decided differently."""


class NearTies(Logits):
    """Changes logits. `share` is the share of greedy answers that diverge, each at one near tie."""

    def __init__(self, share: float, seed: int | None) -> None:
        self.share = share
        self._generator = torch.Generator()
        self._generator.manual_seed(Random().getrandbits(63) if seed is None else seed)

    def jitter(self, logits: Tensor) -> Tensor:
        noise = torch.rand(logits.shape, generator=self._generator, dtype=logits.dtype)
        return logits + (2 * noise - 1).to(logits.device) * JITTER

    def sway(self, logits: Tensor, positions: Iterable[tuple[Request, int]]) -> Tensor:
        moved = self.jitter(logits)
        for row, (request, position) in zip(moved, positions, strict=True):
            if not request.sampling.greedy or SWAYED.of(request) or position < self._from(request):
                continue
            best = row.topk(2)
            if float(best.values[0] - best.values[1]) <= NEAR:
                row[best.indices] = best.values.flip(0)
                SWAYED.put(request, True)
        return moved

    def _from(self, request: Request) -> float:
        """Return the position from which a request diverges; infinity if it does not."""
        drawn = Random(request.seed)
        return drawn.randrange(_WITHIN) if drawn.random() < self.share else float("inf")
