"""One record, delivered in many ways."""

from dataclasses import replace

from tokenwire.ask import Ask, Budget
from tokenwire.asking.scenario import PROMPT, Conversation, scenario


@scenario(chat=False)
async def greedy_stream(talk: Conversation) -> None:
    """One greedy request, whole (twice) and streamed at several intervals: all must join to the same
    record.
    """
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=talk.fitting(48), ignore_eos=True)
    streamed = replace(ask, stream=True)
    intervals = {f"interval-{k}": replace(streamed, stream_interval=k) for k in talk.intervals}
    await talk.ask_all({"whole": ask, "whole-again": ask, "stream": streamed, **intervals})


@scenario(chat=False)
async def natural_end(talk: Conversation) -> None:
    """Two text prompts run until the model ends by itself or the budget does: the finish reason tells
    which.
    """
    for label, text in (("question", "Who are you?"), ("counting", "One, two, three, four,")):
        ask = Ask(text=(text,), max_new_tokens=talk.fitting(64, 64))
        await talk.ask_all({f"{label}-whole": ask, f"{label}-stream": replace(ask, stream=True)})


@scenario(chat=False)
async def long_output(talk: Conversation) -> None:
    """More tokens than a server holds back for a whole answer (SGLang: 50), with logprobs: nothing may get
    lost.
    """
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=talk.fitting(130), ignore_eos=True, logprobs=True)
    streamed = replace(ask, stream=True, usage=True)
    intervals = {f"interval-{k}": replace(streamed, stream_interval=k) for k in (8, 60)}
    await talk.ask_all({"whole": ask, "whole-again": ask, "stream": streamed, **intervals})


@scenario(chat=False)
async def small_budget(talk: Conversation) -> None:
    """Budgets of no token and of one, at both ends of what can be delivered: first and last event are the
    same.
    """
    for budget in (0, 1):
        ask = Ask(input_ids=(PROMPT,), max_new_tokens=budget, ignore_eos=True, logprobs=True)
        await talk.ask_all({f"{budget}-whole": ask, f"{budget}-stream": replace(ask, stream=True)})


@scenario(chat=False)
async def interval_borders(talk: Conversation) -> None:
    """Budgets around the interval: the last event is as short as one token, or as long as the interval."""
    around = range(1, 24) if talk.budget is Budget.SOAK else (4, 5, 6, 10, 11)
    budgets = {f"{budget}-of-5": budget for budget in around}
    ask = Ask(input_ids=(PROMPT,), stream=True, stream_interval=5, ignore_eos=True)
    await talk.ask_all({label: replace(ask, max_new_tokens=budget) for label, budget in budgets.items()})


@scenario(chat=False)
async def sampled(talk: Conversation) -> None:
    """Sampled requests with a seed, twice, and without: what holds within one answer must hold here too. A
    stream is held against the whole answers where these are alike.
    """
    ask = Ask(
        input_ids=(PROMPT,), max_new_tokens=talk.fitting(24), ignore_eos=True, temperature=1.0, logprobs=True
    )
    await talk.ask_all({"whole": ask, "stream": replace(ask, stream=True, stream_interval=3)})
    seeds = range(7, 23) if talk.budget is Budget.SOAK else (7,)
    for seed in seeds:
        seeded = replace(ask, seed=seed)
        await talk.ask_all(
            {
                f"seed-{seed}-whole": seeded,
                f"seed-{seed}-whole-again": seeded,
                f"seed-{seed}-stream": replace(seeded, stream=True),
            }
        )
