"""Shared parts of scenarios: the plainest request of an endpoint, and the forms in which an ask is sent."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Asks, Conversation, Steps
from tokenwire.asking.tap import SlowReader, Tap
from tokenwire.dialects.dialect import Unsupported
from tokenwire.wire.exchange import HttpRequest

_WORDS = "Count to ten."

_ASKS = (
    Ask(input_ids=(PROMPT,), ignore_eos=True),
    Ask(messages=({"role": "user", "content": _WORDS},)),
    Ask(text=(_WORDS,)),
)


def plain_ask(talk: Conversation) -> Ask:
    """Ids where the endpoint takes them, else messages, else text."""
    return next((ask for ask in _ASKS if talk.can_say(ask)), _ASKS[0])


def worded(talk: Conversation, words: str) -> Ask:
    """Words as a message where the endpoint is chat, else as text."""
    return Ask(messages=({"role": "user", "content": words},)) if talk.chat else Ask(text=(words,))


def with_parameter(talk: Conversation, ask: Ask, name: str, value: Any) -> Ask:
    """The ask with a parameter that dialects have no word for, where the endpoint has its sampling
    parameters.
    """
    request = talk.dialect.render(ask, talk.model)
    nested = not isinstance(request, Unsupported) and "sampling_params" in request.body
    return replace(ask, raw={"sampling_params": {name: value}} if nested else {name: value})


def with_sayable(talk: Conversation, ask: Ask, **fields: Any) -> Ask:
    """The ask with those of some fields that the endpoint has words for."""
    for name, value in fields.items():
        other = replace(ask, **{name: value})
        ask = other if talk.can_say(other) else ask
    return ask


def new_id() -> str:
    """An id that no request had: one that is still in flight would be refused."""
    return f"tokenwire-{secrets.token_hex(4)}"


def forms(
    ask: Ask, label: str = "", *, again: bool = False, intervals: Iterable[int] = (), usage: bool = False
) -> dict[str, Ask]:
    """An ask in several forms: whole, perhaps twice, streamed, and streamed at some intervals; by label.

    `usage` asks the streams for it: whole answers have it anyway.
    """
    before, streamed = f"{label}-" if label else "", replace(ask, stream=True, usage=usage)
    wholes = {"whole": ask} | ({"whole-again": ask} if again else {})
    streams = {"stream": streamed} | {
        f"interval-{k}": replace(streamed, stream_interval=k) for k in intervals
    }
    return {f"{before}{form}": ask_in_form for form, ask_in_form in (wholes | streams).items()}


def intervals_taken(talk: Conversation, ask: Ask, intervals: tuple[int, ...]) -> tuple[int, ...]:
    """These intervals, where requests have a field for them; else none."""
    bodies = [
        talk.dialect.render(replace(ask, stream=True, stream_interval=count), talk.model)
        for count in intervals[:2]
    ]
    return intervals if bodies[:1] != bodies[1:] else ()


def with_controls(talk: Conversation, control: Ask, bad: Asks, *, again: bool = False) -> Steps:
    """A good request, perhaps twice, then each bad one with the same good one behind it."""
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
    """Ask, and act as soon as `events` events of the answer have come; not if it ends before."""
    tap = tap or Tap()

    async def wait_and_act() -> None:
        if await tap.events(events):
            await act(tap)

    async with asyncio.TaskGroup() as group:
        group.create_task(wait_and_act())
        await talk.ask(label, ask, slow_reader=slow_reader, tap=tap)
