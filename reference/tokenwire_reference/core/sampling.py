"""Turns logits into token ids. Every row is independent of its neighbours, bit by bit.

Greedy rows take the highest logit, ties by the lower id. Other rows add Gumbel noise to their
log-probabilities and take the highest sum. This draws a sample from exactly the distribution of the row. The
noise is a hash of (seed, position, token id); there is no generator and no state. So a seeded request gets
the same ids in any batch, and also when it is resumed from its ids.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tokenwire_reference.core.request import SamplingParams

MASK32 = 0xFFFFFFFF
CERTAIN = 1 << 53
"""The integer that represents a probability of 1."""


class SamplingRow(NamedTuple):
    """The parameters of one row of logits."""

    sampling: SamplingParams
    seed: int
    position: int
    """The absolute position of the token that these logits choose."""
    times: Tensor | None = None
    """The number of earlier occurrences of each id in the output [V]; None without penalties."""
    banned_ids: frozenset[int] = frozenset()
    """Ids that may not be chosen here: they would stop the request before `min_new_tokens`, or complete a
    banned word.
    """
    allowed: bytes | None = None
    """A bit for each id that the constraint of the request permits; None for all."""

    @property
    def changes_logits(self) -> bool:
        """True if something other than the temperature changes the logits."""
        sampling = self.sampling
        return self.times is not None or bool(
            self.banned_ids or sampling.logit_bias or self.allowed or sampling.only_ids
        )


def adjust(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Return logits [R, V] after penalties, bans, bias and temperature.

    Output logprobs are computed from the adjusted logits. A temperature below 1e-6 means greedy sampling, and
    the logits are then divided by 1. The order is that of sgl-project/sglang: frequency and presence,
    repetition, `logit_bias`, temperature; banned ids stay banned. Penalties count output ids only.
    """
    changed = [index for index, row in enumerate(rows) if row.changes_logits]
    if changed:
        logits = logits.clone()
    for index in changed:
        values, row = logits[index], rows[index]
        if row.times is not None:
            _penalise(values, row.sampling, row.times)
        if biases := row.sampling.logit_bias:
            # One operation sets all biases, because a thousand operations would delay every request.
            biased = torch.tensor(list(biases), device=values.device)
            values.index_add_(
                0, biased, torch.tensor(list(biases.values()), dtype=values.dtype).to(values.device)
            )
        # Bans come last, so that a bias cannot bring back a banned id.
        if row.allowed is not None:
            values[~_bits(row.allowed, values)] = float("-inf")
        if only := row.sampling.only_ids:
            ids = torch.tensor(only, device=values.device)
            values.copy_(torch.full_like(values, float("-inf")).index_copy_(0, ids, values[ids]))
        if row.banned_ids:
            banned = values.index_fill(
                0, torch.tensor([*row.banned_ids], device=values.device), float("-inf")
            )
            restricted = row.allowed is not None or row.sampling.only_ids
            if not restricted or banned.isfinite().any():  # else only banned ids are permitted
                values.copy_(banned)
    temperatures = [1.0 if row.sampling.temperature < 1e-6 else row.sampling.temperature for row in rows]
    if all(temperature == 1.0 for temperature in temperatures):
        return logits
    return logits / torch.tensor(temperatures, dtype=logits.dtype, device=logits.device)[:, None]


def _bits(mask: bytes, values: Tensor) -> Tensor:
    """Return the bits of a mask as a boolean tensor with one entry for each id [V]."""
    octets = torch.frombuffer(bytearray(mask), dtype=torch.uint8)
    bits = (octets[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    return bits.flatten()[: len(values)].bool().to(values.device)


def _penalise(values: Tensor, p: SamplingParams, times: Tensor) -> None:
    """Apply penalties to one row of logits [V], according to the earlier occurrences of each id [V]."""
    less = values - (p.frequency_penalty * times + p.presence_penalty)
    less = torch.where(less > 0, less / p.repetition_penalty, less * p.repetition_penalty)
    values.copy_(torch.where(times > 0, less, values))


class OutputCounts:
    """Counts of each id in a growing list of ids. Each new id is counted once."""

    def __init__(self, output_ids: Sequence[int], logits: Tensor) -> None:
        """Initialize with a list of ids.

        `logits` [..., V] determine the size, type and device of the counts.
        """
        self.output_ids = output_ids
        self._times = logits.new_zeros(logits.shape[-1])
        self._counted = 0

    def times(self, drafts: Sequence[int] = ()) -> Tensor:
        """Return the counts of the ids in the list so far and in further drafts: [V]."""
        _count(self._times, self.output_ids[self._counted :])
        self._counted = len(self.output_ids)
        return _count(self._times.clone(), drafts) if drafts else self._times


def _count(times: Tensor, ids: Sequence[int]) -> Tensor:
    index = torch.tensor(ids, dtype=torch.int64, device=times.device)
    return times.index_add_(0, index, torch.ones_like(index, dtype=times.dtype))


def rows_without_numbers(adjusted: Tensor) -> list[int]:
    """Return the rows of adjusted logits [R, V] from which no id can be chosen.

    In such a row, a logit is NaN or infinite, or all ids are banned. A damaged checkpoint may affect the
    logit of a single id.
    """
    return [index for index, best in enumerate(adjusted.amax(-1).tolist()) if not math.isfinite(best)]


def choose(adjusted: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    """Return one token id for each row of adjusted logits [R, V]."""
    chosen: list[int] = adjusted.argmax(-1).tolist()
    drawn = [index for index, row in enumerate(rows) if not row.sampling.greedy]
    if drawn:
        logits = adjusted if len(drawn) == len(rows) else adjusted[drawn]
        kept = _truncate(torch.log_softmax(logits.double(), -1), [rows[index].sampling for index in drawn])
        keys = [noise_key(rows[index].seed, rows[index].position) for index in drawn]
        noisy = kept + gumbel_noise(keys, adjusted.shape[-1], adjusted.device)
        for index, token_id in zip(drawn, noisy.argmax(-1).tolist(), strict=True):
            chosen[index] = token_id
    return chosen


def support(
    adjusted: Tensor, rows: Sequence[SamplingRow], chosen: Sequence[int]
) -> list[tuple[list[int], float]]:
    """Return, for each row of adjusted logits [R, V], the possible ids, best first, and the logprob of the
    chosen id within this set.
    """
    kept = _truncate(torch.log_softmax(adjusted.double(), -1), [row.sampling for row in rows])
    kept -= kept.logsumexp(-1, keepdim=True)
    found = []
    for values, row, token_id in zip(kept, rows, chosen, strict=True):
        ids: list[int] = values.argsort(descending=True, stable=True)[: int(values.isfinite().sum())].tolist()
        # A greedy choice has one possible id, whatever its temperature.
        found.append(([token_id], 0.0) if row.sampling.greedy else (ids, min(float(values[token_id]), 0.0)))
    return found


def _truncate(logprobs: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Set the logprobs of ids that top_k, top_p and min_p exclude to -inf. Each rule applies to the whole
    distribution.

    `logprobs` [R, V] come from adjusted logits, and are -inf for banned ids. Ids with equal probabilities are
    ranked by id. The best id is never excluded.
    """
    if not any(p.truncates for p in params):
        return logprobs
    ranked, ids = logprobs.sort(dim=-1, descending=True, stable=True)
    # Probabilities are integers here, because sums of integers do not depend on the order of additions.
    probabilities = (ranked.exp() * CERTAIN).long()
    vocab_size = logprobs.shape[-1]

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=logprobs.dtype, device=logprobs.device)[:, None]

    rank = torch.arange(vocab_size, device=logprobs.device)[None, :]
    before = probabilities.cumsum(-1) - probabilities
    dropped = rank >= column([p.top_k if p.top_k > 0 else vocab_size for p in params])
    dropped |= before > column([p.top_p * CERTAIN for p in params])
    dropped |= probabilities < probabilities[:, :1] * column([p.min_p for p in params])
    return logprobs.scatter(-1, ids, ranked.masked_fill(dropped, float("-inf")))


def noise_key(seed: int, position: int) -> int:
    """Hash a seed (64 bits, signed or not) and a position to 32 bits."""
    key = 0
    for word in (seed & MASK32, seed >> 32 & MASK32, position & MASK32):
        key = _mix(key ^ word)
    return key


def gumbel_noise(keys: Sequence[int], vocab_size: int, device: torch.device) -> Tensor:
    """Return [len(keys), vocab_size] float64: independent standard Gumbel noise, a pure function of key and
    id.
    """
    ids = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=device)
    key = torch.tensor(keys, dtype=torch.int64, device=device)[:, None]
    bits = _mix_tensor(_mix_tensor(ids)[None, :] ^ key)
    # Adding a half avoids 0 and 1, for which the noise would be infinite.
    uniform = (bits.double() + 0.5) / 2**32
    return -torch.log(-torch.log(uniform))


def _mix(word: int) -> int:
    """Mix 32 bits into 32 bits, by the finaliser of MurmurHash3."""
    word ^= word >> 16
    word = word * 0x85EBCA6B & MASK32
    word ^= word >> 13
    word = word * 0xC2B2AE35 & MASK32
    return word ^ word >> 16


def _mix_tensor(words: Tensor) -> Tensor:
    words = words ^ words >> 16
    words = words * 0x85EBCA6B & MASK32
    words = words ^ words >> 13
    words = words * 0xC2B2AE35 & MASK32
    return words ^ words >> 16
