"""Functions that several scenarios use: plain requests, and variants of a request."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Asks, Conversation, Steps
from tokenwire.asking.tap import SlowReader, Tap
from tokenwire.dialects.dialect import Unsupported
from tokenwire.wire.exchange import HttpRequest
from tokenwire.wire.json_pointer import put

_WORDS = "Count to ten."

_ASKS = (
    Ask(input_ids=(PROMPT,), ignore_eos=True),
    Ask(messages=({"role": "user", "content": _WORDS},)),
    Ask(text=(_WORDS,)),
)


def plain_ask(talk: Conversation) -> Ask:
    """Return a plain request with ids; with messages or text if the endpoint takes no ids."""
    return next((ask for ask in _ASKS if talk.can_say(ask)), _ASKS[0])


def worded(talk: Conversation, words: str) -> Ask:
    """Return a request with these words, as a message for a chat endpoint, otherwise as text."""
    return Ask(messages=({"role": "user", "content": words},)) if talk.chat else Ask(text=(words,))


def with_parameter(talk: Conversation, ask: Ask, name: str, value: Any) -> Ask:
    """Return the request with a parameter that no dialect knows, at the place of the endpoint's sampling
    parameters.
    """
    request = talk.dialect.render(ask, talk.model)
    nested = not isinstance(request, Unsupported) and "sampling_params" in request.body
    return replace(ask, raw={"sampling_params": {name: value}} if nested else {name: value})


def with_sayable(talk: Conversation, ask: Ask, **fields: Any) -> Ask:
    """Return the request with those of the fields that the endpoint supports."""
    for name, value in fields.items():
        other = replace(ask, **{name: value})
        ask = other if talk.can_say(other) else ask
    return ask


def with_prompt_ids(talk: Conversation, ask: Ask) -> Ask:
    """Return the request with the ids of its prompt, if the endpoint reports them in streams, too."""
    refused = talk.dialect.policy.tito_stream_refused
    return ask if refused else with_sayable(talk, ask, return_prompt_token_ids=True)


def with_chosen_ids(talk: Conversation, ask: Ask, ids: Sequence[int]) -> Ask:
    """Return the request with the logprobs of chosen ids, if the endpoint supports them.

    Where chosen ids replace the top logprobs, vLLM demands the same number of both.
    """
    if (place := talk.dialect.request.chosen_in_top) is None:
        return with_sayable(talk, ask, chosen_ids=tuple(ids))
    chosen: dict[str, Any] = {}
    put(chosen, place, list(ids))
    return replace(ask, top_logprobs=len(ids), raw=chosen)


def forms(
    ask: Ask, label: str = "", *, again: bool = False, intervals: Iterable[int] = (), usage: bool = False
) -> dict[str, Ask]:
    """Return variants of a request by label: without streaming, with streaming, and with streaming at
    intervals.

    `again`: without streaming twice. `usage`: streams request usage, which other responses contain anyway.
    """
    before, streamed = f"{label}-" if label else "", replace(ask, stream=True, usage=usage)
    wholes = {"whole": ask} | ({"whole-again": ask} if again else {})
    streams = {"stream": streamed} | {
        f"interval-{k}": replace(streamed, stream_interval=k) for k in intervals
    }
    return {f"{before}{form}": ask_in_form for form, ask_in_form in (wholes | streams).items()}


def intervals_taken(talk: Conversation, ask: Ask, intervals: tuple[int, ...]) -> tuple[int, ...]:
    """Return the intervals if the endpoint has a field for them, otherwise none."""
    bodies = [
        talk.dialect.render(replace(ask, stream=True, stream_interval=count), talk.model)
        for count in intervals[:2]
    ]
    return intervals if bodies[:1] != bodies[1:] else ()


def with_controls(talk: Conversation, control: Ask, bad: Asks, *, again: bool = False) -> Steps:
    """Yield a valid request, and then each bad request with the same valid request after it."""
    yield {"control": control}
    if again:
        yield {"control-again": control}
    for label, ask in bad.items():
        yield {label: ask}
        if isinstance(ask, HttpRequest) or talk.can_say(ask):
            yield {f"{label}-control": control}


async def ask_and_then(
    talk: Conversation,
    label: str,
    ask: Ask,
    events: int,
    act: Callable[[Tap], Awaitable[object]],
    *,
    slow_reader: SlowReader | None = None,
    tap: Tap | None = None,
) -> None:
    """Send a request, and call `act` once `events` events have come.

    If the response ends before, do not call it.
    """
    tap = tap or Tap()

    async def wait_and_act() -> None:
        if await tap.events(events):
            await act(tap)

    async with asyncio.TaskGroup() as group:
        group.create_task(wait_and_act())
        await talk.ask(label, ask, slow_reader=slow_reader, tap=tap)
