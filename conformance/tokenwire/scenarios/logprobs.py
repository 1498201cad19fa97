"""Logprobs: of the sampled ids, of the top, of chosen ids, and of the prompt."""

from dataclasses import replace

from tokenwire.ask import Ask, Budget
from tokenwire.asking.scenario import PROMPT, Conversation, scenario, token_ids

_CHOSEN = (40, 11, 97)
"""Not in rising order: the answer must keep the order of the request."""


@scenario(chat=False)
async def logprob_families(talk: Conversation) -> None:
    """Logprobs of the sampled ids, the top three and three chosen ids; whole, streamed, and several ids to
    an event.
    """
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=24, ignore_eos=True, logprobs=True, top_logprobs=3)
    streamed = replace(ask, stream=True, usage=True)
    await talk.ask_all(
        {
            "whole": ask,
            "whole-again": ask,
            "stream": streamed,
            "interval-4": replace(streamed, stream_interval=4),
            "chosen-whole": replace(ask, chosen_ids=_CHOSEN),
            "chosen-otherwise": replace(ask, chosen_ids=_CHOSEN[::-1]),
            "chosen-of-samples": replace(ask, chosen_ids=_CHOSEN, n=2, max_new_tokens=6),
            "chosen-stream": replace(streamed, chosen_ids=_CHOSEN),
        }
    )


@scenario(chat=False)
async def prompt_logprobs(talk: Conversation) -> None:
    """Logprobs of the prompt from its first, second, third, middle and last position and from its end, whole;
    and streamed, where the first event has them.
    """
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=6, ignore_eos=True, logprobs=True, top_logprobs=2)
    size = len(PROMPT)
    for start in (0, 1, 2, size // 2, size - 1, size):
        await talk.ask(f"from-{start}-whole", replace(ask, logprob_start=start))
        if start in (0, 2):
            await talk.ask(f"from-{start}-stream", replace(ask, logprob_start=start, stream=True))


@scenario(chat=False)
async def rescored_output(talk: Conversation) -> None:
    """Answers to three prompts with their logprobs, then prompt and output sent back as a prompt: prefill
    gives the ids the logprobs that they had when they were sampled.
    """
    for label, prompt in (("", PROMPT), ("-short", PROMPT[:5]), ("-turned", PROMPT[::-1])):
        ask = Ask(input_ids=(prompt,), max_new_tokens=16, ignore_eos=True, logprobs=True)
        ids = token_ids(await talk.ask(f"sampled{label}", ask))
        if ids:
            back = replace(ask, input_ids=((*prompt, *ids),), max_new_tokens=1)
            await talk.ask(f"scored{label}", replace(back, logprob_start=0, top_logprobs=1))


@scenario(chat=False)
async def logprobs_at_a_temperature(talk: Conversation) -> None:
    """Top logprobs after one prompt, greedy, at temperature 0.5, and at 1 with top_k, whole and streamed: how
    far apart they lie tells whether logits are divided by the temperature first, and how high they are
    whether what truncation leaves out counts.
    """
    greedy = Ask(input_ids=(PROMPT,), max_new_tokens=4, ignore_eos=True, logprobs=True, top_logprobs=5)
    warm = replace(greedy, temperature=0.5, seed=7)
    short = replace(greedy, temperature=1.0, seed=7, top_k=2)
    asks = {"whole": warm, "whole-again": warm, "top-k": short, "top-k-again": short}
    streams = {"stream": replace(warm, stream=True), "top-k-stream": replace(short, stream=True)}
    await talk.ask_all({"greedy": greedy, **asks, **streams})


@scenario(chat=False, budget=Budget.QUICK)
async def echoed_prompt(talk: Conversation) -> None:
    """A text and ids with and without an echo, with and without logprobs, whole and streamed, and echoed with
    no new token. Ids are not asked for beside a text: some servers tell them in the place of the echoed text.
    """
    text = Ask(text=("The sea is",), max_new_tokens=6, ignore_eos=True)
    ids = Ask(input_ids=(PROMPT,), max_new_tokens=6, ignore_eos=True, return_token_ids=True)
    for label, ask in (("text", replace(text, raw={"return_token_ids": False})), ("ids", ids)):
        if await talk.ask(f"{label}-echo", replace(ask, echo=True)) is None:
            return
        await talk.ask_all(
            {
                f"{label}-plain": ask,
                f"{label}-echo-alone": replace(
                    ask, echo=True, max_new_tokens=0, logprobs=True, top_logprobs=2
                ),
                f"{label}-echo-stream": replace(ask, echo=True, stream=True, usage=True),
                f"{label}-logprobs": replace(ask, logprobs=True, top_logprobs=2),
                f"{label}-echo-logprobs": replace(ask, echo=True, logprobs=True, top_logprobs=2),
                f"{label}-echo-logprobs-stream": replace(
                    ask, echo=True, logprobs=True, top_logprobs=2, stream=True, usage=True
                ),
            }
        )
