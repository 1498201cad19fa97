"""The reference engine beside `generate` of transformers: the same greedy tokens, one thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tokenwire_reference.assembly import make_engine
from tokenwire_reference.core.engine import Engine, EngineArgs
from tokenwire_reference.core.request import Request, SamplingParams
from tokenwire_reference.loading import load_model

MODEL = Path(__file__).parents[1] / "fixtures" / "models" / "tiny-qwen2"
REQUESTS, NEW_TOKENS = 16, 64
PROMPTS = [tuple(10 + (7 * row + 31 * i) % 1900 for i in range(12)) for row in range(REQUESTS)]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return make_engine(load_model(str(MODEL)), EngineArgs(max_running_requests=REQUESTS))


@pytest.fixture(scope="module")
def huggingface() -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()


def _ours(engine: Engine) -> list[list[int]]:
    sampling = SamplingParams(temperature=0.0, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    requests = [Request(f"r{i}", prompt, sampling) for i, prompt in enumerate(PROMPTS)]
    for request in requests:
        engine.add(request)
    while not engine.idle:
        engine.step()
    return [request.output_ids for request in requests]


def _one_after_another(model: Any) -> list[list[int]]:
    return [
        model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            min_new_tokens=NEW_TOKENS,
            max_new_tokens=NEW_TOKENS,
            eos_token_id=None,
        )[0, len(prompt) :].tolist()
        for prompt in PROMPTS
    ]


def _as_one_batch(model: Any) -> list[list[int]]:
    prompts = torch.tensor(PROMPTS)
    return model.generate(  # type: ignore[no-any-return]  # transformers is untyped
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=False,
        min_new_tokens=NEW_TOKENS,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=None,
    )[:, prompts.shape[1] :].tolist()


@pytest.mark.benchmark(group=f"engine: {REQUESTS} requests of {NEW_TOKENS} greedy tokens, tiny-qwen2")
@pytest.mark.parametrize("how", ["tokenwire", "generate, one by one", "generate, one batch"])
def test_greedy(benchmark: Any, how: str, engine: Engine, huggingface: Any) -> None:
    run = {
        "tokenwire": lambda: _ours(engine),
        "generate, one by one": lambda: _one_after_another(huggingface),
        "generate, one batch": lambda: _as_one_batch(huggingface),
    }[how]
    outputs = benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    assert outputs == _ours(engine)
