"""Outputs of a pass besides its logits: the hidden states of the last layer, and the chosen experts."""

from __future__ import annotations

import base64
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tokenwire_reference.core.hooks import Experts, HiddenStates


class HiddenStateTap(HiddenStates):
    """Captures the hidden states of all rows, and the input of the model's output layer for the rows with
    logits.

    `available` is False for a model without an output layer, such as a script.
    """

    def __init__(self, module: Any) -> None:
        head = getattr(module, "get_output_embeddings", lambda: None)()
        self.available = head is not None
        self._rows: Tensor | None = None
        self._all: Tensor | None = None
        if head is not None:
            head.register_forward_pre_hook(self._see)
            module.base_model.register_forward_hook(self._see_all)

    def _see(self, _: object, inputs: tuple[Tensor, ...]) -> None:
        self._rows = inputs[0].flatten(0, -2)

    def _see_all(self, _: object, __: object, given: Any) -> None:
        self._all = given[0].flatten(0, -2)

    def rows(self, start: int, stop: int) -> list[list[float]]:
        assert self._all is not None, "a pass comes before its hidden states"
        states: list[list[float]] = self._all[start:stop].float().tolist()
        return states

    def embedding(self, row: int) -> list[float]:
        assert self._rows is not None, "a pass comes before its hidden states"
        vector: list[float] = torch.nn.functional.normalize(self._rows[row].double(), dim=-1).tolist()
        return vector


class RoutedExperts(Experts):
    """Captures the experts that the model's routers choose.

    An engine stores them with the positions of its KV cache, so that cached positions have experts as well. A
    router is a module whose last result is the chosen experts [rows, k], as in transformers.
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
        """Return the experts of some positions as int32 in base64: for each position, the experts of all
        layers in order.
        """
        return base64.b64encode(chosen.numpy().astype("<i4").tobytes()).decode()
