"""Score the texts of a pair of models in this process. Without servers, many pairs take only minutes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from proofs.twinning.kernels import use
from tokenwire.dialects.logprobs import Logprob, Position
from tokenwire_twin.twin_asking import TEXT_TOKENS, behind_another_prompt, prompt_of
from tokenwire_twin.twin_numbers import Counted, Scoring, Text, counted

_TOP = 5
_ROWS = 16
"""The number of texts that are scored together."""


def _loaded(folder: Any, dtype: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()


def _with_kernel(kernel: str, run: Callable[[], Tensor]) -> Tensor:
    plain = nn.Linear.forward
    use(kernel)
    try:
        with torch.no_grad():
            return run()
    finally:
        nn.Linear.forward = plain  # type: ignore[method-assign]


def _written(model: Any, prompts: Sequence[Sequence[int]], seed: int) -> Tensor:
    """Return sampled continuations of prompts."""
    draws = torch.Generator().manual_seed(seed)
    ids = torch.tensor(prompts)
    with torch.no_grad():
        for _ in range(TEXT_TOKENS):
            chances = model(ids, logits_to_keep=1).logits[:, -1].float().softmax(-1)
            ids = torch.cat([ids, torch.multinomial(chances, 1, generator=draws)], 1)
    return ids[:, -TEXT_TOKENS:]


def _scorings(model: Any, kernel: str, prompts: Sequence[Sequence[int]], texts: Tensor) -> list[Scoring]:
    ids = torch.cat([torch.tensor(prompts), texts], 1)
    begin = ids.shape[1] - TEXT_TOKENS - 1

    def run() -> Tensor:
        parts = [model(rows).logits[:, begin:-1].float() for rows in torch.split(ids, _ROWS)]
        return torch.cat(parts).log_softmax(-1)

    logprobs = _with_kernel(kernel, run)
    sampled = logprobs.gather(-1, texts[..., None])[..., 0].tolist()
    best = logprobs.topk(_TOP, -1)
    return [
        [
            Position(Logprob(number, token), [*map(Logprob, values, names)])
            for number, token, values, names in zip(*of_text, strict=True)
        ]
        for of_text in zip(sampled, texts.tolist(), best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def texts_of(
    folders: Sequence[Any], dtypes: Sequence[str], kernels: Sequence[str], tokens: int, seed: int
) -> list[Counted]:
    """Return the scores of the texts of a pair. Each side writes half of the texts."""
    models = [_loaded(folder, dtype) for folder, dtype in zip(folders, dtypes, strict=True)]
    count = -(-tokens // TEXT_TOKENS)
    prompts = [prompt_of(number, seed) for number in range(count)]
    elsewhere = [behind_another_prompt(prompt) for prompt in prompts]
    halves = [_written(model, prompts[side::2], seed) for side, model in enumerate(models)]
    texts = torch.empty((count, TEXT_TOKENS), dtype=torch.long)
    texts[0::2], texts[1::2] = halves
    scores = [_scorings(model, kernel, prompts, texts) for model, kernel in zip(models, kernels, strict=True)]
    others = [
        _scorings(model, kernel, elsewhere, texts) for model, kernel in zip(models, kernels, strict=True)
    ]
    order = Random(seed).sample(range(count), count)
    return [
        counted(
            Text(
                number % 2,
                (scores[0][number], scores[1][number]),
                (scores[0][number], scores[1][number]),
                elsewhere=(others[0][number], others[1][number]),
            )
        )
        for number in order
    ]
