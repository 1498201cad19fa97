"""Finds operations of a pass that need the host.

A pass with such operations cannot be captured in a CUDA graph, which consists of launches and addresses.
Values that the host reads or writes during the capture would be the same in every replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
HOST_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""The tags of operations with which the host reads a value, or a size that depends on values."""


class HostSyncError(RuntimeError):
    """A pass waits for the host, or takes values from it."""


class NoHostSync(TorchDispatchMode):  # type: ignore[no-untyped-call,unused-ignore]  # torch has no types
    """Within this context, an operation that needs the host raises HostSyncError, on any device."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        # Inference mode passes composite operations as a whole.
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:
                return func.decompose(*args, **kwargs)
        if (
            _reads_values(func, args)
            or func is aten.lift_fresh.default
            or _changes_device(func, args, kwargs)
        ):
            raise HostSyncError(f"{func} needs the host in the middle of the pass")
        return func(*args, **kwargs)


def _reads_values(func: Any, args: Sequence[Any]) -> bool:
    if func in {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}:
        # A mask is first converted to indices, whose number the host reads.
        return any(tensor.dtype in {torch.bool, torch.uint8} for tensor in _tensors(args[1]))
    return bool(HOST_TAGS.intersection(func.tags))


def _changes_device(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if func is aten._to_copy.default:
        target: torch.device | None = kwargs.get("device")
        return target is not None and not _same(target, args[0].device)
    return func is aten.copy_.default and not _same(args[0].device, args[1].device)


def _same(device: torch.device, other: torch.device) -> bool:
    """True if two names refer to the same device. A name without an index means the current device."""
    return device.type == other.type and (device.index is None or device.index == other.index)


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    return (value for value in values if isinstance(value, Tensor))
