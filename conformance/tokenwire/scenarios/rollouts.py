"""Scenarios with requests of trainers: sampling masks, arrays with a row for each token, partial rollouts."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial

from tokenwire.ask import Budget
from tokenwire.asking.flags import flagged
from tokenwire.asking.scenario import Conversation, Steps, scenario, together
from tokenwire.asking.tap import Tap
from tokenwire.dialects.control import Action
from tokenwire.record import Stream, as_list
from tokenwire.scenarios.abort import long_ask
from tokenwire.scenarios.forms import ask_and_then, forms, plain_ask
from tokenwire.target.capability import WEIGHT_VERSIONS

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


_UNKNOWN_MODE = "tokenwire-unknown"
"""A mode of a pause that no server has."""
_PAUSED_S = (0.5, 5.0)
"""The shortest and the longest duration of a pause in seconds, which depends on the speed of the server."""


@scenario(chat=False, budget=Budget.STANDARD, alone=True, storm=True)
async def _pause_and_continue(talk: Conversation) -> None:
    """A greedy request without a pause, and a pause in a mode that no server has.

    Then the same request with streaming and without, paused and continued in between. Then two more streams.
    A pause puts the first stream back into the queue while the cache is cleared, and another pause ends the
    second stream. While a pause keeps or puts back what runs, another stream is requested. A server that
    reports if it is paused is paused twice in a row, and is asked before, during and after each pause.
    """
    control = talk.control
    go_on, flush = (control.plain_request(action) for action in (Action.CONTINUE, Action.FLUSH))
    asked = {effect: control.pause_request(effect) for effect in ("keeps", "retracts", "ends")}
    pauses = {effect: request for effect, request in asked.items() if request is not None}
    if go_on is None or not pauses or not control.is_asked(Action.PAUSE, talk.declared):
        return
    ask = long_ask(talk, _LONG)
    short = replace(ask, stream=True, max_new_tokens=4)
    undisturbed = await talk.ask_all({"undisturbed": ask, "undisturbed-again": ask})
    took = max((stream.exchange.duration for stream in undisturbed.values() if stream), default=0.0)
    least, most = _PAUSED_S
    await talk.ask("short", short)
    state = control.plain_request(Action.PAUSED)

    async def look(label: str) -> None:
        if state is not None:
            await talk.call(f"state-{label}", state)

    async def pause_as_unknown() -> None:
        request = control.pause_in_mode(_UNKNOWN_MODE)
        assert request is not None, "the table of this family has a pause"
        call = await talk.call("pause-unknown", request)
        await look("unknown")
        if call is not None and not call.refused:
            await talk.call("continue-unknown", go_on)

    async def interrupt(effect: str, running: Tap) -> None:
        """Pause the server, and let it continue after some time, or when the running stream has ended.

        If the cache can be cleared during this kind of pause, it is cleared in between.
        """
        async with asyncio.TaskGroup() as group:
            try:
                await talk.call(f"pause-{effect}", pauses[effect])
                await look(effect)
                if state is not None:
                    await talk.call(f"pause-{effect}-again", pauses[effect])
                    await look(f"{effect}-again")
                if effect == "retracts" and flush is not None:
                    await talk.call("flush", flush)
                if effect != "ends":
                    group.create_task(talk.ask(f"while-{effect}", short))
                    with suppress(TimeoutError):
                        await asyncio.wait_for(running.events(_LONG * 2), min(max(least, 1.5 * took), most))
            finally:
                await talk.call(f"continue-{effect}", go_on)
            await look(f"after-{effect}")

    await look("before")
    await pause_as_unknown()
    for effect in pauses:
        stream = ask_and_then(
            talk, f"stream-{effect}", replace(ask, stream=True), 2, partial(interrupt, effect)
        )
        await together(stream, *([talk.ask("whole-keeps", ask)] if effect == "keeps" else []))


@scenario(chat=False, budget=Budget.STANDARD, alone=True, storm=True)
async def _renamed_weights(talk: Conversation) -> None:
    """A request that shows the version of the weights, and a stream during which the weights get this
    version again.

    If the server is declared to report versions of the weights, another stream follows, during which the
    version changes. Afterwards, the weights get their own version again.
    """
    control = talk.control
    if not control.is_asked(Action.RENAME, talk.declared):
        return
    ask = long_ask(talk, _LONG)
    ask = flagged(talk.dialect, ask).get("return-weight-versions", ask)
    version = _version_in(await talk.ask("before", replace(ask, max_new_tokens=4)))
    if not version:
        return
    counted = replace(ask, stream=True, usage=True)
    stream = counted if talk.can_say(counted) else replace(ask, stream=True)
    names = {"same": version}
    if WEIGHT_VERSIONS in talk.declared:
        names["other"] = talk.new_id()

    async def rename(label: str, name: str) -> None:
        request = control.rename_request(name)
        assert request is not None, "the table of this family has a request that names the weights"
        await talk.call(label, request)

    for label, name in names.items():
        try:
            await ask_and_then(
                talk,
                f"stream-{label}",
                stream,
                2,
                lambda _, label=label, name=name: rename(f"rename-{label}", name),  # type: ignore[misc]
            )
        finally:
            if name != version:
                await rename(f"rename-from-{label}", version)


def _version_in(stream: Stream | None) -> str:
    """Return the version of the weights in the last span of an answer; empty if it has none."""
    emissions = [emission for choice in stream.choices for emission in choice.emissions] if stream else []
    spans = as_list(emissions[-1].details.get("weight_versions")) if emissions else None
    version = spans[-1].get("version") if spans and isinstance(spans[-1], dict) else None
    return version if isinstance(version, str) else ""
