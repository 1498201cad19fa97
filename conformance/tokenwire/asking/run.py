"""A live run: identifies the target, runs all scenarios in each of its dialects, and parses the answers.

Judging begins only after the last request.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from tokenwire import __version__
from tokenwire.ask import Budget
from tokenwire.asking.beside import ask_both, ask_for_exhibits, ask_with_a_cut_worker
from tokenwire.asking.confirmation import ACROSS_RESPONSES, confirm, send_again
from tokenwire.asking.detokenization import ask_for_texts, rehearse_texts
from tokenwire.asking.exploration import Exploration
from tokenwire.asking.parroting import find_parrot
from tokenwire.asking.politeness import Limits, Metered, Pace, PoliteSender, Purse, Spent
from tokenwire.asking.preflight import SCENARIO as PREFLIGHT
from tokenwire.asking.preflight import Preflight, least_requests, preflight
from tokenwire.asking.recorder import MAX_BODY_BYTES, Recorder
from tokenwire.asking.rehearsal import Estimate, Rehearsal
from tokenwire.asking.resumption import Notes
from tokenwire.asking.scenario import Conversation, NotAsked, Scenario, Transcript, load_scenarios
from tokenwire.asking.stopwatch import Stopwatch
from tokenwire.asking.vital_signs import Revival, VitalSigns
from tokenwire.dialects.control import is_begin, read_call
from tokenwire.dialects.dialect import Dialect, load_dialects, named_dialects
from tokenwire.judging.beside import GATEWAY
from tokenwire.judging.run import Run
from tokenwire.parrot.speaker import Speaker
from tokenwire.record import Answer, Stream
from tokenwire.replay import remarks, rules
from tokenwire.report.subject import EXPLORATION, Subject
from tokenwire.settings import Settings
from tokenwire.target.cuts import CUT
from tokenwire.target.determinism import PROBE
from tokenwire.target.tokenizer import Tokenizer
from tokenwire.typed_table import counted
from tokenwire.usage_error import UsageError
from tokenwire.wire.capture import CaptureWriter
from tokenwire.wire.exchange import Exchange, HttpRequest, Server
from tokenwire.wire.redaction import Headers, redact_url

_PREFLIGHT_SHARE = 8
"""Divisor: an information endpoint gets 1/8 of the time limit of other requests, because many targets have
none.
"""
_PREFLIGHT_LEAST_S = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_FIRST_WORDS_BYTES = 1 << 20
"""The largest response body in the preflight, in bytes."""


@dataclass(frozen=True)
class Plan:
    """The settings of a run, with values derived from them."""

    settings: Settings
    limits: Limits = field(default_factory=Limits)
    headers: Headers = field(default=(), repr=False)
    """Headers to send, with environment variables replaced by their values."""
    secrets: frozenset[str] = frozenset()
    """Lower-case names of headers whose values are not recorded."""
    tokenizer: Tokenizer | None = None
    """The model's tokenizer; None to use the server's detokenize endpoint instead."""
    revival: Revival | None = None
    """Restarts the server if it dies; None to give up."""
    record: Path | None = None
    """The folder into which exchanges are written as they arrive."""
    resume: bool = False
    """True to continue the run that is recorded in the folder."""
    on_loss: Callable[[str], object] = lambda _: None
    """Called with a message if the recording cannot be written. The run continues."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """The options that decide which requests are sent, as JSON.

    They must be equal when the run is resumed.
    """
    asked_with: tuple[str, ...] = ()
    """The command-line options for another run that sends the same requests, without target and scenarios."""
    judged_with: tuple[str, ...] = ()
    """The command-line options for another run that judges in the same way."""
    on_exchange: Callable[[Exchange], None] = lambda _: None
    """Called with each finished exchange, for example to log it."""
    draws: int = field(default_factory=lambda: secrets.randbits(64))
    """The seed for random ids, names and prompts. Plans with equal seeds send equal requests."""
    stopwatch: Stopwatch = field(default_factory=Stopwatch, repr=False, compare=False)
    purse: Purse = field(default=None, repr=False, compare=False)  # type: ignore[assignment]
    """Counts what the run uses of its limits; None for a new one. All runs of a command share it."""

    def __post_init__(self) -> None:
        if self.purse is None:
            object.__setattr__(self, "purse", Purse.of(self.limits))


class Progress:
    """Listener for the events of a run. This class ignores them; `TerminalProgress` draws a progress bar."""

    def planned(self, conversations: int) -> None:
        """Called with the number of conversations: one for each scenario and dialect."""

    def answered(self, stream: Stream) -> None:
        """Called with each answer."""

    def waiting(self, words: str) -> None:
        """Called with the reason why the run waits."""

    def finished(self, conversation: Conversation) -> None:
        """Called with each finished conversation."""

    def confirming(self, done: int, total: int) -> None:
        """Called before each repeated request: `done` of `total` have been sent."""


_SILENT = Progress()


@dataclass(frozen=True)
class Unreached:
    """The result if the target supports no dialect: no scenario ran, and nothing is judged."""

    subject: Subject
    diagnosis: str


def chosen(settings: Settings) -> list[Scenario]:
    """Return the scenarios to run: the probe for determinism first, then the scenarios of the smallest
    budget.

    Scenarios that the user names are included at any budget.
    """

    def is_chosen(scenario: Scenario) -> bool:
        if scenario.name in settings.without or (settings.gentle and (scenario.perilous or scenario.storm)):
            return False
        if settings.scenario:
            return scenario.name in (PROBE, *settings.scenario)
        return settings.budget.covers(scenario.budget) or scenario.name == PROBE

    wanted = [
        scenario for scenario in load_scenarios().values() if is_chosen(scenario) and not scenario.worker
    ]
    return sorted(wanted, key=lambda scenario: (scenario.name != PROBE, list(Budget).index(scenario.budget)))


@dataclass
class _Interrogation:
    """A run against an identified target, and its results so far."""

    plan: Plan
    found: Preflight
    sender: PoliteSender
    vitals: VitalSigns
    transcript: Transcript
    progress: Progress
    notes: Notes | None = None
    parrot: Speaker | None = None
    explored: tuple[str, ...] = ()

    def _talk(self, name: str, dialect: Dialect) -> Conversation:
        return Conversation(
            name,
            dialect,
            self.sender,
            self.found.advertised,
            self.transcript,
            self.found.model,
            self.plan.settings.budget,
            self.parrot,
            self.plan.settings.channels,
            frozenset(self.plan.settings.declare),
            Random(f"{self.plan.draws} {name} {dialect.name}"),
        )

    @cached_property
    def talks(self) -> list[tuple[Scenario, Conversation]]:
        """Return the scenarios to run, one conversation for each dialect, the most dangerous last."""
        talks = [
            (scenario, self._talk(scenario.name, dialect))
            for scenario in sorted(chosen(self.plan.settings), key=lambda scenario: scenario.perilous)
            for dialect in self.found.asked
        ]
        return [
            (scenario, talk)
            for scenario, talk in talks
            if scenario.fits(talk.dialect)
            and (self.parrot is not None or not scenario.parrot)
            and not (self.notes is not None and self.notes.recall(talk))
        ]

    async def _run_scenario(self, scenario: Scenario, talk: Conversation) -> None:
        await scenario.run(talk)
        self.progress.finished(talk)
        # An interrupted scenario is not marked as finished, so `--resume` runs it again.
        if self.notes is not None and not self.vitals.over:
            self.notes.finish(talk)

    async def ask_ordinary(self) -> None:
        """Run the harmless scenarios: all at once, then one by one those that must run alone."""
        self.progress.planned(len(self.talks))
        ordinary = [(scenario, talk) for scenario, talk in self.talks if not scenario.perilous]
        async with asyncio.TaskGroup() as together:
            for scenario, talk in ordinary:
                if not scenario.alone:
                    together.create_task(self._run_scenario(scenario, talk))
        for scenario, talk in ordinary:
            if scenario.alone:
                await self._run_scenario(scenario, talk)

    async def confirm(self) -> None:
        """Repeat requests whose answers may differ by chance, one request at a time."""
        dialects = {dialect.name: dialect for dialect in self.found.asked}

        async def ask_again(stream: Answer, turn: int) -> None:
            await send_again(self._talk(stream.exchange.scenario, dialects[stream.dialect]), stream, turn)

        await confirm(self.run, ask_again, ACROSS_RESPONSES, self.progress.confirming)

    async def ask_perilous(self) -> None:
        """Run the dangerous scenarios one by one, after all others, so that the cause of a crash is known."""
        for scenario, talk in self.talks:
            if scenario.perilous:
                await self._run_scenario(scenario, talk)

    async def ask_for_texts(self) -> None:
        """Request the texts of the ids that the server has sent so far."""
        with contextlib.suppress(NotAsked):  # the server died, which the report says elsewhere
            self.transcript.tokenizer = await ask_for_texts(
                self.sender, self.found.speaks, self.transcript.streams
            )

    async def ask_worker_too(self, worker: Preflight, to_worker: PoliteSender) -> None:
        """Send the gateway's requests to its worker as well, within the same limits."""
        settings = self.plan.settings
        chosen = {*(settings.scenario or (GATEWAY, CUT))}.difference(settings.without)
        if GATEWAY in chosen:
            await ask_both(
                worker, to_worker, self.found, self.sender, transcript=self.transcript, run_so_far=self.run
            )
        if CUT in chosen:
            await ask_with_a_cut_worker(worker, to_worker, self.found, self.sender, self.transcript)
        await self.ask_for_exhibits(worker, to_worker)

    async def ask_for_exhibits(self, worker: Preflight, to_worker: PoliteSender) -> None:
        """Send the worker the requests with which the gateway failed so far, except the requests that the
        worker already got.
        """
        withheld = {name.lower() for name, _ in self.plan.headers}
        self.transcript.exhibits += await ask_for_exhibits(
            worker, to_worker, self.found, self.run(), withheld
        )

    async def explore(self) -> None:
        """Generate and send requests that use the target's known capabilities."""
        talks = [self._talk(EXPLORATION, dialect) for dialect in self.found.speaks]
        self.explored = await Exploration(
            talks, self.run(), self.plan.settings.explore, self.plan.settings.seed
        ).explore()

    def add_the_rest(self, cut: Iterable[Exchange]) -> None:
        """Add the exchanges that belong to no scenario, so that they are judged as in a replay.

        These are retried attempts (429 or 503), liveness probes, and exchanges that were interrupted at the
        end (`cut`).
        """
        hints: Any = {
            "delivery_hint": self.found.advertised.delivery,
            "adapters": self.found.advertised.adapters,
        }
        for exchange in (*self.sender.turned_away, *self.vitals.besides, *cut):
            self.transcript.streams += (
                dialect.read(exchange, **hints)
                for dialect in self.found.asked
                if exchange.request in dialect.endpoint and not is_begin(exchange)
            )
            if (call := read_call(exchange)) is not None:
                self.transcript.calls.append(call)

    def run(self) -> Run:
        """Return the run so far, with the answers in the order of their requests."""
        in_order = sorted(self.transcript.streams, key=lambda stream: stream.exchange.started)
        return Run(
            tuple(in_order),
            self.found.advertised,
            calls=tuple(self.transcript.calls),
            declared=frozenset(self.plan.settings.declare),
            beside=tuple(self.transcript.beside),
            worker_asked=bool(self.plan.settings.worker),
            exhibits=tuple(self.transcript.exhibits),
            tool_calls=self.plan.settings.channels,
            tokenizer=self.transcript.tokenizer,
        )

    def subject(self, *, unrecorded: str = "") -> Subject:
        """Return the input of the report. `unrecorded`: the reason why the recording is incomplete."""
        plan, found, run = self.plan, self.found, self.run()
        left = f"{counted(len(self.transcript.not_asked), 'exchange')} were not asked"
        died = f"the server died of {run.died.blamed}; {left}" if run.died is not None else ""
        # `--wait` is suggested only if the run did not already wait for a restart of the server.
        waits = "--wait N goes on when it is back" if died and plan.revival is None else ""
        why = "; ".join(filter(None, (died, waits, self.vitals.stopped))) or self.vitals.over
        return Subject(
            url=plan.settings.target,
            runs=(run,),
            dialects=tuple(dialect.name for dialect in found.asked),
            taken=found.taken,
            left_out=found.left_out,
            remarks=(
                *remarks(run),
                *self.explored,
                *self.sender.remarks(),
                *filter(None, [self.vitals.unproved]),
            ),
            rules=tuple(rules(run)),
            not_asked=self.transcript.not_asked,
            broken_off=why if self.vitals.over else "",
            stopped=self.vitals.signal,
            cut_off=self.sender.cut_off,
            recorded=str(plan.record) if plan.record and not unrecorded else "",
            unrecorded=unrecorded,
            asked_with=plan.asked_with,
            judged_with=plan.judged_with,
            explored=("--explore", str(plan.settings.explore), "--seed", str(plan.settings.seed))
            if plan.settings.explore
            else (),
        )


async def rehearse(plan: Plan) -> dict[tuple[str, str], Estimate] | Unreached:
    """Identify the target, and estimate the most requests and tokens of a run by dialect and scenario.

    Only the preflight uses the network. Raises UsageError for an invalid URL.
    """
    # The estimate includes the preflight requests.
    first: list[HttpRequest] = []
    counting = replace(plan, on_exchange=lambda exchange: first.append(exchange.request))
    found, polite = await _find_out(counting, None)
    parrot = await find_parrot(found, polite, plan.tokenizer)
    if not found.speaks:
        return Unreached(Subject(url=plan.settings.target, left_out=found.left_out), found.diagnosis)
    length = found.advertised.context
    rehearsal = Rehearsal(found.asked, length)
    for request in first:
        rehearsal.count(request, PREFLIGHT)
    # A rehearsal does not wait for the rate limit.
    metered = Metered(rehearsal, plan.purse, dialects=found.asked, context_length=length, pace=Pace(None))
    sender = polite.to(metered)
    dialect = found.speaks[0]
    vitals = VitalSigns(metered, dialect, found.answered[dialect.name])
    asking = _Interrogation(plan, found, sender, vitals, Transcript(), Progress(), parrot=parrot)
    await asking.ask_ordinary()
    if plan.settings.explore:
        await asking.explore()
    if plan.tokenizer is None:
        with contextlib.suppress(NotAsked):
            await rehearse_texts(sender, found.speaks)
    await asking.ask_perilous()
    for scenario, talk in asking.talks:
        rehearsal.raise_to(scenario.at_most, scenario.name, talk.dialect.name)
    return rehearsal.asked


@dataclass(frozen=True)
class Reached:
    """An identified target, and two senders for further requests."""

    found: Preflight
    once: Metered
    """Sends each request once, without retries."""
    sender: PoliteSender
    """Sends within the concurrency limit, and retries while the target is busy."""


async def reach(plan: Plan) -> Reached:
    """Identify a target. Raises UsageError for an invalid URL."""
    capture = CaptureWriter(plan.record, on_loss=plan.on_loss) if plan.record else None
    found, polite = await _find_out(plan, capture)
    once = _metered(plan, _recorder(plan, capture, known=found), found)
    return Reached(found, once, polite.to(once))


async def interrogate(plan: Plan, progress: Progress) -> Subject | Unreached:
    """Run the plan: send all requests, or stop when the target no longer answers.

    Raises UsageError for an invalid URL, or if the recording belongs to another run.
    """
    capture = CaptureWriter(plan.record, on_loss=plan.on_loss) if plan.record else None
    notes = _notes(plan.record, plan) if plan.record else None
    # A resumed recording contains the preflight already.
    is_resumed = notes is not None and bool(notes.server)
    found, polite = await _find_out(plan, None if is_resumed else capture, progress)
    parrot = await find_parrot(found, polite, plan.tokenizer)
    behind = replace(plan, settings=replace(plan.settings, target=plan.settings.worker), headers=())
    worker = await _worker(behind, polite) if plan.settings.worker else None
    if not found.speaks:
        lost = capture.lost if capture is not None else ""
        subject = Subject(url=plan.settings.target, left_out=found.left_out, unrecorded=lost)
        return Unreached(subject, found.diagnosis)
    if notes is not None:
        # `begin` refuses the recording of another server, before `forget_the_rest` deletes anything.
        notes.begin(found)
        notes.forget_the_rest()
    recorder = _recorder(plan, capture, known=found)
    # Probes for a restarted server are not recorded.
    scout = _recorder(plan, None, scouts=True)
    vitals = _vital_signs(plan, recorder, found, scout, progress.waiting)
    sender = polite.to(vitals)
    transcript = Transcript(list(found.failures), tokenizer=plan.tokenizer, on_answer=progress.answered)
    asking = _Interrogation(plan, found, sender, vitals, transcript, progress, notes, parrot)

    async def ask() -> None:
        await asking.ask_ordinary()
        if plan.settings.explore:
            await asking.explore()
        await asking.confirm()
        # Texts are requested before the dangerous scenarios, which may crash the server.
        if plan.tokenizer is None:
            await asking.ask_for_texts()
        if worker is None:
            await asking.ask_perilous()
            return
        to_worker = sender.to(_vital_signs(plan, _recorder(behind, capture, known=worker), worker))
        await asking.ask_worker_too(worker, to_worker)
        await asking.ask_perilous()
        await asking.ask_for_exhibits(worker, to_worker)

    await _until_stopped(ask(), vitals)
    asking.add_the_rest(recorder.cut)
    return asking.subject(unrecorded=capture.lost if capture is not None else "")


async def _until_stopped(asking: Coroutine[Any, Any, None], vitals: VitalSigns) -> None:
    """Run to the end, or until SIGINT or SIGTERM. A second signal kills the process."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(asking)
    # Python sets signal handlers only in the main thread.
    signals = _SIGNALS if threading.current_thread() is threading.main_thread() else ()

    stopped = False

    def stop(number: signal.Signals) -> None:
        nonlocal stopped
        stopped = True
        vitals.signal = number.name
        vitals.stopped = vitals.over = f"{number.name} ended the run before this was asked"
        task.cancel()
        for handled in signals:
            loop.remove_signal_handler(handled)

    for number in signals:
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        # The task was cancelled by the caller, not by a signal.
        if not stopped:
            raise
    finally:
        for handled in signals:
            loop.remove_signal_handler(handled)


async def _find_out(
    plan: Plan, capture: CaptureWriter | None, progress: Progress = _SILENT
) -> tuple[Preflight, PoliteSender]:
    """Identify the target; return the result and the sender that charges requests to the limits.

    Raises UsageError for an invalid URL.
    """
    polite = PoliteSender(_first(plan, capture), plan.purse)
    named = bool(plan.settings.dialect)
    return await _found(plan, polite, capture, named=named, on_wait=progress.waiting), polite


def _notes(folder: Path, plan: Plan) -> Notes:
    """Return the notes for the folder of a recording. Raises UsageError if a run cannot be resumed."""
    asked = {"tokenwire": __version__, "target": plan.settings.target, **plan.asked}
    if not plan.resume:
        return Notes(folder, asked)
    notes = Notes.of(folder, asked)
    if not notes.server:
        notes.forget_the_rest()
    return notes


def _vital_signs(
    plan: Plan,
    recorder: Recorder,
    found: Preflight,
    scout: Recorder | None = None,
    on_wait: Callable[[str], object] = lambda _: None,
) -> VitalSigns:
    """Return the sender that stops at a crash of the target. With a `scout`, it waits for a restart."""
    dialect = found.speaks[0]
    return VitalSigns(
        _metered(plan, recorder, found),
        dialect,
        found.answered[dialect.name],
        patience=plan.limits.max_concurrency,
        revival=plan.revival if scout is not None else None,
        scout=_metered(plan, scout, found) if scout is not None else None,
        on_wait=on_wait,
    )


def _metered(plan: Plan, recorder: Recorder, found: Preflight) -> Metered:
    """Return a sender that charges each request to the limits."""
    return Metered(recorder, plan.purse, dialects=found.asked, context_length=found.advertised.context)


def _first(plan: Plan, capture: CaptureWriter | None, *, scouts: bool = False) -> Metered:
    """Return the sender of the preflight, which charges each request to the limits.

    Raises UsageError for an invalid URL.
    """
    recorder = _recorder(plan, capture, scouts=scouts, first=True)
    return Metered(recorder, plan.purse, dialects=_dialects(plan))


def _dialects(plan: Plan) -> list[Dialect]:
    """Return the dialects to try: those that the user named, or all."""
    wanted = named_dialects(plan.settings.dialect)
    return [dialect for name, dialect in load_dialects().items() if not wanted or name in wanted]


async def _found(
    plan: Plan,
    sender: PoliteSender,
    capture: CaptureWriter | None,
    *,
    named: bool,
    on_wait: Callable[[str], object] = lambda _: None,
) -> Preflight:
    """Identify a target. `named`: the user named the dialects.

    Raises UsageError if the limits do not allow the preflight.
    """
    dialects, settings = _dialects(plan), plan.settings
    least = least_requests(dialects)
    if not plan.purse.affords(least):
        raise UsageError(_unaffordable(plan, least, plan.purse.words()))
    try:
        return await preflight(
            settings.target,
            sender,
            dialects,
            settings.model,
            named=named,
            scout=sender.to(_first(plan, capture, scouts=True)),
            patience_s=settings.timeout,
            on_wait=lambda words: on_wait(f"{words}; waiting up to {settings.timeout:g} s (--timeout)"),
        )
    except Spent as reason:
        raise UsageError(_unaffordable(plan, least, str(reason))) from reason


def _unaffordable(plan: Plan, least: int, why: str) -> str:
    """Return the error message for limits that do not allow the preflight."""
    return (
        f"to find out what {redact_url(plan.settings.target)} is takes {least} requests at least, and the "
        f"limits do not pay for them: {why}; raise the limit, or name a --dialect"
    )


def _recorder(
    plan: Plan,
    capture: CaptureWriter | None,
    *,
    scouts: bool = False,
    first: bool = False,
    known: Preflight | None = None,
) -> Recorder:
    """Return a recorder with the plan's limits.

    `scouts`: shorter time limit, smaller responses. `first`: smaller responses. Raises UsageError for an
    invalid URL.
    """
    whole = plan.settings.timeout
    return Recorder(
        plan.settings.target,
        timeout_s=min(whole, max(_PREFLIGHT_LEAST_S, whole / _PREFLIGHT_SHARE)) if scouts else whole,
        max_body_bytes=_FIRST_WORDS_BYTES if scouts or first else MAX_BODY_BYTES,
        headers=plan.headers,
        max_concurrency=plan.limits.max_concurrency,
        capture=capture,
        server=Server(known.advertised.name, known.advertised.version) if known else None,
        secrets=plan.secrets,
        on_exchange=plan.on_exchange,
        stopwatch=plan.stopwatch,
    )


async def _worker(plan: Plan, polite: PoliteSender) -> Preflight:
    """Identify the worker behind a gateway. Raises UsageError if it supports no dialect."""
    try:
        found = await _found(plan, polite.to(_first(plan, None)), None, named=False)
    except UsageError as error:
        raise UsageError(f"--worker: {error}") from error
    if not found.speaks:
        raise UsageError(f"--worker: {found.diagnosis}")
    return found
