"""`builtin:diffusion`: a small model that settles ids in blocks, in its own order.

A pass sees a whole block, with the settled ids before and after each position, and settles the most certain
ones. Clients get settled ids in order, a block in each step, as long as the sampler chooses the settled ids.
If it chooses another id (sampling, a bias, a ban), the ids after that one are settled again. Blocks begin at
multiples of their length. The result depends only on the tokens before and in the block, so it is the same
after a retraction, with neighbours, and in a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy
import torch
from torch import Tensor

from tokenwire_reference.core.batch import Batch
from tokenwire_reference.core.request import Request
from tokenwire_reference.extras.builtin import SPECIAL_TOKENS, VOCAB_SIZE
from tokenwire_reference.extras.scripted import ScriptedModel

DIFFUSION = "builtin:diffusion"
BLOCK = 8
"""Positions of a block."""
A_PASS = 3
"""The most positions that a pass settles."""
MASK = VOCAB_SIZE
"""The id of places without a settled id, and outside of the block."""
_PLACES = 61
_SPREAD = 1.5
"""The spread of each of the three inputs of the logits of the model."""

Array = Any


@cache
def _weights() -> tuple[Array, Array, Array]:
    """Return the contributions to a position's logits of the id before, the id after and its place."""
    drawn = numpy.random.default_rng(35)
    rows = (VOCAB_SIZE + 1, VOCAB_SIZE + 1, _PLACES)
    before, behind, place = (
        drawn.normal(0, _SPREAD, (count, VOCAB_SIZE)).astype(numpy.float32) for count in rows
    )
    place[:, : len(SPECIAL_TOKENS)] -= 4 * _SPREAD  # so that texts hardly ever end
    return before, behind, place


@lru_cache(maxsize=4096)
def settle(before: int, start: int, known: tuple[int, ...]) -> tuple[tuple[int, ...], Array]:
    """Return the ids of the block at `start` that begins with `known`, and the logits from which each one
    settled.

    `before` is the id before the block. As long as the model settles the known ids, it is not run again.
    """
    if known:
        ids, logits = settle(before, start, known[:-1])
        if ids[len(known) - 1] == known[-1]:
            return ids, logits
    weights_before, weights_behind, weights_place = _weights()
    block = numpy.array([before, *known, *[MASK] * (BLOCK - len(known)), MASK])
    places = numpy.arange(start, start + BLOCK) % _PLACES
    settled = numpy.zeros((BLOCK, VOCAB_SIZE), numpy.float32)
    while (masked := numpy.flatnonzero(block[1:-1] == MASK)).size:
        logits = weights_before[block[masked]] + weights_behind[block[masked + 2]]
        logits += weights_place[places[masked]]
        two = numpy.partition(logits, -2)[:, -2:]
        surest = numpy.argsort(two[:, 0] - two[:, 1], kind="stable")[:A_PASS]
        block[masked[surest] + 1] = logits[surest].argmax(1)
        settled[masked[surest]] = logits[surest]
    return tuple(block[1:-1].tolist()), settled


def _block_of(token_ids: Sequence[int]) -> tuple[tuple[int, ...], Array]:
    """Return the block of the next token."""
    start = len(token_ids) // BLOCK * BLOCK
    return settle(token_ids[start - 1] if start else MASK, start, tuple(token_ids[start:]))


class Blocks:
    """Drafts the rest of a block."""

    takes_time = False

    def draft(self, token_ids: Sequence[int], room: int) -> Sequence[int]:
        """Return the settled ids after these, except the last, which has its own row."""
        ids, _ = _block_of(token_ids)
        return ids[len(token_ids) % BLOCK : -1][:room]


class DiffusionModel(ScriptedModel):
    """A model for the engine that settles blocks."""

    name = DIFFUSION

    def drafter(self, request: Request) -> Any:
        if (request.sampling.custom_params or {}).get("script") is not None:
            raise ValueError(
                f"custom_params.script is for builtin:scripted, and this server runs {self.name}"
            )
        return Blocks()

    def fingerprint(self) -> str:
        return "diffusion"

    def forward(self, batch: Batch, cache: object) -> Tensor:
        """Return the logits from which the wanted rows settled: [R, vocabulary], float32."""
        del cache
        places = [(segment, position) for segment in batch.segments for position in segment.positions]
        logits = numpy.empty((batch.logit_rows.numel(), VOCAB_SIZE), numpy.float32)
        for row, place in enumerate(batch.logit_rows.tolist()):
            segment, position = places[place]
            token_ids = [*segment.sequence.token_ids, *segment.drafts][: position + 1]
            logits[row] = _block_of(token_ids)[1][len(token_ids) % BLOCK]
        return torch.from_numpy(logits)
