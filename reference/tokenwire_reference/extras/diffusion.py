"""`builtin:diffusion`: a small diffusion model. It determines the ids of a block in an order of its own.

To *settle* a position is to determine its id. A pass sees a whole block with all settled ids, and settles the
positions of which the model is most certain. Each step sends a settled block to the client, in order, as long
as the sampler chooses the settled ids. If the sampler chooses another id (because of sampling, a bias or a
ban), the ids after this position are settled again. Blocks begin at multiples of their length. The result
depends only on the tokens before and in the block. So it is the same in any batch, after a retraction, and if
the tokens come from a prompt.
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
"""The number of positions in a block."""
A_PASS = 3
"""The maximum number of positions that one pass settles."""
MASK = VOCAB_SIZE
"""The placeholder id for a position that is not settled yet, or that is outside of the block."""
_PLACES = 61
_SPREAD = 1.5
"""The standard deviation of each of the three random contributions to a logit."""

Array = Any


@cache
def _weights() -> tuple[Array, Array, Array]:
    """Return three tables of contributions to a position's logits: by the id before, by the id after, and by
    the place of the position.
    """
    drawn = numpy.random.default_rng(35)
    rows = (VOCAB_SIZE + 1, VOCAB_SIZE + 1, _PLACES)
    before, behind, place = (
        drawn.normal(0, _SPREAD, (count, VOCAB_SIZE)).astype(numpy.float32) for count in rows
    )
    # Special tokens are made unlikely, so that texts seldom end early.
    place[:, : len(SPECIAL_TOKENS)] -= 4 * _SPREAD
    return before, behind, place


@lru_cache(maxsize=4096)
def settle(before: int, start: int, known: tuple[int, ...]) -> tuple[tuple[int, ...], Array]:
    """Return the ids of the block at `start` that begins with `known`, and the logits with which each id was
    settled.

    `before` is the id before the block. If the known ids are the ids that the model has settled, its earlier
    result is returned.
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
    """Return the settled block that contains the next token, with its logits."""
    start = len(token_ids) // BLOCK * BLOCK
    return settle(token_ids[start - 1] if start else MASK, start, tuple(token_ids[start:]))


class Blocks:
    """Drafts the rest of a block."""

    takes_time = False

    def draft(self, token_ids: Sequence[int], room: int) -> Sequence[int]:
        """Return the settled ids that follow `token_ids` in the block, except the last id, which the sampling
        row provides.
        """
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
        """Return the logits with which the wanted rows were settled: [R, vocabulary], float32."""
        del cache
        places = [(segment, position) for segment in batch.segments for position in segment.positions]
        logits = numpy.empty((batch.logit_rows.numel(), VOCAB_SIZE), numpy.float32)
        for row, place in enumerate(batch.logit_rows.tolist()):
            segment, position = places[place]
            token_ids = [*segment.sequence.token_ids, *segment.drafts][: position + 1]
            logits[row] = _block_of(token_ids)[1][len(token_ids) % BLOCK]
        return torch.from_numpy(logits)
