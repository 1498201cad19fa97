"""Several choices in one answer: batches of prompts, and samples of one prompt."""

from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Conversation, scenario

_PROMPTS = (PROMPT, PROMPT[:3], PROMPT[2:9])
"""Of unequal lengths, so that prompt ids that change places are seen."""


@scenario(chat=False)
async def samples(talk: Conversation) -> None:
    """One prompt, three samples, whole and streamed: choices 0 to 2, each with its own ids and its prompt's
    ids.
    """
    ask = Ask(
        input_ids=(PROMPT,),
        n=3,
        max_new_tokens=10,
        temperature=1.0,
        logprobs=True,
        return_prompt_token_ids=True,
    )
    await talk.ask_all({"whole": ask, "stream": replace(ask, stream=True)})


@scenario(chat=False)
async def batch_of_prompts(talk: Conversation) -> None:
    """Three prompts of unequal length in one request, whole and streamed: one choice each, prompt by
    prompt.
    """
    ask = Ask(
        input_ids=_PROMPTS,
        batch=True,
        max_new_tokens=12,
        ignore_eos=True,
        logprobs=True,
        return_prompt_token_ids=True,
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
async def batch_with_samples(talk: Conversation) -> None:
    """Two prompts with two samples each: four choices, the samples of one prompt beside each other."""
    ask = Ask(input_ids=_PROMPTS[:2], batch=True, n=2, max_new_tokens=8, return_prompt_token_ids=True)
    await talk.ask_all({"whole": ask, "stream": replace(ask, stream=True)})


@scenario(chat=False)
async def batch_of_one(talk: Conversation) -> None:
    """A list of one prompt is still a batch: the answer is a list of one choice."""
    ask = Ask(input_ids=(PROMPT,), batch=True, max_new_tokens=8, return_prompt_token_ids=True)
    await talk.ask_all({"whole": ask, "stream": replace(ask, stream=True)})


@scenario(chat=False)
async def batch_and_singles(talk: Conversation) -> None:
    """Prompts of unequal length by themselves, twice each, and together: a batch is its prompts."""
    ask = Ask(max_new_tokens=12, ignore_eos=True, logprobs=True)
    prompts = (PROMPT[1:], PROMPT[3:5], PROMPT[:9], PROMPT * 3)
    for position, ids in enumerate(prompts):
        single = replace(ask, input_ids=(ids,))
        await talk.ask_all({f"single-{position}": single, f"single-{position}-again": single})
    together = replace(ask, input_ids=prompts, batch=True)
    await talk.ask_all({"whole": together, "stream": replace(together, stream=True)})
