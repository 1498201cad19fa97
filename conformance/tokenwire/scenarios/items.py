"""Scenarios for endpoints with typed items: a second turn, and responses that the server stores."""

import asyncio
import time
from dataclasses import replace
from typing import Any

from tokenwire.ask import Ask, Budget, Tool
from tokenwire.asking.scenario import Conversation, scenario
from tokenwire.dialects.control import UNDER_WAY, Action, ControlCall
from tokenwire.dialects.dialect import Unsupported
from tokenwire.dialects.item_binding import INPUT
from tokenwire.dialects.markup import load_markup
from tokenwire.record import Stream
from tokenwire.scenarios.channels import spoken

_FIRST = {"role": "user", "content": "Name a sea."}
_SECOND = {"role": "user", "content": "And another."}
_TOKENS = 12


def _given(first: Stream | None) -> list[dict[str, Any]]:
    """Return the part of an answer that the next input repeats: its items, or a message with its content
    blocks.
    """
    document = first.document if first is not None else {}
    if document.get("content"):
        return [{"role": "assistant", "content": document["content"]}]
    items = document.get("output")
    return items if isinstance(items, list) else []


@scenario(chat=True, items=True)
async def item_turns(talk: Conversation) -> None:
    """A second turn whose input contains the items of the first answer.

    If the server stores responses, also two turns that refer to the first answer by its id.
    """
    ask = Ask(messages=(_FIRST,), max_new_tokens=_TOKENS)
    keeps = talk.dialect.request.goes_on
    first = await talk.ask("first", replace(ask, raw={"store": True}) if keeps else ask)
    given = _given(first)
    if not given:
        return
    repeated = replace(ask, messages=(_FIRST, *given, _SECOND))
    await talk.ask("repeated", repeated)
    await talk.ask("repeated-stream", replace(repeated, stream=True))
    if keeps and first is not None:
        raw = {keeps: first.document.get("id"), "store": True}
        for branch in ("named", "branch"):  # neither turn may see the items of the other one
            await talk.ask(branch, replace(ask, messages=(_SECOND,), raw=raw))


_PATCH = '*** Add File: a "b".txt\n+{"input": "\\é😀"}\n'
"""The input of a call of a custom tool, with characters that JSON has to escape."""


@scenario(chat=True, items=True)
async def custom_tools(talk: Conversation) -> None:
    """Calls of a custom tool, whose input is a text, beside a function.

    They are requested without and with streaming, and then sent back with the output of the tool. A parrot
    outputs the calls; other models are asked for a patch. One custom tool has a grammar for its input.
    """
    tool = talk.dialect.request.tool
    if tool is None or not tool.free:
        return
    free, function = tool.free_form(_TOOL), tool.written(Tool("ping", "ping", {"type": "object"}))
    asked = {"role": "user", "content": f"Add a file with the tool {_TOOL}."}
    plain = Ask(messages=(asked,), max_new_tokens=talk.fitting(_ROOM, _PROMPT))
    form = load_markup()[1][talk.tool_calls or "hermes"]
    spelled = form.spelled((_TOOL, {INPUT: _PATCH}), ("ping", {}))
    ask = replace(
        spoken(talk, spelled, plain), raw={"tools": [free, function]}, max_new_tokens=plain.max_new_tokens
    )
    first = await talk.ask("whole", ask)
    await talk.ask("stream", replace(ask, stream=True))
    grammar = {**free, "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}}
    await talk.ask("grammar", replace(ask, raw={"tools": [grammar]}))
    calls = [item for item in _given(first) if item.get("type") == tool.free_call]
    if calls:
        output = {"type": f"{tool.free_call}_output", "call_id": calls[0].get("call_id"), "output": "Done."}
        await talk.ask("given-back", replace(ask, messages=(*ask.messages, *calls, output)))


_TOOL = "apply_patch"
_ROOM, _PROMPT = 120, 400
"""The tokens of the longest answer, and of a prompt that spells it."""
_THIRD = {"role": "user", "content": "And one more."}
_PATIENCE_S = 10.0
"""The most seconds for a response in the background, after the same request was answered normally."""
_BRIEF = "Answer in one word, and do not explain it."
_LONG = 600
"""More tokens than a server can generate while a cancellation is on its way."""


def _name(answer: Stream | None) -> str:
    """Return the id of a response; empty if it has none."""
    data = answer.events[0].data if answer is not None and answer.answered and answer.events else None
    held = data.get("response", data) if isinstance(data, dict) else None
    return str(held.get("id") or "") if isinstance(held, dict) else ""


async def _call(talk: Conversation, label: str, action: Action, name: str) -> ControlCall | None:
    """Send a request about a stored response; None if a limit prevents it, or if the response has no id."""
    request = talk.control.response_request(action, name) if name else None
    return await talk.call(label, request) if request is not None else None


async def _begin(talk: Conversation, label: str, ask: Ask) -> str:
    """Begin a response in the background; return its id, or an empty string if it is refused."""
    request = talk.dialect.render(replace(ask, raw={"store": True, "background": True}), talk.model)
    call = None if isinstance(request, Unsupported) else await talk.call(label, request)
    return str(call.document.get("id") or "") if call is not None and call.done else ""


async def _look(talk: Conversation, label: str, name: str) -> None:
    """Retrieve a response until it has ended, or until `_PATIENCE_S` is over."""
    until, wait, number = time.monotonic() + _PATIENCE_S, 0.05, 0
    while time.monotonic() < until:
        number += 1
        call = await _call(talk, f"{label}-{number}", Action.RETRIEVE, name)
        if call is None or call.document.get("status") not in UNDER_WAY:
            return
        await asyncio.sleep(wait)
        wait = min(2 * wait, 1.0)


@scenario(chat=True, items=True, budget=Budget.STANDARD, at_most=40)
async def response_life(talk: Conversation) -> None:
    """Responses that the server stores, if it stores any: retrieved, continued twice, made in the background,
    cancelled and deleted. Also a response that must not be stored, and a response whose instructions must not
    apply to the next response.
    """
    ask = Ask(messages=(_FIRST,), max_new_tokens=_TOKENS)
    stored = replace(ask, raw={"store": True})
    keeps = talk.dialect.request.goes_on
    if not keeps or talk.control.response_request(Action.RETRIEVE, "any") is None:
        return
    first = await talk.ask("stored", stored)
    found = await _call(talk, "stored-retrieved", Action.RETRIEVE, _name(first))
    if found is None or not found.done:
        return
    for label, other in (("streamed", replace(stored, stream=True)), ("unstored", ask)):
        await _call(talk, f"{label}-retrieved", Action.RETRIEVE, _name(await talk.ask(label, other)))
    await _continue(talk, keeps, stored, first)
    name = await _begin(talk, "background", ask)
    await talk.ask("foreground", stored)
    await _look(talk, "background-retrieved", name)
    long = replace(ask, max_new_tokens=talk.fitting(_LONG, 64))
    cancelled = await _begin(talk, "to-cancel", long)
    await _call(talk, "cancel", Action.CANCEL, cancelled)
    await _call(talk, "delete", Action.DELETE, _name(first))
    await _call(talk, "deleted-retrieved", Action.RETRIEVE, _name(first))
    await _call(talk, "cancelled-retrieved", Action.RETRIEVE, cancelled)


async def _continue(talk: Conversation, keeps: str, stored: Ask, first: Stream | None) -> None:
    """Continue a response, then continue the new response, and then continue a response that had
    instructions. Each request is also sent with the complete input.
    """

    def naming(answer: Stream | None, turn: dict[str, Any]) -> Ask:
        return replace(stored, messages=(turn,), raw={"store": True, keeps: _name(answer)})

    second = await talk.ask("second", naming(first, _SECOND))
    if not _given(first) or not _given(second):
        return
    history = (_FIRST, *_given(first), _SECOND)
    await talk.ask("third", naming(second, _THIRD))
    await talk.ask("third-repeated", replace(stored, messages=(*history, *_given(second), _THIRD)))
    instructed = await talk.ask("instructed", replace(stored, raw={"store": True, "instructions": _BRIEF}))
    if _given(instructed):
        await talk.ask("uninstructed", naming(instructed, _SECOND))
        history = (_FIRST, *_given(instructed), _SECOND)
        await talk.ask("uninstructed-repeated", replace(stored, messages=history))
