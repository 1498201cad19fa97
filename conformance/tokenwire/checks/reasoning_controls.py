"""Checks of requests that hide reasoning, switch it off or limit it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from itertools import takewhile
from operator import eq

from tokenwire.checks.about import about, undisturbed_choices
from tokenwire.checks.check import Target, check, check_run
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.channels import Channels, fits, has_markup, said_of, token_spans
from tokenwire.checks.reading.fields import end_place, usage_count
from tokenwire.checks.reading.right_channels import known_marked_text
from tokenwire.dialects.demands import ReasoningControls
from tokenwire.dialects.dialect import dialect_of
from tokenwire.record import Answer, Choice, Stream, fact

_OF_STREAMS = ("stream", "stream_options")


def _controls(stream: Answer) -> ReasoningControls:
    dialect = dialect_of(stream)
    return dialect.request.reasoning if dialect is not None else ReasoningControls()


def _key_without(stream: Stream, without: set[str]) -> str | None:
    """Return a key that is equal for greedy requests that differ only in the given fields.

    None for other requests.
    """
    body = stream.exchange.request.body
    if not isinstance(body, Mapping) or not stream.answered or not stream.asked.greedy:
        return None
    rest = {name: value for name, value in body.items() if name not in without}
    return json.dumps([stream.dialect, rest], sort_keys=True)


@fact(Stream)
def _hidden(stream: Stream) -> tuple[str, bool] | None:
    """Return a key that is equal for requests that differ only in the fields that hide reasoning, and True if
    the request hides reasoning. None if the endpoint has no such field.
    """
    controls = _controls(stream)
    key = _key_without(stream, {*controls.hides}) if controls.hides else None
    return None if key is None else (key, controls.are_hidden(stream.exchange.request.body))


@check_run("hidden-reasoning-is-counted")
def _hidden_reasoning_is_counted(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that an answer with hidden reasoning has no reasoning, but counts as many tokens as the answer to
    the same request with visible reasoning.
    """
    known = [(stream, found) for stream in streams if (found := _hidden(stream)) is not None]
    shown = {key: stream for stream, (key, hides) in known if not hides and stream.choices}
    for stream, (key, hides) in known:
        other = shown.get(key) if hides else None
        ours = other.load() if other is not None else None
        if ours is None or not all(choice.reasoning for choice in ours.choices):
            continue
        for choice in stream.load().choices:
            told = choice.reasoning or ""
            message = f"the request hides its reasoning, and choice {choice.index} has {told[:60]!r}"
            yield expect(choice.last_at("reasoning"), "no reasoning", told, message, holds=not told)
        due, count = usage_count(ours, "completion_tokens"), usage_count(stream, "completion_tokens")
        if due is not None and count is not None:
            place = stream.load().usage_place or end_place(stream)
            message = f"{count} tokens are counted, and {due} where the reasoning is shown"
            yield expect(place, due, count, message, by_chance=True)


@fact(Stream)
def _limited(stream: Stream) -> tuple[str, int | None] | None:
    """Return a key that is equal for requests that differ only in the budget of reasoning, and this budget.

    None if the endpoint has no such field.
    """
    controls = _controls(stream)
    key = _key_without(stream, {*controls.budget[:1], *_OF_STREAMS}) if controls.budget else None
    return None if key is None else (key, controls.tokens(stream.exchange.request.body))


def _thoughts(stream: Stream, choice: Choice, target: Target) -> list[bytes] | None:
    """Return the tokens between the markers of a choice's reasoning; None if they are unknown."""
    said, ways = said_of(stream, choice, target.markup, target.detokenizer), target.markup.thoughts
    spans = token_spans(choice, target.detokenizer)
    if said is None or ways is None or spans is None or said.stopped or said.unfound:
        return None
    text = said.text.encode()
    opened = text.lstrip().startswith(ways.opens.encode())
    begin = text.index(ways.opens.encode()) + len(ways.opens.encode()) if opened else 0
    end = text.find(ways.closes.encode(), begin)
    if not opened and end < 0 and not choice.reasoning:
        return []
    end = len(text) if end < 0 else end
    return [token for token, first, last in spans if first < end and begin < last and first < last]


@check_run("reasoning-budget-is-kept")
def _reasoning_budget_is_kept(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check the length of the reasoning under a reasoning budget.

    The reasoning must be as long as the budget, or complete if it needs fewer tokens. The answer to the same
    request without a budget, or else with the largest one, shows the reasoning. Words that a server adds to
    end the reasoning do not count, because the model did not generate them.
    """
    known = [(stream, found) for stream in streams if (found := _limited(stream)) is not None]
    falling = sorted(known, key=lambda item: -math.inf if item[1][1] is None else -item[1][1])
    free = {key: (stream, budget) for stream, (key, budget) in reversed(falling) if stream.choices}
    for answer, (key, budget) in known:
        if budget is None or key not in free or free[key][1] == budget:
            continue
        stream, other = answer.load(), free[key][0].load()
        unlimited = {choice.index: _thoughts(other, choice, target) for choice in undisturbed_choices(other)}
        for choice in undisturbed_choices(stream):
            ours, theirs = _thoughts(stream, choice, target), unlimited.get(choice.index)
            if ours is None or theirs is None:
                continue
            due = min(budget, len(theirs))
            count = sum(takewhile(bool, map(eq, ours, theirs)))
            message = (
                f"choice {choice.index} has {count} tokens of reasoning; its budget is {budget}, and "
                + (f"{len(theirs)} come " + ("without one" if free[key][1] is None else "with a larger one"))
            )
            yield expect(choice.last_at("reasoning"), due, count, message, by_chance=count < due)


@check("reasoning-off-has-none", about(chat=True, answered=True, ended=True))
def _reasoning_off_has_none(stream: Stream, target: Target) -> Iterator[Observation]:
    """Check that text without markers is content if a request switches reasoning off."""
    if not _controls(stream).are_off(stream.exchange.request.body):
        return
    for choice in undisturbed_choices(stream):
        said = known_marked_text(stream, choice, target)
        if said is None or has_markup(said.text):
            continue
        channels = Channels.of(stream, choice)
        if channels.reasoning.strip():
            message = f"the request switches reasoning off, and choice {choice.index} has some"
            yield expect(choice.last_at("reasoning"), "no reasoning", channels.reasoning, message)
        else:
            message = f"the content of choice {choice.index} is not the text of its tokens"
            holds = fits((said.text,), channels.content)
            yield expect(choice.last_at("text"), said.text, channels.content, message, holds=holds)
