"""Several samples of one prompt: each has a seed of its own, and usage counts them together."""

from __future__ import annotations

import pytest

CHAT = {"messages": [{"role": "user", "content": "Hello"}]}
DOORS = {
    "/generate": ("sglang", lambda n: {"input_ids": [5], "sampling_params": {"n": n, "sampling_seed": 7}}),
    "/v1/chat/completions": ("sglang", lambda n: {**CHAT, "n": n, "seed": 7}),
    "/v1/completions": ("sglang", lambda n: {"prompt": [5], "n": n, "seed": 7}),
    "/inference/v1/generate": ("vllm", lambda n: {"token_ids": [5], "sampling_params": {"n": n, "seed": 7}}),
}


@pytest.fixture
def attentive(scripted_engine):
    """Engines that remember the seeds they were given, and know four tokens of all prompts but the first."""

    class Attentive(scripted_engine):
        def __init__(self):
            super().__init__([[1262]])
            self.seeds = []

        def add(self, request):
            request.cached_tokens_device = 4 if self.seeds else 0
            self.seeds.append(request.sampling.sampling_seed)
            super().add(request)

    return Attentive


@pytest.mark.parametrize("path", DOORS)
def test_sample_0_has_the_seed_of_one_alone_and_the_others_their_own(answer, attentive, path):
    dialect, body = DOORS[path]
    alone, together = attentive(), attentive()
    assert answer(alone, path, body(1), api_dialect=dialect).status_code == 200
    assert answer(together, path, body(3), api_dialect=dialect).status_code == 200
    assert alone.seeds == together.seeds[:1] == [7]
    assert len(set(together.seeds)) == 3


def test_a_prompt_counts_once_and_as_cached_where_any_sample_found_it(answer, attentive):
    _, body = DOORS["/v1/completions"]
    usage = answer(attentive(), "/v1/completions", body(2), enable_cache_report=True).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (1, 2)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}
