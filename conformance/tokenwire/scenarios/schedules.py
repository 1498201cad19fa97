"""Scenarios with schedules: a front end runs over Tokenwire's own engine (`tokenwire engine`), which does
what requests ask it to do.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any

from tokenwire.ask import Ask, Budget
from tokenwire.asking.scenario import Conversation, only_choice, scenario, together
from tokenwire.asking.tap import SlowReader, Tap
from tokenwire.parrot.speaker import Ids, Speaker
from tokenwire.parrot.vocabulary import crossing
from tokenwire.scenarios.abort import can_abort
from tokenwire.scenarios.forms import ask_and_then, intervals_taken, with_parameter

_FIELDS = {"sglang": "custom_params", "vllm": "vllm_xargs"}
"""The request field that each server family passes on to its engine."""
_KEY = "tokenwire"
_PROBE = "abort=1"
"""A schedule that ends the request at once, as aborted. It shows if the engine executes schedules."""
_ATTACHED = {"sglang": ("info=mirror_token_id",)}
"""Values that a family's engine attaches to each token, in addition to those of a schedule."""
_STEPS = ("steps=1", "steps=2,1,4", "steps=3", "steps=24", "steps=1,0,2;hold=4", "steps=2;hold=24")
_STOPS = ("dY", "X")
"""Two stop strings that one step may complete. In the text, the second one comes first."""
_ENDS = {
    "abort": "steps=2;abort=5",
    "late-abort": "steps=2;abort=5;late",
    "preempted": "steps=2;retract=4",
    "preempted-at-once": "retract=0",
    "length": "steps=4",
    "late-length": "steps=4;late",
    "hand-over": "steps=2;kv=peer;cached=4",
}
"""Schedules that end in different ways, by label."""
_WITHOUT_TOKENS = {"vllm": {"early-abort": "wait=3;abort=0"}}
"""Schedules that end before the first token. SGLang's scheduler runs each request for at least one token."""
_ERRORS = {"error": "steps=2;error=5:503", "late-error": "steps=2;error=5:503;late"}
"""Schedules that end with an error.

They are used only for streams, because other responses with status 503 would be retried.
"""
_INTERVALS = (1, 3, 4, 8)
_INTERVAL_STEPS = ("steps=1", "steps=2", "steps=3,1", "steps=5")
_BATCH = {
    "one-key": "info=a",
    "another-key": "steps=3,1;info=b",
    "no-key": "steps=2",
    "late-key": "info=mirror_token_id@3",
}
"""The schedules of the requests in a batch, by the values that they attach to tokens."""
_PREFILLED = f"hold={1 << 20}"
"""A schedule that sends no output before the end."""
_LONG = 300
"""More tokens than are sent before an abort arrives."""

_Scheduled = Callable[[Conversation, Speaker], Awaitable[None]]


@dataclass(frozen=True)
class _Script:
    """The ids to output, and the stop strings of the request."""

    ids: Ids
    stop: tuple[str, ...] = ()


def _scheduled(**kind: Any) -> Callable[[_Scheduled], _Scheduled]:
    """Register a coroutine as a scenario.

    The scenario is skipped if the engine does not execute schedules.
    """

    def register(given: _Scheduled) -> _Scheduled:
        @wraps(given)
        async def run(talk: Conversation) -> None:
            if talk.parrot is not None and await _reads_schedules(talk, talk.parrot):
                await given(talk, talk.parrot)

        scenario(**{"budget": Budget.QUICK, "parrot": True, "alone": True, **kind})(run)
        return given

    return register


def _with_schedule(talk: Conversation, ask: Ask, *words: str) -> Ask:
    return with_parameter(talk, ask, _FIELDS[talk.dialect.family], {_KEY: ";".join(filter(None, words))})


def _spelled(talk: Conversation, speaker: Speaker, text: str) -> Ids:
    """Return the ids of a text, one for each byte; None if the endpoint does not take ids."""
    return speaker.bytes(text) if talk.dialect.takes_ids else speaker.encode(text)


async def _reads_schedules(talk: Conversation, speaker: Speaker) -> bool:
    prompt = speaker.ask(talk.dialect, _spelled(talk, speaker, "ab"))
    if prompt is None or talk.dialect.family not in _FIELDS:
        return False
    probe = _with_schedule(talk, replace(prompt, max_new_tokens=2), _PROBE)
    choice = only_choice(await talk.ask("probe", probe))
    return choice is not None and choice.finish is not None and choice.finish.type == "abort"


def _asks(
    talk: Conversation, speaker: Speaker, script: _Script, schedules: Mapping[str, str], **wanted: object
) -> dict[str, Ask]:
    """Return requests for a script under each schedule, without and with streaming, by label."""
    prompt = speaker.ask(talk.dialect, script.ids)
    if prompt is None:
        return {}
    ask = replace(prompt, max_new_tokens=len(script.ids), stop=script.stop, **wanted)  # type: ignore[arg-type]
    attached = _ATTACHED.get(talk.dialect.family, ())
    return {
        f"{label}-{form}": _with_schedule(
            talk, replace(ask, stream=stream, usage=stream), schedule, *attached
        )
        for label, schedule in schedules.items()
        for form, stream in (("whole", False), ("stream", True))
    }


def _scripts(talk: Conversation, speaker: Speaker) -> dict[str, _Script]:
    """Return texts that are difficult to deliver, by label."""
    spell, end = partial(_spelled, talk, speaker), (speaker.end,)
    scripts = {
        "text": _Script((*spell("It says é 漢字 😀 again."), *end)),
        "stop": _Script((*spell("ab 漢QZ cd"), *end), ("QZ",)),
        "stops": _Script((*spell("abXcdY ef"), *end), _STOPS),
    }
    if talk.dialect.takes_ids:
        if (border := crossing(speaker.words)) is not None:
            ids, both = border
            scripts["border"] = _Script((*spell("ab"), *ids, *spell("cd"), *end), (both,))
        if (hidden := speaker.special()) is not None:
            scripts["hidden"] = _Script((*spell("ab"), hidden, *spell("cd"), hidden, hidden, *end))
        scripts["cut"] = _Script(spell("ab 😀")[:-2])
    return scripts


@_scheduled()
async def _scheduled_steps(talk: Conversation, speaker: Speaker) -> None:
    """One answer under several schedules of steps, and with outputs that are collected and sent at once.

    The texts have characters of several ids, hidden tokens or an end within a character. The texts have stop
    strings: two that one step completes, and one that follows an id with parts of two characters.
    """
    schedules = {f"schedule-{place}": schedule for place, schedule in enumerate(_STEPS)}
    for name, script in _scripts(talk, speaker).items():
        asks = _asks(talk, speaker, script, schedules, logprobs=True)
        await talk.ask_all({f"{name}-{label}": ask for label, ask in asks.items()})


@_scheduled()
async def _scheduled_ends(talk: Conversation, speaker: Speaker) -> None:
    """All kinds of ends: an abort, an error and a token limit.

    Each comes with a token, in its own step, or before the first token. Also an end after a preemption.
    """
    script = _Script(_spelled(talk, speaker, "It says it again"))
    ends = _ENDS | _WITHOUT_TOKENS.get(talk.dialect.family, {})
    asks = _asks(talk, speaker, script, ends, logprobs=True)
    errors = _asks(talk, speaker, script, _ERRORS, logprobs=True)
    await talk.ask_all(asks | {label: ask for label, ask in errors.items() if ask.stream})


@_scheduled()
async def _scheduled_intervals(talk: Conversation, speaker: Speaker) -> None:
    """Streams at several intervals over steps of one token and of more, so that the last event has every
    possible size. Also clients that stop reading, so that events are joined.
    """
    script = _Script(_spelled(talk, speaker, "It says it again, and again."))
    asks = _asks(talk, speaker, script, {"schedule-0": "steps=1"}, logprobs=True, ignore_eos=True)
    if not asks:
        return
    whole, stream = asks.values()
    taken = intervals_taken(talk, stream, _INTERVALS)
    for length in range(len(script.ids) - max(_INTERVALS), len(script.ids)):
        forms = {f"whole-{length}": replace(whole, max_new_tokens=length)}
        for place, steps in enumerate(_INTERVAL_STEPS):
            attached = _ATTACHED.get(talk.dialect.family, ())
            ask = _with_schedule(talk, replace(stream, max_new_tokens=length), steps, *attached)
            forms[f"stream-{length}-{place}"] = ask
            forms |= {
                f"interval-{count}-{length}-{place}": replace(ask, stream_interval=count)
                for count in taken
                if length % count == place % count
            }
        await talk.ask_all(forms)
    slow = _asks(talk, speaker, script, {"slow": "steps=2;hold=3"}, logprobs=True, top_logprobs=5)
    await talk.ask_all(slow, slow_reader=SlowReader(pause_s=0.2))


@_scheduled()
async def _scheduled_aborts(talk: Conversation, speaker: Speaker) -> None:
    """Aborts of a waiting request, of one that is prefilled and has sent nothing, and of a running one.

    Each is aborted by its id, or by a client that disconnects. Then a request that must complete.
    """
    prompt = speaker.ask(talk.dialect, _spelled(talk, speaker, "It says it again"))
    if prompt is None:
        return
    ask = replace(prompt, max_new_tokens=talk.fitting(_LONG), ignore_eos=True, stream=True)
    schedules = {
        "queued": f"join=2:{talk.new_id()}",
        "prefilled": _PREFILLED,
        "running": "steps=1",
    }
    ids, taps = {label: talk.new_id() for label in schedules}, {label: Tap() for label in schedules}
    by_id = can_abort(talk)

    async def end_all(_: Tap) -> None:
        for label, request_id in ids.items():
            if by_id:
                await talk.abort(f"{label}-abort", request_id)
            else:
                taps[label].hang_up()

    asks = {
        label: _with_schedule(talk, replace(ask, request_id=ids[label]), schedule)
        for label, schedule in schedules.items()
    }
    await together(
        *(talk.ask(label, asks[label], tap=taps[label]) for label in ("queued", "prefilled")),
        ask_and_then(talk, "running", asks["running"], 3, end_all, tap=taps["running"]),
    )
    await talk.ask("after", replace(prompt, max_new_tokens=4))


@_scheduled(perilous=1)
async def _scheduled_batches(talk: Conversation, speaker: Speaker) -> None:
    """Batches of different requests that start in one step.

    Some have logprobs, some have keys of customized_info that come late or not at all, and their steps differ
    in size. Then a request alone.
    """
    prompt = speaker.ask(talk.dialect, _spelled(talk, speaker, "abcdef"))
    if prompt is None:
        return
    for form, stream in (("whole", False), ("stream", True)):
        join = f"join={len(_BATCH)}:{talk.new_id()}"
        ask = replace(prompt, max_new_tokens=6, ignore_eos=True, stream=stream, usage=stream)
        await talk.ask_all(
            {
                f"{kind}-{form}": _with_schedule(
                    talk, replace(ask, logprobs=kind == "no-key"), join, schedule
                )
                for kind, schedule in _BATCH.items()
            }
        )
        await talk.ask(f"control-{form}", replace(prompt, max_new_tokens=6))
