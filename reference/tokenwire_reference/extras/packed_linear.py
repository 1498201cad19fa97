"""Linear layers on the CPU whose weights lie in memory as the processor reads them.

oneDNN lays a weight out once, in blocks, and then multiplies by it faster than by one that lies row by row:
for hundreds of rows in a tenth less, for the few of a decode in a third less, and for the wide last layer of
a model in half the time. The copy takes as much memory as the weight.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

PACKED_FROM = 1 << 17
"""Weights of a layer: a call takes 10 µs longer than a plain one, which a smaller layer does not win back."""


def pack_linear_layers(module: nn.Module) -> None:
    """Let the large linear layers of a model multiply by packed weights, where that is possible.

    Where the weights change, `pack_again` has to follow.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call,unused-ignore]  # torch
        return
    for layer in module.modules():
        if isinstance(layer, nn.Linear) and _pays(layer.weight):
            packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())
            # A weight of the model, as others are: a tape may hold it.
            layer.register_buffer("packed_weight", packed, persistent=False)
            layer.forward = partial(_multiplied, packed, layer.bias)  # type: ignore[method-assign,unused-ignore]


def pack_again(module: nn.Module) -> None:
    """Bring packed weights up to date, in place."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear) and "packed_weight" in layer._buffers:
            packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())
            layer.get_buffer("packed_weight").copy_(packed)


def _pays(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= PACKED_FROM


def _multiplied(packed: Tensor, bias: Tensor | None, rows: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, packed, bias, "none", [], "")
    return product
