"""What trainers ask beside logprobs: sampling masks, arrays with a row for each token, partial rollouts."""

from dataclasses import replace

from tokenwire.ask import Budget
from tokenwire.asking.flags import flagged
from tokenwire.asking.scenario import Conversation, scenario, together
from tokenwire.asking.tap import Tap
from tokenwire.dialects.control import Action
from tokenwire.scenarios.abort import long_ask
from tokenwire.scenarios.plain_ask import plain_ask

_MASK = "return-sampling-mask"
_ARRAYS = (_MASK, "return-routed-experts", "return-hidden-states")


@scenario(chat=False)
async def token_arrays(talk: Conversation) -> None:
    """Sampling masks, routed experts and hidden states, each whole and streamed, where the endpoint knows the
    field that asks for it. Masks are asked for at temperature 1 among three ids, with a seed.
    """
    ask = replace(plain_ask(talk), max_new_tokens=talk.fitting(12, 64))
    drawn = replace(ask, temperature=1.0, top_k=3, seed=11)
    for label in _ARRAYS:
        plain = drawn if label == _MASK else ask
        asks = {
            mode: flagged(talk.dialect, replace(plain, stream=mode == "stream"))
            for mode in ("whole", "stream")
        }
        await talk.ask_all({f"{label}-{mode}": each[label] for mode, each in asks.items() if label in each})


_AT_ONCE = 6
_LONG = 400
"""More tokens than a server is likely to make while a call is on its way."""


@scenario(chat=False, budget=Budget.STANDARD, alone=True, storm=True)
async def abort_of_everything(talk: Conversation) -> None:
    """Streams and whole answers at once, more than a small server runs; when the first stream has begun,
    everything is aborted: each is given back with what it has.
    """
    request = talk.control.abort_of_everything if talk.control is not None else None
    if request is None:
        return
    ask, tap = long_ask(talk, _LONG), Tap()
    asks = {f"{number}": replace(ask, stream=number % 2 == 0) for number in range(1, _AT_ONCE)}

    async def abort_all() -> None:
        if await tap.events(2):
            await talk.call("abort-all", request)

    await together(
        talk.ask("first", replace(ask, stream=True), tap=tap),
        *(talk.ask(label, one) for label, one in asks.items()),
        abort_all(),
    )


@scenario(chat=False, budget=Budget.STANDARD, alone=True, storm=True)
async def pause_and_continue(talk: Conversation) -> None:
    """A greedy request undisturbed, then as a stream and whole, paused and continued in between."""
    pause = talk.control.plain_request(Action.PAUSE) if talk.control is not None else None
    go_on = talk.control.plain_request(Action.CONTINUE) if talk.control is not None else None
    if pause is None or go_on is None:
        return
    ask, tap = long_ask(talk, _LONG), Tap()
    await talk.ask_all({"undisturbed": ask, "undisturbed-again": ask})

    async def interrupt() -> None:
        if await tap.events(2):
            try:
                await talk.call("pause", pause)
            finally:
                await talk.call("continue", go_on)

    await together(
        talk.ask("paused-stream", replace(ask, stream=True), tap=tap),
        talk.ask("paused-whole", ask),
        interrupt(),
    )
