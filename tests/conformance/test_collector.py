from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hand_made_stream import ids_stream
from hand_made_stream import made_up_row as row

from tokenwire import cli
from tokenwire.checks.check import CHECKS, Check, Target
from tokenwire.checks.evidence import Observation, expect
from tokenwire.judging.collector import few_collections
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Stream


class _Cycle:
    """Refers to itself: only the garbage collector frees it."""

    def __init__(self) -> None:
        self.itself = self


def test_checks_may_leave_cycles_which_the_collector_frees(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[weakref.ref[_Cycle]] = []
    kept: list[list[int]] = []

    def leave_a_cycle(stream: Stream, _target: Target) -> Iterator[Observation]:
        cycle = _Cycle()
        left.append(weakref.ref(cycle))
        del cycle
        kept.extend([number] for number in range(200_000))
        yield expect(stream.events[0].place, 1, sum(item() is not None for item in left))

    monkeypatch.setitem(CHECKS, "made-up", Check("made-up", observe=leave_a_cycle))
    (judged,) = judge([Run((ids_stream([1], [2]),))], [row()])
    assert judged.verdict is not Verdict.HARNESS_ERROR
    assert left[0]() is None


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
def test_the_end_of_a_block_brings_back_the_collector_as_it_was(error: Exception | None) -> None:
    thresholds = gc.get_threshold()
    with suppress(ZeroDivisionError), few_collections():
        with few_collections():
            pass
        assert gc.get_threshold() > thresholds
        if error is not None:
            raise error
    assert gc.get_threshold() == thresholds
    assert gc.isenabled()


@pytest.mark.parametrize("end", [None, SystemExit(1), ZeroDivisionError()])
def test_a_process_that_ends_looks_for_no_garbage(
    end: BaseException | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def app() -> None:
        done.append("command")
        if end is not None:
            raise end

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    with suppress(SystemExit):
        cli.main()
    assert done == ["command", "freeze"]
