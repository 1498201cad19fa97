"""One run of many exchanges: what judges it works for each answer, and not for each pair of them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from tokenwire.checks.check import CHECKS, RunCheck
from tokenwire.judging.run import Run
from tokenwire.replay import replay
from tokenwire.wire.exchange import Exchange

FIXTURES = Path(__file__).parents[2] / "fixtures"
CAPTURE = FIXTURES / "sglang" / "0.5.23" / "live-without-tokenizer.jsonl.gz"
SCENARIOS = frozenset(
    {"abort-of-one", "batch-and-singles", "budget-sweep", "concurrency", "continuation", "greedy-stream"}
    | {"malformed-ids", "probe", "prompt-logprobs", "rescored-output", "stop-around-the-budget", "turns"}
)
TIMES = (2, 3, 4)
SLACK = 0.05
"""Of what looks at one of the runs; the work for all pairs of its answers would grow by as much again."""


@pytest.fixture(scope="module")
def runs() -> tuple[Run, ...]:
    """All that a recorded run asked, over and over: each time an hour later, under other names."""
    (recorded,) = replay([CAPTURE]).runs

    def later(exchange: Exchange, time: int) -> Exchange:
        started = datetime.fromisoformat(exchange.started) + timedelta(hours=time)
        return replace(exchange, name=f"{exchange.name}-{time}", started=started.isoformat())

    def again(times: int) -> Run:
        return replace(
            recorded,
            streams=tuple(
                replace(stream, exchange=later(stream.exchange, time))
                for time in range(times)
                for stream in recorded.streams
                if stream.exchange.scenario in SCENARIOS
            ),
            calls=tuple(
                replace(call, exchange=later(call.exchange, time))
                for time in range(times)
                for call in recorded.calls
            ),
        )

    for _, work in looks(again(2)):
        work()  # what is kept of each choice is read now, and not by the first run that is counted
    return tuple(map(again, TIMES))


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called: what time is spent on, and the same on every machine."""
    called = 0

    def count(_frame: FrameType, event: str, _about: object) -> None:
        nonlocal called
        called += event in {"call", "c_call"}

    gc.disable()  # or finalizers, which run during a collection, would be counted too
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return called


def looks(run: Run) -> Iterator[tuple[str, Callable[[], object]]]:
    """All that looks at a run as a whole: what is known of the target, and checks, each with its name."""
    for name in ("clouded", "determinism", "comparisons", "model", "capabilities", "markup", "target"):
        yield name, partial(getattr, run, name)
    for name, check in CHECKS.items():
        if check.on_run is not None:
            yield name, partial(_run_check, check.on_run, run)


def _run_check(check: RunCheck, run: Run) -> None:
    for _ in check(run.answers, run.target):
        pass


def test_work_grows_with_the_answers_and_not_with_their_pairs(runs: tuple[Run, ...]) -> None:
    few, more, most = ({name: calls_of(work) for name, work in looks(run)} for run in runs)
    grown = {name: (most[name] - 2 * more[name] + few[name]) / (few[name] + 1000) for name in few}
    assert {name: round(times, 2) for name, times in grown.items() if times > SLACK} == {}
