"""Scenarios that request the same answer in several ways, with and without streaming."""

from dataclasses import replace

from tokenwire.ask import Ask, Budget
from tokenwire.asking.scenario import PROMPT, Conversation, Steps, scenario
from tokenwire.scenarios.forms import forms

_ASK = Ask(input_ids=(PROMPT,), ignore_eos=True)


@scenario(chat=False)
def _greedy_stream(talk: Conversation) -> Steps:
    """A greedy request without streaming (twice) and with streaming at several intervals.

    The parts of each stream must join to the same record.
    """
    yield forms(replace(_ASK, max_new_tokens=48), again=True, intervals=talk.intervals)


@scenario(chat=False)
def _natural_end(_: Conversation) -> Steps:
    """Two text prompts whose answers end by themselves, or at the token limit.

    The finish reason shows which of the two ended the answer.
    """
    yield forms(Ask(text=("Who are you?",), max_new_tokens=64), "question")
    yield forms(Ask(text=("One, two, three, four,",), max_new_tokens=64), "counting")


@scenario(chat=False)
def _long_output(_: Conversation) -> Steps:
    """More tokens than a server holds back for a complete answer (SGLang: 50), with logprobs.

    All tokens must arrive.
    """
    yield forms(replace(_ASK, max_new_tokens=130, logprobs=True), again=True, intervals=(8, 60), usage=True)


@scenario(chat=False)
def _small_budget(_: Conversation) -> Steps:
    """Limits of zero tokens and of one. The first event is also the last."""
    for budget in (0, 1):
        yield forms(replace(_ASK, max_new_tokens=budget, logprobs=True), f"{budget}")


@scenario(chat=False)
def _interval_borders(talk: Conversation) -> Steps:
    """Token limits near multiples of the interval.

    The last event has one token at least, and as many as the interval at most.
    """
    around = range(1, 24) if talk.budget is Budget.SOAK else (4, 5, 6, 10, 11)
    ask = replace(_ASK, stream=True, stream_interval=5)
    yield {f"{budget}-of-5": replace(ask, max_new_tokens=budget) for budget in around}


@scenario(chat=False)
def _sampled(talk: Conversation) -> Steps:
    """Sampled requests with a seed, twice, and without one.

    All requirements about a single answer apply here, too. A stream is compared with the complete answers if
    the complete answers are equal.
    """
    ask = replace(_ASK, max_new_tokens=24, temperature=1.0, logprobs=True)
    yield {"whole": ask, "stream": replace(ask, stream=True, stream_interval=3)}
    for seed in range(7, 23) if talk.budget is Budget.SOAK else (7,):
        yield forms(replace(ask, seed=seed), f"seed-{seed}", again=True)
