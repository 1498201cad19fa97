"""Images as tokens, for the image parts of `builtin:tiny-mm`.

A model with discrete image tokens turns an image into ids of its own vocabulary. Here the ids come from a
hash of the image's bytes. So images with different bytes have different ids, answers and cached prefixes.
Because image tokens are ordinary ids, a prompt with images can also be sent as `input_ids`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from hashlib import blake2b

from tokenwire_reference.core.tokenizer import Tokenizer

PLACEHOLDER = "<|image|>"
"""The text that marks the position of an image in a prompt."""
TOKENS_PER_IMAGE = 8
IMAGE_TOKENS = tuple(f"<|image_{code}|>" for code in range(64))


def takes_images(tokenizer: Tokenizer | None) -> bool:
    """True if the model takes images: the placeholder is a single token of its vocabulary."""
    return tokenizer is not None and len(tokenizer.encode(PLACEHOLDER, add_special_tokens=False)) == 1


def image_text(image: bytes) -> str:
    """Return the special tokens of an image as text."""
    codes = blake2b(image, digest_size=TOKENS_PER_IMAGE).digest()
    return "".join(IMAGE_TOKENS[code % len(IMAGE_TOKENS)] for code in codes)


def read_image(source: str) -> bytes:
    """Return the bytes of a data URL or of plain base64. Nothing is fetched. Raises ValueError for anything
    else.
    """
    data = source.partition(";base64,")[2] if source.startswith("data:") else source
    try:
        image = base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ValueError(f"image {source[:40]!r} is neither a base64 data URL nor base64: {error}") from error
    if not image:
        raise ValueError(f"image {source[:40]!r} is empty")
    return image


def put_images(text: str, sources: Sequence[str]) -> str:
    """Return a text with each placeholder replaced by its image; without placeholders, images come first.

    Raises ValueError if the number of placeholders and images differ.
    """
    texts = [image_text(read_image(source)) for source in sources]
    places = text.count(PLACEHOLDER)
    if not places:
        return "".join(texts) + text
    if places != len(texts):
        raise ValueError(f"the text has {places} of {PLACEHOLDER}, and there are {len(texts)} images")
    first, *others = text.split(PLACEHOLDER)
    return first + "".join(image + other for image, other in zip(texts, others, strict=True))
