"""Ids and logprobs to the last bit: alone, in company, in chunks, from the cache, streamed, retracted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from engine_requests import GREEDY, SEEDED, neighbours, record, scored

from tokenwire_reference.assembly import make_engine
from tokenwire_reference.core.attention import PagedCache
from tokenwire_reference.core.batch import Batch
from tokenwire_reference.core.engine import Engine, EngineArgs
from tokenwire_reference.core.loaded_model import LoadedModel
from tokenwire_reference.core.request import Request
from tokenwire_reference.extras.invariance_probe import probe_invariance
from tokenwire_reference.extras.scripted import ScriptedModel
from tokenwire_reference.loading import load_model

Run = Callable[..., list[Request]]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(device: str, request: pytest.FixtureRequest) -> LoadedModel:
    loaded = load_model("builtin:tiny", dtype=request.param, device=device)
    assert isinstance(loaded, LoadedModel)
    return loaded


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_all_ways_of_running_give_one_record(
    model: LoadedModel, run_to_end: Run, sampling: dict[str, Any]
) -> None:
    options = {"new": 24, "logprob_start_len": 70, **sampling}
    engine = make_engine(model, EngineArgs(sampling_backend="mirror"))
    alone, warm = (run_to_end(engine, scored(**options))[0] for _ in range(2))
    (streamed,) = run_to_end(
        make_engine(model, EngineArgs(sampling_backend="mirror")), scored(stream=True, **options)
    )
    company = neighbours(16)
    crowded = make_engine(model, EngineArgs(sampling_backend="mirror", chunked_prefill_size=48))
    among = run_to_end(crowded, *company[:8], scored(**options), *company[8:])[8]
    chunked = make_engine(
        model,
        EngineArgs(
            sampling_backend="mirror",
            chunked_prefill_size=16,
            prefix_caching=False,
            test_retract_interval=5,
            speculative_num_draft_tokens=3,
        ),
    )
    (disturbed,) = run_to_end(chunked, scored(**options))
    assert warm.cached_tokens > 0
    assert disturbed.num_retractions > 0
    for other in (warm, streamed, among, disturbed):
        assert record(other) == record(alone)


class TestProbe:
    def test_it_finds_the_promise_kept(self, model: LoadedModel, scripted: ScriptedModel) -> None:
        for probed in (model, scripted):
            result = probe_invariance(partial(Engine, probed), probed, page_size=16)
            assert len(result) == 4
            assert all(result.values())

    @pytest.mark.parametrize(
        ("page_size", "context_length"), [(1, 4096), (64, 4096), (16, 24), (16, 9), (16, 8)]
    )
    def test_it_fits_every_server(self, page_size: int, context_length: int) -> None:
        """On the CPU, whose pages may have any size."""
        small = load_model("builtin:tiny", context_length=context_length)
        result = probe_invariance(partial(Engine, small), small, page_size=page_size)
        assert all(result.values())
        assert bool(result) is (context_length > 8), (
            "nothing can be asked of a model without room for a prompt"
        )

    def test_a_model_that_hears_its_neighbours_is_found_out(
        self, tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        forward = LoadedModel.forward

        def disturbed(self: LoadedModel, batch: Batch, cache: PagedCache) -> torch.Tensor:
            return forward(self, batch, cache) * (1 + 1e-6 * len(batch.spans))

        monkeypatch.setattr(LoadedModel, "forward", disturbed)
        result = probe_invariance(partial(Engine, tiny), tiny, page_size=16)
        assert result["alone_and_in_company"] is False
        assert result["whole_and_chunked_prefill"] is True

    def test_a_model_that_feels_its_chunks_is_found_out(
        self, tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        forward = LoadedModel.forward

        def disturbed(self: LoadedModel, batch: Batch, cache: PagedCache) -> torch.Tensor:
            start, end = batch.spans[0]
            return forward(self, batch, cache) * (1 + 1e-6 * (end - start))

        monkeypatch.setattr(LoadedModel, "forward", disturbed)
        result = probe_invariance(partial(Engine, tiny), tiny, page_size=16)
        assert result["whole_and_chunked_prefill"] is False
        assert result["cold_and_warm_cache"] is False
        assert result["with_and_without_retraction"] is False
