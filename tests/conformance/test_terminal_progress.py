"""How far a run is, is seen: as a bar that fits a terminal, and as lines in a log."""

from __future__ import annotations

from io import StringIO
from itertools import count

import pytest
from rich.console import Console

from tokenwire.asking.terminal_progress import TerminalProgress
from tokenwire.commands.reporting import Reporting, judge_and_report
from tokenwire.judging.run import Run
from tokenwire.report.files import Outputs
from tokenwire.report.meter import LINE_EVERY_S, Meter
from tokenwire.report.subject import Subject
from tokenwire.requirement import load_requirements
from tokenwire.settings import Settings


def test_off_a_terminal_there_is_a_line_every_half_minute():
    screen = StringIO()
    seconds = count(step=LINE_EVERY_S / 4)
    rows = list(load_requirements().values())[:9]
    console = Console(file=screen, force_terminal=False, width=200)
    with Meter(console, "judging", total=9, clock=lambda: next(seconds)) as meter:
        for row in rows:
            meter.show(words=row.id)
            meter.show(done=1)
    assert screen.getvalue().splitlines() == [
        f"judging: {done} of 9 after {15 * done} s; {rows[done - 1].id}" for done in (2, 4, 6, 8)
    ]


def test_on_a_narrow_terminal_the_counts_are_whole_and_the_name_is_cut():
    screen = StringIO()
    with Meter(Console(file=screen, force_terminal=True, width=80), "asking", total=1922) as meter:
        meter.show(done=1911, words="1911 exchanges, last a-dialect/a-scenario/with-a-name-that-has-no-end")
    assert "1911/1922" in screen.getvalue()
    assert "0:00:00" in screen.getvalue()
    assert "1911 exchanges, last" in screen.getvalue()
    assert "no-end" not in screen.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_the_reason_of_a_wait_is_printed_at_once(terminal):
    screen = StringIO()
    with TerminalProgress(Console(file=screen, force_terminal=terminal, width=80)) as progress:
        progress.waiting("no answer after 5 s")
    assert "asking: no answer after 5 s" in screen.getvalue()


def test_judging_is_a_phase_of_its_own(monkeypatch, capsys):
    monkeypatch.setattr("tokenwire.report.meter.LINE_EVERY_S", 0)
    nothing = Subject(url="http://127.0.0.1:1", runs=(Run(()),))
    for quiet, found in ((False, True), (True, False)):
        judge_and_report(nothing, Reporting(Outputs(), Settings(quiet=quiet)), Console(file=StringIO()))
        rows = len(load_requirements())
        assert (f"judging: {rows} of {rows} after " in capsys.readouterr().err) is found
