"""A live run: find out what the target is, ask all scenarios of all its dialects at once, read the answers.

Everything is asked before anything is judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenwire.capture import CaptureWriter
from tokenwire.determinism import PROBE
from tokenwire.dialect import load_dialects
from tokenwire.exchange import Server
from tokenwire.judge import Run
from tokenwire.preflight import Preflight, preflight
from tokenwire.record import Stream
from tokenwire.recorder import Recorder
from tokenwire.replay import remarks
from tokenwire.report.subject import Subject
from tokenwire.scenario import Conversation, Scenario, Transcript, load_scenarios

_PREFLIGHT_TIMEOUT_S = 15.0
"""Whatever the target is, after so long the run knows whether it can talk to it."""


@dataclass(frozen=True)
class Plan:
    """What to ask of whom."""

    url: str
    timeout_s: float = 60.0
    """For one exchange."""
    max_concurrency: int = 16
    headers: tuple[tuple[str, str], ...] = ()
    record: Path | None = None
    """Where the exchanges are written, as they arrive."""
    dialects: tuple[str, ...] = ()
    """Only these; all where empty."""
    scenarios: tuple[str, ...] = ()
    """Only these, and the probe; all where empty."""


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
    every = load_scenarios()
    return [
        scenario
        for name, scenario in every.items()
        if not plan.scenarios or name in plan.scenarios or name == PROBE
    ]


def _conversations(
    plan: Plan, found: Preflight, sender: Recorder, transcript: Transcript
) -> list[tuple[Scenario, Conversation]]:
    conversations = [
        (scenario, Conversation(scenario.name, dialect, sender, found.advertised, transcript))
        for scenario in _chosen(plan)
        for dialect in found.speaks
    ]
    return [(scenario, talk) for scenario, talk in conversations if scenario.chat in (None, talk.chat)]


def _subject(plan: Plan, found: Preflight, transcript: Transcript) -> Subject:
    in_order = sorted(transcript.streams, key=lambda stream: stream.exchange.started)
    run = Run(tuple(in_order), found.advertised)
    return Subject(
        url=plan.url,
        runs=(run,),
        dialects=tuple(dialect.name for dialect in found.speaks),
        left_out=found.left_out,
        remarks=tuple(remarks(run)),
        recorded=str(plan.record) if plan.record else "",
    )


async def interrogate(plan: Plan, progress: Progress) -> Subject | Unreached:
    """Ask the target everything that the plan holds.

    Raises ValueError for a URL that is none.
    """
    capture = CaptureWriter(plan.record) if plan.record else None
    dialects = [d for name, d in load_dialects().items() if not plan.dialects or name in plan.dialects]
    first_words = min(plan.timeout_s, _PREFLIGHT_TIMEOUT_S)
    async with Recorder(plan.url, timeout_s=first_words, headers=plan.headers, capture=capture) as recorder:
        found = await preflight(plan.url, recorder, dialects)
    if not found.speaks:
        subject = Subject(url=plan.url, left_out=found.left_out)
        return Unreached(subject, found.diagnosis)
    transcript = Transcript(on_answer=progress.answered)
    async with Recorder(
        plan.url,
        timeout_s=plan.timeout_s,
        headers=plan.headers,
        max_concurrency=plan.max_concurrency,
        capture=capture,
        server=Server(found.advertised.name, found.advertised.version),
    ) as recorder:
        conversations = _conversations(plan, found, recorder, transcript)
        progress.planned(len(conversations))
        async with asyncio.TaskGroup() as together:
            for scenario, talk in conversations:
                together.create_task(_talk(scenario, talk, progress.finished))
    return _subject(plan, found, transcript)


async def _talk(scenario: Scenario, talk: Conversation, finished: Callable[[Conversation], None]) -> None:
    await scenario.run(talk)
    finished(talk)
