"""Scenarios with many concurrent requests and with slow readers, so that the server joins outputs."""

from dataclasses import replace

from tokenwire.ask import Ask, Budget
from tokenwire.asking.scenario import PROMPT, Conversation, Steps, scenario, together
from tokenwire.asking.tap import SlowReader, Tap
from tokenwire.scenarios.abort import long_ask
from tokenwire.target.capability import WAITING_TIMEOUT

_STREAMS = 16
_LONG_PROMPT = PROMPT * 4


@scenario(chat=False)
def _concurrency(_: Conversation) -> Steps:
    """Many concurrent streams, as many as the run's limit allows.

    Outputs are queued in the server, and the answers must not be mixed up.
    """
    ask = Ask(max_new_tokens=40, ignore_eos=True, stream=True, logprobs=True)
    yield {
        f"stream-{position}": replace(ask, input_ids=((*PROMPT, 10 + position),))
        for position in range(_STREAMS)
    }


@scenario(chat=False)
async def _slow_reader(talk: Conversation) -> None:
    """Clients that stop reading early, and read the rest late.

    Events with more ids than the interval show that outputs were joined. Prompt logprobs in every event make
    it large, so that buffers fill up soon; they are not requested if streams refuse them. A gateway reads
    ahead and joins nothing, so its whole stream must fit into the recorder.
    """
    refused = talk.dialect.policy.prompt_logprobs_in_streams == "refused"
    ask = Ask(
        input_ids=(_LONG_PROMPT,),
        max_new_tokens=200,
        ignore_eos=True,
        logprobs=True,
        logprob_start=None if refused else 0,
        top_logprobs=5,
    )
    streamed = replace(ask, stream=True)
    await talk.ask_all({"whole": ask, "whole-again": ask})
    await talk.ask_all(
        {"slow": streamed, "slow-interval-4": replace(streamed, stream_interval=4)}, slow_reader=SlowReader()
    )


@scenario(chat=False, budget=Budget.STANDARD, storm=True)
async def _crowd(talk: Conversation) -> None:
    """Twenty-four streams, as many at once as the run's limit allows.

    Every eighth has a client that stops reading. Outputs are joined, and each answer must stay separate. Some
    are samples or batches, whose choices share a stream.
    """
    ask = Ask(max_new_tokens=64, ignore_eos=True, stream=True, logprobs=True, top_logprobs=2)
    asks = {
        f"stream-{position}": replace(ask, input_ids=((12 + position, *PROMPT),)) for position in range(24)
    }
    several = replace(ask, temperature=1.0, n=3)
    for position in range(4):
        prompts = ((90 + position, *PROMPT), PROMPT[position:])
        asks[f"samples-{position}"] = replace(several, input_ids=prompts[:1])
        asks[f"batch-{position}"] = replace(several, input_ids=prompts, batch=True, n=2)
    stalling = {label for position, label in enumerate(asks) if position % 8 == 0}
    await together(
        *(
            talk.ask(label, ask, slow_reader=SlowReader(pause_s=0.5) if label in stalling else None)
            for label, ask in asks.items()
        )
    )


_RUNNING = 1000
"""The number of tokens of the running request, which the waiting requests must wait for."""
_WAITING = 6


@scenario(chat=False, budget=Budget.STANDARD, alone=True)
async def _waiting_timeout(talk: Conversation) -> None:
    """Requests that wait behind a stream of many tokens, on a server that is declared to end requests that
    wait too long. Then a request that does not have to wait, which must be answered.
    """
    if WAITING_TIMEOUT not in talk.declared:
        return
    tap = Tap()
    short = Ask(input_ids=(PROMPT,), max_new_tokens=4)

    async def wait() -> None:
        if await tap.events(1):
            asks = {f"waiting-{number}": long_ask(talk, _RUNNING) for number in range(_WAITING)}
            await talk.ask_all(asks)

    await together(talk.ask("running", replace(long_ask(talk, _RUNNING), stream=True), tap=tap), wait())
    await talk.ask("afterwards", short)
