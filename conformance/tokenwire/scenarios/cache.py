"""The prefix cache: a prompt that the server has seen before."""

from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.asking.scenario import Conversation, Steps, scenario

_LONGER_THAN_A_PAGE = tuple(10 + (7 * position) % 240 for position in range(150))
"""Longer than any common page size (1 to 128), so that at least one full page can be shared."""


@scenario(chat=False)
def _cached_prompt(_: Conversation) -> Steps:
    """A long prompt a few times, whole and streamed by turns: cached_tokens of the later ones shows the
    cache, in both; the ids do not.
    """
    ask = Ask(input_ids=(_LONGER_THAN_A_PAGE,), max_new_tokens=8, ignore_eos=True)
    for turn in ("first", "second", "third"):
        yield {turn: ask}
        yield {f"{turn}-stream": replace(ask, stream=True)}
