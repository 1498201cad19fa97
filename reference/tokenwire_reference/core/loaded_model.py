"""Runs any causal language model of transformers over packed batches, with paged keys and values."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

import torch
from torch import Tensor

from tokenwire_reference.core.attention import (
    AttentionShape,
    PagedAttention,
    PagedCache,
    SdpaPagedAttention,
    ShapeProbe,
    UnsupportedModelError,
)
from tokenwire_reference.core.batch import Batch
from tokenwire_reference.core.hooks import Adapters, Experts, HiddenStates
from tokenwire_reference.core.request import Drafter, Request
from tokenwire_reference.core.row_sizes import ROW_MULTIPLE, stable_row_sizes


class Recorded(Protocol):
    """Runs a recorded pass, without the model's own Python code."""

    def run(self, cache: PagedAttention, *inputs: Tensor) -> Tensor:
        """Return the same logits as `run_packed`, from the same inputs."""


@dataclass
class LoadedModel:
    """A model that is ready to run, with its tokenizer."""

    name: str
    module: Any
    """The transformers model."""
    tokenizer: Any
    """A transformers tokenizer; None without one."""
    vocab_size: int
    eos_token_ids: frozenset[int]
    context_length: int
    shapes: tuple[AttentionShape, ...]
    row_sizes: tuple[int, ...] = field(default=())
    """Numbers of rows at which every linear layer computes the same bits for a row; set by
    `probe_row_sizes`.
    """
    hidden_states: HiddenStates = field(default_factory=HiddenStates)
    experts: Experts = field(default_factory=Experts)
    adapters: Adapters = field(default_factory=Adapters)
    tapes: Recorded | None = None
    """The recorder of passes on the CPU; None without one."""
    gpu_cache: Callable[..., PagedCache] | None = None
    """Creates the KV cache of a model on a GPU."""
    read_module: Callable[[str], Any] | None = None
    """Reads another model of transformers, with the same options as this model."""
    on_new_weights: Callable[[Any], None] = lambda _: None
    """Updates everything that is derived from the weights of the module. Called after the weights change."""

    def __post_init__(self) -> None:
        # The values are cached, because the module searches all its weights for them.
        self.device: torch.device = self.module.device
        self.dtype: torch.dtype = self.module.dtype

    def drafter(self, request: Request) -> Drafter | None:
        """Return None, because this model does not draft."""
        if "script" in (request.sampling.custom_params or {}):
            raise ValueError(
                f"custom_params.script is for builtin:scripted, and this server runs {self.name}"
            )
        return None

    def bytes_per_token(self) -> int:
        width = 4 if self.device.type == "cpu" else self.dtype.itemsize
        return sum(s.kv_heads * (s.key_dim + s.value_dim) for s in self.shapes) * width

    def fingerprint(self) -> str:
        """Return a digest of the configuration, the weights' shapes and beginnings, and everything else that
        determines a page's bits.
        """
        digest = blake2b(f"{torch.__version__} {self.device} {self.dtype}".encode(), digest_size=16)
        config = self.module.config.to_dict() | {
            "_name_or_path": ""
        }  # The folder is left out, because equal models may be in different folders.
        digest.update(json.dumps(config, sort_keys=True, default=str).encode())
        for name, weight in self.module.state_dict().items():
            digest.update(f"{name} {tuple(weight.shape)} {weight.flatten()[:64].tolist()}".encode())
        return digest.hexdigest()

    def other_weights(self, path: str) -> Callable[[], None]:
        assert self.read_module is not None, "who loads a model says how"
        weights, ours = self.read_module(path).state_dict(), self.module.state_dict()
        shapes = [{name: weight.shape for name, weight in found.items()} for found in (weights, ours)]
        if shapes[0] != shapes[1]:
            name = next(
                name for name in {**shapes[1], **shapes[0]} if shapes[0].get(name) != shapes[1].get(name)
            )
            raise ValueError(f"{path} must have the same shapes as {self.name}: {name} differs")

        def put() -> None:
            # The tensors are changed in place, because tapes and graphs refer to them.
            self.module.load_state_dict(weights)
            self.on_new_weights(self.module)

        return put

    def new_cache(self, num_pages: int, page_size: int, seats: int) -> PagedCache:
        if self.gpu_cache is None:
            return SdpaPagedAttention(self.shapes, num_pages, page_size, self.context_length)
        return self.gpu_cache(
            self.shapes,
            num_pages,
            page_size,
            self.dtype,
            self.device,
            page_table=(seats, -(-self.context_length // page_size)),
        )

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: PagedAttention) -> Tensor:
        inputs = batch.input_ids, batch.positions, batch.logit_rows
        if batch.adapted:
            with self.adapters.applied(batch):
                return run_packed(self.module, cache, *inputs)
        # A tape does not keep hidden states or chosen experts.
        if self.tapes is None or batch.wants_hidden_states or self.experts.available:
            return run_packed(self.module, cache, *inputs)
        return self.tapes.run(cache, *inputs)

    def pad_rows(self, rows: int) -> int:
        multiple = -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE
        return next((size for size in self.row_sizes if size >= rows), multiple)

    @torch.inference_mode()
    def probe_row_sizes(self, largest: int) -> None:
        """Probe the linear layers up to `largest` rows, and set `row_sizes`.

        An earlier probe with more rows stays valid.
        """
        if not self.row_sizes or self.row_sizes[-1] < largest:
            self.row_sizes = stable_row_sizes(self.module, largest)


def run_packed(
    module: Any, paged: PagedAttention, input_ids: Tensor, positions: Tensor, logit_rows: Tensor
) -> Tensor:
    """Run a transformers model over one packed row of tokens; return the logits of `logit_rows`, in
    float32.
    """
    output = module(
        input_ids=input_ids[None],
        position_ids=positions[None],
        use_cache=False,
        logits_to_keep=logit_rows,
        paged=paged,
    )
    logits: Tensor = output.logits[0].float()
    return logits


@torch.inference_mode()
def probe_shapes(module: Any) -> tuple[AttentionShape, ...]:
    """Run one pass, and return the shapes that every attention layer stores.

    The configuration of a model describes these shapes less reliably.
    """
    probe = ShapeProbe()
    zeros = torch.zeros(ROW_MULTIPLE, dtype=torch.int64, device=module.device)
    logits = run_packed(module, probe, zeros, zeros, zeros)
    name = type(module).__name__
    if logits.shape[0] != ROW_MULTIPLE:
        raise UnsupportedModelError(f"{name} ignores logits_to_keep")
    layers = module.config.get_text_config().num_hidden_layers
    if sorted(probe.shapes) != list(range(layers)):
        raise UnsupportedModelError(
            f"{name} has {layers} layers, of which {sorted(probe.shapes)} use attention; "
            "models with other layers, such as recurrent ones, keep state that this engine does not"
        )
    return tuple(probe.shapes[layer] for layer in range(layers))
