"""Checks of conversations: the prompt contains all messages of the request."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import permutations
from typing import Any

from tokenwire.checks.check import Target, check_run
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.fields import end_place, usage_count
from tokenwire.dialects.dialect import dialect_of, is_chat, policy_of
from tokenwire.dialects.history import Parted, parted
from tokenwire.record import Answer, Stream, fact

_SHORT, _LONG = 16, 100
"""The maximum length of a short tool result, and the minimum length of a long one, in characters.

A long tool result has more tokens than a short one in every vocabulary.
"""


def _key(*values: Any) -> str:
    return json.dumps(values, sort_keys=True)


@fact(Stream)
def _parted(stream: Stream) -> Parted | None:
    """Return the conversation of an answered request. None if the prompt has another form."""
    sent = stream.asked.sent.get("messages")
    messages = sent.values[0] if sent is not None and len(sent.values) == 1 else None
    known = isinstance(messages, list) and is_chat(stream) and stream.answered and not stream.asked.input_ids
    return parted(messages) if known and isinstance(messages, list) else None


@fact(Stream)
def _beside(stream: Stream) -> str:
    """Return a key that is equal for requests to one endpoint that differ only in their messages."""
    dialect, body = dialect_of(stream), stream.exchange.request.body
    system = dialect.request.system if dialect is not None else None
    names = {"instructions", "chat_template_kwargs", "thinking", "tools", "tool_choice", *(system or ())}
    previous = dialect.request.goes_on if dialect is not None else ""
    fields = body if isinstance(body, Mapping) else {}
    held = {name: fields[name] for name in sorted((names | {previous}) & fields.keys())}
    return _key(stream.dialect, stream.asked.model, held)


def _prompt(stream: Answer) -> int | None:
    return usage_count(stream, "prompt_tokens")


def _longer(first: Answer, second: Answer, what: str) -> Iterator[Observation]:
    """Check that the second prompt has more tokens than the first."""
    least, count = _prompt(first), _prompt(second)
    if least is not None and count is not None:
        place = second.load().usage_place or end_place(second)
        message = f"the prompt has {count} tokens, but {least} in {first.exchange.label}, {what}"
        yield expect(place, f"more than {least}", count, message, holds=count > least)


def _conversations(streams: Iterable[Answer]) -> list[tuple[Answer, Parted]]:
    return [(stream, found) for stream in streams if (found := _parted(stream)) is not None]


@check_run("history-is-in-the-prompt")
def _history_is_in_the_prompt(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check the number of prompt tokens of a conversation.

    If the chat template is known, the number must equal the number of tokens that the template makes of the
    messages. The number must exceed that of an earlier part of the conversation.
    """
    whole = _conversations(streams)
    earlier: dict[str, Answer] = {}
    for stream, found in whole:
        earlier.setdefault(_key(_beside(stream), found.messages), stream)
    for stream, found in whole:
        if not found.has_turns:
            continue
        known = target.model.prompts(stream.load()) if target.model is not None else []
        count = _prompt(stream)
        if len(known) == 1 and known[0] is not None and count is not None:
            place = stream.load().usage_place or end_place(stream)
            due = len(known[0])
            message = f"the prompt has {count} tokens, but its messages make {due} in the template"
            yield expect(place, due, count, message)
        for length in range(len(found.messages) - 1, 0, -1):
            before = earlier.get(_key(_beside(stream), found.messages[:length]))
            if before is not None:
                yield from _longer(before, stream, "which it continues")
                break


@check_run("tool-results-are-in-the-prompt")
def _tool_results_are_in_the_prompt(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that longer tool results make a longer prompt, in conversations that differ only in their tool
    results.
    """
    alike: defaultdict[str, list[tuple[tuple[str, ...], Answer]]] = defaultdict(list)
    for stream, found in _conversations(streams):
        if found.results:
            alike[_key(_beside(stream), found.without_results)].append((found.results, stream))
    for answers in alike.values():
        for (few, shorter), (more, longer) in permutations(dict(answers).items(), 2):
            differing = [(a, b) for a, b in zip(few, more, strict=False) if a != b]
            if differing and all(len(a) <= _SHORT and len(b) >= _LONG for a, b in differing):
                yield from _longer(shorter, longer, "where the tool results are shorter")


@check_run("earlier-reasoning-is-in-the-prompt")
def _earlier_reasoning_is_in_the_prompt(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that the reasoning of earlier turns is in the prompt, if the chat template is known to include
    it.
    """
    bare: dict[str, Answer] = {}
    ours = target.model is not None and target.model.ours
    conversations = _conversations(streams) if ours else []
    for stream, found in conversations:
        if not found.reasoning:
            bare.setdefault(_key(_beside(stream), found.without_reasoning), stream)
    for stream, found in conversations:
        other = bare.get(_key(_beside(stream), found.without_reasoning)) if found.reasoning else None
        if other is not None and not policy_of(stream).earlier_reasoning_is_optional:
            yield from _longer(other, stream, "which has no reasoning of earlier turns")


def _as_text(message: Any) -> Any:
    """Return a message with its content as a text, if the content is a list with one text.

    Return any other message unchanged.
    """
    match message:
        case {"content": [{"type": "text" | "input_text", "text": str(text), **rest}]} if not rest:
            return {**message, "content": text}
    return message


def _joined(stream: Answer, message: Any) -> Any:
    """Return a message with the texts of its content joined as the dialect declares, if they are several.

    Return any other message unchanged.
    """
    dialect = dialect_of(stream)
    joiner = dialect.request.texts_joined_by if dialect is not None else None
    parts = message.get("content") if isinstance(message, Mapping) else None
    if joiner is None or not isinstance(parts, list) or len(parts) < 2:
        return message
    texts = [_as_text({"content": [part]})["content"] for part in parts]
    return {**message, "content": joiner.join(texts)} if all(isinstance(t, str) for t in texts) else message


def _same_prompts(
    streams: tuple[Answer, ...], as_text: Callable[[Answer, Any], Any]
) -> Iterator[Observation]:
    """Check that messages have the same number of prompt tokens as they are and in another form."""
    plain: dict[str, Answer] = {}
    listed: list[tuple[str, Answer]] = []
    for stream, found in _conversations(streams):
        as_texts = [as_text(stream, message) for message in found.messages]
        key = _key(_beside(stream), as_texts)
        if as_texts != list(found.messages):
            listed.append((key, stream))
        elif _prompt(stream) is not None:
            plain.setdefault(key, stream)
    for key, stream in listed:
        other, count = plain.get(key), _prompt(stream)
        if other is not None and count is not None:
            place, due = stream.load().usage_place or end_place(stream), _prompt(other)
            message = f"the prompt has {count} tokens, and {due} in {other.exchange.label}, with texts"
            yield expect(place, due, count, message)


@check_run("text-parts-are-the-text")
def _text_parts_are_the_text(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that messages have the same number of prompt tokens whatever form their content has: a text, or a
    list with this one text.
    """
    yield from _same_prompts(streams, lambda _, message: _as_text(message))


@check_run("text-parts-are-joined")
def _text_parts_are_joined(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that several texts have the prompt of one text, joined as the dialect declares.

    Other templates may take lists, and join the texts themselves.
    """
    if target.model is not None and target.model.ours:
        yield from _same_prompts(streams, _joined)
