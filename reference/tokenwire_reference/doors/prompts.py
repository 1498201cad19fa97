"""Converts the prompts of a body into token ids. Ids stay unchanged, and text is tokenized."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import orjson
from jinja2 import TemplateError

from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.limits import refuse_long_text
from tokenwire_reference.doors.sampling_fields import refuse_unknown_ids
from tokenwire_reference.doors.served import Served
from tokenwire_reference.extras.images import image_text, read_image, takes_images


def read_prompts(value: str | list[Any], name: str, served: Served) -> tuple[list[list[int]], bool]:
    """Return the prompts in one field, and a flag that is True for a batch. Raises RefusalError.

    The value must be a text, a list of texts, a list of ids or a list of lists of ids. No text or list may be
    empty.
    """
    if isinstance(value, str):
        return [encode(value, name, served)], False
    if isinstance(value[0], str):
        return [encode(text, f"{name}[{i}]", served) for i, text in enumerate(value)], True
    if isinstance(value[0], list):
        for i, ids in enumerate(value):
            refuse_unknown_ids(f"{name}[{i}]", ids, served.model.vocab_size)
        return [list(ids) for ids in value], True
    refuse_unknown_ids(name, value, served.model.vocab_size)
    return [list(value)], False


def encode(text: str, name: str, served: Served) -> list[int]:
    """Return the ids of a text.

    Raises RefusalError if the server has no tokenizer, or if the text has no tokens.
    """
    if served.tokenizer is None:
        raise RefusalError(
            f"{name} needs a tokenizer and the server runs without one; send ids (input_ids or prompt)",
            param=name,
        )
    refuse_long_text(name, text, served.model.context_length)
    ids = served.tokenizer.encode(text)
    if not ids:
        raise RefusalError(
            f"{name} {text!r} has no tokens; send a prompt with at least one token", param=name
        )
    return ids


def template_ids(
    messages: Sequence[Mapping[str, Any]],
    served: Served,
    *,
    add_generation_prompt: bool = True,
    template: Mapping[str, Any] = MappingProxyType({}),
    runs: bool = True,
    joiner: str = "",
) -> list[int]:
    """Return the ids of messages in the chat template.

    `template` has further variables of the chat template. The texts of a content are joined by `joiner`. The
    length is checked only if `runs` is true, because the model then processes the ids. Raises
    RefusalError.
    """
    tokenizer = served.tokenizer
    assert tokenizer is not None, "messages without a tokenizer are refused"
    if not tokenizer.chat_template:
        raise RefusalError(
            "messages need a chat template and this model has none; send input_ids beside them",
            param="messages",
        )
    images = takes_images(tokenizer)
    texts = [_as_text(i, message, joiner, images=images) for i, message in enumerate(messages)]
    try:
        text = tokenizer.apply_chat_template(
            texts, tokenize=False, add_generation_prompt=add_generation_prompt, **template
        )
    except (
        TemplateError,
        TypeError,
        AttributeError,
    ) as error:  # errors that the code of a template may raise
        words = f"messages do not fit the model's chat template: {error}"
        raise RefusalError(words, param="messages") from error
    if runs:
        refuse_long_text("messages", text, served.model.context_length)
    return tokenizer.encode(text, add_special_tokens=False)


def _as_text(index: int, message: Mapping[str, Any], joiner: str, *, images: bool) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list):
        only_texts = all(part.get("type") == "text" for part in content)
        content = (joiner if only_texts else "").join(
            _part(f"messages[{index}]", part, images=images) for part in content
        )
    told = {**message, "content": content or ""}
    if isinstance(calls := message.get("tool_calls"), list):
        told["tool_calls"] = list(map(_with_an_object, calls))
    return told


def _with_an_object(call: Any) -> Any:
    """Return a tool call of an earlier message with its arguments as an object, because chat templates expect
    an object. Other arguments, and calls of another shape, are passed to the template unchanged.
    """
    match call:
        case {"function": {"arguments": str(arguments)} as function}:
            try:
                given = orjson.loads(arguments)
            except orjson.JSONDecodeError:
                return call
            return {**call, "function": {**function, "arguments": given}} if isinstance(given, dict) else call
    return call


def _part(name: str, part: Mapping[str, Any], *, images: bool) -> str:
    match part:
        case {"type": "text"}:
            return str(part.get("text", ""))
        case {"type": "image_url", "image_url": {"url": str(url)}} if images:
            with refused(name):
                return image_text(read_image(url))
    takes = "text and image_url with its url" if images else "text only"
    raise RefusalError(
        f"{name} has a part of type {part['type']!r}; this model takes {takes}", param="messages"
    )


@contextmanager
def refused(name: str) -> Iterator[None]:
    """Convert a ValueError in the block to the refusal of a field."""
    try:
        yield
    except ValueError as error:
        raise RefusalError(f"{name}: {error}", param=name) from error
