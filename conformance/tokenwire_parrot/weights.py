"""The weights of a parrot: a Qwen2 with one layer, whose attention depends only on distances.

Queries and keys are only biases. So the attention score is a function of the distance between two positions,
through the rotary embedding. Values and outputs copy the code of the attended token next to the code of the
attending token, and the head reads the copy. The feed-forward part is zero. The code of an id is its digits,
one-hot. The inputs of all normalizations have a mean square that is a power of four. So all numbers except
the attention scores are exact in bfloat16, float16 and float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenwire.parrot.law import ELSEWHERE, GROUP, Parrot, bias, positions_of, runner_up
from tokenwire_parrot.architecture import HEADS, INNER, ROPE_THETA

Array = NDArray[Any]

_EMBEDDED = 8.0
_COPIED = 16.0
_KEY = 16.0
_LEAD = 24.0
"""The amount by which the score at the lag exceeds all other scores, in units of the softmax's exponent."""
_LEAST_LEAD = 20.0
"""The least amount by which the score at the lag exceeds all other scores after the weights were rounded."""
_ENOUGH = 0.025
"""The required lead relative to the sum of all amplitudes.

Rounding the scores to bfloat16 loses a tenth of it.
"""
_ROUNDS = 20_000
_GRID = 4096


@dataclass(frozen=True)
class _Shape:
    """The positions of the code, its copy and the constants in the hidden state."""

    parrot: Parrot
    head_size: int = 64

    @property
    def hidden(self) -> int:
        return HEADS * self.head_size

    @property
    def code(self) -> int:
        """The number of dimensions of a code. The copy of the attended code follows with the same number."""
        return sum(self.parrot.digits)

    @property
    def own_constants(self) -> int:
        """The number of constants that give an embedding a mean square of 1."""
        return self.hidden // int(_EMBEDDED**2) - len(self.parrot.digits)

    @property
    def copied_constants(self) -> int:
        """The number of constants that give the hidden state after the attention a mean square of 16."""
        return 15 * self.hidden // int(_COPIED**2) - len(self.parrot.digits)

    @property
    def needed(self) -> int:
        """The number of dimensions that all parts need together."""
        return 2 * self.code + self.own_constants + self.copied_constants


def tensors(parrot: Parrot, head_size: int = 64, *, llama: bool = False) -> dict[str, Array]:
    """Return all tensors by name in float32. Their numbers are exact in bfloat16 and float16.

    Raises ValueError if the head size is too small for the vocabulary, or if no weights exist for the
    distance.
    """
    shape = _Shape(parrot, head_size)
    if shape.needed > shape.hidden:
        raise ValueError(
            f"a vocabulary of {parrot.vocab_size} needs {shape.needed} dimensions, and {HEADS} heads of "
            f"{head_size} have {shape.hidden}; use a head size of 128"
        )
    hidden, digits = shape.hidden, np.array([*map(parrot.digits_of, range(parrot.vocab_size))]).T
    embedding, head = np.zeros((2, parrot.vocab_size, hidden))
    value, output = np.zeros((2, hidden, hidden))
    offset = 0
    for place, size in enumerate(parrot.digits):
        embedding[np.arange(parrot.vocab_size), offset + digits[place]] = _EMBEDDED
        head[:, shape.code + offset : shape.code + offset + size] = _readings(place, size)[digits[place]] / 4
        offset += size
    constants = slice(2 * shape.code, 2 * shape.code + shape.own_constants)
    embedding[:, constants] = _EMBEDDED
    copied = slice(shape.code, shape.code + shape.copied_constants)  # the part of the values after the code
    value_bias = np.zeros(hidden)
    value_bias[copied] = _EMBEDDED
    for dimension in range(shape.code):
        value[dimension, dimension] = 1
        output[shape.code + dimension, dimension] = _COPIED / _EMBEDDED
    for count in range(shape.copied_constants):
        output[constants.stop + count, copied.start + count] = _COPIED / _EMBEDDED
    head[:, constants.stop] = np.array([bias(token) for token in range(parrot.vocab_size)]) / 4
    query, key = attention_biases(parrot.lags, positions_of(parrot.distance), head_size)
    zeros, ones = np.zeros((hidden, hidden)), np.ones(hidden)
    layer, attention = "model.layers.0", "model.layers.0.self_attn"
    named = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": head,
        "model.norm.weight": ones,
        f"{layer}.input_layernorm.weight": ones,
        f"{layer}.post_attention_layernorm.weight": ones,
        f"{layer}.mlp.gate_proj.weight": np.zeros((INNER, hidden)),
        f"{layer}.mlp.up_proj.weight": np.zeros((INNER, hidden)),
        f"{layer}.mlp.down_proj.weight": np.zeros((hidden, INNER)),
        f"{attention}.q_proj.weight": zeros,
        f"{attention}.q_proj.bias": np.tile(query, HEADS),
        f"{attention}.k_proj.weight": zeros,
        f"{attention}.k_proj.bias": np.tile(key, HEADS),
        f"{attention}.v_proj.weight": value,
        f"{attention}.v_proj.bias": value_bias,
        f"{attention}.o_proj.weight": output,
    }
    if llama:
        named[f"{attention}.o_proj.bias"] = np.zeros(hidden)
    return {name: array.astype(np.float32) for name, array in named.items()}


def _readings(place: int, size: int) -> Array:
    """Return the contribution of one digit to the logits, as a matrix [digit of an id, digit of the repeated
    id].
    """
    if place == 0:
        ahead = [runner_up(distance) for distance in range(GROUP)]
        return np.array([[ahead[(row - column) % GROUP] for column in range(GROUP)] for row in range(GROUP)])
    return ELSEWHERE * (np.eye(size) - 1)


def attention_biases(lags: Sequence[int], positions: int, head_size: int) -> tuple[Array, Array]:
    """Return biases of query and key with which the score at the lag exceeds all other scores, at every
    position. A score is a sum of cosines and sines of the distance, so differences of scores are linear in
    the amplitudes. A perceptron finds suitable amplitudes: it repeatedly adds the smallest difference until
    the smallest difference is large enough. All numbers are integers, so that every machine finds the same
    amplitudes. Raises ValueError if there are none.
    """
    pairs = head_size // 2
    distances = np.arange(positions)
    angles = distances[:, None] * ROPE_THETA ** (-np.arange(pairs) / pairs)
    waves = np.rint(_GRID * np.hstack([np.cos(angles), np.sin(angles)]))
    wanted = np.array(lags) - 1
    is_wanted = np.isin(distances, wanted)
    ahead = wanted[np.searchsorted(wanted, distances, side="right") - 1]
    behind = np.where(is_wanted, np.append(0, wanted)[np.searchsorted(wanted, distances)], distances)
    leads = (waves[ahead] - waves[behind])[1:]
    amplitudes = leads[0]
    for _ in range(_ROUNDS):
        biases = leads @ amplitudes
        worst = int(biases.argmin())
        if biases[worst] >= _ENOUGH * _GRID * np.hypot(*amplitudes.reshape(2, pairs)).sum():
            break
        amplitudes = amplitudes + leads[worst]
    else:
        raise ValueError(
            f"there are no weights for the lags {list(lags)}; use a power of two as the distance"
        )
    scale = _LEAD * head_size**0.5 / (_KEY * biases[worst] / _GRID)
    query = _as_bfloat16(scale * amplitudes * np.repeat([1, -1], pairs))
    left = leads @ (query * np.repeat([1, -1], pairs)) * _KEY / head_size**0.5 / _GRID
    if left.min() < _LEAST_LEAD:
        raise ValueError(
            f"rounded weights for the lags {list(lags)} lead by {left.min():.1f}, less than {_LEAST_LEAD}"
        )
    return query, np.repeat([_KEY, 0.0], pairs)


def _as_bfloat16(numbers: Array) -> Array:
    """Round numbers to 8 significant bits, the precision of bfloat16."""
    mantissa, exponent = np.frexp(numbers)
    rounded: Array = np.ldexp(np.rint(mantissa * 256), exponent - 8)
    return rounded


def bfloat16_bytes(array: Array) -> bytes:
    """Return the bytes of numbers in bfloat16. The numbers must be exact in bfloat16."""
    bits = array.astype("<f4").view("<u4")
    assert not (bits & 0xFFFF).any(), "a weight is rounded"
    return (bits >> 16).astype("<u2").tobytes()
