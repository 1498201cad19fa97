"""Low-rank adapters: additions to the linear layers of a model, for the rows of requests that name an
adapter.

An adapter is read from a directory in PEFT's format, or drawn from a seed (`builtin:SEED`), without
downloads.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from tokenwire_reference.core.batch import Batch
from tokenwire_reference.core.hooks import Adapters
from tokenwire_reference.extras.builtin import BUILTIN_PREFIX

_PART = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])\.weight")
_PLAIN: Mapping[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    "use_dora": False,
    "modules_to_save": None,
    "alpha_pattern": {},
    "rank_pattern": {},
}
"""The required values in PEFT's configuration.

With these values, an adapter consists only of two matrices for each layer.
"""
_RANK = 4
"""The rank of adapters that are drawn from a seed."""

Parts = dict[str, tuple[Tensor, Tensor]]
"""The matrices of each layer, applied one after the other: [in, rank] and [rank, out]."""


@dataclass(frozen=True, eq=False)
class LowRank:
    """One adapter."""

    cache_key: str
    parts: Parts


class LowRankAdapters(Adapters):
    """Adapts the linear layers of one model, except the output layer and the experts.

    Each row is multiplied separately, so that its bits do not depend on the number of rows.
    """

    def __init__(self, module: Any) -> None:
        head = module.get_output_embeddings()
        self._layers: dict[str, nn.Linear] = {
            name: layer
            for name, layer in module.named_modules()
            if isinstance(layer, nn.Linear) and layer is not head and "expert" not in name
        }
        self._rows: dict[LowRank, Tensor] = {}
        for name, layer in self._layers.items():
            layer.register_forward_hook(partial(self._add, name))

    def read(self, name: str, path: str) -> LowRank:
        if path.startswith(BUILTIN_PREFIX):
            parts = self._drawn(path)
        else:
            try:
                parts = _from_directory(Path(path))
            except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
                raise ValueError(
                    f"{path} cannot be read as an adapter: {type(error).__name__}: {error}"
                ) from error
        for layer, pair in parts.items():
            self._refuse_misfit(layer, *pair)
        named = {
            f"{layer} {number}": part for layer, pair in parts.items() for number, part in enumerate(pair)
        }
        digest = blake2b(save({name: part.contiguous() for name, part in named.items()}), digest_size=16)
        weight = next(iter(self._layers.values())).weight
        moved = {layer: (down.to(weight), up.to(weight)) for layer, (down, up) in parts.items()}
        return LowRank(f"{name} {digest.hexdigest()}", moved)

    def _drawn(self, path: str) -> Parts:
        """Return matrices for all attention layers. Raises ValueError if the path is not a number."""
        seed = path.removeprefix(BUILTIN_PREFIX)
        if not seed.isdecimal():
            raise ValueError(f"{path} is not a builtin adapter; write {BUILTIN_PREFIX} and a number")
        generator = torch.Generator().manual_seed(int(seed))
        return {
            name: (
                torch.randn(layer.in_features, _RANK, generator=generator) / math.sqrt(layer.in_features),
                torch.randn(_RANK, layer.out_features, generator=generator),
            )
            for name, layer in self._layers.items()
            if "attn" in name
        }

    def _refuse_misfit(self, name: str, down: Tensor, up: Tensor) -> None:
        layer = self._layers.get(name)
        if layer is None:
            raise ValueError(
                f"the adapter changes {name}, which is not a linear layer that can be adapted here"
            )
        if (down.shape[0], up.shape) != (layer.in_features, (down.shape[1], layer.out_features)):
            raise ValueError(
                f"the adapter has {list(down.shape)} and {list(up.shape)} for {name}, "
                f"which has {layer.in_features} inputs and {layer.out_features} outputs"
            )

    @contextmanager
    def applied(self, batch: Batch) -> Iterator[None]:
        rows: dict[Any, list[int]] = {}
        first = 0
        for segment in batch.segments:
            end = first + len(segment.positions)
            if (adapter := segment.sequence.request.adapter) is not None:
                rows.setdefault(adapter, []).extend(range(first, end))
            first = end
        self._rows = {
            adapter: torch.tensor(of_adapter, device=batch.packed.device)
            for adapter, of_adapter in rows.items()
        }
        try:
            yield
        finally:
            self._rows = {}

    def _add(self, name: str, _: object, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        for adapter, rows in self._rows.items():
            if (pair := adapter.parts.get(name)) is not None:
                added = inputs[0].flatten(0, -2)[rows, None]
                for part in pair:
                    added = added.bmm(part.expand(len(rows), -1, -1))
                output.flatten(0, -2).index_add_(0, rows, added[:, 0])


def _from_directory(path: Path) -> Parts:
    """Read an adapter from PEFT's files.

    Raises the errors of reading these files, and ValueError for other kinds of adapters.
    """
    config = json.loads((path / "adapter_config.json").read_text("utf-8"))
    for name, plain in _PLAIN.items():
        if config.get(name, plain) not in (plain, None):
            raise ValueError(f"{name} is {config[name]!r}; only {plain!r} is supported")
    rank = math.sqrt(config["r"]) if config.get("use_rslora") else config["r"]
    found: dict[str, dict[str, Tensor]] = {}
    for key, tensor in load_file(path / "adapter_model.safetensors").items():
        if (match := _PART.fullmatch(key)) is None:
            raise ValueError(f"{key} is not a matrix of a low-rank adapter")
        found.setdefault(match[1], {})[match[2]] = tensor.float()
    scale = config["lora_alpha"] / rank
    return {layer: (pair["A"].T, pair["B"].T * scale) for layer, pair in found.items()}
