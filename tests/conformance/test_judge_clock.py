"""The judge's clock: a check that takes too long, or a signal, ends no more than it has to."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hand_made_stream import ids_stream
from hand_made_stream import made_up_row as row

from tokenwire.checks.check import CHECKS, Answers, Check, Target
from tokenwire.checks.evidence import Observation, expect
from tokenwire.judging import run as judging_run
from tokenwire.judging import stop as stopping
from tokenwire.judging.judge import Judgement, combined, judge_runs
from tokenwire.judging.run import Run
from tokenwire.judging.stop import Stop
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Answer, Stream

LIMIT_S = 0.2
FIXTURE = Path(__file__).parents[2] / "fixtures" / "sglang" / "0.5.23" / "F_mirror.jsonl.gz"


def every_emission_holds(stream: Stream, target: Target) -> Iterator[Observation]:
    for emission in stream.emissions():
        yield expect(emission.at("output_ids"), 1, 1)


def loop() -> None:
    while True:
        pass


def search_for_ever() -> None:
    re.search(r"(?:a|aa)*c", "a" * 200)


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def add(name: str, **checks: object) -> None:
        monkeypatch.setitem(CHECKS, name, Check(name, **checks))  # type: ignore[arg-type]  # one of three

    return add


def streams(*names: str) -> tuple[Stream, ...]:
    return tuple(ids_stream([1], name=name, scenario=f"of {name}") for name in names)


def judged(*answers: Answer, jobs: int = 1, stop: Stop | None = None) -> list[Judgement]:
    rows = [row(), row(id="other")]
    runs = [Run(answers)]
    return combined(judge_runs(runs, rows, jobs=jobs, limit_s=LIMIT_S, stop=stop))


def verdicts(judgements: list[Judgement]) -> dict[str, Verdict]:
    return {judgement.name: judgement.verdict for judgement in judgements}


@pytest.mark.parametrize("work", [loop, search_for_ever])
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_check_that_takes_too_long_is_a_harness_error(
    register: Callable[..., None], work: Callable[[], None], jobs: int
) -> None:
    def slow_at_b(stream: Stream, target: Target) -> Iterator[Observation]:
        yield from every_emission_holds(stream, target)
        try:
            if stream.exchange.name == "b":
                work()
        except Exception:  # what a check catches is not the limit
            pytest.fail("the check caught its limit")

    register("made-up", observe=slow_at_b)
    register("other", observe=every_emission_holds)
    judgements = judged(*streams("a", "b", "c"), jobs=jobs)
    assert verdicts(judgements) == {
        "made-up[of a]": Verdict.PASS,
        "made-up[of b]": Verdict.HARNESS_ERROR,
        "made-up[of c]": Verdict.PASS,
        **{f"other[of {name}]": Verdict.PASS for name in "abc"},
    }
    [slow] = [judgement for judgement in judgements if judgement.verdict is Verdict.HARNESS_ERROR]
    assert slow.message == (
        f"b: the check took more than {LIMIT_S:g} s of processor time; --judge-limit N allows more"
    )


def test_a_check_of_a_run_that_takes_too_long_names_the_answer_that_it_read(
    register: Callable[..., None],
) -> None:
    def reads(answer: Answer) -> None:
        if answer.exchange.name == "b":
            loop()

    def slow(answers: Answers, target: Target) -> Iterator[Observation]:
        for answer in answers:
            reads(answer)
        yield from ()

    register("made-up", on_run=slow)
    register("other", observe=every_emission_holds)
    judgements = judged(*streams("a", "b"))
    assert verdicts(judgements) == {
        "made-up[-]": Verdict.HARNESS_ERROR,
        "other[of a]": Verdict.PASS,
        "other[of b]": Verdict.PASS,
    }
    assert judgements[0].message.startswith("b: the check took more than")


def test_a_run_is_judged_without_an_exchange_that_takes_too_long_to_read(
    register: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen_markup = judging_run.seen_markup

    def slow_at_b(answers: Answers, *rest: object) -> object:
        for answer in answers:
            if answer.exchange.name == "b":
                loop()
        return seen_markup(answers, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(judging_run, "seen_markup", slow_at_b)
    register("made-up", observe=every_emission_holds)
    register("other", observe=every_emission_holds)
    assert verdicts(judged(*streams("a", "b", "c"))) == {
        f"{name}[of {answer}]": Verdict.HARNESS_ERROR if answer == "b" else Verdict.PASS
        for name in ("made-up", "other")
        for answer in "abc"
    }


def test_a_run_of_which_nothing_can_be_known_in_time_is_a_harness_error(
    register: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging_run, "seen_markup", lambda *_: loop())
    register("made-up", observe=every_emission_holds)
    register("other", observe=every_emission_holds)
    assert set(verdicts(judged(*streams("a", "b"))).values()) == {Verdict.HARNESS_ERROR}


def test_judging_in_another_thread_has_no_clock_and_the_same_verdicts(register: Callable[..., None]) -> None:
    register("made-up", observe=every_emission_holds)
    register("other", observe=every_emission_holds)
    found: list[Judgement] = []
    thread = threading.Thread(target=lambda: found.extend(judged(*streams("a", "b"))))
    thread.start()
    thread.join()
    assert verdicts(found) == {
        f"{name}[of {answer}]": Verdict.PASS for name in ("made-up", "other") for answer in "ab"
    }


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_judging_and_what_was_seen_stays(
    register: Callable[..., None], jobs: int, number: signal.Signals
) -> None:
    main = os.getpid()
    before = signal.getsignal(number)

    def violated(answers: Answers, target: Target) -> Iterator[Observation]:
        for answer in answers:
            place = answer.load().emissions()[0].at("output_ids")
            yield expect(place, 1, 2, "differs", holds=False)

    def stops(answers: Answers, target: Target) -> Iterator[Observation]:
        os.kill(main, number)
        loop()
        yield from ()

    register("made-up", on_run=violated)
    register("other", on_run=stops)
    stop = Stop()
    with stop.at_signals():
        judgements = judged(*streams("a"), jobs=jobs, stop=stop)
    assert signal.getsignal(number) is before
    assert verdicts(judgements)["other[-]"] is Verdict.INCONCLUSIVE
    assert judgements[-1].message == f"{number.name} ended judging before all of it was observed"
    # With one process, the first check is done; with two, they are under way at the same time.
    assert jobs == 2 or verdicts(judgements)["made-up[of a]"] is Verdict.FAIL
    assert Verdict.PASS not in verdicts(judgements).values()
    assert stop.share < 1


def test_a_pass_needs_the_whole_run(register: Callable[..., None]) -> None:
    def stops_at_b(stream: Stream, target: Target) -> Iterator[Observation]:
        yield from every_emission_holds(stream, target)
        if stream.exchange.name == "b":
            os.kill(os.getpid(), signal.SIGTERM)
            loop()

    register("made-up", observe=stops_at_b)
    register("other", observe=every_emission_holds)
    stop = Stop()
    with stop.at_signals():
        judgements = judged(*streams("a", "b"), stop=stop)
    assert verdicts(judgements) == {
        "made-up[-]": Verdict.INCONCLUSIVE,
        "other[-]": Verdict.INCONCLUSIVE,
    }


def test_a_run_that_a_signal_ended_is_judged_for_a_few_seconds(
    register: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "PATIENCE_S", 0.05)
    register("made-up", observe=lambda *_: loop())
    register("other", observe=every_emission_holds)
    stop = Stop()
    with stop.at_signals("SIGTERM"):
        rows = [row(), row(id="other")]
        judgements = combined(judge_runs([Run(streams("a"))], rows, limit_s=10_000, stop=stop))
    assert judgements[0].message.startswith("judging was ended 0.05 s after SIGTERM before ")


STOPPED = """
import os, signal, sys
from tokenwire.checks.check import CHECKS, Check
from tokenwire.cli import main

def stops(stream, target):
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        pass
    yield

begun = []
CHECKS["cumulative-ids-extend"] = Check("cumulative-ids-extend", observe=stops)
main()
"""


def test_a_replay_that_is_stopped_while_it_judges_leaves_its_report(tmp_path: Path) -> None:
    words = ("replay", str(FIXTURE), "--json", "report.json")
    done = subprocess.run(
        [sys.executable, "-c", STOPPED, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert done.returncode == report["exit_status"]
    assert report["target"]["broken_off"].startswith("SIGTERM ended judging: ")
    assert "SIGTERM ended judging: " in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    stopped = [row for row in report["verdicts"] if row["message"].startswith("SIGTERM ended judging")]
    assert {row["verdict"] for row in stopped} == {"INCONCLUSIVE"}


def test_a_check_of_replay_that_takes_too_long_leaves_the_rest(tmp_path: Path) -> None:
    endless = STOPPED.replace("os.kill(os.getpid(), signal.SIGTERM)", "if begun: return\n    begun.append(1)")
    words = ("replay", str(FIXTURE), "--judge-limit", "1", "--json", "report.json")
    done = subprocess.run(
        [sys.executable, "-c", endless, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert done.returncode == report["exit_status"] == 3
    errors = [row for row in report["verdicts"] if row["verdict"] == "HARNESS_ERROR"]
    assert [row["requirement"] for row in errors] == ["cumulative-ids-extend"]
    assert "more than 1 s of processor time" in errors[0]["message"]
    assert any(row["verdict"] == "PASS" for row in report["verdicts"])
