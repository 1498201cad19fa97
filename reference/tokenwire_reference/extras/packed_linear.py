"""Linear layers on the CPU with weights in the processor's preferred memory layout.

oneDNN packs a weight once, in blocks, and then multiplies faster than with rows: a tenth less time for
hundreds of rows, a third less for the few of a decode, and half the time for the wide last layer of a model.
The copy takes as much memory as the weight.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

PACKED_FROM = 1 << 17
"""The least weights of a layer: a call takes 10 µs longer than a plain one, which a smaller layer does not
win back.
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
