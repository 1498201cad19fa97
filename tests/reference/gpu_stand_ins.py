"""What stands in for a GPU where there is none: a device, its graphs, and the formula of its kernel.

So the engine takes every path that it takes on a GPU, with real numbers. The kernel itself is tested by
Triton's interpreter and compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tokenwire_reference.core.attention import PagedCache
from tokenwire_reference.core.loaded_model import LoadedModel
from tokenwire_reference.extras.triton_attention import TritonPagedAttention

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


class OnCuda(Tensor):
    """A tensor in host memory that says it lies on a CUDA device. What is computed from it says so too."""

    @property
    def device(self) -> torch.device:
        return CUDA


MAY_MIX = {Tensor.to, Tensor.copy_, torch._has_compatible_shallow_copy_type}
"""Copies from device to device, and what looks at no values.

A real device also takes indices from the CPU, and waits for the copy. Here that counts as a mistake.
"""


class PretendedCuda(TorchFunctionMode):
    """Within this context, tensors can be put on `cuda`, and an operation on tensors of two devices fails."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, Tensor)]
        # A tensor without dimensions counts as a number.
        elsewhere = [tensor for tensor in tensors if not isinstance(tensor, OnCuda) and tensor.dim()]
        here = any(isinstance(tensor, OnCuda) for tensor in tensors)
        if here and elsewhere and func not in MAY_MIX:
            shapes = [(tuple(tensor.shape), str(tensor.device)) for tensor in tensors]
            raise RuntimeError(f"{func.__name__} of tensors on two devices: {shapes}")
        target = CPU if func is Tensor.cpu else named.get("device")
        if func is Tensor.to:
            target = next((arg for arg in args[1:] if isinstance(arg, str | torch.device)), target)
            args = [CPU if _is_cuda(arg) else arg for arg in args]
        if _is_cuda(target) and "device" in named:
            named["device"] = CPU
        result = func(*args, **named)
        if target is None:
            return result
        return result.as_subclass(OnCuda if _is_cuda(target) else Tensor)


def _is_cuda(name: Any) -> bool:
    return isinstance(name, str | torch.device) and torch.device(name).type == "cuda"


class RecordedGraph(TorchDispatchMode):
    """What `torch.cuda.CUDAGraph` does, on the CPU: operations and addresses are recorded, and run again.

    Whatever the host decided while it recorded is frozen, as in a graph.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Sequence[Any], Mapping[str, Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        # What was recorded lies below the pretence of a device.
        with torch._C.DisableTorchFunction():
            for func, args, kwargs, result in self.calls:
                again = func(*args, **kwargs)
                for old, new in zip(_as_tuple(result), _as_tuple(again), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)

    def pool(self) -> tuple[int, int]:
        return (0, 1)


def record_graphs(monkeypatch: pytest.MonkeyPatch) -> list[RecordedGraph]:
    """Let graphs be captured without a GPU. The list that comes back holds each from its capture on."""
    graphs: list[RecordedGraph] = []

    def graph() -> RecordedGraph:
        graphs.append(RecordedGraph())
        return graphs[-1]

    @contextmanager
    def capture(graph: RecordedGraph, pool: object) -> Iterator[None]:
        del pool
        with graph:
            yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    return graphs


def attend_by_the_book(
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
    """What the Triton kernel computes, in operations that a recording sees: every page of every table."""
    assert window is None
    del tiles
    group = query.shape[1] // keys.shape[1]
    slots = page_table[sequence_of.clamp(min=0), :, None] * page_size
    slots = (slots + torch.arange(page_size, device=query.device)).flatten(1)
    scores = torch.einsum("thd,tkhd->thk", query, keys[slots].repeat_interleave(group, 2)) * scaling
    unseen = torch.arange(slots.shape[1], device=query.device) > positions[:, None]
    weights = scores.masked_fill(unseen[:, None, :], float("-inf")).softmax(-1)
    result = torch.einsum("thk,tkhd->thd", weights, values[slots].repeat_interleave(group, 2))
    return result * (sequence_of >= 0)[:, None, None]


def use_the_book(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let attention over pages be computed by the formula instead of the kernel."""
    from tokenwire_reference.extras import paged_attention_kernel

    monkeypatch.setattr(paged_attention_kernel, "attend_to_pages", attend_by_the_book)


def triton_pages(model: LoadedModel, num_pages: int, page_size: int, seats: int) -> PagedCache:
    """`LoadedModel.new_cache` as on a GPU."""
    table = seats, -(-model.context_length // page_size)
    return TritonPagedAttention(
        model.shapes, num_pages, page_size, model.dtype, model.device, page_table=table
    )


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (list, tuple)) else (result,)
