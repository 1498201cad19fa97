"""Which experts a mixture-of-experts model chose, for every position that has its keys and values."""

from __future__ import annotations

import base64
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tokenwire_reference.core.hooks import Experts


class RoutedExperts(Experts):
    """Sees what the routers of a model choose; an engine keeps it where its KV cache keeps the position.

    So a position that comes from the cache has its experts, too. A router is a module that gives the chosen
    experts [rows, k] last, as those of transformers do.
    """

    def __init__(self, module: Any) -> None:
        self._routers = [layer for layer in module.modules() if type(layer).__name__.endswith("TopKRouter")]
        self.available = bool(self._routers)
        self._chosen: dict[int, Tensor] = {}
        for layer, router in enumerate(self._routers):
            router.register_forward_hook(partial(self._see, layer))

    def _see(self, layer: int, _: object, __: object, given: tuple[Tensor, ...]) -> None:
        self._chosen[layer] = given[-1]

    def room(self, slots: int) -> Tensor:
        width = sum(int(router.top_k) for router in self._routers)
        return torch.zeros(slots if width else 0, width, dtype=torch.int32)

    def keep(self, room: Tensor, slots: Tensor) -> None:
        if self._routers:
            rows = [self._chosen[layer] for layer in range(len(self._routers))]
            room[slots.cpu()] = torch.cat(rows, dim=-1).to("cpu", torch.int32)

    def in_base64(self, chosen: Tensor) -> str:
        """Experts of some positions as int32: layer by layer for each."""
        return base64.b64encode(chosen.numpy().astype("<i4").tobytes()).decode()
