"""builtin:tiny: always the same model, text of every kind, varied output."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_requests import ask
from hypothesis import given
from hypothesis import strategies as st

from tokenwire_reference.assembly import make_engine
from tokenwire_reference.core.attention import ATTENTION_NAME
from tokenwire_reference.core.engine import Engine, EngineArgs
from tokenwire_reference.core.loaded_model import LoadedModel
from tokenwire_reference.core.request import Request, SamplingParams
from tokenwire_reference.core.request_extras import ROUTED_EXPERTS, ROUTED_EXPERTS_START
from tokenwire_reference.extras.builtin import (
    SPECIAL_TOKENS,
    VOCAB_SIZE,
    build_builtin,
    byte_level_tokenizer,
)
from tokenwire_reference.loading import load_model

TOKENIZER = byte_level_tokenizer()
Run = Callable[..., list[Request]]


def test_two_builds_are_one_model(tiny: LoadedModel) -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    again, tokenizer = build_builtin("builtin:tiny", ATTENTION_NAME)
    assert torch.equal(torch.random.get_rng_state(), before)
    state = tiny.module.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in again.state_dict().items())
    assert tokenizer.get_vocab() == tiny.tokenizer.get_vocab()


def test_what_it_says_of_itself(tiny: LoadedModel) -> None:
    assert len(tiny.tokenizer) == tiny.vocab_size == VOCAB_SIZE
    assert tiny.eos_token_ids == {tiny.tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert tiny.context_length == 4096
    assert tiny.tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3]


@given(st.text())
def test_every_text_survives_the_tokenizer(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert all(0 <= i < VOCAB_SIZE for i in ids)
    if not any(token in text for token in SPECIAL_TOKENS):
        assert TOKENIZER.decode(ids, clean_up_tokenization_spaces=False) == text


def test_words_are_whole_and_characters_are_split() -> None:
    assert len(TOKENIZER.encode(" request")) == 1
    emoji = TOKENIZER.encode("🦖")
    assert len(emoji) > 1
    assert TOKENIZER.decode(emoji[:-1]) == "\ufffd"
    assert any(
        len(token) > 1 and "\ufffd" in TOKENIZER.decode([i]) for token, i in TOKENIZER.get_vocab().items()
    )


def test_the_chat_template_is_chatml() -> None:
    messages = [{"role": "user", "content": "hello"}]
    text = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert TOKENIZER.encode(text)[0] == 1


def test_greedy_output_is_varied_and_goes_on(
    tiny: LoadedModel, run_to_end: Callable[..., list[Request]]
) -> None:
    sampling = SamplingParams(max_new_tokens=200, temperature=0)
    prompts = [TOKENIZER.encode(text) for text in ("Hello", "The answer is", "日本", "0 1 2")]
    requests = [Request(f"r{i}", tuple(prompt), sampling) for i, prompt in enumerate(prompts)]
    for request in run_to_end(make_engine(tiny), *requests):
        assert len(request.output_ids) == 200
        assert len(set(request.output_ids)) > 80
        assert not set(request.output_ids) & {0, 1, 2, 3}
    assert len({tuple(request.output_ids) for request in requests}) == len(prompts)


def test_the_parrot_says_its_prompt_again(run_to_end: Callable[..., list[Request]]) -> None:
    parrot = load_model("builtin:parrot")
    prompt = tuple(range(300, 364))
    sampling = SamplingParams(max_new_tokens=70, temperature=0)
    [request] = run_to_end(make_engine(parrot), Request("r", prompt, sampling))
    assert request.output_ids == [*prompt, *prompt[:6]]


def test_a_name_that_is_none_is_refused_with_those_that_are() -> None:
    with pytest.raises(
        ValueError, match="builtin:nope is not a builtin model; the builtin models are: builtin:parrot"
    ):
        build_builtin("builtin:nope", ATTENTION_NAME)


def test_experts_stay_with_the_keys_of_their_positions(run_to_end: Run) -> None:
    model = load_model("builtin:tiny-moe")
    engine, prompt = make_engine(model), tuple(range(10, 58))
    make_engine(model, EngineArgs(max_total_tokens=16))  # another cache of the same model

    def experts(rid: str, **options: Any) -> list[bytes]:
        request = ask(rid, prompt, 6, extras={ROUTED_EXPERTS_START: 0}, **options)
        run_to_end(engine, request)
        assert ROUTED_EXPERTS.of(request) is not None
        data = base64.b64decode(ROUTED_EXPERTS.of(request))
        rows = [data[start : start + 32] for start in range(0, len(data), 32)]
        assert len(rows) == 48 + 6 - 1
        return rows

    cold = experts("cold")
    for row in cold:
        first, second = struct.unpack("<4i", row[:16]), struct.unpack("<4i", row[16:])
        assert [len(set(layer)) for layer in (first, second)] == [4, 4]
        assert set(first + second) <= set(range(8))
    assert experts("cached") == cold
    later = ask("later", prompt, 6, extras={ROUTED_EXPERTS_START: 40})
    run_to_end(engine, later)
    assert later.cached_tokens > 0
    assert base64.b64decode(str(ROUTED_EXPERTS.of(later))) == b"".join(cold[40:])
    plain = make_engine(load_model("builtin:tiny"))
    with pytest.raises(ValueError, match="has no experts"):
        plain.add(ask(extras={ROUTED_EXPERTS_START: 0}))


def test_hidden_states_are_those_of_all_that_is_run(tiny: LoadedModel, run_to_end: Run) -> None:
    prompt = tuple(range(10, 58))

    def states(engine: Engine, rid: str) -> list[Any]:
        request = ask(rid, prompt, 4, return_hidden_states=True)
        run_to_end(engine, request)
        return request.series["hidden_states"]

    first, *later = states(make_engine(tiny, EngineArgs(chunked_prefill_size=16)), "chunks")
    assert (len(first), {len(row) for row in (*first, *later)}, len(later)) == (48, {64}, 3)
    engine = make_engine(tiny)
    assert states(engine, "at-once") == [first, *later]
    cached, *rest = states(engine, "cached")
    assert (cached, rest) == (first[32:], later)
    begun_anew = make_engine(tiny, EngineArgs(test_retract_interval=2, prefix_caching=False))
    assert states(begun_anew, "retracted") == [first, *later]
