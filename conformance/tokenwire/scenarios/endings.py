"""Scenarios for requests with an id that another request has or had, and for aborts of samples and of waiting
requests.
"""

from dataclasses import replace

from tokenwire.ask import Ask, Budget
from tokenwire.asking.scenario import Conversation, scenario, together
from tokenwire.asking.tap import Tap
from tokenwire.dialects.dialect import Unsupported
from tokenwire.record import Stream
from tokenwire.scenarios.abort import abort_after, can_abort, long_ask
from tokenwire.scenarios.forms import ask_and_then, forms, with_prompt_ids
from tokenwire.wire.exchange import Ending, Exchange, Read

_MEASURED = 64
"""The number of tokens that is sufficient to measure the speed of a server."""
_TIMERS_S = {Budget.QUICK: 0.5, Budget.STANDARD: 4.0, Budget.SOAK: 8.0}
"""Seconds after which servers have cleaned up the data of an ended request id, by budget."""
_MOST_TURNS = 10
"""The most requests with the same id, one after the other. A single request may be limited by the context."""
_CHOICES = 3
_RUNNING = 64
"""The assumed number of requests that run at once, if the server does not report it."""
_MOST_RUNNING = {Budget.QUICK: 64, Budget.STANDARD: 128, Budget.SOAK: 1024}
"""The largest number of concurrently running requests for which a server is filled, by budget."""


def _lasting(talk: Conversation, measured: Stream) -> int:
    """Return the number of tokens that take longer than the clean-up of a request id (`_TIMERS_S`), at the
    speed of a measured answer. The number is limited by the context and by the recorder.
    """
    rate = (measured.asked.max_new_tokens or _MEASURED) / max(measured.exchange.duration, 0.001)
    return talk.fitting(min(1 + int(rate * _TIMERS_S[talk.budget]), talk.readable()), 64)


@scenario(alone=True)
async def _id_used_again(talk: Conversation) -> None:
    """Streams with the same request id, each sent as soon as the previous one has ended.

    In total the streams take longer than the time after which servers remove an ended request. Each stream
    must complete.
    """
    ask = replace(long_ask(talk, _MEASURED), stream=True, request_id=talk.new_id())
    first = stream = await talk.ask("turn-0", ask)
    passed, turn = 0.0, 0
    while first and stream and stream.answered and passed < _TIMERS_S[talk.budget] and turn < _MOST_TURNS:
        turn += 1
        budget = _lasting(talk, first)
        stream = await talk.ask(f"turn-{turn}", replace(ask, max_new_tokens=budget))
        passed += stream.exchange.duration if stream else 0.0


@scenario(alone=True)
async def _id_in_use(talk: Conversation) -> None:
    """A second request with the id of a running stream.

    The stream takes longer than servers need to remove a refused request. The stream must complete, whatever
    happens to the second request.
    """
    ask = long_ask(talk, _MEASURED)
    measured = await talk.ask("measured", replace(ask, stream=True))
    if measured is None or not measured.answered:
        return
    run = talk.new_id()
    lasting = replace(ask, max_new_tokens=_lasting(talk, measured), stream=True)

    async def ask_twice(label: str, second: Ask) -> None:
        request_id = f"{run}-{label}"

        async def come_between(_: Tap) -> None:
            await talk.ask(f"second-{label}", replace(second, request_id=request_id))

        await ask_and_then(talk, f"first-{label}", replace(lasting, request_id=request_id), 1, come_between)

    short = replace(ask, max_new_tokens=8)
    await together(ask_twice("whole", short), ask_twice("stream", replace(short, stream=True)))


def _ids_shown(talk: Conversation, ask: Ask, tap: Tap) -> list[str]:
    """Return the request ids that the choices of a running stream have reported so far, in the order of the
    choices.
    """
    request = talk.dialect.render(ask, talk.model)
    if isinstance(request, Unsupported):
        return []
    headers, reads = (("content-type", "text/event-stream"),), (Read(0.0, bytes(tap.body)),)
    so_far = Exchange("so far", request, talk.scenario, 200, headers, reads, Ending.COMPLETE)
    stream = talk.dialect.read(so_far, delivery_hint=talk.advertised.delivery)
    shown = (choice.emissions[0].details.get("request_id") for choice in stream.choices)
    return [name.removeprefix(talk.id_prefix) for name in shown if isinstance(name, str)]


@scenario()
async def _abort_of_choices(talk: Conversation) -> None:
    """Several samples of a prompt and a batch of prompts, each aborted by the id of the client.

    Also one of several samples, aborted by the id of this sample. The other samples must complete.
    """
    if not can_abort(talk):
        return
    asked = replace(long_ask(talk, 320), stream=True, request_id=talk.new_id())
    samples = replace(asked, n=_CHOICES, temperature=1.0)
    less_one = replace(samples, request_id=f"{asked.request_id}-one-sample")

    async def abort_last(tap: Tap) -> None:
        ids = _ids_shown(talk, less_one, tap)
        if len(set(ids)) > 1:
            await talk.abort("one-sample-abort", ids[-1])

    doings = [
        abort_after(talk, "samples", samples, 2 * _CHOICES),
        ask_and_then(talk, "one-sample", less_one, 4 * _CHOICES, abort_last),
    ]
    if asked.input_ids:
        batch = replace(asked, input_ids=asked.input_ids * _CHOICES, batch=True)
        doings.append(abort_after(talk, "batch", batch, 2 * _CHOICES))
    await together(*doings)


@scenario(budget=Budget.STANDARD, alone=True, storm=True)
async def _abort_in_the_queue(talk: Conversation) -> None:
    """Two requests, each for more samples than the server runs at once.

    While samples wait, a request without and one with streaming are sent, and aborted before they run. Two
    large requests are needed, because a server may run the request after a large one first.
    """
    running = talk.advertised.max_running_requests or _RUNNING
    if running > _MOST_RUNNING[talk.budget] or not can_abort(talk):
        return
    ask = with_prompt_ids(talk, long_ask(talk, 160))
    run = talk.new_id()
    waiting = {label: replace(form, request_id=f"{run}-{label}") for label, form in forms(ask).items()}
    await talk.ask_all(forms(replace(ask, max_new_tokens=4), "usual"))
    # More samples than run at once, so that some of them wait, and later requests wait behind them.
    filler = replace(ask, n=running + 8, temperature=1.0, stream=True, return_prompt_token_ids=False)
    filler = replace(filler, max_new_tokens=min(filler.max_new_tokens or 1, talk.readable(filler.n)))
    taps = {"filling": Tap(), "filling-too": Tap()}
    filled = taps["filling"]

    async def abort_them() -> None:
        if await filled.events(3 * running):
            for label, form in waiting.items():
                await talk.abort(f"{label}-abort", str(form.request_id))
        for tap in taps.values():
            tap.hang_up()

    async def wait_behind() -> None:
        if await filled.events(running):
            await talk.ask_all(waiting)

    fillers = (talk.ask(label, filler, tap=tap) for label, tap in taps.items())
    await together(*fillers, wait_behind(), abort_them())
