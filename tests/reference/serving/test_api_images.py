"""Images in prompts: expanded in texts and messages, dropped beside input_ids; no prompt is emptied."""

from __future__ import annotations

import base64

import pytest

from tokenwire_reference.extras.builtin import build_tiny_mm
from tokenwire_reference.extras.images import PLACEHOLDER, TOKENS_PER_IMAGE, image_text

CAT = base64.b64encode(b"a cat").decode()
CAT_PART = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{CAT}"}}
IDS = [40, 41, 42]


@pytest.fixture(scope="module")
def mm_tokenizer():
    return build_tiny_mm("eager")[1]


@pytest.fixture
def ask(answers, scripted_engine, mm_tokenizer):
    """Post a body to the routes in front of a tokenizer that knows images."""

    def send(path, body):
        (response,) = answers(scripted_engine([[50]]), Call(path, body), tokenizer=mm_tokenizer)
        return response

    return send


@pytest.fixture
def prompt_of(ask):
    """The prompt ids that a body is answered for."""

    def send(path, **body):
        response = ask(path, {"return_prompt_token_ids": True, **body})
        assert response.status_code == 200, response.text
        answer = response.json()
        return (answer.get("choices") or [answer])[0]["prompt_token_ids"]

    return send


class Call:
    """One POST."""

    method, headers, content = "POST", {}, None

    def __init__(self, path, body):
        self.path, self.body = path, body


def chat(*parts, **fields):
    return {"messages": [{"role": "user", "content": list(parts)}], **fields}


def test_an_image_part_is_expanded_where_it_stands(prompt_of, mm_tokenizer):
    before, after = {"type": "text", "text": "look "}, {"type": "text", "text": " now"}
    ids = prompt_of("/v1/chat/completions", **chat(before, CAT_PART, after))
    assert f"look {image_text(b'a cat')} now" in mm_tokenizer.decode(ids)
    text = {"type": "text", "text": before["text"] + after["text"]}
    without = prompt_of("/v1/chat/completions", **chat(text))
    assert len(ids) == len(without) + TOKENS_PER_IMAGE


def test_ids_win_over_images_and_the_prompt_is_not_emptied(prompt_of):
    assert prompt_of("/v1/chat/completions", **chat(CAT_PART, input_ids=IDS)) == IDS
    assert prompt_of("/generate", input_ids=IDS, image_data=CAT) == IDS
    assert prompt_of("/generate", input_ids=IDS, text=PLACEHOLDER, image_data=[CAT]) == IDS


def test_a_prompt_with_an_image_can_be_sent_again_as_ids(prompt_of):
    ids = prompt_of("/v1/chat/completions", **chat(CAT_PART))
    assert prompt_of("/v1/chat/completions", **chat(CAT_PART, input_ids=ids)) == ids


def test_generate_puts_images_into_texts(prompt_of, mm_tokenizer):
    ids = prompt_of("/generate", text=f"a {PLACEHOLDER} b", image_data=CAT)
    assert ids == mm_tokenizer.encode(f"a {image_text(b'a cat')} b")


def test_each_text_of_a_batch_has_its_own_images(ask, mm_tokenizer):
    body = {"text": ["one", "none"], "image_data": [[CAT], None], "return_prompt_token_ids": True}
    assert [answer["prompt_token_ids"] for answer in ask("/generate", body).json()] == [
        mm_tokenizer.encode(f"{image_text(b'a cat')}one"),
        mm_tokenizer.encode("none"),
    ]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (
            "/generate",
            {"text": "x", "image_data": "https://example.org/cat.png"},
            "neither a base64 data URL",
        ),
        ("/generate", {"text": "x", "image_data": [5]}, "image_data[0]"),
        ("/generate", {"text": PLACEHOLDER, "image_data": [CAT, CAT]}, "there are 2 images"),
        ("/generate", {"text": ["x", "y"], "image_data": [CAT]}, "1 entries for 2 prompts"),
        ("/v1/chat/completions", chat({"type": "image_url", "image_url": {"url": "cat.png"}}), "nor base64"),
        ("/v1/chat/completions", chat({"type": "image_url", "image_url": {}}), "image_url with its url"),
        ("/v1/chat/completions", chat({"type": "video_url"}), "part of type 'video_url'"),
    ],
)
def test_what_is_no_image_is_refused(ask, path, body, words):
    response = ask(path, body)
    assert response.status_code == 400
    assert words in response.text
