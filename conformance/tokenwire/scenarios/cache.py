"""The prefix cache: a prompt that the server has seen before."""

from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.asking.scenario import Conversation, scenario

_LONGER_THAN_A_PAGE = tuple(10 + (7 * position) % 240 for position in range(150))
"""Longer than any common page size (1 to 128), so that at least one full page can be shared."""


@scenario(chat=False)
async def cached_prompt(talk: Conversation) -> None:
    """A long prompt three times, one after another: cached_tokens of the later ones shows the cache; the
    ids do not.
    """
    ask = Ask(input_ids=(_LONGER_THAN_A_PAGE,), max_new_tokens=8, ignore_eos=True)
    await talk.ask("first", ask)
    await talk.ask("second", ask)
    await talk.ask("stream", replace(ask, stream=True))
