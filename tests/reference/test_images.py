"""builtin:tiny-mm: images become ids, and the model looks at them."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest
from engine_requests import ask

from tokenwire_reference.assembly import make_engine
from tokenwire_reference.core.loaded_model import LoadedModel
from tokenwire_reference.core.request import Request
from tokenwire_reference.extras.images import (
    PLACEHOLDER,
    TOKENS_PER_IMAGE,
    image_text,
    put_images,
    read_image,
)
from tokenwire_reference.loading import load_model

Run = Callable[..., list[Request]]
CAT, DOG = (base64.b64encode(animal).decode() for animal in (b"a cat", b"a dog"))


@pytest.fixture(scope="module")
def tiny_mm() -> LoadedModel:
    model = load_model("builtin:tiny-mm")
    assert isinstance(model, LoadedModel)
    return model


def test_an_image_is_ids_that_follow_from_its_bytes(tiny_mm: LoadedModel) -> None:
    cat, dog, again = (
        tiny_mm.tokenizer.encode(put_images(f"look: {PLACEHOLDER}!", [image])) for image in (CAT, DOG, CAT)
    )
    plain = tiny_mm.tokenizer.encode("look: !")
    assert cat == again != dog
    assert len(cat) == len(plain) + TOKENS_PER_IMAGE
    assert all(token_id < tiny_mm.vocab_size for token_id in cat)


def test_the_model_looks_at_the_image(tiny_mm: LoadedModel, run_to_end: Run) -> None:
    engine = make_engine(tiny_mm)
    cat, dog = (
        run_to_end(engine, ask(prompt=tiny_mm.tokenizer.encode(put_images("what is it?", [image])), new=20))
        for image in (CAT, DOG)
    )
    assert cat[0].output_ids != dog[0].output_ids
    assert max(cat[0].output_ids + dog[0].output_ids) < 736


def test_images_stand_where_their_placeholders_stand() -> None:
    cat, dog = image_text(b"a cat"), image_text(b"a dog")
    assert put_images(f"{PLACEHOLDER} or {PLACEHOLDER}", [DOG, CAT]) == f"{dog} or {cat}"
    assert put_images("which?", [CAT, DOG]) == f"{cat}{dog}which?"
    with pytest.raises(ValueError, match=r"has 1 of .* and there are 2 images"):
        put_images(PLACEHOLDER, [CAT, DOG])


@pytest.mark.parametrize("source", ["https://example.org/cat.png", "data:image/png;base64,", "", "no!"])
def test_nothing_is_fetched(source: str) -> None:
    with pytest.raises(ValueError, match="image '"):
        read_image(source)
    assert read_image(f"data:image/png;base64,{CAT}") == read_image(CAT) == b"a cat"
