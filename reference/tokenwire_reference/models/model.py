"""Load any causal language model that transformers knows, and run one packed batch through it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tokenwire_reference.cache.prefix_tiers import PageStore
from tokenwire_reference.models.attention import (
    ATTENTION_NAME,
    AttentionShape,
    PagedAttention,
    SdpaPagedAttention,
    ShapeProbe,
    TritonPagedAttention,
    UnsupportedModelError,
    paged_attention,
)
from tokenwire_reference.models.builtin import BUILTIN_PREFIX, build_builtin
from tokenwire_reference.models.scripted import SCRIPTED, ScriptedModel
from tokenwire_reference.request import Request
from tokenwire_reference.scheduling.batch import Batch
from tokenwire_reference.scheduling.drafting import Drafter

ROW_MULTIPLE = 16
"""Multiples of this many rows give equal bits on most CPUs; fewer rows take other code paths."""


class PagedCache(PagedAttention, PageStore, Protocol):
    """Keys and values of one engine: for attention, and page by page for lower tiers of the prefix cache."""


class Model(Protocol):
    """What the engine needs of a model."""

    name: str
    module: Any
    """The transformers model; None where there is none."""
    tokenizer: Any
    vocab_size: int
    eos_token_ids: frozenset[int]
    context_length: int
    row_sizes: tuple[int, ...]

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def drafter(self, request: Request) -> Drafter | None:
        """What knows the request's tokens beforehand. Raises ValueError for a script that cannot be."""

    def bytes_per_token(self) -> int: ...

    def fingerprint(self) -> str:
        """Equal only where stored keys and values may be shared."""

    def new_cache(self, num_pages: int, page_size: int) -> PagedCache: ...

    def forward(self, batch: Batch, cache: PagedCache) -> Tensor:
        """Run a batch that the cache was told by `plan`."""

    def pad_rows(self, rows: int) -> int: ...

    def probe_row_sizes(self, largest: int) -> None: ...


@dataclass
class LoadedModel:
    """A model that is ready to run, with its tokenizer."""

    name: str
    module: Any
    """The transformers model."""
    tokenizer: Any
    """A transformers tokenizer; None where there is none."""
    vocab_size: int
    eos_token_ids: frozenset[int]
    context_length: int
    shapes: tuple[AttentionShape, ...]
    row_sizes: tuple[int, ...] = field(default=())
    """Numbers of rows at which every linear layer gives a row the same bits; set by `probe_row_sizes`."""

    @property
    def device(self) -> torch.device:
        device: torch.device = self.module.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.module.dtype
        return dtype

    def drafter(self, request: Request) -> Drafter | None:
        """None: this model knows nothing beforehand."""
        if "script" in (request.sampling.custom_params or {}):
            raise ValueError(f"custom_params.script is for {SCRIPTED}, and this server runs {self.name}")
        return None

    def bytes_per_token(self) -> int:
        """What a position of the KV cache takes, all layers together."""
        width = 4 if self.device.type == "cpu" else self.dtype.itemsize
        return sum(s.kv_heads * (s.key_dim + s.value_dim) for s in self.shapes) * width

    def fingerprint(self) -> str:
        """Of the weights' shapes and beginnings, and of what else decides the bits of keys and values."""
        digest = blake2b(f"{torch.__version__} {self.device} {self.dtype}".encode(), digest_size=16)
        for name, weight in self.module.state_dict().items():
            digest.update(f"{name} {tuple(weight.shape)} {weight.flatten()[:64].tolist()}".encode())
        return digest.hexdigest()

    def new_cache(self, num_pages: int, page_size: int) -> PagedCache:
        """Room for `num_pages` pages in every layer."""
        if self.device.type == "cpu":
            return SdpaPagedAttention(self.shapes, num_pages, page_size, self.context_length)
        return TritonPagedAttention(self.shapes, num_pages, page_size, self.dtype, self.device)

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: PagedAttention) -> Tensor:
        """Run a batch that `cache.plan` knows. The logits of its `logit_rows`: [R, vocabulary], float32."""
        return _forward(self.module, batch, cache).float()

    def pad_rows(self, rows: int) -> int:
        """The number of rows to which a batch of `rows` rows is padded."""
        return next(
            (size for size in self.row_sizes if size >= rows), -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE
        )

    @torch.inference_mode()
    def probe_row_sizes(self, largest: int) -> None:
        """Find the numbers of rows, up to `largest` or just above, at which linear layers agree.

        One random row is repeated; every row of every product must come out the same, whatever the number of
        rows. The largest size always stays, so a device on which none agree runs everything at one size.
        What was found for larger sizes stays as it is.
        """
        if self.row_sizes and self.row_sizes[-1] >= largest:
            return
        sizes = list(_candidate_sizes(largest))
        for layer in _distinct_linear_layers(self.module):
            generator = torch.Generator().manual_seed(0)
            row = torch.randn(1, layer.in_features, generator=generator).to(self.device, layer.weight.dtype)
            expected = layer(row.repeat(sizes[-1], 1))[0]
            sizes = [n for n in sizes[:-1] if bool((layer(row.repeat(n, 1)) == expected).all())] + sizes[-1:]
        self.row_sizes = tuple(sizes)


def load_model(
    model: str,
    *,
    device: str = "cpu",
    dtype: str = "auto",
    context_length: int | None = None,
    tokenizer: bool = True,
    script: str | None = None,
) -> LoadedModel | ScriptedModel:
    """Load `builtin:<name>`, or the directory of a causal language model.

    `dtype` is "auto" (what the checkpoint says) or the name of a torch type. `context_length` may only
    shorten the context that the model was built for. Nothing is ever downloaded. Raises
    UnsupportedModelError, with the reason, for a model that would run wrongly, FileNotFoundError for a
    directory that is not there, and ValueError for options that do not fit. `script` is a file for
    `builtin:scripted`.
    """
    if model == SCRIPTED:
        return ScriptedModel(script=script, context_length=context_length, tokenizer=tokenizer)
    if script is not None:
        raise ValueError(f"--script {script} is for {SCRIPTED}, and the model is {model}")
    if device != "cpu" and not device.startswith("cuda"):
        raise ValueError(f"device {device!r} is not supported; use cpu or cuda")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} was asked for, and torch sees no CUDA device; use cpu")
    torch_dtype = dtype if dtype == "auto" else getattr(torch, dtype, None)
    if not (torch_dtype == "auto" or isinstance(torch_dtype, torch.dtype)):
        raise ValueError(f"dtype {dtype!r} is not a type of torch; use auto, float32, bfloat16 or float16")
    AttentionInterface.register(ATTENTION_NAME, paged_attention)
    transformers.utils.logging.disable_progress_bar()
    if model.startswith(BUILTIN_PREFIX):
        module, text = build_builtin(model, ATTENTION_NAME)
        module = module if torch_dtype == "auto" else module.to(torch_dtype)
    else:
        module, text = _from_directory(Path(model), torch_dtype, with_tokenizer=tokenizer)
    module = module.eval().requires_grad_(requires_grad=False).to(device)
    longest = int(module.config.get_text_config().max_position_embeddings)
    if context_length is not None and not 1 <= context_length <= longest:
        raise ValueError(
            f"context_length is {context_length}; the model was built for 1 to {longest} positions"
        )
    return LoadedModel(
        name=model,
        module=module,
        tokenizer=text if tokenizer else None,
        vocab_size=int(module.config.get_text_config().vocab_size),
        eos_token_ids=_eos_token_ids(module),
        context_length=context_length or longest,
        shapes=_probe_shapes(module),
    )


def _from_directory(path: Path, dtype: torch.dtype | str, *, with_tokenizer: bool) -> tuple[Any, Any]:
    if not (path / "config.json").is_file():
        raise FileNotFoundError(
            f"{path} holds no config.json; give the directory of a model, or builtin:tiny"
        )
    config = AutoConfig.from_pretrained(path, local_files_only=True)
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise UnsupportedModelError(f"{path}: {config.model_type} is not a causal language model")
    # Read from the class, before any weight: from_pretrained itself would fail less clearly, or not at all.
    architecture = AutoModelForCausalLM._model_mapping[type(config)]
    if not getattr(architecture, "_supports_attention_backend", False):
        raise UnsupportedModelError(
            f"{path}: {architecture.__name__} does not let its attention be replaced "
            "(_supports_attention_backend is false), so it cannot run over paged keys and values"
        )
    module = AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, attn_implementation=ATTENTION_NAME, local_files_only=True
    )
    text = AutoTokenizer.from_pretrained(path, local_files_only=True) if with_tokenizer else None
    return module, text


def _eos_token_ids(module: Any) -> frozenset[int]:
    ids: set[int] = set()
    for config in (module.config.get_text_config(), module.generation_config):
        eos = getattr(config, "eos_token_id", None)
        ids.update([eos] if isinstance(eos, int) else eos or [])
    return frozenset(ids)


def _forward(module: Any, batch: Batch, paged: PagedAttention) -> Tensor:
    output = module(
        input_ids=batch.input_ids[None],
        position_ids=batch.positions[None],
        use_cache=False,
        logits_to_keep=batch.logit_rows,
        paged=paged,
    )
    logits: Tensor = output.logits[0]
    return logits


@torch.inference_mode()
def _probe_shapes(module: Any) -> tuple[AttentionShape, ...]:
    """Run one pass and see what every attention layer stores: tensors know better than configurations."""
    probe = ShapeProbe()
    zeros = torch.zeros(ROW_MULTIPLE, dtype=torch.int64, device=module.device)
    batch = Batch(
        input_ids=zeros,
        positions=zeros,
        slots=zeros,
        sequence_of=zeros,
        page_table=zeros[None],
        logit_rows=zeros,
        live=ROW_MULTIPLE,
        page_lists=(),
        spans=(),
    )
    logits = _forward(module, batch, probe)
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


def _candidate_sizes(largest: int) -> Iterator[int]:
    """16, 32, 48, 64, 96, 128, …: two sizes for each doubling, up to the first that holds `largest`."""
    size = ROW_MULTIPLE
    while True:
        yield size
        if size >= largest:
            return
        if size >= 2 * ROW_MULTIPLE:
            yield size + size // 2
            if size + size // 2 >= largest:
                return
        size *= 2


def _distinct_linear_layers(module: nn.Module) -> Sequence[nn.Linear]:
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    return list({(layer.weight.shape, layer.bias is None): layer for layer in linear}.values())
