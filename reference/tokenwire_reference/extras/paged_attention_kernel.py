"""The Triton kernel of paged attention: one program for each tile and key-value head, pages in order.

A tile consists of neighbouring tokens of one sequence. A decode has one token in a tile. A prefill has enough
tokens to fill the rows of a matrix product, and reads each key once for all of them. Every row processes the
keys in the order of their positions. A masked key multiplies the state of the row by one and adds zero. So
the bits of a token depend neither on its tile nor on the batch, and prefill and decode run the same code.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


# The width of the table does not specialize the kernel, so one compiled kernel serves all widths.
@triton.jit(do_not_specialize=["table_width"])  # type: ignore[untyped-decorator,unused-ignore]  # no types
def _attend(  # type: ignore[no-untyped-def]  # noqa: ANN202, PLR0917 - a kernel takes pointers
    query,  # noqa: ANN001
    keys,  # noqa: ANN001
    values,  # noqa: ANN001
    output,  # noqa: ANN001
    tiles,  # noqa: ANN001
    sequence_of,  # noqa: ANN001
    positions,  # noqa: ANN001
    page_table,  # noqa: ANN001
    table_width,  # noqa: ANN001
    scaling,  # noqa: ANN001
    window,  # noqa: ANN001
    KV_HEADS: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr,  # noqa: N803
    GROUP_ROWS: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
    DIM: tl.constexpr,  # noqa: N803
    DIM_COLUMNS: tl.constexpr,  # noqa: N803
    PAGE: tl.constexpr,  # noqa: N803
):
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    token = tl.load(tiles + 2 * tile)
    tokens = tl.load(tiles + 2 * tile + 1)
    sequence = tl.load(sequence_of + token)
    if sequence < 0:  # padding
        return
    first = tl.load(positions + token)
    last = first + tokens - 1
    row = tl.arange(0, TILE * GROUP_ROWS)
    ahead, head = row // GROUP_ROWS, row % GROUP_ROWS
    position = first + ahead
    column = tl.arange(0, DIM_COLUMNS)
    offset = tl.arange(0, PAGE)
    inside = column[None, :] < DIM
    at_query = (((token + ahead) * KV_HEADS + kv_head) * GROUP + head)[:, None] * DIM + column[None, :]
    live = (ahead[:, None] < tokens) & (head[:, None] < GROUP) & inside
    q = tl.load(query + at_query, mask=live, other=0.0)

    highest = tl.full([TILE * GROUP_ROWS], float("-inf"), tl.float32)
    weight_sum = tl.zeros([TILE * GROUP_ROWS], tl.float32)
    weighted = tl.zeros([TILE * GROUP_ROWS, DIM_COLUMNS], tl.float32)
    oldest = tl.maximum(first - window + 1, 0)
    for index in range(oldest // PAGE, last // PAGE + 1):
        page = tl.load(page_table + sequence * table_width + index)
        at_kv = ((page * PAGE + offset) * KV_HEADS + kv_head)[:, None] * DIM + column[None, :]
        k = tl.load(keys + at_kv, mask=inside, other=0.0)
        key_position = index * PAGE + offset
        # Values of earlier requests are masked, because zero times NaN would be NaN.
        kept = (key_position <= last) & (key_position >= oldest)
        v = tl.load(values + at_kv, mask=inside & kept[:, None], other=0.0)
        behind = position[:, None] - key_position[None, :]
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scaling
        scores = tl.where((behind >= 0) & (behind < window), scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        # A row without any key so far has no maximum.
        measure = tl.where(new_highest == float("-inf"), 0.0, new_highest)
        rescale = tl.exp(highest - measure)
        weight = tl.exp(scores - measure[:, None])
        weight_sum = weight_sum * rescale + tl.sum(weight, 1)
        weighted = weighted * rescale[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        highest = new_highest
    result = weighted / tl.where(weight_sum == 0.0, 1.0, weight_sum)[:, None]
    tl.store(output + at_query, result.to(output.dtype.element_ty), mask=live)


BLOCK = 16
"""The minimum number of rows and of columns of a block in a matrix product."""


def tile_of(group: int) -> int:
    """Return the tokens of a tile, for a number of query heads for each key-value head."""
    heads: int = triton.next_power_of_2(group)
    return max(1, BLOCK // heads)


def sizes(heads: int, kv_heads: int, dim: int, page_size: int) -> dict[str, int]:
    """Return the constants that the kernel is compiled for."""
    group = heads // kv_heads
    return {
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "GROUP_ROWS": triton.next_power_of_2(group),
        "TILE": tile_of(group),
        "DIM": dim,
        "DIM_COLUMNS": max(BLOCK, triton.next_power_of_2(dim)),
        "PAGE": page_size,
    }


def attend_to_pages(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    tiles: Tensor,
    sequence_of: Tensor,
    positions: Tensor,
    page_table: Tensor,
    page_size: int,
    scaling: float,
    window: int | None,
) -> Tensor:
    """Return causal attention of packed queries over paged keys and values.

    `query` is [T, H, D], contiguous; `keys` and `values` are [slots, Hkv, D]; `sequence_of` and `positions`
    are [T], with sequence -1 for padding; `page_table` is [sequences, pages]. `tiles` [N, 2] has the first
    token of each tile and its number of tokens, at most `tile_of(H // Hkv)`; they cover all tokens but
    padding. The result is [T, H, D]; padding rows are zero. `page_size` must be a power of two, and at least
    16.
    """
    _, heads, dim = query.shape
    kv_heads = keys.shape[1]
    output = torch.zeros_like(query)
    _attend[tiles.shape[0], kv_heads](
        query,
        keys,
        values,
        output,
        tiles,
        sequence_of,
        positions,
        page_table,
        page_table.shape[1],
        scaling,
        2**30 if window is None else window,
        **sizes(heads, kv_heads, dim, page_size),
    )
    return output
