"""Scenarios that abort requests by id: at different times, one of several requests, and an unknown id."""

from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Conversation, scenario, together
from tokenwire.asking.tap import SlowReader, Tap
from tokenwire.scenarios.forms import ask_and_then, with_prompt_ids, worded

_LONG = 600
"""More tokens than a server can generate while an abort is on its way."""
_LONG_WITH_LOGPROBS = 450
"""Fewer tokens than `_LONG`, because logprobs make a stream large.

If the abort is ignored, the recorder must hold the whole stream.
"""


def long_ask(talk: Conversation, max_new_tokens: int) -> Ask:
    ask = worded(talk, "Count as far as you can.") if talk.chat else Ask(input_ids=(PROMPT,))
    return replace(ask, max_new_tokens=talk.fitting(max_new_tokens, 64), ignore_eos=True)


def can_abort(talk: Conversation) -> bool:
    return talk.control.abort_request("nobody", talk.dialect.endpoint.path) is not None


async def abort_after(
    talk: Conversation,
    label: str,
    ask: Ask,
    events: int,
    *,
    slow_reader: SlowReader | None = None,
    as_sent: bool = False,
) -> None:
    """Send a streaming request, and abort it as soon as `events` of its events have come."""
    request_id = f"{ask.request_id}-{label}"
    await ask_and_then(
        talk,
        label,
        replace(ask, stream=True, request_id=request_id),
        events,
        lambda _: talk.abort(f"{label}-abort", request_id, as_sent=as_sent),
        slow_reader=slow_reader,
    )


async def _abort_whole(talk: Conversation, ask: Ask) -> None:
    """Send a request without streaming, and abort it while the server works on it.

    A stream that is requested later shows that the server is at work. That stream is aborted as well.
    """
    whole = replace(ask, logprobs=True, request_id=f"{ask.request_id}-whole")
    beside = replace(ask, stream=True, request_id=f"{ask.request_id}-beside")

    async def abort_both(_: Tap) -> None:
        await talk.abort("whole-abort", str(whole.request_id))
        await talk.abort("beside-abort", str(beside.request_id))

    await together(talk.ask("whole", whole), ask_and_then(talk, "beside", beside, 4, abort_both))


@scenario()
async def _abort(talk: Conversation) -> None:
    """Streams and a response without streaming, each aborted by its id at another time.

    The times are: after the first tokens, while the reader pauses, at once, and after the end. The same
    request without an abort shows the complete answer.
    """
    if not can_abort(talk):
        return
    ask = replace(long_ask(talk, _LONG), request_id=talk.new_id())
    short = replace(ask, max_new_tokens=min(8, ask.max_new_tokens or 8))
    logprobs = replace(ask, logprobs=True, max_new_tokens=talk.fitting(_LONG_WITH_LOGPROBS, 64))
    at_once = with_prompt_ids(talk, replace(ask, max_new_tokens=talk.fitting(24, 64)))
    await together(
        talk.ask("undisturbed", long_ask(talk, 160)),
        abort_after(talk, "stream", ask, 1),
        abort_after(talk, "interval-8", replace(ask, stream_interval=8), 2),
        abort_after(talk, "logprobs", logprobs, 2),
        abort_after(talk, "stalled", ask, 1, slow_reader=SlowReader(pause_s=1.0)),
        abort_after(talk, "at-once", at_once, 0),
        abort_after(talk, "over", short, 10_000),
        _abort_whole(talk, ask),
    )
    for label in ("as-sent", "as-sent-again") if talk.id_prefix else ():
        # This request is sent alone, because beside other requests its abort may come too late.
        await abort_after(talk, label, ask, 2, as_sent=True)
    await talk.abort("over-abort", f"{ask.request_id}-over")


@scenario()
async def _abort_of_one(talk: Conversation) -> None:
    """Three streams whose request ids have a common beginning.

    First the request with the shortest id is aborted, and then an id that no request has. If the server
    requires ids, an abort without ids follows. The two other streams must complete.
    """
    if not can_abort(talk):
        return
    request_id = talk.new_id()
    ask = replace(long_ask(talk, 120), stream=True)
    taps = {ending: Tap() for ending in ("", "1", "10")}

    async def abort_one() -> None:
        if all([await tap.events(1) for tap in taps.values()]):
            await talk.abort("abort-one", request_id)
            await talk.abort("abort-nobody", f"{request_id}-nobody")
            if (without_ids := talk.control.abort_without_ids) is not None:
                await talk.call("abort-without-ids", without_ids)

    asks = {ending: replace(ask, request_id=request_id + ending) for ending in taps}
    await together(
        *(talk.ask(f"id{end or '-alone'}", ask, tap=taps[end]) for end, ask in asks.items()),
        abort_one(),
    )
