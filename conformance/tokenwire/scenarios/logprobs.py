"""Logprobs: of the sampled ids, of the top, of chosen ids, and of the prompt."""

from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.scenario import PROMPT, Conversation, scenario

_CHOSEN = (40, 11, 97)
"""Not in rising order: the answer must keep the order of the request."""


@scenario(chat=False)
async def logprob_families(talk: Conversation) -> None:
    """Logprobs of the sampled ids, the top three and three chosen ids; whole, streamed, and several ids to
    an event.
    """
    ask = Ask(
        input_ids=(PROMPT,),
        max_new_tokens=24,
        ignore_eos=True,
        logprobs=True,
        top_logprobs=3,
        chosen_ids=_CHOSEN,
    )
    streamed = replace(ask, stream=True)
    await talk.ask_all(
        {
            "whole": ask,
            "whole-again": ask,
            "stream": streamed,
            "interval-4": replace(streamed, stream_interval=4),
        }
    )


@scenario(chat=False)
async def prompt_logprobs(talk: Conversation) -> None:
    """Logprobs of the prompt from its first and from its third position, whole and streamed."""
    for start in (0, 2):
        ask = Ask(
            input_ids=(PROMPT,),
            max_new_tokens=6,
            ignore_eos=True,
            logprobs=True,
            logprob_start=start,
            top_logprobs=2,
        )
        await talk.ask_all({f"from-{start}-whole": ask, f"from-{start}-stream": replace(ask, stream=True)})
