"""The hidden states of the last layer: behind each row of logits, for embeddings, and of all rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokenwire_reference.core.hooks import HiddenStates


class HiddenStateTap(HiddenStates):
    """Sees what goes into a model's output layer: the normed hidden states of the rows that want logits.

    `available` is False for a model without an output layer, such as one that follows a script.
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
