"""Records the operations of a model's pass, and runs them again without the model's own Python code.

A tape is to the CPU what a CUDA graph is to a GPU: the operations of one pass in order. A small model spends
most of its time between operations, in modules, hooks and decorators, which a tape skips. A tape calls the
same functions of torch with the same arguments, so the bits of its results are those of the model. Like a
CUDA graph, a tape contains the decisions of the host during the recording: shapes, numbers and branches. So a
tape can be used only for passes over the same numbers of rows. It cannot be used for models that read values
during a pass. On a tape, attention is one call, because its operations depend on the batch.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch._C import DisableTorchFunction
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from tokenwire_reference.core.attention import PagedAttention
from tokenwire_reference.extras.host_sync import HostSyncError, NoHostSync

Pass = Callable[..., Tensor]
"""A function from attention and some tensors to a tensor."""

GIVE_WHAT_THEY_GOT = frozenset({Tensor.to, Tensor.float, Tensor.contiguous, Tensor.type_as})
"""Functions that return their argument if it already has the requested form."""

READ_VALUES = frozenset({Tensor.tolist, Tensor.numpy, Tensor.__array__})
"""Functions that read memory without an operation."""


MOST_TAPES = 64
"""The maximum number of stored tapes, which take some 40 kB each.

In practice only few of the possible numbers of rows occur.
"""


class TapeError(RuntimeError):
    """A pass uses a tensor of unknown origin, which may differ in another pass."""


class Tapes:
    """Runs passes with tapes.

    The first pass with certain numbers of rows is recorded; later passes with these numbers play the tape.
    """

    def __init__(self, run: Pass, weights: Iterable[Tensor]) -> None:
        self._run = run
        self._weights = list(weights)
        self._tapes: OrderedDict[tuple[int, ...], Pass] = OrderedDict()
        """Tapes in the order of their last use."""
        self.refused = False
        """True if the pass depends on more than its numbers of rows, so that tapes cannot be used."""

    def run(self, paged: PagedAttention, *inputs: Tensor) -> Tensor:
        rows = tuple(part.shape[0] for part in inputs)
        if (again := self._tapes.get(rows)) is not None:
            self._tapes.move_to_end(rows)
            return again(paged, *inputs)
        if self.refused:
            return self._run(paged, *inputs)
        calls: list[TapedCall] = []
        recorded = _RecordedAttention(paged, calls)
        try:
            with NoHostSync(), _Recorder(calls):  # type: ignore[no-untyped-call,unused-ignore]  # torch
                result = self._run(recorded, *inputs)
        except HostSyncError:
            self.refused = True
            return self._run(paged, *inputs)
        try:
            self._tapes[rows] = _played(calls, [recorded, *inputs], result, self._weights)
            if len(self._tapes) > MOST_TAPES:
                self._tapes.popitem(last=False)
        except TapeError:
            self.refused = True
        return result


class TapedCall(NamedTuple):
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any


class _Recorder(TorchFunctionMode):
    """Records every called function of torch, and keeps its values, so that identities stay unique."""

    def __init__(self, calls: list[TapedCall]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        if func in READ_VALUES:
            raise HostSyncError(f"{func.__name__} needs the host in the middle of the pass")
        result = func(*args, **(kwargs or {}))
        idle = func in GIVE_WHAT_THEY_GOT and result is args[0]
        # A call that returns no tensors has read a shape or a type. A call without a result has written to a
        # tensor.
        if not idle and (result is None or any(isinstance(leaf, Tensor) for leaf in tree_leaves(result))):
            self._calls.append(TapedCall(func, args, kwargs or {}, result))
        return result


class _RecordedAttention:
    """Attention that is recorded as one call."""

    def __init__(self, paged: PagedAttention, calls: list[TapedCall]) -> None:
        self._paged = paged
        self._calls = calls

    def plan(self, batch: Any) -> None:
        raise NotImplementedError("a recorded pass cannot plan a batch; call plan before the pass")

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, window: int | None
    ) -> Tensor:
        options = {"scaling": scaling, "window": window}
        with DisableTorchFunction():
            result = self._paged.attend(layer, query, key, value, **options)  # type: ignore[arg-type]
        self._calls.append(TapedCall(_attend, (self, layer, query, key, value), options, result))
        return result


def _attend(paged: PagedAttention, *args: Any, **options: Any) -> Tensor:
    return paged.attend(*args, **options)


def _played(
    calls: Sequence[TapedCall], inputs: Sequence[Any], result: Tensor, weights: Iterable[Tensor]
) -> Pass:
    """Return the calls as a Python function of the inputs, with a line for each call and a name for each
    tensor.

    Raises TapeError if a call uses a tensor that is neither an input, a result nor a weight.
    """
    names = {id(value): f"input_{index}" for index, value in enumerate(inputs)}
    constants: dict[str, Any] = {}
    of_the_model = {id(weight) for weight in weights}

    def constant(value: Any) -> str:
        name = f"constant_{len(constants)}"
        constants[name] = value
        return name

    def read(value: Any) -> str:
        if id(value) in names:
            return names[id(value)]
        match value:
            case Tensor() if id(value) not in of_the_model:
                raise TapeError(f"the pass works on a tensor of {tuple(value.shape)} that it did not compute")
            case slice():
                return f"slice({read(value.start)}, {read(value.stop)}, {read(value.step)})"
            case list() | tuple() if type(value) in {list, tuple}:
                return f"{type(value).__name__}(({''.join(read(item) + ', ' for item in value)}))"
        return constant(value)

    def write(value: Any) -> str:
        if isinstance(value, Tensor):
            return names.setdefault(id(value), f"tensor_{len(names)}")
        if isinstance(value, list | tuple):
            return f"({''.join(write(item) + ', ' for item in value)})"
        return "_"

    lines = [f"def again({', '.join(names.values())}):"]
    for function, args, kwargs, given in calls:
        words = [read(part) for part in args] + [f"{key}={read(part)}" for key, part in kwargs.items()]
        lines.append(f"{write(given)} = {constant(function)}({', '.join(words)})")
    lines.append(f"return {read(result)}")
    exec("\n    ".join(_forgetful(lines)), constants)
    again: Pass = constants["again"]
    return again


def _forgetful(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines of code. Each line is followed by a deletion of the tensors that are not used later."""
    last = {name: index for index, line in enumerate(lines) for name in re.findall(r"tensor_\d+", line)}
    for index, line in enumerate(lines):
        yield line
        done = [name for name, end in last.items() if end == index]
        if done and index < len(lines) - 1:
            yield f"del {', '.join(done)}"
