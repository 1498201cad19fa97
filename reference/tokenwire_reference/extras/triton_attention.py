"""Paged attention on the GPU, with the kernel of `paged_attention_kernel`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tokenwire_reference.core.attention import AttentionShape, PagedTensors, UnsupportedModelError
from tokenwire_reference.core.batch import Batch


class TritonPagedAttention(PagedTensors):
    """Attention on the GPU: our kernel, one program for each tile and key-value head, pages in order."""

    def __init__(
        self,
        shapes: Sequence[AttentionShape],
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        page_table: tuple[int, int],
    ) -> None:
        """Initialize.

        `page_table` is the size of the page table: the number of seats, and the maximum number of pages of a
        sequence.
        """
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
        self._groups = {shape.group for shape in shapes}
        self._tiles: dict[int, Tensor] = {}
        """The tiles of the batch, by the number of query heads for each key-value head."""
        self._singles: dict[int, Tensor] = {}
        """Tiles of one token each, by the number of tokens.

        They have fixed addresses, so that captured graphs can use them.
        """
        self._page_table = torch.zeros(page_table, dtype=torch.int64, device=device)
        self._seated: dict[int, Sequence[int]] = {}
        """The pages in each seat's row of the page table."""

    def plan(self, batch: Batch) -> None:
        """Prepare the tensors and the page table. A captured pass needs no other data.

        A sequence gets all its pages at once when it begins to run, so few steps change the table.
        """
        for seat, pages in zip(batch.seats, batch.page_lists, strict=True):
            if self._seated.get(seat) is not pages:
                self._seated[seat] = pages
                row = torch.tensor(pages, dtype=torch.int64)
                self._page_table[seat, : len(pages)].copy_(row.to(self._page_table.device))
        self._tiles = {group: self._tiled(batch, group) for group in self._groups}
        self._batch = batch

    def _tiled(self, batch: Batch, group: int) -> Tensor:
        """Return the tiles of a batch: [tiles, 2], the first token and the number of tokens."""
        from tokenwire_reference.extras.paged_attention_kernel import tile_of

        device = self._page_table.device
        if batch.all_rows_wanted:  # a decode, which has the same tiles in every step with equally many rows
            tokens = batch.packed.shape[1]
            if tokens not in self._singles:
                self._singles[tokens] = torch.tensor([[offset, 1] for offset in range(tokens)], device=device)
            return self._singles[tokens]
        tile, tiles, token = tile_of(group), [], 0
        for start, end in batch.spans:
            tiles += [
                (token + offset, min(tile, end - start - offset)) for offset in range(0, end - start, tile)
            ]
            token += end - start
        return torch.tensor(tiles, device=device)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, window: int | None
    ) -> Tensor:
        from tokenwire_reference.extras.paged_attention_kernel import attend_to_pages

        batch = self._batch
        assert batch is not None, "plan comes before attend"
        self.keys[layer].index_copy_(0, batch.slots, key[0].transpose(0, 1))
        self.values[layer].index_copy_(0, batch.slots, value[0].transpose(0, 1))
        output = attend_to_pages(
            query[0].transpose(0, 1).contiguous(),
            self.keys[layer],
            self.values[layer],
            tiles=self._tiles[query.shape[1] // key.shape[1]],
            sequence_of=batch.seat_of,
            positions=batch.positions,
            page_table=self._page_table,
            page_size=self.page_size,
            scaling=scaling,
            window=window,
        )
        return output[None]
