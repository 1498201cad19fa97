"""Decoding over fixed buffers, and what a CUDA graph would make of it: the same bits as pass by pass."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from engine_requests import ask, neighbours, record, scored
from gpu_stand_ins import RecordedGraph, record_graphs, triton_pages, use_the_book
from torch import Tensor, nn

from tokenwire_reference.assembly import ExtraArgs, make_engine
from tokenwire_reference.core.attention import PagedCache
from tokenwire_reference.core.batch import Batch
from tokenwire_reference.core.engine import Engine, EngineArgs
from tokenwire_reference.core.loaded_model import LoadedModel
from tokenwire_reference.core.request import Request
from tokenwire_reference.core.request_extras import EMBEDDING, WANTS_EMBEDDING
from tokenwire_reference.extras.decode_graphs import DecodeGraphs
from tokenwire_reference.extras.host_sync import HostSyncError, NoHostSync
from tokenwire_reference.loading import load_model

Run = Callable[..., list[Request]]


@pytest.fixture
def triton_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models on the CPU keep pages as on a GPU."""
    pytest.importorskip("triton", reason="triton cannot be imported here")
    use_the_book(monkeypatch)
    monkeypatch.setattr(LoadedModel, "new_cache", triton_pages)


@pytest.fixture(scope="module")
def small() -> LoadedModel:
    """builtin:tiny on the CPU, all of whose pages can be gathered; in 16 rows at least, as on a GPU."""
    model = load_model("builtin:tiny", context_length=512)
    assert isinstance(model, LoadedModel)
    model.probe_row_sizes(1024)
    model.row_sizes = tuple(rows for rows in model.row_sizes if rows >= 16)
    return model


@pytest.fixture
def captured(triton_cache: None, monkeypatch: pytest.MonkeyPatch) -> list[RecordedGraph]:
    """Engines capture as on a GPU; gives the graphs."""
    monkeypatch.setattr(DecodeGraphs, "_captures", property(lambda self: True))
    return record_graphs(monkeypatch)


def arriving(engine: Engine, requests: Sequence[Request]) -> Sequence[Request]:
    """Requests that come one after another, so that the number of rows grows and shrinks."""
    waiting = list(requests)
    while waiting or not engine.idle:
        if waiting:
            engine.add(waiting.pop(0))
        engine.step()
        engine.check_integrity()
    return requests


def traffic() -> list[Request]:
    """Long sequences first, then short ones: buffers are reused by sequences of fewer pages."""
    long = ask("long", range(10, 200), 6, return_logprob=True)
    return [long, *neighbours(18), scored("late", new=10), ask("short", (7,), 9, return_logprob=True)]


def test_fixed_buffers_change_no_bit(tiny: LoadedModel) -> None:
    plain = arriving(make_engine(tiny, extra=ExtraArgs(disable_cuda_graph=True)), traffic())
    fixed = arriving(make_engine(tiny), traffic())
    assert list(map(record, fixed)) == list(map(record, plain))


def test_drafts_run_over_fixed_buffers(tiny: LoadedModel) -> None:
    plain = arriving(make_engine(tiny, extra=ExtraArgs(disable_cuda_graph=True)), traffic())
    drafted = arriving(make_engine(tiny, EngineArgs(speculative_num_draft_tokens=3)), traffic())
    assert list(map(record, drafted)) == list(map(record, plain))


@pytest.mark.parametrize("drafts", [0, 3])
def test_replayed_graphs_change_no_bit(
    small: LoadedModel, triton_cache: None, request: pytest.FixtureRequest, drafts: int
) -> None:
    options: dict[str, Any] = {"speculative_num_draft_tokens": drafts, "chunked_prefill_size": 64}
    few = traffic()[:1] + traffic()[-8:]
    plain = arriving(make_engine(small, EngineArgs(**options), extra=ExtraArgs(disable_cuda_graph=True)), few)
    graphs: list[RecordedGraph] = request.getfixturevalue("captured")
    replayed = arriving(make_engine(small, EngineArgs(**options)), traffic()[:1] + traffic()[-8:])
    assert list(map(record, replayed)) == list(map(record, plain))
    assert len(graphs) == (1 if drafts == 0 else 2)


def test_a_graph_serves_every_later_step_of_its_size(
    small: LoadedModel, captured: list[RecordedGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    forward = LoadedModel.forward

    def counted(self: LoadedModel, batch: Batch, cache: PagedCache) -> Tensor:
        passes.append(len(batch.input_ids))
        return forward(self, batch, cache)

    monkeypatch.setattr(LoadedModel, "forward", counted)
    engine = make_engine(small)
    arriving(engine, [ask(f"r{i}", (5, 6, 7, i), 12) for i in range(3)])
    # Three prefills with what else runs then; a first decode under watch, a second under capture.
    assert passes == [16] * len(passes)
    assert len(captured) == 1
    decodes = len(passes)
    arriving(engine, [ask("again", (5, 6), 12)])
    assert len(passes) == decodes + 1


def test_the_pass_sees_the_same_addresses_and_shapes_at_every_step(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, set[tuple[tuple[int, torch.Size], ...]]] = {}
    forward = LoadedModel.forward

    def noted(self: LoadedModel, batch: Batch, cache: PagedCache) -> Tensor:
        if batch.all_rows_wanted and len(batch.input_ids) <= 48:
            tensors = (
                batch.input_ids,
                batch.positions,
                batch.slots,
                batch.seat_of,
                batch.logit_rows,
            )
            places = tuple((tensor.data_ptr(), tensor.shape) for tensor in tensors)
            seen.setdefault(len(batch.input_ids), set()).add(places)
        return forward(self, batch, cache)

    monkeypatch.setattr(LoadedModel, "forward", noted)
    # Which numbers of rows agree on this processor is of no matter here.
    monkeypatch.setattr(tiny, "row_sizes", (4, 8, 16, 32, 1024))
    arriving(
        make_engine(tiny, EngineArgs(max_running_requests=12, speculative_num_draft_tokens=3)), traffic()
    )
    assert set(seen) == {4, 8, 16, 32}
    assert all(len(places) == 1 for places in seen.values())


def test_only_batches_that_want_every_row_are_fixed(
    tiny: LoadedModel, run_to_end: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An embedding reads the hidden states of its own pass, so it must not be replayed."""
    fixed: list[bool] = []
    forward = LoadedModel.forward

    def noted(self: LoadedModel, batch: Batch, cache: PagedCache) -> Tensor:
        fixed.extend([batch.all_rows_wanted] if batch.wants_hidden_states else ())
        return forward(self, batch, cache)

    monkeypatch.setattr(LoadedModel, "forward", noted)
    engine = make_engine(tiny)
    (first, second) = (ask(f"e{i}", (5 + i,), 0, extras={WANTS_EMBEDDING: True}) for i in range(2))
    run_to_end(engine, ask("warm", (5,), 4))
    run_to_end(engine, first)
    run_to_end(engine, second)
    assert EMBEDDING.of(first) != EMBEDDING.of(second)
    (alone,) = run_to_end(
        make_engine(tiny, extra=ExtraArgs(disable_cuda_graph=True)),
        ask("alone", (6,), 0, extras={WANTS_EMBEDDING: True}),
    )
    assert EMBEDDING.of(second) == EMBEDDING.of(alone)
    assert fixed == [False] * 3


class Peeking(nn.Module):
    """A layer whose pass depends on a value that the host reads."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: Tensor) -> Tensor:
        assert hidden.abs().max().item() < 1e9
        result: Tensor = self.inner(hidden)
        return result


def test_a_model_that_needs_the_host_decodes_without_graphs(
    small: LoadedModel, captured: list[RecordedGraph], caplog: pytest.LogCaptureFixture
) -> None:
    few = [ask(f"r{i}", (5, 6, 7, i), 8, return_logprob=True) for i in range(3)]
    expected = [
        record(item) for item in arriving(make_engine(small, extra=ExtraArgs(disable_cuda_graph=True)), few)
    ]
    # Another one: what the first one does is on its tapes.
    other = load_model("builtin:tiny", context_length=512)
    layer = other.module.model.layers[0]
    layer.mlp = Peeking(layer.mlp)
    with caplog.at_level(logging.WARNING):
        again = arriving(
            make_engine(other), [ask(f"r{i}", (5, 6, 7, i), 8, return_logprob=True) for i in range(3)]
        )
    assert [record(item) for item in again] == expected
    assert captured == []
    assert "builtin:tiny decodes without CUDA graphs: aten._local_scalar_dense.default needs" in caplog.text


def test_a_capture_that_fails_says_how_to_go_on_without(
    small: LoadedModel, captured: list[RecordedGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(graph: object, pool: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    engine = make_engine(small)
    wanted = "builtin:tiny over 16 rows cannot be captured.*--disable-cuda-graph .operation not permitted"
    with pytest.raises(RuntimeError, match=wanted):
        arriving(engine, [ask("r", (5, 6, 7), 8)])


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: int(x[0]),
        torch.argwhere,
        lambda x: torch.where(x > 0),
        lambda x: x.nonzero(as_tuple=True),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        torch.unique,
        lambda x: torch.equal(x, x),
        lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
        lambda x: x.index_put_((x > 0,), torch.zeros(())),
        lambda x: x.to("meta"),
        lambda x: x.copy_(torch.zeros(3, device="meta")),
    ],
)
@pytest.mark.parametrize("inference", [True, False])
def test_what_needs_the_host_is_refused(operation: Callable[[Tensor], object], inference: bool) -> None:
    """In inference mode, operations that are made of others are seen as they are called."""
    values = torch.tensor([1.0, -1.0, 2.0])
    with torch.inference_mode(inference), pytest.raises(HostSyncError), NoHostSync():  # type: ignore[no-untyped-call]
        operation(values)


def test_what_needs_no_host_is_let_through() -> None:
    values, where = torch.tensor([1.0, -1.0, 2.0]), torch.tensor([2, 0])
    with NoHostSync():  # type: ignore[no-untyped-call]
        result = torch.where(values > 0, values, 0.0)[where].index_copy_(
            0, where[1:], values[:1].double().float()
        )
        assert result.shape == (2,)
        assert torch.zeros(3).scatter_(0, where, 1.0).to(torch.bfloat16).dtype == torch.bfloat16


def test_an_engine_runs_by_the_triton_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU the kernel runs in Triton's interpreter, so there are few tokens."""
    pytest.importorskip("triton", reason="triton cannot be imported here")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_model("builtin:tiny", device=device, context_length=64)

    def few() -> list[Request]:
        return [ask(f"r{i}", range(5, 8 + 9 * i), 4) for i in range(3)]

    expected = [emission.output_ids for emission in arriving(make_engine(load_model("builtin:tiny")), few())]
    monkeypatch.setattr(LoadedModel, "new_cache", triton_pages)
    engine = make_engine(model)
    assert [emission.output_ids for emission in arriving(engine, few())] == expected
    assert not engine._passes.refused
