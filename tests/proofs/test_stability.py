"""What differs between runs against one server is told, and gates; what is the same is not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext

import pytest
from proofs import stability
from proofs.stability import BUSY, IDLE, MODES, differing, main

from tokenwire.ask import Budget
from tokenwire.judging.judge import Judgement
from tokenwire.judging.verdict import Verdict
from tokenwire.requirement import load_requirements

STEADY, SHAKY = list(load_requirements())[:2]


def ran(verdict: Verdict) -> stability.Run:
    known = load_requirements()
    return {
        STEADY: Judgement(known[STEADY], "one", Verdict.PASS),
        SHAKY: Judgement(known[SHAKY], "another", verdict, reason="of the clock"),
    }


def test_rows_that_differ_are_told_with_the_load_they_differ_under() -> None:
    runs = [(IDLE, ran(Verdict.PASS)), (IDLE, ran(Verdict.PASS)), (BUSY, ran(Verdict.FAIL))]
    assert differing(runs[:2]) == {}
    assert differing(runs) == {
        SHAKY: ["PASS in 2 (idle), another: of the clock", "FAIL in 1 (busy), another: of the clock"]
    }


@pytest.mark.parametrize("shaky", [False, True])
def test_each_server_is_asked_idle_and_busy(monkeypatch, capsys, shaky: bool) -> None:
    asked: list[tuple[str, Budget]] = []

    def check(url: str, budget: Budget, dialects: Sequence[str]) -> stability.Run:
        assert dialects == ["llamacpp-completion"]
        asked.append((url, budget))
        return ran(Verdict.FAIL if shaky and len(asked) == 3 else Verdict.PASS)

    burned: list[int] = []
    monkeypatch.setattr(stability, "check", check)
    monkeypatch.setattr(stability, "burning", lambda cores: nullcontext(burned.append(cores)))
    monkeypatch.setattr(stability, "serve", lambda names: nullcontext({name: name for name in names}))
    assert main(["--runs", "2", "--budget", "quick", "--dialect", "llamacpp-completion"]) == shaky
    assert asked == [(mode, Budget.QUICK) for mode in MODES for _ in range(4)]
    assert burned == [0, os.cpu_count()] * len(MODES)
    assert (SHAKY in capsys.readouterr().out) is shaky
