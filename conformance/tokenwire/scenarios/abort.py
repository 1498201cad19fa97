"""Aborts by request id: before, between and after tokens, of one among many, of an unknown id."""

import secrets
from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Conversation, scenario, together
from tokenwire.asking.tap import SlowReader, Tap

_LONG = 600
"""More tokens than a server is likely to make while an abort is on its way."""
_LONG_WITH_LOGPROBS = 450
"""Fewer: if the abort is ignored, the whole stream still has to fit the recorder."""


def long_ask(talk: Conversation, max_new_tokens: int) -> Ask:
    budget = talk.fitting(max_new_tokens, 64)
    if talk.chat:
        say = ({"role": "user", "content": "Count as far as you can."},)
        return Ask(messages=say, max_new_tokens=budget, ignore_eos=True)
    return Ask(input_ids=(PROMPT,), max_new_tokens=budget, ignore_eos=True)


def can_abort(talk: Conversation) -> bool:
    request = talk.control.abort_request("nobody", talk.dialect.endpoint.path) if talk.control else None
    return request is not None


async def _abort_after(
    talk: Conversation,
    label: str,
    ask: Ask,
    events: int,
    *,
    slow_reader: SlowReader | None = None,
    as_sent: bool = False,
) -> None:
    """Ask for a stream, and abort it as soon as so many of its events have come."""
    request_id = f"{ask.request_id}-{label}"
    tap = Tap()

    async def abort_it() -> None:
        if await tap.events(events):
            await talk.abort(f"{label}-abort", request_id, as_sent=as_sent)

    streamed = replace(ask, stream=True, request_id=request_id)
    await together(talk.ask(label, streamed, slow_reader=slow_reader, tap=tap), abort_it())


async def _abort_whole(talk: Conversation, ask: Ask) -> None:
    """Abort a whole answer once a stream that began later shows that the server is at work; end that too."""
    whole_id, beside_id = f"{ask.request_id}-whole", f"{ask.request_id}-beside"
    tap = Tap()

    async def abort_both() -> None:
        if await tap.events(4):
            await talk.abort("whole-abort", whole_id)
            await talk.abort("beside-abort", beside_id)

    await together(
        talk.ask("whole", replace(ask, logprobs=True, request_id=whole_id)),
        talk.ask("beside", replace(ask, stream=True, request_id=beside_id), tap=tap),
        abort_both(),
    )


@scenario()
async def abort(talk: Conversation) -> None:
    """Streams and a whole answer, each aborted by its id: after its first tokens, while its reader stalls, at
    once, when it is over. A record of the same request that is not aborted shows what each would have given.
    """
    if not can_abort(talk):
        return
    ask = replace(long_ask(talk, _LONG), request_id=f"tokenwire-{secrets.token_hex(4)}")
    short = replace(ask, max_new_tokens=min(8, ask.max_new_tokens or 8))
    logprobs = replace(ask, logprobs=True, max_new_tokens=talk.fitting(_LONG_WITH_LOGPROBS, 64))
    undisturbed = replace(ask, max_new_tokens=talk.fitting(160, 64), request_id=None)
    await together(
        talk.ask("undisturbed", undisturbed),
        _abort_after(talk, "stream", ask, 1),
        _abort_after(talk, "interval-8", replace(ask, stream_interval=8), 2),
        _abort_after(talk, "logprobs", logprobs, 2),
        _abort_after(talk, "stalled", ask, 1, slow_reader=SlowReader(pause_s=1.0)),
        _abort_after(talk, "at-once", replace(ask, max_new_tokens=talk.fitting(24, 64)), 0),
        _abort_after(talk, "over", short, 10_000),
        _abort_whole(talk, ask),
    )
    for label in ("as-sent", "as-sent-again") if talk.id_prefix else ():
        # Alone: where others delay the abort, the stream has come too far to tell.
        await _abort_after(talk, label, ask, 2, as_sent=True)
    await talk.abort("over-abort", f"{ask.request_id}-over")


@scenario()
async def abort_of_one(talk: Conversation) -> None:
    """Three streams whose ids begin alike; only the shortest id is aborted, then one that no request has. The
    others come to their ends.
    """
    if not can_abort(talk):
        return
    request_id = f"tokenwire-{secrets.token_hex(4)}"
    ask = replace(long_ask(talk, 120), stream=True)
    taps = {ending: Tap() for ending in ("", "1", "10")}

    async def abort_one() -> None:
        if all([await tap.events(1) for tap in taps.values()]):
            await talk.abort("abort-one", request_id)
            await talk.abort("abort-nobody", f"{request_id}-nobody")

    asks = {ending: replace(ask, request_id=request_id + ending) for ending in taps}
    await together(
        *(talk.ask(f"id{end or '-alone'}", one, tap=taps[end]) for end, one in asks.items()),
        abort_one(),
    )
