"""A gateway and the worker behind it: the same requests to both."""

from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.asking.flags import flagged
from tokenwire.asking.scenario import PROMPT, Conversation, scenario

_WORDS = "Tell me about the sea."


@scenario(worker=True)
async def gateway(talk: Conversation) -> None:
    """Everything that a gateway has to pass on, asked of it and of its worker: each flag, whole and streamed,
    several choices and prompts, a prompt in words, and requests that are refused.
    """
    ids = Ask(input_ids=(PROMPT,), max_new_tokens=12, ignore_eos=True)
    words = Ask(
        text=() if talk.chat else (_WORDS,),
        messages=({"role": "user", "content": _WORDS},) if talk.chat else (),
        max_new_tokens=12,
    )
    asks = {"whole": words, "whole-again": words, "stream": replace(words, stream=True)}
    asks |= {"ids-whole": ids, "ids-stream": replace(ids, stream=True)}
    for form, ask in (("words", words), ("ids", ids)):
        for label, one in flagged(talk.dialect, ask).items():
            asks[f"{form}-{label}-whole"] = one
        for label, one in flagged(talk.dialect, replace(ask, stream=True)).items():
            asks[f"{form}-{label}-stream"] = one
    samples = replace(words, n=2, logprobs=True)
    asks |= {"samples-whole": samples, "samples-stream": replace(samples, stream=True)}
    batch = replace(ids, input_ids=(PROMPT, PROMPT[:5]), logprobs=True)
    asks |= {"batch-whole": batch, "batch-stream": replace(batch, stream=True)}
    asks |= {"refused-budget": replace(ids, wrong={"max_new_tokens": "many"})}
    asks |= {"refused-temperature": replace(ids, wrong={"temperature": "warm"})}
    await talk.ask_all(asks)
