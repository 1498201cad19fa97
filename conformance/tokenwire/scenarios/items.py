"""Turns at the endpoints that answer with typed items: what was answered goes back as input."""

from dataclasses import replace
from typing import Any

from tokenwire.ask import Ask
from tokenwire.asking.scenario import Conversation, scenario
from tokenwire.record import Stream

_FIRST = {"role": "user", "content": "Name a sea."}
_SECOND = {"role": "user", "content": "And another."}
_TOKENS = 12


def _given(first: Stream | None) -> list[dict[str, Any]]:
    """Return the part of an answer that the next input repeats: its items, or a turn of the assistant with
    its blocks.
    """
    document = first.events[0].data if first is not None and first.answered and first.events else {}
    if document.get("content"):
        return [{"role": "assistant", "content": document["content"]}]
    items = document.get("output")
    return items if isinstance(items, list) else []


@scenario(chat=True, items=True)
async def item_turns(talk: Conversation) -> None:
    """A second turn with the items of the first answer in its input; where responses are kept, also two that
    name the first answer.
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
        raw = {keeps: first.events[0].data.get("id"), "store": True}
        for branch in ("named", "branch"):  # items of one answer are not before the other
            await talk.ask(branch, replace(ask, messages=(_SECOND,), raw=raw))
