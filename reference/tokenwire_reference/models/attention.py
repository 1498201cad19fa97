"""Attention over paged keys and values, hooked into any transformers model.

The model runs one packed row of tokens and keeps no cache of its own. Its attention layers call
`paged_attention`, which writes the new keys and values into their pages and lets each query attend to its own
sequence.

Both backends make the result of a token depend on nothing but its position and the ids up to it: not on its
neighbours, not on how a prefill was cut into chunks, not on what came from the prefix cache, not on whether
the token was computed by prefill or by decode. So pages may be shared whoever computed them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from mmap import mmap
from operator import itemgetter
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from tokenwire_reference.cache.prefix_tiers import PageStore
from tokenwire_reference.scheduling.batch import Batch

ATTENTION_NAME = "tokenwire_paged"
IGNORED_ARGUMENTS = frozenset(
    {
        "dropout",
        "is_causal",
        "output_router_logits",
        "position_ids",
        "use_cache",
        "output_attentions",
        "cache_position",
    }
)
"""What layers pass along that means nothing here: no training, always causal, positions already applied."""


class UnsupportedModelError(ValueError):
    """The model needs something that this engine does not implement."""


@dataclass(frozen=True)
class AttentionShape:
    """What one attention layer stores for a position."""

    kv_heads: int
    key_dim: int
    value_dim: int


class PagedAttention(Protocol):
    """Where the layers of a step find keys and values."""

    def plan(self, batch: Batch) -> None:
        """Prepare for the layers of one step."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, window: int | None
    ) -> Tensor:
        """Store key [1, Hkv, T, D] and value, and give the attention of query [1, H, T, D]: [1, T, H, Dv]."""


class PagedCache(PagedAttention, PageStore, Protocol):
    """Keys and values of one engine: for attention, and page by page for lower tiers of the prefix cache."""


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    paged: PagedAttention,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in every layer.

    Raises UnsupportedModelError for an argument that would change the result and is not implemented.
    """
    if attention_mask is not None:
        raise UnsupportedModelError(f"{type(module).__name__} builds an attention mask of its own")
    unknown = sorted(k for k, v in arguments.items() if v is not None and k not in IGNORED_ARGUMENTS)
    if unknown:
        raise UnsupportedModelError(
            f"{type(module).__name__} passes {', '.join(unknown)} to its attention, which is not implemented"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: int = module.layer_idx  # type: ignore[assignment]  # transformers numbers every attention module
    return paged.attend(layer, query, key, value, scaling=scale, window=sliding_window), None


class PagedTensors:
    """Keys and values of every layer, page by page: [slots, heads, dimension] each."""

    keys: list[Tensor]
    values: list[Tensor]
    page_size: int

    def read_page(self, page: int) -> list[Tensor]:
        """Copies of one page's keys and values, on the CPU."""
        return [tensor.to("cpu", copy=True) for tensor in self._page(page)]

    def write_page(self, page: int, payload: Sequence[Tensor]) -> None:
        for tensor, content in zip(self._page(page), payload, strict=True):
            tensor.copy_(content)

    def same_page(self, page: int, payload: Sequence[Tensor]) -> bool:
        """Whether a page still has these contents, to the last bit."""
        return all(torch.equal(a.cpu(), b) for a, b in zip(self._page(page), payload, strict=True))

    def _page(self, page: int) -> list[Tensor]:
        slots = slice(page * self.page_size, (page + 1) * self.page_size)
        return [tensor[slots] for tensor in (*self.keys, *self.values)]


class ShapeProbe:
    """Learns the shapes of all layers from one forward pass; its attention returns the shape and no sense."""

    def __init__(self) -> None:
        self.shapes: dict[int, AttentionShape] = {}

    def plan(self, batch: Batch) -> None:
        """Nothing to prepare."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, window: int | None
    ) -> Tensor:
        del scaling, window
        if layer in self.shapes:
            raise UnsupportedModelError(f"attention layer {layer} is called twice in one forward pass")
        _, kv_heads, tokens, key_dim = key.shape
        self.shapes[layer] = AttentionShape(kv_heads, key_dim, value.shape[-1])
        return query.new_zeros(1, tokens, query.shape[1], value.shape[-1])


@dataclass(frozen=True)
class _TileGroup:
    """Tiles that attend to equally many pages."""

    pages: Tensor
    """[tiles, pages] int64."""
    run_from: int | None
    """The first slot of a single tile whose pages follow one another: such keys need no copy."""

    @classmethod
    def of(cls, tables: Sequence[Sequence[int]], page_size: int) -> _TileGroup:
        first = tables[0][0]
        is_run = len(tables) == 1 and all(page == first + at for at, page in enumerate(tables[0]))
        return cls(torch.tensor(tables), first * page_size if is_run else None)


def _zeros(*shape: int) -> Tensor:
    """Zeros that take no memory before they are written: `torch.zeros` writes every one of them."""
    memory = mmap(-1, math.prod(shape) * torch.float32.itemsize)
    return torch.frombuffer(memory, dtype=torch.float32).view(shape)


class SdpaPagedAttention(PagedTensors):
    """Attention on the CPU, in float32: `scaled_dot_product_attention` over tiles.

    A *tile* is the queries of one page: always `page_size` rows, each at its own offset, absent ones zero. It
    attends to whole pages from the first up to its own, under a causal mask. So the shape of the computation,
    and with it every bit of its result, follows from the position alone. Tiles over equally many pages run in
    one call, in which each is computed by itself.
    """

    MAX_GATHERED = 16384
    """Positions gathered at once, so that a wide batch over long contexts does not copy its whole cache."""

    def __init__(
        self, shapes: Sequence[AttentionShape], num_pages: int, page_size: int, context_length: int
    ) -> None:
        slots = num_pages * page_size
        self.page_size = page_size
        self.context_length = -(-context_length // page_size) * page_size
        self.keys = [_zeros(slots, s.kv_heads, s.key_dim) for s in shapes]
        self.values = [_zeros(slots, s.kv_heads, s.value_dim) for s in shapes]
        self._masks: dict[tuple[int, int | None], Tensor] = {}
        self._slots = self._tile_rows = self._row_of = torch.empty(0, dtype=torch.int64)
        self._groups: list[_TileGroup] = []
        self._tiles = 0

    def plan(self, batch: Batch) -> None:
        size = self.page_size
        tiles = sorted(
            (page, segment)
            for segment, (start, end) in enumerate(batch.spans)
            for page in range(start // size, (end - 1) // size + 1)
        )
        rank = {tile: at for at, tile in enumerate(tiles)}
        self._groups = []
        for page, group in groupby(tiles, key=itemgetter(0)):
            tables = [batch.page_lists[segment][: page + 1] for _, segment in group]
            most = max(1, self.MAX_GATHERED // ((page + 1) * size))
            self._groups += [
                _TileGroup.of(tables[at : at + most], size) for at in range(0, len(tables), most)
            ]
        rows = [
            rank[position // size, segment] * size + position % size
            for segment, (start, end) in enumerate(batch.spans)
            for position in range(start, end)
        ]
        self._tiles = len(tiles)
        self._slots = batch.slots
        self._tile_rows = torch.tensor(rows)
        self._row_of = torch.tensor(rows + [0] * (len(batch.slots) - len(rows)))

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, window: int | None
    ) -> Tensor:
        keys, values, size = self.keys[layer], self.values[layer], self.page_size
        keys.index_copy_(0, self._slots, key[0].transpose(0, 1).float())
        values.index_copy_(0, self._slots, value[0].transpose(0, 1).float())
        heads, dim, kv_heads = query.shape[1], query.shape[-1], key.shape[1]
        shared = heads // kv_heads
        # The query heads of one key-value head are further rows of the same tile.
        queries = torch.zeros(heads, self._tiles * size, dim)
        queries.index_copy_(1, self._tile_rows, query[0, :, : len(self._tile_rows)].float())
        queries = queries.view(kv_heads, shared, self._tiles, size, dim).permute(2, 0, 1, 3, 4)
        queries = queries.reshape(self._tiles, kv_heads, shared * size, dim)
        outputs = torch.empty(self._tiles, kv_heads, shared * size, value.shape[-1])
        mask = self._mask(shared, window)
        first = 0
        for group in self._groups:
            count, pages = group.pages.shape
            outputs[first : first + count] = functional.scaled_dot_product_attention(
                queries[first : first + count],
                self._gather(keys, group),
                self._gather(values, group),
                attn_mask=mask[:, self.context_length - pages * size :],
                scale=scaling,
            )
            first += count
        outputs = outputs.view(self._tiles, kv_heads, shared, size, -1).permute(0, 3, 1, 2, 4)
        outputs = outputs.reshape(self._tiles * size, heads, -1)
        return outputs.index_select(0, self._row_of).to(query.dtype)[None]

    def _gather(self, pool: Tensor, group: _TileGroup) -> Tensor:
        """The keys or values of all pages of a group: [tiles, Hkv, positions, D]."""
        count, pages = group.pages.shape
        positions = pages * self.page_size
        if group.run_from is not None:
            return pool.narrow(0, group.run_from, positions)[None].transpose(1, 2)
        paged = pool.view(-1, self.page_size, *pool.shape[1:])
        return paged[group.pages].view(count, positions, *pool.shape[1:]).transpose(1, 2)

    def _mask(self, shared: int, window: int | None) -> Tensor:
        """[shared * page_size, context], right-aligned: its last columns serve a tile of any length."""
        if (shared, window) not in self._masks:
            row = torch.arange(self.page_size)[:, None]
            # Relative to the first position of the tile's own page.
            column = torch.arange(self.page_size - self.context_length, self.page_size)[None, :]
            seen = column <= row
            if window is not None:
                seen &= column > row - window
            mask = torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))
            self._masks[shared, window] = mask.repeat(shared, 1)
        return self._masks[shared, window]


class TritonPagedAttention(PagedTensors):
    """Attention on the GPU: our kernel, one program for each token and key-value head, pages in order."""

    def __init__(
        self,
        shapes: Sequence[AttentionShape],
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        if any(shape.key_dim != shape.value_dim for shape in shapes):
            raise UnsupportedModelError("the GPU kernel needs keys and values of one size")
        if page_size < 16 or page_size & (page_size - 1):
            raise ValueError(f"page_size is {page_size}; the GPU kernel needs a power of two, at least 16")
        slots = num_pages * page_size
        self.page_size = page_size
        self.keys = [torch.zeros(slots, s.kv_heads, s.key_dim, dtype=dtype, device=device) for s in shapes]
        self.values = [
            torch.zeros(slots, s.kv_heads, s.value_dim, dtype=dtype, device=device) for s in shapes
        ]
        self._batch: Batch | None = None

    def plan(self, batch: Batch) -> None:
        """Nothing is computed here, so a captured pass finds all it needs in the tensors of its batch."""
        self._batch = batch

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, window: int | None
    ) -> Tensor:
        from tokenwire_reference.models.paged_attention_kernel import attend_to_pages

        batch = self._batch
        assert batch is not None, "plan comes before attend"
        self.keys[layer].index_copy_(0, batch.slots, key[0].transpose(0, 1))
        self.values[layer].index_copy_(0, batch.slots, value[0].transpose(0, 1))
        output = attend_to_pages(
            query[0].transpose(0, 1).contiguous(),
            self.keys[layer],
            self.values[layer],
            sequence_of=batch.sequence_of,
            positions=batch.positions,
            page_table=batch.page_table,
            page_size=self.page_size,
            scaling=scaling,
            window=window,
        )
        return output[None]
