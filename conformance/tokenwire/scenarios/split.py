"""Scenarios for steps around an answer: the split pipeline, batches of conversations, counts of prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenwire.ask import Ask, Budget
from tokenwire.asking.scenario import PROMPT, Conversation, scenario
from tokenwire.dialects.control import Action, ControlCall
from tokenwire.dialects.dialect import Unsupported
from tokenwire.dialects.markup import load_markup
from tokenwire.record import Stream, as_list
from tokenwire.scenarios.channels import TOOLS
from tokenwire.scenarios.forms import with_sayable
from tokenwire.wire.exchange import HttpRequest
from tokenwire.wire.json_pointer import parse, put

_PLAIN = "Hello there, this is plain text: é 😀 done."
_THOUGHT = "Let me see."
_CITY = ("get_weather", {"city": "Paris", "days": 2})
_ROOM, _PROMPT = 64, 1400
"""Token limits of the answer and of the prompt of a model that is not a parrot."""
_TOKENS = 12
_INTERVAL = 10
"""The interval of streams whose events are derendered. Each event is a request."""
_MOST_EVENTS = 9


def _saying(talk: Conversation, words: str, says: str, **more: Any) -> Ask:
    """Return a request whose answer is a text, if the model is a parrot; else a message with these words."""
    script = (*talk.parrot.encode(says), talk.parrot.end) if talk.parrot is not None else ()
    prompt = talk.parrot.ask(talk.dialect, script) if talk.parrot is not None else None
    ask = prompt or Ask(messages=({"role": "user", "content": words},))
    budget = len(script) + 1 if prompt is not None else talk.fitting(_ROOM, _PROMPT)
    asked = replace(ask, max_new_tokens=budget, **more)
    return with_sayable(talk, asked, logprobs=True, top_logprobs=2, return_token_ids=True)


def _asks(talk: Conversation) -> tuple[Ask, Ask]:
    """Return a request for plain text, and a request for reasoning, text and a tool call."""
    think, form = load_markup()[0]["think"], load_markup()[1][talk.tool_calls or "hermes"]
    called = f"{think.opens}\n{_THOUGHT}\n{think.closes}\n\nHere it is.\n{form.spelled(_CITY)}"
    return (
        _saying(talk, "Count to ten.", _PLAIN),
        _saying(talk, "What is the weather in Paris?", called, tools=TOOLS),
    )


def _chat_body(talk: Conversation, ask: Ask) -> dict[str, Any]:
    """Return the body of a request; empty if the dialect cannot express it."""
    request = talk.dialect.render(ask, talk.model)
    return {} if isinstance(request, Unsupported) else dict(request.body)


async def _call(talk: Conversation, label: str, action: Action, **parts: Any) -> ControlCall | None:
    request = talk.control.request_of(action, parts)
    return None if request is None else await talk.call(label, request)


def _document(answer: Stream | None) -> Any:
    return answer.events[0].data if answer is not None and answer.answered and answer.events else None


@scenario(chat=True, budget=Budget.STANDARD, at_most=26)
async def split_pipeline(talk: Conversation) -> None:
    """A chat answer, and the same answer in three steps: the request is rendered to ids, the ids are run, and
    the output is derendered. Plain text, and reasoning with a tool call, without and with streaming. Also
    requests to derender what no server generated.
    """
    table = talk.control.table.get(Action.RENDER)
    if table is None:
        return
    plain, called = _asks(talk)
    document = await _rendered(talk, "plain", plain)
    if document is None:
        return
    await _whole(talk, "plain", plain, document, table)
    of_call = await _rendered(talk, "call", called)
    if of_call is None:  # without parsers, a server refuses tools
        await _streamed(talk, "plain", plain, document, table)
    else:
        await _whole(talk, "call", called, of_call, table)
        await _streamed(talk, "call", called, of_call, table)


@scenario(chat=False, budget=Budget.STANDARD)
async def split_completions(talk: Conversation) -> None:
    """A completion, and the same answer in three steps: the prompt is rendered to ids, the ids are run, and
    the output is derendered.
    """
    table = talk.control.table.get(Action.RENDER_COMPLETIONS)
    if table is None or table["path"] != f"{talk.dialect.endpoint.path}/render":
        return
    plain = with_sayable(
        talk,
        Ask(input_ids=(PROMPT,), max_new_tokens=_TOKENS),
        logprobs=True,
        top_logprobs=2,
        return_token_ids=True,
    )
    body = _chat_body(talk, plain)
    call = await _call(talk, "rendered", Action.RENDER_COMPLETIONS, **body)
    if call is None or not call.done:
        return
    await talk.ask("whole", plain)
    document, ids = call.returned("request"), as_list(call.returned("ids"))
    if not ids or not isinstance(document.get("sampling_params"), Mapping):
        return
    generated = _document(await talk.ask("ids", _run(table, document)))
    if isinstance(generated, dict):
        given = {"request": body, "prompt": ids, "prompt_tokens": len(ids)}
        await _call(talk, "derendered", Action.DERENDER_COMPLETIONS, answer=generated, **given)


async def _rendered(talk: Conversation, label: str, ask: Ask) -> Mapping[str, Any] | None:
    """Render a request, and send it; return the rendered request, or None without one."""
    call = await _call(talk, f"{label}-rendered", Action.RENDER, **_chat_body(talk, ask))
    if call is None or not call.done:
        return None
    await talk.ask(label, ask)
    usable = as_list(call.returned("ids")) and isinstance(call.document.get("sampling_params"), Mapping)
    return call.document if usable else None


def _run(table: Mapping[str, Any], document: Mapping[str, Any], **fields: Any) -> HttpRequest:
    """Return the request that runs a rendered request, with other fields by their names in the table."""
    body = {**document, "sampling_params": dict(document["sampling_params"])}
    for name, value in fields.items():
        put(body, parse(table.get(name, f"/{name}")), value)
    return HttpRequest("POST", table["then"], body)


async def _whole(
    talk: Conversation, label: str, ask: Ask, document: Mapping[str, Any], table: Mapping[str, Any]
) -> None:
    """Run a rendered request in each output mode, and derender the ids. With plain text, also derender what
    no server generated.
    """
    generated = _document(await talk.ask(f"{label}-ids", _run(table, document)))
    await talk.ask(f"{label}-derender", _run(table, document, mode="derender"))
    if label != "plain":
        for way, streams in (("text", False), ("text-stream", True)):
            await talk.ask(f"{label}-{way}", _run(table, document, mode="text", stream=streams))
    if not isinstance(generated, dict):
        return
    given = {"request": _chat_body(talk, ask), **_prompt(document)}
    await _call(talk, f"{label}-derendered", Action.DERENDER, answer=generated, **given)
    choices = [choice for choice in as_list(generated.get("choices")) or () if isinstance(choice, dict)]
    if label != "plain" or not choices:
        return
    negative = {**choices[0], "token_ids": [-1], "logprobs": None}
    bad: dict[str, dict[str, Any]] = {
        "no-answer": {},
        "negative-id": {"answer": {**generated, "choices": [negative]}},
        "two-choices": {
            "stream": True,
            "event": {**generated, "choices": [{**choices[0], "index": index} for index in range(2)]},
        },
    }
    for name, wrong in bad.items():
        await _call(talk, f"{label}-{name}", Action.DERENDER, **given, **wrong)


def _prompt(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a request to derender that concern the prompt."""
    ids = document["token_ids"]
    return {"prompt": ids, "prompt_tokens": len(ids)}


async def _streamed(
    talk: Conversation, label: str, ask: Ask, document: Mapping[str, Any], table: Mapping[str, Any]
) -> None:
    """Stream a chat answer, and derender the events of a stream of its ids, one after the other."""
    streamed = replace(ask, stream=True, stream_interval=_INTERVAL, usage=True)
    body = _chat_body(talk, streamed)
    await talk.ask(f"{label}-stream", streamed)
    options = {"stream_options": {"include_usage": True}}
    request = _run(table, document, stream=True, interval=_INTERVAL, **options)
    answer = await talk.ask(f"{label}-ids-stream", request)
    state: Any = None
    events = answer.events if answer is not None and answer.answered else ()
    chunks = [event.data for event in events if isinstance(event.data, dict)]
    for number, chunk in enumerate(chunks[:_MOST_EVENTS]):
        given = {"stream": True, "event": chunk, "state": state, "request": body, **_prompt(document)}
        call = await _call(talk, f"{label}-event-{number}", Action.DERENDER, **given)
        if call is None or not call.done:
            return
        state = call.returned("state")


_CONVERSATIONS = (
    ({"role": "user", "content": "Count to ten."},),
    (
        {"role": "user", "content": "Name a sea."},
        {"role": "assistant", "content": "The Baltic."},
        {"role": "user", "content": "And another."},
    ),
    ({"role": "user", "content": "Say nothing for long."},),
)


@scenario(chat=True, budget=Budget.STANDARD)
async def conversations_at_once(talk: Conversation) -> None:
    """Three conversations in one request, and each conversation alone."""
    ask = with_sayable(talk, Ask(max_new_tokens=12), return_token_ids=True)
    alone = [replace(ask, messages=messages) for messages in _CONVERSATIONS]
    parts = {**_chat_body(talk, alone[0]), "conversations": list(map(list, _CONVERSATIONS))}
    parts.pop("messages", None)
    call = await _call(talk, "together", Action.BATCH, **parts)
    if call is not None and call.done:
        await talk.ask_all({f"alone-{index}": ask for index, ask in enumerate(alone)})


@scenario(chat=True, budget=Budget.STANDARD)
async def counted_prompts(talk: Conversation) -> None:
    """Requests for the number of prompt tokens, and answers to the same requests: a message, a conversation,
    and a message with tools.
    """
    places = talk.control.table.get(Action.COUNT, {}).get("places", {})
    for label, ask in {
        "message": Ask(messages=_CONVERSATIONS[0], max_new_tokens=4),
        "conversation": Ask(messages=_CONVERSATIONS[1], max_new_tokens=4),
        "tools": Ask(messages=_CONVERSATIONS[0], max_new_tokens=4, tools=TOOLS),
    }.items():
        body = _chat_body(talk, ask)
        kept = {name: body[name] for name in ("model", *places) if name in body}
        call = await _call(talk, f"{label}-counted", Action.COUNT, **kept)
        if call is None or not call.done:
            return
        await talk.ask(label, ask)
