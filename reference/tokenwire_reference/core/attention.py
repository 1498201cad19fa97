"""Attention over paged keys and values, hooked into any transformers model.

The model runs one packed row of tokens without a cache of its own. Its attention layers call
`paged_attention`, which writes the new keys and values into their pages and lets each query attend to its own
sequence.

In both backends, the result of a token depends only on its position and the ids up to it. The result does not
depend on other sequences in the batch, on the chunks of a prefill, or on the prefix cache. Prefill and decode
compute the same result. So a page may be shared, whichever request has computed it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from mmap import mmap
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from tokenwire_reference.core.batch import Batch
from tokenwire_reference.core.kv import PADDING_PAGE, PageStore

ATTENTION_NAME = "tokenwire_paged"
IGNORED_ARGUMENTS = {
    *("dropout", "is_causal", "position_ids", "use_cache", "cache_position"),
    *("output_router_logits", "output_attentions"),
}
"""Arguments of attention layers that have no effect here: nothing is trained, attention is always causal, and
positions are already applied.
"""


class UnsupportedModelError(ValueError):
    """The model needs something that this engine does not implement."""


@dataclass(frozen=True)
class AttentionShape:
    """Shapes of the keys and values that one attention layer stores for a position."""

    kv_heads: int
    key_dim: int
    value_dim: int
    group: int = 1
    """The number of query heads for each key-value head."""


class PagedAttention(Protocol):
    """Stores the keys and values of all layers, and computes attention over them."""

    def plan(self, batch: Batch) -> None:
        """Prepare for the layers of one step."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, window: int | None
    ) -> Tensor:
        """Store key [1, Hkv, T, D] and value, and return the attention of query [1, H, T, D]: [1, T, H,
        Dv].
        """


class PagedCache(PagedAttention, PageStore, Protocol):
    """Keys and values of one engine. The lower tiers of the prefix cache read and write them page by page."""


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
    """Return the attention function that transformers calls in every layer.

    The function raises UnsupportedModelError if a layer passes an argument that would change the result and
    is not implemented.
    """
    if attention_mask is not None:
        raise UnsupportedModelError(
            f"{type(module).__name__} builds an attention mask of its own; serve another model"
        )
    unknown = sorted(k for k, v in arguments.items() if v is not None and k not in IGNORED_ARGUMENTS)
    if unknown:
        raise UnsupportedModelError(
            f"{type(module).__name__} passes {', '.join(unknown)} to its attention, which is not implemented"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: int = module.layer_idx  # type: ignore[assignment]  # transformers numbers every attention module
    return paged.attend(layer, query, key, value, scaling=scale, window=sliding_window), None


class PagedTensors:
    """Keys and values of every layer, stored in pages. Each tensor is [slots, heads, dimension]."""

    keys: list[Tensor]
    values: list[Tensor]
    page_size: int

    def read_page(self, page: int) -> list[Tensor]:
        """Return copies of the keys and values of one page, on the CPU."""
        return [tensor.to("cpu", copy=True) for tensor in self._page(page)]

    def write_page(self, page: int, payload: Sequence[Tensor]) -> None:
        for tensor, content in zip(self._page(page), payload, strict=True):
            tensor.copy_(content)

    def same_page(self, page: int, payload: Sequence[Tensor]) -> bool:
        """True if the page still contains exactly these bits."""
        return all(torch.equal(a.cpu(), b) for a, b in zip(self._page(page), payload, strict=True))

    def _page(self, page: int) -> list[Tensor]:
        slots = slice(page * self.page_size, (page + 1) * self.page_size)
        return [tensor[slots] for tensor in (*self.keys, *self.values)]


class ShapeProbe:
    """Learns the shapes of all layers from one forward pass; its attention returns zeros."""

    def __init__(self) -> None:
        self.shapes: dict[int, AttentionShape] = {}

    def plan(self, batch: Batch) -> None:
        """Do nothing, because no preparation is needed."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, window: int | None
    ) -> Tensor:
        del scaling, window
        if layer in self.shapes:
            raise UnsupportedModelError(f"attention layer {layer} is called twice in one forward pass")
        _, kv_heads, tokens, key_dim = key.shape
        group = query.shape[1] // kv_heads
        self.shapes[layer] = AttentionShape(kv_heads, key_dim, value.shape[-1], group)
        return query.new_zeros(1, tokens, query.shape[1], value.shape[-1])


_Tile = tuple[int, int, int]
"""The number of pages that a tile reads, the index of its segment, and the number of the tile in its
sequence.
"""


class _Tiles(NamedTuple):
    """Tiles that read the same number of pages. One call computes all of them."""

    pages: int
    """The number of pages of each tile."""
    positions: Tensor
    """The positions of the tiles' rows: [tiles, rows] int64."""
    tables: Tensor | None
    """The pages of all tiles, one tile after another; only one list of pages if `shared`: [pages] int64."""
    first_slot: int
    """The first slot, if all tiles belong to one sequence and its pages are consecutive.

    Then nothing is copied.
    """
    shared: bool
    """True if all tiles belong to one sequence, so that all tiles read the same keys."""


def _zeros(*shape: int) -> Tensor:
    """Return zeros that take no memory before they are written, unlike `torch.zeros`."""
    memory = mmap(-1, math.prod(shape) * torch.float32.itemsize)
    return torch.frombuffer(memory, dtype=torch.float32).view(shape)


class SdpaPagedAttention(PagedTensors):
    """Attention on the CPU, in float32: `scaled_dot_product_attention` over tiles.

    A *tile* is the queries of a few neighbouring positions. A tile always has the same number of rows, with
    unused rows where no query is needed. A tile attends to whole pages from the first page on, under a causal
    mask. So the position alone determines the shape of the computation, and thereby every bit of the result.

    Masked values are multiplied by zero, and zero times NaN is NaN. So a page is emptied when its first
    position is stored, padding stores nothing, and a tile does not read pages that its sequence has not
    begun.

    Tiles that read the same number of pages run in one call, which computes each tile independently. For this
    call, the keys of the tiles are copied into one tensor. Large keys are not copied. Then each sequence gets
    a call of its own, which reads consecutive pages in place.

    Comments give the shape after each line: N tiles of a step, n tiles of a group, R rows of a tile, H query
    heads, Hkv key-value heads, G = H / Hkv, P positions that a tile reads, D or Dv numbers of a head.
    """

    TILE = 4
    """The number of rows of a tile.

    A decode needs one row. A prefill uses all four rows, and reads the keys once for all of them.
    """
    LARGE = 1 << 18
    """The size of keys, in bytes, above which a separate call is faster than a copy."""

    def __init__(
        self, shapes: Sequence[AttentionShape], num_pages: int, page_size: int, context_length: int
    ) -> None:
        slots = num_pages * page_size
        self.page_size = page_size
        self.tile = math.gcd(page_size, self.TILE)
        self.context_length = -(-context_length // page_size) * page_size
        self.keys = [_zeros(slots, s.kv_heads, s.key_dim) for s in shapes]
        self.values = [_zeros(slots, s.kv_heads, s.value_dim) for s in shapes]
        page_bytes = max(page_size * s.kv_heads * s.key_dim * torch.float32.itemsize for s in shapes)
        self._few_pages = self.LARGE // page_bytes
        self._slots = self._rows = self._places = self._begun = torch.empty(0, dtype=torch.int64)
        self._groups: list[_Tiles] = []
        self._masks: dict[tuple[int, int | None], list[Tensor]] = {}
        """The masks of the groups, in the order of the groups."""
        self._bands: dict[int | None, Tensor] = {}

    def plan(self, batch: Batch) -> None:
        tile, parts = self.tile, self.page_size // self.tile
        # Tiles are sorted by (pages to read, segment, number of the tile in its sequence).
        tiles = sorted(
            (self._pages_read(number // parts + 1), segment, number)
            for segment, (start, end) in enumerate(batch.spans)
            for number in range(start // tile, (end - 1) // tile + 1)
        )
        self._masks = {}
        self._groups = []
        for pages, same in groupby(tiles, key=itemgetter(0)):
            if pages <= self._few_pages:
                self._groups.append(self._together(pages, list(same), batch.page_lists))
            else:
                self._groups += [
                    self._alone(pages, list(tiles_of), batch.page_lists[segment])
                    for segment, tiles_of in groupby(same, key=itemgetter(1))
                ]
        rank = {key[1:]: index * tile for index, key in enumerate(tiles)}
        places = [
            rank[segment, position // tile] + position % tile
            for segment, (start, end) in enumerate(batch.spans)
            for position in range(start, end)
        ]
        # Unused rows of a tile may have any content, because their result is not read.
        rows = [0] * (len(tiles) * tile)
        for row, place in enumerate(places):
            rows[place] = row
        self._slots = batch.slots[: len(places)]
        size = self.page_size
        begun = [
            pages[position // size]
            for (start, end), pages in zip(batch.spans, batch.page_lists, strict=True)
            for position in range(-(-start // size) * size, end, size)
        ]
        self._begun = torch.tensor(begun, dtype=torch.int64)
        self._rows = torch.tensor(rows)
        self._places = torch.tensor(places + [0] * (batch.slots.shape[0] - len(places)))

    def _pages_read(self, pages: int) -> int:
        """Return the number of pages that a tile reads if its positions are in the last of `pages` pages.

        Small numbers are rounded up to two sizes for each doubling, so that fewer calls are needed. The extra
        pages are masked.
        """
        if pages > self._few_pages:
            return pages
        half = 1 << max(0, pages.bit_length() - 2)
        return -(-pages // half) * half

    def _together(self, pages: int, tiles: Sequence[_Tile], page_lists: Sequence[Sequence[int]]) -> _Tiles:
        tables: list[int] = []
        for _, segment, number in tiles:
            begun = page_lists[segment][: number * self.tile // self.page_size + 1]
            tables += [*begun, *[PADDING_PAGE] * (pages - len(begun))]
        return _Tiles(pages, self._positions(tiles), torch.tensor(tables), 0, shared=False)

    def _alone(self, pages: int, tiles: Sequence[_Tile], page_list: Sequence[int]) -> _Tiles:
        table, first = page_list[:pages], page_list[0]
        follow = list(table) == list(range(first, first + pages))
        tables = None if follow else torch.tensor(table)
        return _Tiles(pages, self._positions(tiles), tables, first * self.page_size, shared=True)

    def _positions(self, tiles: Sequence[_Tile]) -> Tensor:
        first = torch.tensor([number * self.tile for _, _, number in tiles])
        return first[:, None] + torch.arange(self.tile)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, window: int | None
    ) -> Tensor:
        keys, values, tile = self.keys[layer], self.values[layer], self.tile
        for stored, new in ((keys, key), (values, value)):
            if self._begun.numel():
                by_page = stored.view(-1, self.page_size, *stored.shape[1:])  # [pages, page_size, Hkv, D]
                by_page.index_fill_(0, self._begun, 0.0)
            stored.index_copy_(0, self._slots, new[0, :, : self._slots.numel()].transpose(0, 1).float())
        heads, dim, kv_heads = query.shape[1], query.shape[-1], key.shape[1]
        shared = heads // kv_heads  # G
        # The query heads of one key-value head are further rows of the same tile.
        tiles = query[0].transpose(0, 1).float().index_select(0, self._rows)  # [N * R, H, D]
        tiles = tiles.view(-1, tile, kv_heads, shared, dim)  # [N, R, Hkv, G, D]
        tiles = tiles.permute(0, 2, 3, 1, 4)  # [N, Hkv, G, R, D]
        tiles = tiles.reshape(-1, kv_heads, shared * tile, dim)  # [N, Hkv, G * R, D]
        outputs, first = [], 0
        for group, mask in zip(self._groups, self._seen(shared, window), strict=True):
            end = first + mask.shape[0]
            outputs.append(
                functional.scaled_dot_product_attention(
                    tiles[first:end],
                    self._read(keys, group),
                    self._read(values, group),
                    attn_mask=mask,
                    scale=scaling,
                ).transpose(1, 2)  # [n, G * R, Hkv, Dv]
            )
            first = end
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)  # [N, G * R, Hkv, Dv]
        output = output.reshape(-1, shared, tile, kv_heads, value.shape[-1])  # [N, G, R, Hkv, Dv]
        output = output.permute(0, 2, 3, 1, 4)  # [N, R, Hkv, G, Dv]
        output = output.reshape(-1, heads, value.shape[-1])  # [N * R, H, Dv]
        return output.index_select(0, self._places).to(query.dtype)[None]

    def _read(self, pool: Tensor, group: _Tiles) -> Tensor:
        """Return the keys or values of a group: [n, Hkv, P, D]. `pool` is [slots, Hkv, D]."""
        positions, shape = group.pages * self.page_size, pool.shape[1:]
        if group.tables is None:
            found = pool.narrow(0, group.first_slot, positions)  # [P, Hkv, D]
        else:
            by_page = pool.view(-1, self.page_size * shape.numel())  # [pages, page_size * Hkv * D]
            found = by_page.index_select(0, group.tables)  # [pages of the group, page_size * Hkv * D]
        found = found.view(-1, positions, *shape)  # [n, P, Hkv, D]; n is 1 if all tiles are of one sequence
        found = found.transpose(1, 2)  # [n, Hkv, P, D]
        return found.expand(group.positions.shape[0], -1, -1, -1) if group.shared else found

    def _seen(self, shared: int, window: int | None) -> list[Tensor]:
        """Return the mask of each group: [n, 1, G * R, P]. All layers use the same masks."""
        if (shared, window) not in self._masks:
            self._masks[shared, window] = [
                self._band(window)
                .unfold(0, group.pages * self.page_size, 1)  # [places, P]
                .index_select(
                    0, (self.context_length - group.positions).repeat(1, shared).flatten()
                )  # [n * G * R, P]
                .view(group.positions.shape[0], 1, shared * self.tile, -1)  # [n, 1, G * R, P]
                for group in self._groups
            ]
        return self._masks[shared, window]

    def _band(self, window: int | None) -> Tensor:
        """Return a mask indexed by the distance from a key to its query; index `context_length` is distance
        0. The mask covers all distances that can occur between a query and the pages that its tile may read.
        """
        if window not in self._bands:
            behind = torch.arange(self.context_length, -2 * self.context_length - self.page_size, -1)
            seen = behind >= 0
            if window is not None:
                seen &= behind < window
            self._bands[window] = torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))
        return self._bands[window]
