"""Finds numbers of rows at which a matrix product computes the same bits for a row.

For different numbers of rows, libraries choose different kernels, which add in different orders. So every
batch is padded to one of the numbers of rows that were found to give equal bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

ROW_MULTIPLE = 16
"""Products with multiples of this number of rows have equal bits on most CPUs.

Products with fewer rows may take other code paths.
"""
FEW_ROWS = (4, 8)
"""The numbers of rows for decodes of few sequences on a CPU.

One or two rows are left out, because they are multiplied differently.
"""
VECTOR = 32
"""The number of values that `exp` and similar functions process at once on a CPU.

The remaining values are computed differently.
"""


def stable_row_sizes(module: nn.Module, largest: int) -> tuple[int, ...]:
    """Return the numbers of rows, up to `largest` or just above, at which all linear layers agree.

    One random row is repeated. For every number of rows, every row of the product must have the same bits.
    The largest number is always returned, so a device without agreeing numbers runs every batch at one size.
    """
    layers = _distinct_linear_layers(module)
    sizes = [*_few_rows(layers), *_candidate_sizes(largest)]
    for layer in layers:
        generator = torch.Generator().manual_seed(0)
        row = torch.randn(1, layer.in_features, generator=generator).to(
            layer.weight.device, layer.weight.dtype
        )
        expected = layer(row.repeat(sizes[-1], 1))[0]
        sizes = [n for n in sizes[:-1] if bool((layer(row.repeat(n, 1)) == expected).all())] + sizes[-1:]
    return tuple(sizes)


def _few_rows(layers: Sequence[nn.Linear]) -> Iterator[int]:
    """Yield each row count of `FEW_ROWS` at which the values of every layer fill whole vectors."""
    widths = [width for layer in layers for width in (layer.in_features, layer.out_features)]
    for rows in FEW_ROWS:
        if all(layer.weight.device.type == "cpu" for layer in layers) and all(
            rows * width % VECTOR == 0 for width in widths
        ):
            yield rows


def _candidate_sizes(largest: int) -> Iterator[int]:
    """Yield 16, 32, 48, 64, 80, 96, …: four sizes for each doubling, up to the first that is at least
    `largest`.
    """
    size, step = ROW_MULTIPLE, ROW_MULTIPLE
    while True:
        yield size
        if size >= largest:
            return
        size += step
        if size == 8 * step:
            step *= 2


def _distinct_linear_layers(module: nn.Module) -> Sequence[nn.Linear]:
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    return list({(layer.weight.shape, layer.bias is None): layer for layer in linear}.values())
