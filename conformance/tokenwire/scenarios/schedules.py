"""Schedules: what an engine of known answers does on demand below a front end (`tokenwire engine`)."""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial, wraps

from tokenwire.ask import Ask, Budget
from tokenwire.asking.scenario import Conversation, only_choice, scenario
from tokenwire.parrot.speaker import Ids, Speaker
from tokenwire.scenarios.forms import with_parameter

_FIELDS = {"sglang": "custom_params", "vllm": "vllm_xargs"}
"""The field of a request that a family passes on to its engine."""
_KEY = "tokenwire"
_PROBE = "abort=1"
"""An engine that reads schedules ends such a request at once, as aborted."""
_STEPS = ("steps=1", "steps=2,1,4", "steps=3", "steps=24", "steps=1,0,2;hold=4", "steps=2;hold=24")
_STOPS = ("dY", "X")
"""One step may complete both: the second of the list comes first in the text."""

_Scheduled = Callable[[Conversation, Speaker], Awaitable[None]]


def _scheduled(*, budget: Budget = Budget.QUICK) -> Callable[[_Scheduled], _Scheduled]:
    """Make a coroutine a scenario, as `scenario` does, that goes on where an engine reads schedules."""

    def register(given: _Scheduled) -> _Scheduled:
        @wraps(given)
        async def run(talk: Conversation) -> None:
            if talk.parrot is not None and await _reads_schedules(talk, talk.parrot):
                await given(talk, talk.parrot)

        scenario(budget=budget, parrot=True, alone=True)(run)
        return given

    return register


def _with_schedule(talk: Conversation, ask: Ask, schedule: str) -> Ask:
    return with_parameter(talk, ask, _FIELDS[talk.dialect.family], {_KEY: schedule})


def _spelled(talk: Conversation, speaker: Speaker, text: str) -> Ids:
    """The ids of a text: one for each byte, where the endpoint takes ids."""
    return speaker.bytes(text) if talk.dialect.takes_ids else speaker.encode(text)


async def _reads_schedules(talk: Conversation, speaker: Speaker) -> bool:
    prompt = speaker.ask(talk.dialect, _spelled(talk, speaker, "ab"))
    if prompt is None or talk.dialect.family not in _FIELDS:
        return False
    probe = _with_schedule(talk, replace(prompt, max_new_tokens=2), _PROBE)
    choice = only_choice(await talk.ask("probe", probe))
    return choice is not None and choice.finish is not None and choice.finish.type == "abort"


def _asks(
    talk: Conversation, speaker: Speaker, script: Ids, schedules: Mapping[str, str], **wanted: object
) -> dict[str, Ask]:
    """A script whole and streamed under each schedule, by label."""
    prompt = speaker.ask(talk.dialect, script)
    if prompt is None:
        return {}
    ask = replace(prompt, max_new_tokens=len(script), **wanted)  # type: ignore[arg-type]
    return {
        f"{label}-{form}": _with_schedule(talk, replace(ask, stream=stream, usage=stream), schedule)
        for label, schedule in schedules.items()
        for form, stream in (("whole", False), ("stream", True))
    }


@_scheduled()
async def _scheduled_steps(talk: Conversation, speaker: Speaker) -> None:
    """One answer under several schedules of steps, and with outputs that are kept and sent at once: with
    characters of several ids, with a stop string, and with two that one step completes together.
    """
    spell, end = partial(_spelled, talk, speaker), (speaker.end,)
    scripts: dict[str, tuple[Ids, tuple[str, ...]]] = {
        "text": ((*spell("It says é 漢字 😀 again."), *end), ()),
        "stop": ((*spell("ab 漢QZ cd"), *end), ("QZ",)),
        "stops": ((*spell("abXcdY ef"), *end), _STOPS),
    }
    schedules = {f"schedule-{place}": schedule for place, schedule in enumerate(_STEPS)}
    for name, (script, stop) in scripts.items():
        asks = _asks(talk, speaker, script, schedules, stop=stop, logprobs=True)
        await talk.ask_all({f"{name}-{label}": ask for label, ask in asks.items()})


@_scheduled()
async def _scheduled_ends(talk: Conversation, speaker: Speaker) -> None:
    """Ends that the engine makes in the middle of an answer: an abort with a token and in a step of its own,
    an error, an end after a preemption.
    """
    script = _spelled(talk, speaker, "It says it again")
    schedules = {
        "abort": "steps=2;abort=5",
        "late-abort": "steps=2;abort=5;late",
        "error": "steps=2;error=5:503",
        "preempted": "steps=2;retract=4",
    }
    await talk.ask_all(_asks(talk, speaker, script, schedules, logprobs=True))


@_scheduled()
async def _scheduled_batches(talk: Conversation, speaker: Speaker) -> None:
    """Batches whose requests start in one step and are of different kinds: some with logprobs, some with keys
    of customized_info, which come late or not at all, and steps of different sizes.
    """
    prompt = speaker.ask(talk.dialect, _spelled(talk, speaker, "abcdef"))
    if prompt is None:
        return
    kinds = {
        "one-key": "info=a",
        "another-key": "steps=3,1;info=b",
        "no-key": "steps=2",
        "late-key": "info=c@3",
    }
    for form, stream in (("whole", False), ("stream", True)):
        join = f"join={len(kinds)}:{secrets.token_hex(4)}"
        ask = replace(prompt, max_new_tokens=6, ignore_eos=True, stream=stream, usage=stream)
        await talk.ask_all(
            {
                f"{kind}-{form}": _with_schedule(
                    talk, replace(ask, logprobs=kind == "no-key"), f"{join};{schedule}"
                )
                for kind, schedule in kinds.items()
            }
        )
