from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hand_made_stream import ids_stream
from hand_made_stream import made_up_row as row

from tokenwire import cli
from tokenwire.checks.check import CHECKS, Check, Observation, Target, observe
from tokenwire.judging.gc_paused import gc_paused
from tokenwire.judging.judge import Run, judge
from tokenwire.record import Stream


def test_the_collector_does_not_run_while_checks_look_at_what_was_read(monkeypatch) -> None:
    running: list[bool] = []

    def note(stream: Stream, _target: Target) -> Iterator[Observation]:
        running.append(gc.isenabled())
        yield observe(stream.events[0].place, expected=1, actual=1)

    monkeypatch.setitem(CHECKS, "made-up", Check("made-up", observe=note))
    judge([Run((ids_stream([1], [2]),))], [row()])
    assert running == [False]
    assert gc.isenabled()


def test_the_collector_runs_again_after_a_failure() -> None:
    with pytest.raises(ZeroDivisionError), gc_paused():
        1 / 0  # noqa: B018  # raises
    assert gc.isenabled()


def test_the_end_of_an_inner_block_ends_no_outer_one() -> None:
    with gc_paused():
        with gc_paused():
            pass
        assert not gc.isenabled()
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
