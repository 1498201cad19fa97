"""Requests that must be refused, each followed by one that must not."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Conversation, scenario

_CONTROL = Ask(input_ids=(PROMPT,), max_new_tokens=8, ignore_eos=True)

_MALFORMED: Mapping[str, Any] = {
    "empty": [],
    "string": "12 13",
    "number": 12,
    "string-entry": [12, "13"],
    "fraction-entry": [12, 13.5],
    "null-entry": [12, None],
    "boolean-entry": [12, True],
    "object": {"ids": [12, 13]},
}


@scenario(perilous=True)
async def malformed_ids(talk: Conversation) -> None:
    """input_ids that are no list of integers, whole: each is refused, and the request after it is answered
    as before.
    """
    control = replace(_CONTROL, return_token_ids=talk.chat)
    await talk.ask("control", control)
    for label, value in _MALFORMED.items():
        await talk.ask(label, replace(control, wrong={"input_ids": value}))
        await talk.ask(f"{label}-control", control)


@scenario(chat=True, perilous=True)
async def refused_in_stream(talk: Conversation) -> None:
    """A chat stream that asks for token-in-token-out fields: refused before any event, and nobody is
    harmed.
    """
    fields = {
        "prompt-ids": replace(_CONTROL, return_prompt_token_ids=True),
        "meta-info": replace(_CONTROL, return_meta_info=True),
        "token-ids": replace(_CONTROL, return_token_ids=True),
    }
    control = replace(_CONTROL, return_token_ids=True)
    await talk.ask("control", control)
    for label, ask in fields.items():
        await talk.ask(label, replace(ask, stream=True))
        await talk.ask(f"{label}-control", control)
