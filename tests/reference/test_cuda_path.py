"""What runs on a CUDA device, where there is none: every tensor in its place, and a kernel that compiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_requests import ask, neighbours, record, scored
from gpu_stand_ins import PretendedCuda, RecordedGraph, record_graphs, triton_pages, use_the_book

from tokenwire_reference.assembly import ExtraArgs, make_engine
from tokenwire_reference.core.engine import Engine, EngineArgs
from tokenwire_reference.core.loaded_model import LoadedModel
from tokenwire_reference.core.request import Request
from tokenwire_reference.core.request_extras import EMBEDDING, WANTS_EMBEDDING
from tokenwire_reference.loading import load_model

pytest.importorskip("triton", reason="triton cannot be imported here")
TINY = {"context_length": 512}


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RecordedGraph]]:
    """There is a CUDA device; gives the graphs that are captured on it."""
    use_the_book(monkeypatch)
    graphs = record_graphs(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 26, 1 << 26))
    # Or a module would put the values of a pretended tensor into a parameter of the CPU.
    overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(value=True)
    try:
        with PretendedCuda():
            yield graphs
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(value=overwrite)


def test_the_pretence_refuses_what_a_device_refuses(pretended: object) -> None:
    there, here = torch.zeros(3, device="cuda"), torch.ones(3)
    assert (there.device.type, here.device.type, (there + 1)[1:].device.type) == ("cuda", "cpu", "cuda")
    assert (here.to("cuda").device.type, there.cpu().device.type) == ("cuda", "cpu")
    for operation in (torch.add, torch.dot, torch.Tensor.add_, lambda a, b: torch.stack([a, b])):
        with pytest.raises(RuntimeError, match="two devices"):
            operation(there, here)
    there.copy_(here)
    assert there[[2]].tolist() == [1.0]
    with pytest.raises(RuntimeError, match="two devices"):
        here[torch.tensor([2], device="cuda")]


def traffic() -> list[Request]:
    """Every way to choose a token, everything that is said of one, and an embedding."""
    penalties: dict[str, Any] = {
        "frequency_penalty": 0.5,
        "presence_penalty": 0.3,
        "repetition_penalty": 1.2,
        "logit_bias": {7: 4.0},
        "min_new_tokens": 3,
        "stop_token_ids": frozenset({7}),
    }
    truncated: dict[str, Any] = {
        "temperature": 0.8,
        "sampling_seed": 5,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.01,
    }
    return [
        scored("scored", return_ranks=True),
        ask("penalties", new=10, **penalties, return_logprob=True),
        scored("truncated", new=10, **truncated),
        ask("embedding", (5, 6, 7), 0, extras={WANTS_EMBEDDING: True}),
        *neighbours(6),
    ]


def run(engine: Engine, requests: list[Request]) -> list[Request]:
    for request in requests:
        engine.add(request)
        engine.step()
    while not engine.idle:
        engine.step()
    return requests


@pytest.mark.parametrize(
    "options",
    [
        (EngineArgs(), ExtraArgs()),
        (EngineArgs(chunked_prefill_size=32, test_retract_interval=5), ExtraArgs()),
        (EngineArgs(speculative_num_draft_tokens=3), ExtraArgs()),
        (EngineArgs(max_total_tokens=400, sampling_backend="mirror"), ExtraArgs(host_cache_pages=8)),
    ],
    ids=["plain", "chunks and retractions", "drafts", "tiers"],
)
def test_an_engine_has_every_tensor_where_it_belongs(
    pretended: list[RecordedGraph], monkeypatch: pytest.MonkeyPatch, options: tuple[EngineArgs, ExtraArgs]
) -> None:
    """And, as it computes what the CPU computes, the same bits."""
    model = load_model("builtin:tiny", device="cuda", **TINY)
    assert model.device.type == "cuda"
    on_cuda = run(make_engine(model, *options), traffic())
    assert len(pretended) >= 1

    monkeypatch.setattr(LoadedModel, "new_cache", triton_pages)
    on_cpu = run(make_engine(load_model("builtin:tiny", **TINY), *options), traffic())
    assert [record(request) for request in on_cuda] == [record(request) for request in on_cpu]
    assert EMBEDDING.of(on_cuda[3]) == EMBEDDING.of(on_cpu[3])
    assert all(len(request.output_ids) > 1 for request in on_cuda if not WANTS_EMBEDDING.of(request))


def test_the_cache_takes_the_free_memory_of_the_device(pretended: object) -> None:
    model = load_model("builtin:tiny", device="cuda", **TINY)
    # Four fifths of 64 MiB; bf16 or float32 as the model is stored there.
    engine = make_engine(model, EngineArgs(max_running_requests=10_000))
    assert engine.max_total_tokens == pytest.approx((1 << 26) * 0.8 // model.bytes_per_token(), abs=16)


def test_a_small_device_has_less_than_one_context(pretended: object) -> None:
    """A host lends what is not there; a device does not."""
    model = load_model("builtin:tiny", device="cuda", **TINY)
    share = (1 << 26) * 0.8 // model.bytes_per_token()
    model.context_length = int(2 * share)
    assert make_engine(model).max_total_tokens == pytest.approx(share, abs=16)


def test_products_round_no_partial_sums(pretended: object) -> None:
    products = torch.backends.cuda.matmul
    products.allow_fp16_reduced_precision_reduction = products.allow_bf16_reduced_precision_reduction = True
    torch.set_float32_matmul_precision("high")
    load_model("builtin:tiny", device="cuda", **TINY)
    assert torch.get_float32_matmul_precision() == "highest"
    assert not products.allow_fp16_reduced_precision_reduction
    assert not products.allow_bf16_reduced_precision_reduction


def test_the_kernel_compiles_for_gpus_that_are_not_here(tmp_path: Path) -> None:
    """Ampere, Hopper and Blackwell; each build must fit into the memory that one block may have there."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    program = str(Path(__file__).parent / "compile_kernel.py")
    ran = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    builds = json.loads(ran.stdout)
    assert {build["capability"] for build in builds} == {80, 90, 100}
    for build in builds:
        # What the CUDA programming guide allows one block on compute capability 8.0.
        assert build["shared_bytes"] <= 163 * 1024, build
        assert build["machine_code_bytes"] > 0, build
