"""Checks that send returned ids back to the server: equal ids must have equal continuations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire.checks.about import ended, finished_choices
from tokenwire.checks.agreement import same_sampled
from tokenwire.checks.check import Target, check_run, once_per_run, select
from tokenwire.checks.difference import observe_sequence
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.chance import tells_sampled
from tokenwire.checks.reading.fields import (
    EXTRAS,
    LOGPROBS,
    asked_alike,
    counts_its_ids,
    first_prompt_ids,
    prompt_sent,
    start_place,
    told_prompt,
)
from tokenwire.checks.same_answers import same_ids, same_text
from tokenwire.dialects.dialect import is_chat
from tokenwire.record import Answer, ChoiceFacts, Delivery, Place, Stream, fact
from tokenwire.target.advertised import CONTEXT_BORDER
from tokenwire.target.alike import known_by
from tokenwire.target.determinism import request_of

Ids = tuple[Any, ...]

_DIFFERENT_TEXTS = 2
"""The minimum number of different texts that shows if the server adds a common first id."""


@dataclass(frozen=True)
class Whole:
    """A complete greedy answer with one choice, streamed or whole."""

    stream: Answer

    @property
    def choice(self) -> ChoiceFacts:
        return finished_choices(self.stream)[0]

    @property
    def _facts(self) -> tuple[Ids | None, Ids | None, int]:
        return _related(self.stream) or (None, None, 0)

    @property
    def prompt(self) -> Ids | None:
        """The ids that were sent, or the ids that the answer reports for a text. None if both are unknown."""
        return self._facts[0]

    @property
    def ids(self) -> Ids | None:
        return self._facts[1]

    @property
    def content_group(self) -> int:
        """A number that is equal for answers to one request with equal content."""
        return self._facts[2]

    @property
    def sent_ids(self) -> bool:
        return self.stream.asked.input_ids is not None

    @property
    def sampling(self) -> str:
        return self.stream.asked.other_sampling

    @property
    def limits(self) -> tuple[object, ...]:
        """The options that may end an answer: the budget and the stops."""
        fields = ("max_new_tokens", "min_new_tokens", "stop", "stop_token_ids", "ignore_eos")
        return tuple(getattr(self.stream.asked, name) for name in fields)


def _hashable(values: Sequence[Any] | None) -> Ids | None:
    """Return ids as a tuple. None if they are not all integers."""
    return tuple(values) if values is not None and all(type(value) is int for value in values) else None


@once_per_run
def related_streams(streams: tuple[Answer, ...]) -> list[Whole]:
    """Return the complete greedy answers of a run that have one prompt and one choice, and were not aborted.

    Skipped are answers whose number of ids differs from their counter, because the sampled ids are uncertain.
    Also skipped is a finish reason without a type, because it does not show how the answer ended.
    """
    return [Whole(stream) for stream in streams if _related(stream) is not None]


def _firsts_of(wholes: Sequence[Whole]) -> list[tuple[Whole, int]]:
    """Return the first answer of each group with equal content, and the number of answers in the group."""
    times = Counter(whole.content_group for whole in wholes)
    firsts: dict[int, Whole] = {}
    for first in wholes:
        firsts.setdefault(first.content_group, first)
    return [(first, times[stated]) for stated, first in firsts.items()]


@fact(Stream)
def _related(stream: Stream) -> tuple[Ids | None, Ids | None, int] | None:
    """Return the ids of the prompt and the output, and a hash of the content. None if the answer cannot be
    compared.
    """
    asked, choices = stream.asked, finished_choices(stream)
    single = asked.prompts * asked.n == 1 and len(choices) == 1
    if not (asked.greedy and single and ended(stream)):
        return None
    choice = choices[0]
    if choice.finish is None or choice.finish.type in {"abort", ""} or not counts_its_ids(choice):
        return None
    prompt: Ids | None = asked.input_ids[0] if asked.input_ids else None
    if asked.input_ids is None:
        reported = told_prompt(choice)
        prompt = _hashable(reported[1]) if reported else None
    ids, asked_for = _hashable(choice.output_ids), request_of(stream) or stream.exchange.name
    return prompt, ids, hash((asked_for, known_by((prompt, ids, choice.text, choice.finish.type))))


@check_run("text-prompt-ids-reproduce")
def _text_prompt_ids_reproduce(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that the ids reported for a text prompt, sent as ids, get the same answer as the text."""
    wholes = [answer for answer in related_streams(streams) if answer.prompt and answer.ids is not None]
    from_ids = {
        (whole.prompt, whole.sampling, whole.limits): whole for whole in reversed(wholes) if whole.sent_ids
    }
    for whole in wholes:
        twin = None if whole.sent_ids else from_ids.get((whole.prompt, whole.sampling, whole.limits))
        if twin is not None:
            yield from same_ids((whole.choice, twin.choice), "the answer to the text")


@check_run("output-ids-continue")
def _output_ids_continue(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that a prompt followed by its first output ids, sent as ids, continues with the remaining output
    ids.
    """
    complete = (whole for whole in related_streams(streams) if whole.prompt and whole.ids)
    wholes = [whole for whole in complete if not (whole.stream.asked.min_new_tokens or whole.sampling)]
    by_prompt: dict[tuple[int, str], list[Whole]] = {}
    for whole in wholes:
        if whole.sent_ids:
            by_prompt.setdefault((hash(whole.prompt), whole.sampling), []).append(whole)
    sizes = sorted({len(whole.prompt or ()) for whole in wholes if whole.sent_ids})
    for first, times in _firsts_of(wholes):
        prompt, ids = first.prompt or (), first.ids or ()
        for k in (size - len(prompt) for size in sizes if 0 < size - len(prompt) < len(ids)):
            sent = prompt + ids[:k]
            for whole in by_prompt.get((hash(sent), first.sampling), ()):
                if whole.prompt != sent:
                    continue
                rest, actual = ids[k:], whole.ids or ()
                common = min(len(rest), len(actual))
                seen = observe_sequence(
                    whole.choice.last_at("output_ids"),
                    "output id",
                    expected=rest[:common],
                    actual=actual[:common],
                    source=f"the rest of the longer answer after {k} ids",
                    related=(first.choice.last_at("output_ids"),),
                    by_chance=True,
                )
                yield seen._replace(witnesses=times)


@check_run("same-ids-on-every-endpoint")
def _same_ids_on_every_endpoint(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that one prompt has the same greedy answer on every endpoint.

    Texts are compared only if no ids are known or both answers are whole, because another requirement finds
    text that a stream lost. Chat may run its messages instead of the ids, so it is compared only with other
    chat answers.
    """
    first: dict[str, Whole] = {}
    reported: dict[str, Whole] = {}
    for answer in sorted(related_streams(streams), key=lambda answer: is_chat(answer.stream)):
        key = answer.stream.asked.ids_key
        if not key:
            continue
        other = first.setdefault(key, answer)
        if other.stream.dialect != answer.stream.dialect:
            source = f"the answer of {other.stream.dialect}"
            yield from same_ids((other.choice, answer.choice), source)
            whole = Delivery.WHOLE is other.stream.delivery is answer.stream.delivery
            parsed = other.choice.parsed or answer.choice.parsed
            if not parsed and (whole or other.ids is None or answer.ids is None):
                yield from same_text((other.choice, answer.choice), source)
        teller = reported.setdefault(key, answer) if tells_sampled(answer.choice) else answer
        if teller.stream.dialect != answer.stream.dialect:
            yield from same_sampled((teller.choice, answer.choice), f"the answer of {teller.stream.dialect}")


def _but_for_its_prompt(stream: Answer) -> tuple[object, ...]:
    """Return a key of everything in a request that may cause a refusal, except the prompt and its budget."""
    fields = ("stream", "n", "batch", "echo", "form", "other_sampling")
    return asked_alike(stream, *fields, *EXTRAS, *LOGPROBS)


def _room_taken(stream: Answer) -> int:
    """Return the maximum number of tokens that a prompt of ids and its budget take in the context."""
    asked = stream.asked
    return max(map(len, asked.input_ids or ()), default=0) + (asked.max_new_tokens or 0)


@check_run("own-ids-are-accepted")
def _own_ids_are_accepted(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that the server accepts the ids that it generated.

    A refusal counts only under two conditions. Another prompt with the same options was answered. The ids fit
    the context with a margin, or are shorter than an answered request.
    """
    made: dict[int, dict[int, Whole]] = {}
    sizes: set[int] = set()
    for answer in related_streams(streams):
        if answer.prompt and answer.ids:
            of_prompt = made.setdefault(hash(answer.prompt), {})
            of_prompt.setdefault(hash(answer.ids), answer)  # equal answers count once
            sizes.add(len(answer.prompt))

    def goes_on(sent: Ids) -> bool:
        """True if a prompt consists of another prompt and the first ids of its output, at least one."""
        return any(
            prompt == sent[:size] and sent[size : size + len(ids)] == ids[: len(sent) - size]
            for size in sizes
            if size < len(sent)
            for whole in made.get(hash(sent[:size]), {}).values()
            for prompt, ids in [(whole.prompt, whole.ids or ())]
        )

    going_on: dict[int, bool] = {}
    answered = {_but_for_its_prompt(stream) for stream in streams if stream.answered}
    most = max((_room_taken(stream) for stream in streams if stream.answered), default=0)
    most = max(most, target.advertised.context - CONTEXT_BORDER)
    for stream in streams:
        sent, status = stream.asked.input_ids, stream.exchange.status
        if sent is None or len(sent) != 1 or status is None or _room_taken(stream) > most:
            continue
        if _but_for_its_prompt(stream) not in answered:
            continue
        prompt = hash(sent[0])
        if prompt not in going_on:
            going_on[prompt] = goes_on(sent[0])
        if going_on[prompt]:
            message = f"output ids that were sent back as a prompt were answered with status {status}"
            place = start_place(stream)
            yield expect(place, "an answer", status, message, holds=stream.answered)


def _turn(whole: Whole) -> Ids:
    """Return the ids of a conversation, up to and including an answer."""
    return (whole.prompt or ()) + (whole.ids or ())


@check_run("next-turn-begins-with-the-last")
def _next_turn_begins_with_the_last(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that the prompt of a conversation's next turn begins with all ids of the turn before it."""
    wholes = [
        answer for answer in related_streams(streams) if answer.prompt and answer.ids and answer.sent_ids
    ]
    turns = _firsts_of(wholes)
    known = {hash(_turn(whole)) for whole, _ in turns}
    sizes = {len(_turn(whole)) for whole, _ in turns}
    begun_by: dict[int, list[int]] = {}
    next_ones: dict[Ids, list[Whole]] = {}
    for whole in wholes:
        sent = whole.prompt or ()
        if hash(sent) not in begun_by:
            shorter = sorted(size for size in sizes if size < len(sent))
            begun_by[hash(sent)] = [size for size in shorter if hash(sent[:size]) in known]
        for size in begun_by[hash(sent)]:  # a prompt with the same hash but other ids is not compared
            next_ones.setdefault(sent[:size], []).append(whole)
    for first, times in turns if next_ones else ():
        turn = _turn(first)
        for whole in next_ones.get(turn, ()):
            reported = told_prompt(whole.choice)
            if reported is None:
                continue
            seen = observe_sequence(
                reported[0],
                "prompt id",
                expected=turn,
                actual=reported[1][: len(turn)],
                source="the turn before",
                related=(first.choice.last_at("output_ids"),),
            )
            yield seen._replace(witnesses=times)


@select
def _of_texts(stream: Stream) -> bool:
    """Select the answers to texts and messages that were sent without ids."""
    return stream.asked.input_ids is None and stream.asked.text_prompt


@check_run("one-beginning-of-sequence")
def _one_beginning_of_sequence(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that the beginning-of-sequence id occurs only once at the beginning of a prompt.

    An id counts as the beginning-of-sequence id if different texts begin with this id. If texts begin with
    different ids, the server adds none.
    """
    reported: dict[str, list[tuple[Answer, Place, list[Any]]]] = {}
    for stream in _of_texts(streams):
        for choice in finished_choices(stream)[:1]:
            found = first_prompt_ids(choice.load(), empty=False)
            if found is not None:
                place = found[0].at("prompt_token_ids")
                reported.setdefault(stream.dialect, []).append((stream, place, found[1][:2]))
    for answers in reported.values():
        if len({stream.asked.prompt_key for stream, _, _ in answers}) < _DIFFERENT_TEXTS:
            continue
        heads = [ids[0] for _, _, ids in answers]
        common = heads[0] if all(head == heads[0] for head in heads) else None
        for _, place, ids in answers:
            twice = common is not None and ids[:2] == [common, common]
            message = f"the prompt begins with id {common!r} twice"
            yield expect(place, "no id doubled", ids[:2], message, holds=not twice)


def _conversation(stream: Answer) -> tuple[str, bool] | None:
    """Return the messages of a request with null content made empty, and True if any content was null.

    None if the request has a text.
    """
    sent = prompt_sent(stream) if is_chat(stream) else None
    if sent is None:
        return None
    model, prompt = sent
    messages = prompt.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return None
    nulls = [message.get("content", "") is None for message in messages]
    emptied = [{**turn, "content": ""} if null else turn for turn, null in zip(messages, nulls, strict=True)]
    return json.dumps([model, {**prompt, "messages": emptied}], sort_keys=True), any(nulls)


@check_run("null-content-is-empty-content")
def _null_content_is_empty_content(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that the chat template treats null content like an empty string, and not like the word "None"."""
    reported: dict[tuple[str, str, bool], list[tuple[Place, list[Any]]]] = {}
    for stream in streams:
        conversation = _conversation(stream)
        for choice in finished_choices(stream)[:1] if conversation else ():
            first = first_prompt_ids(choice.load(), empty=False)
            if conversation and first is not None:
                found = first[0].at("prompt_token_ids"), first[1]
                reported.setdefault((stream.dialect, *conversation), []).append(found)
    for (dialect, messages, null), answers in reported.items():
        twins = reported.get((dialect, messages, False), []) if null else []
        for place, ids in answers if twins else ():
            empty, expected = twins[0]
            yield observe_sequence(
                place,
                "prompt id",
                expected=expected,
                actual=ids,
                source="the same messages with empty content",
                related=(empty,),
            )


def _sees_media(asked: Whole, wholes: list[Whole]) -> bool:
    """True if media make the prompt of an answer longer than the prompt of its text alone."""
    text, size = _text_of(asked.stream), len(asked.prompt or ())
    alone = (whole for whole in wholes if not whole.stream.asked.media and _text_of(whole.stream) == text)
    return any(len(whole.prompt) < size for whole in alone if whole.prompt is not None)


def _text_of(stream: Answer) -> str:
    """Return a key of the prompt as it was sent, without media. Empty if ids were sent."""
    return stream.asked.prompt_key if stream.asked.input_ids is None else ""


@select
def _with_media(stream: Stream) -> bool:
    return stream.asked.media


@check_run("media-ids-are-run-as-sent")
def _media_ids_are_run_as_sent(streams: tuple[Answer, ...], _target: Target) -> Iterator[Observation]:
    """Check that the ids reported for a prompt with media, sent back with these media, are run unchanged."""
    wholes = [answer for answer in related_streams(streams) if answer.prompt] if _with_media(streams) else []
    for whole in wholes:
        if whole.sent_ids or not whole.stream.asked.media or not _text_of(whole.stream):
            continue
        if not _sees_media(whole, wholes):
            continue
        for back in streams:
            asked = back.asked
            if asked.input_ids != (whole.prompt,) or asked.other_sampling != whole.sampling:
                continue
            if back.refused:
                place = start_place(back)
                yield expect(place, "the prompt, or a refusal", back.exchange.status, holds=True)
            for twin in (whole for whole in wholes if whole.stream is back):
                reported = told_prompt(twin.choice)
                if reported is not None:
                    yield observe_sequence(
                        reported[0],
                        "prompt id",
                        expected=whole.prompt or (),
                        actual=reported[1],
                        source="the ids of the request",
                        related=(whole.choice.last_at("prompt_token_ids"),),
                    )
                if twin.limits == whole.limits:
                    yield from same_ids((whole.choice, twin.choice), "the answer to the text and the media")
