"""Checks of the split pipeline, of batches of conversations, and of counts of prompts.

In the split pipeline, a chat request is rendered to ids, another request runs these ids, and the output ids
are derendered to a chat answer. The dialect of chat parses a derendered answer as if chat had returned it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

from tokenwire.checks.agreement import as_declared, choice_pairs, same_ids, same_sampled
from tokenwire.checks.check import Target, check_run
from tokenwire.checks.difference import observe_sequence
from tokenwire.checks.evidence import Observation, expect
from tokenwire.checks.reading.chance import DRIFT
from tokenwire.checks.reading.channels import Channels, written
from tokenwire.checks.reading.fields import bringing, end_place, told_prompt, usage_count
from tokenwire.checks.usage import reasoning_tokens
from tokenwire.dialects.control import Action, ControlCall, part_of
from tokenwire.dialects.dialect import dialect_of, is_chat
from tokenwire.record import Answer, Choice, Finish, Place, Stream, as_list, fact
from tokenwire.requirement import Level
from tokenwire.target.alike import alike
from tokenwire.wire.exchange import Exchange, HttpRequest, Read

_DELIVERY = frozenset({"stream", "stream_options"})
"""The fields of a request that do not change the answer."""
_OF_RUN = _DELIVERY | {"output_mode", "request_id"}
_TOKENS, _MESSAGE = "tokens", "derender"
"""Output modes of a request that runs ids: ids only, or a message as well."""
_CALLED = "tool_calls"


_RENDERS = (Action.RENDER, Action.RENDER_COMPLETIONS)
_DERENDERS = (Action.DERENDER, Action.DERENDER_COMPLETIONS)


def _plan_key(role: str, body: object, without: frozenset[str] = _DELIVERY) -> str:
    """Return a key of a request, and of the role of its answer. Requests with equal keys ask for the same."""
    fields = body if isinstance(body, Mapping) else {}
    kept = {name: value for name, value in fields.items() if value is not None and name not in without}
    return f"{role} {sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]}"


@fact(Stream)
def _key_of(answer: Stream) -> str:
    """Return the key of an answer; empty if it is not part of a pipeline."""
    body = answer.exchange.request.body
    if not answer.answered or not isinstance(body, Mapping):
        return ""
    if not isinstance(body.get("output_mode"), str):
        return _plan_key("stream" if answer.asked.stream else "whole", body)
    return "" if answer.asked.stream else _plan_key(body["output_mode"], body, _OF_RUN)


def _calls(target: Target, *actions: Action) -> list[ControlCall]:
    return [call for call in target.calls if call.action in actions]


def _by_key(streams: tuple[Answer, ...]) -> dict[str, Answer]:
    """Return the first answer with each key."""
    found: dict[str, Answer] = {}
    for answer in streams:
        if key := _key_of(answer):
            found.setdefault(key, answer)
    return found


def _as_chat(chat: Stream, exchange: Exchange, body: bytes, *, streams: bool = False) -> Stream | None:
    """Parse bytes as an answer to a chat request; None without choices."""
    dialect, request = dialect_of(chat), chat.exchange.request
    assert dialect is not None, "the answer was parsed by a dialect"
    media_type = "text/event-stream" if streams else "application/json"
    asked = HttpRequest(request.method, request.path, {**request.body, "stream": streams})
    made = Exchange(
        name=exchange.name,
        request=asked,
        scenario=exchange.scenario,
        status=200,
        headers=(("content-type", media_type),),
        reads=(Read(0.0, body),),
        ending=exchange.ending,
    )
    parsed = dialect.read(made)
    return parsed if parsed.answered else None


class _Rendered(NamedTuple):
    """A chat request that was rendered, with the answers to the request and to its ids."""

    call: ControlCall
    chat: Answer
    found: Mapping[str, Answer]

    def run(self, mode: str) -> Answer | None:
        """Return the answer to the rendered request in an output mode."""
        return self.found.get(_plan_key(mode, self.call.returned("request"), _OF_RUN))


def _rendered(streams: tuple[Answer, ...], target: Target) -> Iterator[_Rendered]:
    calls = [call for call in _calls(target, *_RENDERS) if call.done]
    found = _by_key(streams) if calls else {}
    for call in calls:
        chat = found.get(_plan_key("whole", call.exchange.load().request.body))
        if chat is not None:
            yield _Rendered(call, chat, found)


class _Derendered(NamedTuple):
    """A chat answer, and a derendered answer to the same request."""

    chat: Stream
    made: Stream
    label: str
    by_call: bool
    """True if the answer was derendered by a request of its own."""

    def pairs(self) -> Iterator[tuple[Choice, Choice]]:
        """Yield the choices with equal output ids."""
        for (_, ours), (_, theirs) in choice_pairs(self.chat, self.made):
            if ours.output_ids and ours.output_ids == theirs.output_ids:
                yield ours, theirs


def _derendered(streams: tuple[Answer, ...], target: Target) -> Iterator[_Derendered]:
    """Yield the whole answers that were derendered."""
    calls = [call for call in _calls(target, *_DERENDERS) if call.done and call.sent("answer")]
    found = _by_key(streams) if calls else {}
    for call in calls:
        chat = found.get(_plan_key("whole", call.sent("request")))
        yield from _parse_derendered(chat, call.exchange.load(), by_call=True)
    for step in _rendered(streams, target):
        if (run := step.run(_MESSAGE)) is not None:
            yield from _parse_derendered(step.chat, run.load().exchange, by_call=False)


def _parse_derendered(chat: Answer | None, exchange: Exchange, *, by_call: bool) -> Iterator[_Derendered]:
    """Yield the answer in an exchange, if it can be parsed and if chat was asked the same."""
    loaded = chat.load() if chat is not None else None
    made = _as_chat(loaded, exchange, exchange.body) if loaded is not None else None
    if loaded is not None and made is not None:
        yield _Derendered(loaded, made, exchange.label, by_call)


@check_run("rendered-ids-are-run")
def _rendered_ids_are_run(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that the rendered ids are the prompt ids of the chat answer."""
    for step in _rendered(streams, target):
        prompt = next(filter(None, map(told_prompt, step.chat.choices)), None)
        ids = step.call.returned("ids")
        if prompt is not None:
            place, run = prompt
            source = f"the prompt of {step.chat.exchange.label}"
            yield observe_sequence(
                place, "rendered id", expected=run, actual=as_list(ids) or [], source=source
            )


@check_run("rendered-request-answers-alike")
def _rendered_request_answers_alike(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a rendered request has the ids, the logprobs and the finish reason of the chat answer."""
    for step in _rendered(streams, target):
        run = step.run(_TOKENS)
        if run is None or not step.chat.asked.greedy:
            continue
        for (_, ours), (_, theirs) in choice_pairs(step.chat, run):
            source = f"the answer of {step.chat.exchange.label}"
            yield from as_declared(_same_run((ours, theirs), source), target)


def _same_run(pair: tuple[Choice, Choice], source: str) -> Iterator[Observation]:
    """Compare the ids, the logprobs of the ids and the finish reason of two answers to one prompt."""
    ours, theirs = pair
    if not ours.output_ids or not theirs.output_ids:
        return

    def beside(end: int | None) -> tuple[Place, ...]:
        return (bringing(ours, "output_ids", end),)

    if (yield from same_ids(pair, "output id", source, at=theirs, related=beside)) is None:
        yield from same_sampled(pair, source)
        expected, actual = (_ending(choice.finish, parsed=False) for choice in pair)
        message = f"finished with {actual}, but {source} with {expected}"
        related = (bringing(ours, "output_ids", None),)
        yield expect(theirs.last_at("finish"), expected, actual, message, related=related)


def _ending(finish: Finish | None, *, parsed: bool = True) -> tuple[str, object] | None:
    """Return the finish type and the matched stop. Without a parser, the end of a tool call is a stop."""
    if finish is None:
        return None
    return ("stop" if finish.type == _CALLED and not parsed else finish.type), finish.matched


_PARTS: Mapping[str, Callable[[Stream, Choice], object]] = {
    "reasoning": lambda _, choice: choice.reasoning or "",
    "content": lambda _, choice: choice.text or "",
    "tool calls": lambda stream, choice: written(Channels.of(stream, choice)),
    "finish reason": lambda _, choice: _ending(choice.finish),
}
"""The parts of a message."""


def _same_message(
    ours: tuple[Stream, Choice], theirs: tuple[Stream, Choice], label: str, source: str
) -> Iterator[Observation]:
    """Compare the parts of two messages."""
    place = end_place(ours[0])
    for part, read in _PARTS.items():
        expected, actual = read(*ours), read(*theirs)
        message = f"{label}: another {part} than in {source}: {_short(actual)} instead of {_short(expected)}"
        yield expect(place, expected, actual, message)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 90 else f"{text[:44]}…{text[-44:]}"


@check_run("derendered-message-is-the-chats")
def _derendered_message_is_the_chats(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Compare each part of a derendered message with the message of chat."""
    for found in _derendered(streams, target):
        chat, made = found.chat, found.made
        for ours, theirs in found.pairs():
            yield from _same_message((chat, ours), (made, theirs), found.label, chat.exchange.label)


@check_run("derendered-logprobs-are-the-chats")
def _derendered_logprobs_are_the_chats(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Compare the logprob entries of a derendered answer with those of chat."""
    for found in _derendered(streams, target):
        for ours, theirs in found.pairs():
            for name in sorted(ours.series_names):
                yield observe_sequence(
                    ours.last_at(name),
                    f"{found.label}: {name} entry",
                    expected=ours.series(name) or [],
                    actual=theirs.series(name) or [],
                    source=found.chat.exchange.label,
                    same=partial(alike, tolerance=DRIFT),
                )


_COUNTS: Mapping[str, Callable[[Stream], int | None]] = {
    "prompt_tokens": lambda stream: usage_count(stream, "prompt_tokens"),
    "completion_tokens": lambda stream: usage_count(stream, "completion_tokens"),
    "reasoning_tokens": reasoning_tokens,
}


@check_run("derendered-counts-are-the-chats")
def _derendered_counts_are_the_chats(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Compare the usage of a derendered answer with that of chat. A missing count violates only a SHOULD."""
    for found in _derendered(streams, target):
        if not found.by_call or len(list(found.pairs())) != len(found.chat.choices):
            continue
        for name, count in _COUNTS.items():
            expected, actual = count(found.chat), count(found.made)
            if expected is None or (actual is None and not expected):
                continue
            message = f"{found.label}: {name} is {actual}, but {expected} in {found.chat.exchange.label}"
            seen = expect(end_place(found.chat), expected, actual, message)
            yield seen if actual is not None else seen._replace(level=Level.SHOULD)


class _Chain(NamedTuple):
    """Events of one stream that were derendered one after the other."""

    request: object
    exchange: Exchange
    chunks: list[Any]
    state: list[Any]
    """The last state that the server returned, as the only entry."""


def _chains(target: Target) -> list[_Chain]:
    """Return the streams that were derendered, each from its first event on."""
    chains: list[_Chain] = []
    for call in _calls(target, Action.DERENDER):
        if not call.done or call.sent("event") is None:
            continue
        request, state = call.sent("request"), call.sent("state")
        if state is None:
            chains.append(_Chain(request, call.exchange.load(), [], [None]))
        chain = next((c for c in chains if c.request == request and c.state == [state]), None)
        if chain is not None:
            chain.chunks.append(call.returned("chunk"))
            chain.state[:] = [call.returned("state")]
    return chains


@check_run("derendered-deltas-add-up")
def _derendered_deltas_add_up(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Compare the joined deltas of a derendered stream with the stream of chat, or with its whole answer."""
    chains = _chains(target)
    found = _by_key(streams) if chains else {}
    for chain in chains:
        known = (found.get(_plan_key(role, chain.request)) for role in ("stream", "whole"))
        answer = next(filter(None, known), None)
        if answer is None:
            continue
        chat, label = answer.load(), chain.exchange.label
        events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chain.chunks) + "data: [DONE]\n\n"
        made = _as_chat(chat, chain.exchange, events.encode(), streams=True)
        if made is None:
            continue
        for ours, theirs in _Derendered(chat, made, label, by_call=True).pairs():
            yield from _same_message((chat, ours), (made, theirs), label, chat.exchange.label)


def _impossible(call: ControlCall) -> str:
    """Describe why a request to derender has no answer; empty if it may have one."""
    answers = [part for part in (call.sent("answer"), call.sent("event")) if isinstance(part, Mapping)]
    if not answers:
        return "there is no answer to derender"
    choices = [
        choice
        for part in answers
        for choice in as_list(part.get("choices")) or ()
        if isinstance(choice, Mapping)
    ]
    if call.sent("event") is not None and len(choices) > 1:
        return f"{len(choices)} choices have one state"
    ids = (token for choice in choices for token in as_list(choice.get("token_ids")) or ())
    negative = next((token for token in ids if type(token) is int and token < 0), None)
    return "" if negative is None else f"{negative} is not a token id"


@check_run("impossible-derender-refused")
def _impossible_derender_refused(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Check that a request to derender what no server generated is refused."""
    firsts: dict[str, Answer] = {}
    for answer in streams:
        firsts.setdefault(answer.exchange.scenario, answer)
    for call in _calls(target, Action.DERENDER):
        beside, status = firsts.get(call.exchange.scenario), call.exchange.status
        why = _impossible(call) if beside and status is not None else ""
        if beside is not None and why:
            message = f"{call.exchange.label}: status {status}, although {why}"
            yield expect(end_place(beside), "a refusal", status, message, holds=call.refused)


@check_run("conversations-of-a-batch-stand-alone")
def _conversations_of_a_batch_stand_alone(
    streams: tuple[Answer, ...], target: Target
) -> Iterator[Observation]:
    """Compare each choice of a batch of conversations with the answer to its conversation alone."""
    calls = [call for call in _calls(target, Action.BATCH) if call.done]
    found = _by_key(streams) if calls else {}
    for call in calls:
        conversations, label = as_list(call.sent("conversations")), call.exchange.label
        exchange = call.exchange.load()
        body = exchange.request.body
        if not conversations:
            continue
        name = call.places["conversations"].removeprefix("/")
        alone = [found.get(_plan_key("whole", {**body, name: messages})) for messages in conversations]
        first = next(filter(None, alone), None)
        made = _as_chat(first.load(), exchange, exchange.body) if first is not None else None
        if first is None or made is None:
            continue
        by_index = {choice.index: choice for choice in made.choices}
        expected, actual = list(range(len(conversations))), [choice.index for choice in made.choices]
        message = f"{label}: the choices have the indexes {actual} for {len(conversations)} conversations"
        yield expect(end_place(first), expected, actual, message, holds=sorted(actual) == expected)
        for index, answer in enumerate(alone):
            if answer is not None and index in by_index and answer.asked.greedy:
                seen = _same_conversation(answer.load(), made, by_index[index], f"{label}, choice {index}")
                yield from as_declared(seen, target)


def _same_conversation(chat: Stream, made: Stream, choice: Choice, label: str) -> Iterator[Observation]:
    """Compare the ids and the message of a choice with the answer to its conversation alone."""
    ours = chat.choices[0]
    if ours.output_ids and choice.output_ids:
        source = chat.exchange.label
        name = f"{label}: output id"
        if (yield from same_ids((ours, choice), name, source, at=ours)) is not None:
            return
    yield from _same_message((chat, ours), (made, choice), label, chat.exchange.label)


@check_run("counted-tokens-are-the-prompts")
def _counted_tokens_are_the_prompts(streams: tuple[Answer, ...], target: Target) -> Iterator[Observation]:
    """Compare a count of prompt tokens with the prompt tokens of an answer to the same request."""
    calls = [call for call in _calls(target, Action.COUNT) if call.done]
    answered = {call.exchange.scenario for call in calls}
    beside = [answer for answer in streams if answer.exchange.scenario in answered and is_chat(answer)]
    for call in calls:
        counted = call.returned("tokens")
        for answer in beside:
            count = usage_count(answer, "prompt_tokens")
            if count is None or not _same_prompt(answer.load().exchange.request.body, call):
                continue
            label = call.exchange.label
            message = f"{label}: {counted} tokens, but {answer.exchange.label} has {count} prompt tokens"
            yield expect(end_place(answer), count, counted, message)


def _same_prompt(body: object, call: ControlCall) -> bool:
    """True if a request has the prompt whose tokens a call counts."""
    names = (name for name in call.places if name != "tokens")
    return all(part_of(body, call.places[name]) == call.sent(name) for name in names)
