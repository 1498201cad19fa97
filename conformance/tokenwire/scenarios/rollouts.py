"""Scenarios with requests of trainers: sampling masks, arrays with a row for each token, partial rollouts."""

from dataclasses import replace
from functools import partial

from tokenwire.ask import Budget
from tokenwire.asking.flags import flagged
from tokenwire.asking.scenario import Conversation, Steps, scenario, together
from tokenwire.asking.tap import Tap
from tokenwire.dialects.control import Action
from tokenwire.scenarios.abort import long_ask
from tokenwire.scenarios.forms import ask_and_then, forms, plain_ask

_MASK = "return-sampling-mask"
_EXPERTS = "return-routed-experts"
_ARRAYS = (_MASK, _EXPERTS, "return-hidden-states")


@scenario(chat=False)
def _token_arrays(talk: Conversation) -> Steps:
    """Sampling masks, routed experts and hidden states, without and with streaming, if the endpoint has
    fields for them. Also the experts of a shorter answer, and the experts from a position of the prompt on.
    Masks are requested at temperature 1 among three ids, with a seed and the logprobs of these ids. They are
    requested twice without streaming, because answers with a seed are compared only if they are repeatable.
    """
    ask = replace(plain_ask(talk), max_new_tokens=12)
    drawn = replace(ask, temperature=1.0, top_k=3, seed=11, logprobs=True, top_logprobs=3)
    for label in _ARRAYS:
        masks = label == _MASK
        asks = forms(drawn if masks else ask, label, again=masks)
        if label == _EXPERTS:
            asks[f"{label}-shorter"] = replace(ask, max_new_tokens=5)
        known = {form: flagged(talk.dialect, ask) for form, ask in asks.items()}
        wanted = {form: asks[label] for form, asks in known.items() if label in asks}
        start = next((array.start for array in talk.dialect.arrays if array.start), None)
        if label == _EXPERTS and start is not None:
            whole = wanted[f"{label}-shorter"]
            wanted[f"{label}-from-3"] = replace(whole, raw={**whole.raw, start[-1]: 3})
        yield wanted


_AT_ONCE = 6
_LONG = 400
"""More tokens than a server can generate while a control request is on its way."""


@scenario(chat=False, budget=Budget.STANDARD, alone=True, storm=True)
async def _abort_of_everything(talk: Conversation) -> None:
    """Requests without and with streaming, more than a small server runs at once.

    As soon as the first stream has begun, all requests are aborted. Each request must return the tokens that
    it has.
    """
    request = talk.control.abort_of_everything
    if request is None:
        return
    ask = long_ask(talk, _LONG)
    asks = {f"{number}": replace(ask, stream=number % 2 == 0) for number in range(1, _AT_ONCE)}
    await together(
        ask_and_then(talk, "first", replace(ask, stream=True), 2, lambda _: talk.call("abort-all", request)),
        *(talk.ask(label, ask) for label, ask in asks.items()),
    )


@scenario(chat=False, budget=Budget.STANDARD, alone=True, storm=True)
async def _pause_and_continue(talk: Conversation) -> None:
    """A greedy request without a pause.

    Then the same request with streaming and without, paused and continued in between. Then two more streams.
    A pause puts the first stream back into the queue while the cache is cleared, and another pause ends the
    second stream.
    """
    control = talk.control
    go_on, flush = (control.plain_request(action) for action in (Action.CONTINUE, Action.FLUSH))
    asked = {effect: control.pause_request(effect) for effect in ("keeps", "retracts", "ends")}
    pauses = {effect: request for effect, request in asked.items() if request is not None}
    if go_on is None or not pauses:
        return
    ask = long_ask(talk, _LONG)
    await talk.ask_all({"undisturbed": ask, "undisturbed-again": ask})

    async def interrupt(effect: str, _: Tap) -> None:
        """Pause the server and let it continue.

        If the cache can be cleared during this kind of pause, it is cleared in between.
        """
        try:
            await talk.call(f"pause-{effect}", pauses[effect])
            if effect == "retracts" and flush is not None:
                await talk.call("flush", flush)
        finally:
            await talk.call(f"continue-{effect}", go_on)

    for effect in pauses:
        stream = ask_and_then(
            talk, f"stream-{effect}", replace(ask, stream=True), 2, partial(interrupt, effect)
        )
        await together(stream, *([talk.ask("whole-keeps", ask)] if effect == "keeps" else []))
