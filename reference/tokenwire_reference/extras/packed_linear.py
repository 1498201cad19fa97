"""Linear layers on the CPU with weights in the processor's preferred memory layout.

oneDNN stores a packed copy of a weight in blocks, and multiplies with it faster. Hundreds of rows take a
tenth less time, the few rows of a decode a third less, and the wide last layer half the time. The packed copy
takes as much memory as the weight.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

PACKED_FROM = 1 << 17
"""The minimum number of weights of a layer that is packed.

A packed call has 10 µs of overhead, which is more than a smaller layer saves.
"""


def pack_linear_layers(module: nn.Module) -> None:
    """Make the large linear layers of a model use packed weights, if possible.

    Call `pack_again` after the weights change.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call,unused-ignore]  # torch
        return
    for layer in module.modules():
        if isinstance(layer, nn.Linear) and _pays(layer.weight):
            packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())
            # The copy is registered as a weight of the model, so that a tape may contain it.
            layer.register_buffer("packed_weight", packed, persistent=False)
            layer.forward = partial(_multiplied, packed, layer.bias)  # type: ignore[method-assign,unused-ignore]


def pack_again(module: nn.Module) -> None:
    """Update packed weights in place."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear) and "packed_weight" in layer._buffers:
            packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())
            layer.get_buffer("packed_weight").copy_(packed)


def _pays(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= PACKED_FROM


def _multiplied(packed: Tensor, bias: Tensor | None, rows: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, packed, bias, "none", [], "")
    return product
