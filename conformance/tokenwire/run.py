"""A live run: find out what the target is, ask all scenarios of all its dialects at once, read the answers.

Everything is asked before anything is judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenwire.beside import GATEWAY, ask_both
from tokenwire.capture import CaptureWriter
from tokenwire.determinism import PROBE
from tokenwire.detokenization import ask_for_texts
from tokenwire.dialect import Dialect, load_dialects
from tokenwire.exchange import Ending, Exchange, HttpRequest, Server
from tokenwire.exploration import Exploration
from tokenwire.judge import Run
from tokenwire.politeness import Limits, Pace, PoliteSender
from tokenwire.preflight import Preflight, preflight
from tokenwire.record import Stream
from tokenwire.recorder import Recorder
from tokenwire.replay import remarks
from tokenwire.report.subject import EXPLORATION, Subject
from tokenwire.scenario import (
    SMALLEST_CONTEXT,
    Budget,
    Conversation,
    Scenario,
    Sender,
    Transcript,
    load_scenarios,
)
from tokenwire.tokenizer import Tokenizer

_PREFLIGHT_SHARE = 8
"""A preflight request gets this part of an exchange's time limit: a target that hangs is soon known."""
_PREFLIGHT_LEAST_S = 5.0

_LEAST_PATIENCE = 8
"""So many exchanges in a row must have got no complete answer before the target is given up."""

_SILENT = (Ending.TIMEOUT, Ending.UNREACHABLE)


@dataclass(frozen=True)
class Plan:
    """What to ask of whom."""

    url: str
    timeout_s: float = 60.0
    """For one exchange."""
    limits: Limits = field(default_factory=Limits)
    headers: tuple[tuple[str, str], ...] = ()
    record: Path | None = None
    """Where the exchanges are written, as they arrive."""
    dialects: tuple[str, ...] = ()
    """Only these; all where empty."""
    scenarios: tuple[str, ...] = ()
    """Only these, and the probe, whatever they take; all that the budget covers where empty.

    Asked in the order of what they take, the probe first: tokens may not pay for all.
    """
    budget: Budget = Budget.STANDARD
    model: str = ""
    """The name of the model to ask for; empty for the first that the target lists."""
    tokenizer: Tokenizer | None = None
    """That of the model, where one is at hand; without it the server's own is asked."""
    explore: int = 0
    """So many requests are drawn by hypothesis besides."""
    seed: int = 0
    """What they are drawn by: the same seed, the same requests."""
    declared: tuple[str, ...] = ()
    """Capabilities that the target is said to have: where it does not show one, that is a violation."""
    worker: str = ""
    """The server behind the target, where that is a gateway: both are asked the same. It gets no headers."""


class NoSuchTarget(ValueError):  # noqa: N818  # a fact about the command line
    """The target's URL is none; the message says what one looks like."""


class _StoppedAnswering(Exception):  # noqa: N818  # the end of the asking, not an error of the program
    """Many exchanges in a row got no complete answer."""


class _Patient:
    """Sends through the recorder for as long as the target answers at least now and then.

    Without it, a target that dies in the middle would cost the time limit of every exchange that is left.
    """

    def __init__(self, recorder: Sender, patience: int) -> None:
        self._recorder = recorder
        self._patience = patience
        self._silent = 0

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        exchange = await self._recorder.send(name, scenario, request, **how)
        self._silent = self._silent + 1 if exchange.ending in _SILENT else 0
        if self._silent >= self._patience:
            raise _StoppedAnswering(
                f"the target stopped answering: {self._silent} exchanges in a row ended by "
                f"{exchange.ending}, the last was {name} ({exchange.detail})"
            )
        return exchange


class Progress:
    """Told of what happens; the terminal's progress bar, or nobody."""

    def planned(self, conversations: int) -> None:
        """So many scenarios will be talked through."""

    def answered(self, stream: Stream) -> None:
        """An exchange is over."""

    def finished(self, conversation: Conversation) -> None:
        """A scenario is talked through with one dialect."""


@dataclass(frozen=True)
class Unreached:
    """The target speaks no dialect: nothing was asked in earnest, and there is nothing to judge."""

    subject: Subject
    diagnosis: str


def _chosen(plan: Plan) -> list[Scenario]:
    def is_chosen(scenario: Scenario) -> bool:
        if plan.scenarios:
            return scenario.name in (PROBE, *plan.scenarios)
        return plan.budget.covers(scenario.budget) or scenario.name == PROBE

    chosen = [each for each in load_scenarios().values() if is_chosen(each) and not each.worker]
    return sorted(chosen, key=lambda each: (each.name != PROBE, list(Budget).index(each.budget)))


def _conversations(
    plan: Plan, found: Preflight, sender: Sender, transcript: Transcript
) -> list[tuple[Scenario, Conversation]]:
    conversations = [
        (
            scenario,
            Conversation(
                scenario.name, dialect, sender, found.advertised, transcript, found.model, plan.budget
            ),
        )
        for scenario in _chosen(plan)
        for dialect in found.speaks
    ]
    return [(scenario, talk) for scenario, talk in conversations if scenario.chat in (None, talk.chat)]


def _run(plan: Plan, found: Preflight, transcript: Transcript) -> Run:
    """All that was asked and answered so far, in the order of asking."""
    in_order = sorted(transcript.streams, key=lambda stream: stream.exchange.started)
    return Run(
        tuple(in_order),
        found.advertised,
        calls=tuple(transcript.calls),
        declared=frozenset(plan.declared),
        beside=tuple(transcript.beside),
        tokenizer=plan.tokenizer or transcript.tokenizer,
    )


def _subject(
    plan: Plan, found: Preflight, transcript: Transcript, broken_off: str, limits: tuple[str, ...]
) -> Subject:
    run = _run(plan, found, transcript)
    return Subject(
        url=plan.url,
        runs=(run,),
        dialects=tuple(dialect.name for dialect in found.speaks),
        taken=found.taken,
        left_out=found.left_out,
        remarks=(*remarks(run), *limits),
        not_asked=transcript.not_asked,
        broken_off=broken_off,
        recorded=str(plan.record) if plan.record else "",
        explored=("--explore", str(plan.explore), "--seed", str(plan.seed)) if plan.explore else (),
    )


async def interrogate(plan: Plan, progress: Progress) -> Subject | Unreached:
    """Ask the target everything that the plan holds, until it is answered or the target stops answering.

    Raises NoSuchTarget for a URL that is none.
    """
    capture = CaptureWriter(plan.record) if plan.record else None
    dialects = [d for name, d in load_dialects().items() if not plan.dialects or name in plan.dialects]
    first_words = min(plan.timeout_s, max(_PREFLIGHT_LEAST_S, plan.timeout_s / _PREFLIGHT_SHARE))
    try:
        scout = Recorder(
            plan.url,
            timeout_s=first_words,
            headers=plan.headers,
            max_concurrency=plan.limits.max_concurrency,
            capture=capture,
        )
    except ValueError as error:
        raise NoSuchTarget(str(error)) from error
    pace = Pace(plan.limits.rate)
    async with scout:
        # What is found out first is not charged: it is little, and without it nothing can be asked.
        first = PoliteSender(scout, plan.limits, (), context_length=0, pace=pace)
        found = await preflight(plan.url, first, dialects, plan.model, named=bool(plan.dialects))
    worker = await _worker(plan, dialects, first_words) if plan.worker else None
    if not found.speaks:
        return Unreached(Subject(url=plan.url, left_out=found.left_out), found.diagnosis)
    recorder = Recorder(
        plan.url,
        timeout_s=plan.timeout_s,
        headers=plan.headers,
        max_concurrency=plan.limits.max_concurrency,
        capture=capture,
        server=Server(found.advertised.name, found.advertised.version),
    )
    transcript = Transcript(on_answer=progress.answered)
    broken_off = ""
    explored: tuple[str, ...] = ()
    async with recorder:
        sender = PoliteSender(
            _Patient(recorder, patience=max(plan.limits.max_concurrency, _LEAST_PATIENCE)),
            plan.limits,
            found.speaks,
            context_length=found.advertised.context_length or SMALLEST_CONTEXT,
            pace=pace,
        )
        conversations = _conversations(plan, found, sender, transcript)
        progress.planned(len(conversations))
        try:
            async with asyncio.TaskGroup() as together:
                for scenario, talk in conversations:
                    if not scenario.alone:
                        together.create_task(_talk(scenario, talk, progress.finished))
            for scenario, talk in conversations:
                if scenario.alone:
                    await _talk(scenario, talk, progress.finished)
            if worker is not None and (not plan.scenarios or GATEWAY in plan.scenarios):
                async with _recorder_of_worker(plan, worker, capture) as behind:
                    to_worker = _Patient(behind, patience=_LEAST_PATIENCE)
                    await ask_both(worker, to_worker, found, sender, transcript)
            if plan.explore:
                exploration = Exploration(
                    [
                        Conversation(EXPLORATION, dialect, sender, found.advertised, transcript, found.model)
                        for dialect in found.speaks
                    ],
                    _run(plan, found, transcript),
                    plan.explore,
                    plan.seed,
                )
                explored = await exploration.explore()
            if plan.tokenizer is None:
                transcript.tokenizer = await ask_for_texts(sender, found.speaks, transcript.streams)
        except* _StoppedAnswering as group:
            broken_off = str(group.exceptions[0])
    transcript.streams += (
        dialect.read(exchange, delivery_hint=found.advertised.delivery)
        for exchange in sender.turned_away
        for dialect in found.speaks
        if exchange.request in dialect.endpoint
    )
    return _subject(plan, found, transcript, broken_off, (*explored, *first.remarks(), *sender.remarks()))


async def _worker(plan: Plan, dialects: Sequence[Dialect], first_words: float) -> Preflight:
    """Find out what the worker behind a gateway is. Raises NoSuchTarget where it is none."""
    at_once = plan.limits.max_concurrency
    try:
        recorder = Recorder(plan.worker, timeout_s=first_words, max_concurrency=at_once)
    except ValueError as error:
        raise NoSuchTarget(f"--worker: {error}") from error
    async with recorder:
        found = await preflight(plan.worker, recorder, dialects, plan.model)
    if not found.speaks:
        raise NoSuchTarget(f"--worker: {found.diagnosis}")
    return found


def _recorder_of_worker(plan: Plan, worker: Preflight, capture: CaptureWriter | None) -> Recorder:
    return Recorder(
        plan.worker,
        timeout_s=plan.timeout_s,
        max_concurrency=plan.limits.max_concurrency,
        capture=capture,
        server=Server(worker.advertised.name, worker.advertised.version),
    )


async def _talk(scenario: Scenario, talk: Conversation, finished: Callable[[Conversation], None]) -> None:
    await scenario.run(talk)
    finished(talk)
