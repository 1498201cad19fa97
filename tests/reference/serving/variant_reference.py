"""The reference on a device whose products depend on how many sequences stand in a step."""

from __future__ import annotations

import torch

from tokenwire_reference.cli import main as serve
from tokenwire_reference.core.attention import PagedCache
from tokenwire_reference.core.batch import Batch
from tokenwire_reference.core.loaded_model import LoadedModel


def main() -> None:
    forward = LoadedModel.forward

    def forward_in_company(self: LoadedModel, batch: Batch, cache: PagedCache) -> torch.Tensor:
        return forward(self, batch, cache) * (1 + 1e-6 * len(batch.spans))

    LoadedModel.forward = forward_in_company  # type: ignore[method-assign]
    serve()
