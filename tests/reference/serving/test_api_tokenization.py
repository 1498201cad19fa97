"""/tokenize and /detokenize."""

from __future__ import annotations

import pytest

from tokenwire_reference.extras.builtin import byte_level_tokenizer

HELLO = [{"role": "user", "content": "Hello there"}]
HELLO_IDS = [1, 88, 458, 202, 43, 72, 363, 82, 1028, 2, 202, 1, 425, 387, 478, 202]


@pytest.fixture
def ask(answer, scripted_engine):
    return lambda path, body, **flags: answer(scripted_engine([[5]]), path, body, **flags)


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize(
    ("asked", "tokens", "count"),
    [
        ({"prompt": "Hello"}, [43, 72, 363, 82], 4),
        ({"prompt": ["Hello", "H"]}, [[43, 72, 363, 82], [43]], [4, 1]),
        ({"prompt": ""}, [], 0),
        ({"messages": HELLO}, HELLO_IDS, len(HELLO_IDS)),
        ({"messages": HELLO, "add_generation_prompt": False}, HELLO_IDS[:11], 11),
    ],
)
def test_tokenize(ask, prefix, asked, tokens, count):
    answer = ask(f"{prefix}/tokenize", asked).json()
    assert answer == {"tokens": tokens, "count": count, "max_model_len": 512}


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"tokens": [43, 72, 363, 82]}, "Hello"),
        ({"tokens": [[43, 72, 363, 82], [43]]}, ["Hello", "H"]),
        ({"tokens": []}, ""),
        ({"tokens": [43, 2]}, "H"),
        ({"tokens": [43, 2], "skip_special_tokens": False}, "H<|im_end|>"),
    ],
)
def test_detokenize(ask, asked, text):
    assert ask("/detokenize", asked).json() == {"text": text}


def test_vllm_has_shapes_of_its_own(ask):
    asked = {"prompt": "Hello", "return_token_strs": True}
    answer = ask("/tokenize", asked, api_dialect="vllm").json()
    assert answer == {
        "count": 4,
        "max_model_len": 512,
        "tokens": [43, 72, 363, 82],
        "token_strs": ["H", "e", "ll", "o"],
    }
    assert ask("/detokenize", {"tokens": [43]}, api_dialect="vllm").json() == {"prompt": "H"}


@pytest.mark.parametrize("api_dialect", ["sglang", "vllm"])
@pytest.mark.parametrize("path", ["/tokenize", "/v1/chat/completions"])
def test_messages_that_the_template_cannot_render_are_refused(ask, path, api_dialect):
    """Templates look into tool calls, which the schema of messages leaves open."""
    messages = [{"role": "assistant", "tool_calls": [{}]}]
    asked = {"messages": messages}
    refused = ask(path, asked, api_dialect=api_dialect, tokenizer=byte_level_tokenizer())
    assert refused.status_code == 400
    assert "messages do not fit the model's chat template" in refused.text


def test_without_a_tokenizer_both_are_refused(ask):
    skip = {"tokenizer": None, "skip_tokenizer_init": True}
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [5]})):
        refused = ask(path, body, **skip)
        assert (refused.status_code, "tokenizer" in refused.json()["message"]) == (400, True)
