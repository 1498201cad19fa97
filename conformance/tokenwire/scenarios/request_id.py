"""Request ids."""

import secrets
from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Conversation, scenario


@scenario(chat=False)
async def request_id(talk: Conversation) -> None:
    """A request id of the client's choice, whole and streamed: it comes back, and it does not change on the
    way.
    """
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=8, ignore_eos=True)
    run = secrets.token_hex(4)  # an id that is still in flight would be refused
    await talk.ask_all(
        {
            "whole": replace(ask, request_id=f"tokenwire-{run}-whole"),
            "stream": replace(ask, request_id=f"tokenwire-{run}-stream", stream=True),
        }
    )
