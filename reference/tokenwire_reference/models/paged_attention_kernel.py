"""The Triton kernel of paged attention: one program for each token and key-value head, pages in order.

A program reads its own query and its own keys, in the order of their positions, and nothing else. So its bits
do not depend on the batch, and prefill and decode run the same code.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


# One kernel for tables of any width, not one for each kind of number.
@triton.jit(do_not_specialize=["table_width"])  # type: ignore[untyped-decorator,unused-ignore]  # no types
def _attend(  # type: ignore[no-untyped-def]  # noqa: ANN202, PLR0917 - a kernel takes pointers
    query,  # noqa: ANN001
    keys,  # noqa: ANN001
    values,  # noqa: ANN001
    output,  # noqa: ANN001
    sequence_of,  # noqa: ANN001
    positions,  # noqa: ANN001
    page_table,  # noqa: ANN001
    table_width,  # noqa: ANN001
    scaling,  # noqa: ANN001
    window,  # noqa: ANN001
    KV_HEADS: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr,  # noqa: N803
    GROUP_ROWS: tl.constexpr,  # noqa: N803
    DIM: tl.constexpr,  # noqa: N803
    DIM_COLUMNS: tl.constexpr,  # noqa: N803
    PAGE: tl.constexpr,  # noqa: N803
):
    token, kv_head = tl.program_id(0), tl.program_id(1)
    sequence = tl.load(sequence_of + token)
    if sequence < 0:  # padding
        return
    position = tl.load(positions + token)
    row = tl.arange(0, GROUP_ROWS)
    column = tl.arange(0, DIM_COLUMNS)
    offset = tl.arange(0, PAGE)
    inside = column[None, :] < DIM
    at_query = ((token * KV_HEADS + kv_head) * GROUP + row)[:, None] * DIM + column[None, :]
    live = (row[:, None] < GROUP) & inside
    q = tl.load(query + at_query, mask=live, other=0.0)

    highest = tl.full([GROUP_ROWS], float("-inf"), tl.float32)
    weight_sum = tl.zeros([GROUP_ROWS], tl.float32)
    weighted = tl.zeros([GROUP_ROWS, DIM_COLUMNS], tl.float32)
    oldest = tl.maximum(position - window + 1, 0)
    for index in range(oldest // PAGE, position // PAGE + 1):
        page = tl.load(page_table + sequence * table_width + index)
        at_kv = ((page * PAGE + offset) * KV_HEADS + kv_head)[:, None] * DIM + column[None, :]
        k = tl.load(keys + at_kv, mask=inside, other=0.0)
        key_position = index * PAGE + offset
        seen = (key_position <= position) & (key_position >= oldest)
        # Not what an earlier request left behind: weight zero times its NaN would be NaN.
        v = tl.load(values + at_kv, mask=inside & seen[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scaling
        scores = tl.where(seen[None, :], scores, float("-inf"))
        # Every page that is read holds a key that is seen, so `new_highest` is finite.
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        rescale = tl.exp(highest - new_highest)
        weight = tl.exp(scores - new_highest[:, None])
        weight_sum = weight_sum * rescale + tl.sum(weight, 1)
        weighted = weighted * rescale[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        highest = new_highest
    result = weighted / weight_sum[:, None]
    tl.store(output + at_query, result.to(output.dtype.element_ty), mask=live)


def sizes(heads: int, kv_heads: int, dim: int, page_size: int) -> dict[str, int]:
    """What the kernel is compiled for. Blocks of a matrix product have at least 16 rows and columns."""
    group = heads // kv_heads
    return {
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "GROUP_ROWS": max(16, triton.next_power_of_2(group)),
        "DIM": dim,
        "DIM_COLUMNS": max(16, triton.next_power_of_2(dim)),
        "PAGE": page_size,
    }


def attend_to_pages(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    sequence_of: Tensor,
    positions: Tensor,
    page_table: Tensor,
    page_size: int,
    scaling: float,
    window: int | None,
) -> Tensor:
    """Causal attention of packed queries over paged keys and values.

    `query` is [T, H, D], contiguous; `keys` and `values` are [slots, Hkv, D]; `sequence_of` and `positions`
    are [T], with sequence -1 for padding; `page_table` is [sequences, pages]. The result is [T, H, D];
    padding rows are zero. `page_size` must be a power of two, and at least 16.
    """
    tokens, heads, dim = query.shape
    kv_heads = keys.shape[1]
    output = torch.zeros_like(query)
    _attend[tokens, kv_heads](
        query,
        keys,
        values,
        output,
        sequence_of,
        positions,
        page_table,
        page_table.shape[1],
        scaling,
        2**30 if window is None else window,
        **sizes(heads, kv_heads, dim, page_size),
    )
    return output
