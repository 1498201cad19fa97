"""Both attention backends against the textbook formula in float64, and against themselves in company."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from tokenwire_reference.core.attention import (
    AttentionShape,
    SdpaPagedAttention,
    UnsupportedModelError,
    paged_attention,
)
from tokenwire_reference.core.batch import Batch

PAGE, CONTEXT = 16, 160


@dataclass(frozen=True)
class Text:
    """One sequence: what its queries, keys and values are at every position, [positions, heads, D]."""

    queries: Tensor
    keys: Tensor
    values: Tensor

    @classmethod
    def random(cls, seed: int, positions: int, heads: int, kv_heads: int, dim: int) -> Text:
        generator = torch.Generator().manual_seed(seed)
        shapes = ((positions, heads, dim), (positions, kv_heads, dim), (positions, kv_heads, dim))
        return cls(*(torch.randn(shape, generator=generator) for shape in shapes))

    def attention(self, scaling: float, window: int | None) -> Tensor:
        """[positions, heads, D], in float64, one query at a time."""
        group = self.queries.shape[1] // self.keys.shape[1]
        keys = self.keys.double().repeat_interleave(group, 1)
        values = self.values.double().repeat_interleave(group, 1)
        results = []
        for position, query in enumerate(self.queries.double()):
            seen = slice(0 if window is None else max(0, position - window + 1), position + 1)
            weights = torch.softmax(torch.einsum("hd,khd->hk", query, keys[seen]) * scaling, -1)
            results.append(torch.einsum("hk,khd->hd", weights, values[seen]))
        return torch.stack(results)


def make_batch(spans: list[tuple[int, int]], page_lists: list[list[int]], padding: int) -> Batch:
    slots = [
        pages[position // PAGE] * PAGE + position % PAGE
        for (start, end), pages in zip(spans, page_lists, strict=True)
        for position in range(start, end)
    ]
    positions = [position for start, end in spans for position in range(start, end)]
    live = len(slots)
    zeros = [0] * padding
    seats = [seat for seat, (start, end) in enumerate(spans) for _ in range(start, end)]
    return Batch(
        packed=torch.tensor(
            [[0] * live + zeros, positions + zeros, slots + zeros, seats + [-1] * padding],
            dtype=torch.int64,
        ),
        seats=range(len(spans)),
        logit_rows=torch.zeros(16, dtype=torch.int64),
        page_lists=page_lists,
        spans=spans,
    )


def packed(parts: list[Tensor], padding: int) -> Tensor:
    """Rows of several sequences as transformers gives them: [1, heads, T, D]."""
    rows = torch.cat([*parts, torch.full((padding, *parts[0].shape[1:]), float("nan"))])
    return rows.transpose(0, 1)[None]


def scattered_pages(lengths: list[int], seed: int) -> list[list[int]]:
    """Pages for sequences of these lengths, in no order, page 0 left out."""
    order = (torch.randperm(64, generator=torch.Generator().manual_seed(seed)) + 1).tolist()
    counts = [-(-length // PAGE) for length in lengths]
    return [order[sum(counts[:i]) : sum(counts[: i + 1])] for i in range(len(counts))]


def run_sdpa(
    texts: list[Text], cuts: list[list[int]], pages: list[list[int]], window: int | None
) -> list[Tensor]:
    """Compute sequences together, step by step; `cuts` cut each into segments.

    What their pages held before, and what padding brings, is as bad as memory can be.
    """
    _, heads, dim = texts[0].queries.shape
    shape = AttentionShape(texts[0].keys.shape[1], dim, dim)
    attention = SdpaPagedAttention([shape], num_pages=65, page_size=PAGE, context_length=CONTEXT)
    for stored in (*attention.keys, *attention.values):
        stored[PAGE:] = float("nan")
    bounds = [[0, *cut, len(text.queries)] for cut, text in zip(cuts, texts, strict=True)]
    results: list[list[Tensor]] = [[] for _ in texts]
    for step in range(max(map(len, bounds)) - 1):
        who = [i for i, bound in enumerate(bounds) if step + 1 < len(bound)]
        spans = [(bounds[i][step], bounds[i][step + 1]) for i in who]
        rows = sum(end - start for start, end in spans)
        padding = -rows % 16
        attention.plan(make_batch(spans, [pages[i] for i in who], padding))
        query, key, value = (
            packed(
                [getattr(texts[i], name)[start:end] for i, (start, end) in zip(who, spans, strict=True)],
                padding,
            )
            for name in ("queries", "keys", "values")
        )
        out = attention.attend(0, query, key, value, scaling=0.25, window=window)
        assert out.shape == (1, rows + padding, heads, dim)
        parts = out[0, :rows].split([end - start for start, end in spans])
        for i, part in zip(who, parts, strict=True):
            results[i].append(part)
    return [torch.cat(parts) for parts in results]


SIZES = [0, 4 * PAGE * 2 * 16 * 4, 1 << 30]
"""Keys are large: all of them, those of more than four pages of two heads, none."""


@pytest.mark.parametrize("large", SIZES)
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (2, 2), (6, 1)])
def test_sdpa_is_attention(
    heads: int, kv_heads: int, window: int | None, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SdpaPagedAttention, "LARGE", large)
    lengths = [40, 1, 100, 17]
    texts = [Text.random(seed, n, heads, kv_heads, 16) for seed, n in enumerate(lengths)]
    cuts = [[32], [], [16, 64, 97, 98, 99], [16]]
    for text, result in zip(texts, run_sdpa(texts, cuts, scattered_pages(lengths, 3), window), strict=True):
        torch.testing.assert_close(result.double(), text.attention(0.25, window), atol=2e-6, rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 90),
    data=st.data(),
    neighbours=st.lists(st.integers(1, 60), max_size=5),
    seed=st.integers(0, 99),
    large=st.sampled_from(SIZES),
)
def test_bits_depend_on_nothing_but_the_position(
    length: int, data: st.DataObject, neighbours: list[int], seed: int, large: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SdpaPagedAttention, "LARGE", large)
        _bits_depend_on_nothing_but_the_position(length, data, neighbours, seed)


def _bits_depend_on_nothing_but_the_position(
    length: int, data: st.DataObject, neighbours: list[int], seed: int
) -> None:
    text = Text.random(0, length, 4, 2, 16)
    (alone,) = run_sdpa([text], [[]], [list(range(1, 7))], None)
    cuts = sorted(data.draw(st.sets(st.integers(1, length - 1), max_size=6))) if length > 1 else []
    lengths = [length, *neighbours]
    texts = [text, *(Text.random(i + 1, n, 4, 2, 16) for i, n in enumerate(neighbours))]
    together = run_sdpa(texts, [cuts, *([] for _ in neighbours)], scattered_pages(lengths, seed), None)
    assert torch.equal(together[0], alone)


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    """The Triton kernel: on the GPU, or without one in Triton's interpreter (see conftest.py)."""
    pytest.importorskip("triton", reason="triton cannot be imported here")
    from tokenwire_reference.extras import paged_attention_kernel

    return paged_attention_kernel


def ordered_product(a: NDArray[Any], b: NDArray[Any], dtype: DTypeLike = None) -> NDArray[Any]:
    """A matrix product whose elements are all summed in the same order, by single roundings.

    Triton's interpreter multiplies by `numpy.matmul`. What BLAS adds in which order depends on the processor
    and on where a row stands in its matrix; a GPU's matrix units do not. So the library is taken out.
    """
    result = np.zeros((a.shape[0], b.shape[1]), dtype or np.result_type(a, b))
    for k in range(a.shape[1]):
        result += a[:, k, None] * b[None, k, :]
    return result


@pytest.fixture
def _ordered_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter multiplies without BLAS."""
    monkeypatch.setattr(np, "matmul", ordered_product)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "window"),
    [(4, 2, 16, None), (3, 3, 24, None), (8, 1, 64, None), (4, 2, 16, 20), (2, 2, 16, 3)],
)
@pytest.mark.usefixtures("_ordered_products")
def test_the_triton_kernel_is_attention(
    kernel: ModuleType, heads: int, kv_heads: int, dim: int, window: int | None
) -> None:
    """And its bits do not depend on its tiles."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lengths, spans = [40, 70, 33], [(0, 40), (69, 70), (16, 33)]
    texts = [Text.random(seed, n, heads, kv_heads, dim) for seed, n in enumerate(lengths)]
    pages = scattered_pages(lengths, 7)
    # What is not of these texts is as bad as memory can be.
    keys, values = torch.full((2, 65 * PAGE, kv_heads, dim), float("nan"))
    for text, table in zip(texts, pages, strict=True):
        slots = [table[position // PAGE] * PAGE + position % PAGE for position in range(len(text.keys))]
        keys[slots], values[slots] = text.keys, text.values
    queries = torch.cat([text.queries[start:end] for text, (start, end) in zip(texts, spans, strict=True)])
    sequence_of = [i for i, (start, end) in enumerate(spans) for _ in range(start, end)]
    positions = [position for start, end in spans for position in range(start, end)]
    padding = 4
    table_width = max(map(len, pages))
    tile, live = kernel.tile_of(heads // kv_heads), len(positions)
    bounds = [0, 40, 41, live]
    tiled = [
        [row, min(tile, end - row)] for start, end in pairwise(bounds) for row in range(start, end, tile)
    ]
    singles = [[row, 1] for row in range(live + padding)]
    result, alone = (
        kernel.attend_to_pages(
            torch.cat([queries, torch.ones(padding, heads, dim)]).to(device),
            keys.to(device),
            values.to(device),
            tiles=torch.tensor(tiles, device=device),
            sequence_of=torch.tensor(sequence_of + [-1] * padding, device=device),
            positions=torch.tensor(positions + [0] * padding, device=device),
            page_table=torch.tensor(
                [table + [0] * (table_width - len(table)) for table in pages], device=device
            ),
            page_size=PAGE,
            scaling=0.25,
            window=window,
        ).cpu()
        for tiles in (tiled, singles)
    )
    assert torch.equal(result, alone)
    whole = (text.attention(0.25, window) for text in texts)
    expected = torch.cat([part[start:end] for part, (start, end) in zip(whole, spans, strict=True)])
    torch.testing.assert_close(result[:-padding].double(), expected, atol=5e-6, rtol=1e-5)
    assert not result[-padding:].any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"softcap": 50.0}, "passes softcap to its attention"),
        ({"s_aux": torch.zeros(2), "position_bias": 1}, "passes position_bias, s_aux to its attention"),
        ({"attention_mask": torch.zeros(1)}, "builds an attention mask of its own"),
    ],
)
def test_arguments_that_change_the_result_are_refused(arguments: dict[str, Any], message: str) -> None:
    empty = torch.zeros(1, 2, 16, 16)
    attention = SdpaPagedAttention([AttentionShape(2, 16, 16)], 3, PAGE, CONTEXT)
    module = torch.nn.Linear(1, 1)
    call = {"attention_mask": None, "dropout": 0.0, "softmax_scale": None, "paged": attention, **arguments}
    with pytest.raises(UnsupportedModelError, match=message):
        paged_attention(module, empty, empty, empty, **call)
