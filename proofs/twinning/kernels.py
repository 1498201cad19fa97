"""The reference with another kernel: the same model, but its linear layers round in another way.

    python -m proofs.twinning.kernels KERNEL serve --model FOLDER --port 0

`plain` is the kernel of torch. `wide` adds in float32 and rounds once. `halves` works like two processors
that share the last layer of each block: each processor rounds its half of the sum, and then the halves are
added.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from torch import Tensor, nn

from tokenwire_reference.cli import main


def _wide(layer: nn.Linear, rows: Tensor) -> Tensor:
    bias = layer.bias.float() if layer.bias is not None else None
    return nn.functional.linear(rows.float(), layer.weight.float(), bias).to(rows.dtype)


def _halves(layer: nn.Linear, rows: Tensor) -> Tensor:
    if layer.in_features <= layer.out_features:
        return _plain(layer, rows)  # not the last layer of a block
    half = layer.in_features // 2
    first = nn.functional.linear(rows[..., :half], layer.weight[:, :half], layer.bias)
    return first + nn.functional.linear(rows[..., half:], layer.weight[:, half:])


def _plain(layer: nn.Linear, rows: Tensor) -> Tensor:
    return nn.functional.linear(rows, layer.weight, layer.bias)


KERNELS: dict[str, Callable[[nn.Linear, Tensor], Tensor]] = {
    "plain": _plain,
    "wide": _wide,
    "halves": _halves,
}


def use(kernel: str) -> None:
    """Make linear layers use a kernel."""
    nn.Linear.forward = KERNELS[kernel]  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    use(sys.argv.pop(1))
    main()
