"""The first minute: a server to look at, what failed is kept, and asked again."""

from __future__ import annotations

import json
import re
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from forked_program import run_forked
from hand_made_stream import made_up_row
from stream_builder import incremental, named

from tokenwire import last_run
from tokenwire.asking.run import Plan
from tokenwire.checks.evidence import expect
from tokenwire.commands.again import FailureOutcome, again, answered, outcomes
from tokenwire.demo_server import FAULTS, demo_server
from tokenwire.judging.judge import Judgement
from tokenwire.judging.observing import NO_SCENARIO
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.last_run import Failed, LastRun, failures, folder_of_last, keep, read_last
from tokenwire.replay import captures
from tokenwire.report.subject import Subject
from tokenwire.requirement import load_requirements
from tokenwire.settings import Settings
from tokenwire.usage_error import UsageError
from tokenwire.wire.exchange import Ending

SHOWN_BY = {
    "token-lost": "incremental-ids-are-new",
    "logprobs-unsliced": "logprobs-incremental",
    "prompt-tokens-grow": "prompt-tokens-constant",
}


def test_the_demo_shows_its_three_mistakes_each_by_its_sentence(tokenwire, tmp_path):
    ran = tokenwire("demo", "--no-open")
    assert ran.returncode == 0, ran.stdout
    assert SHOWN_BY.keys() == FAULTS.keys()
    for fault, requirement in SHOWN_BY.items():
        assert f"  {fault}: {FAULTS[fault]}\n" in ran.stdout
        assert f"FAIL  {requirement}  in " in ran.stdout
    page = tmp_path / "tokenwire-demo" / "report.html"
    assert page.as_uri() in ran.stdout
    port = re.search(r"curl .* http://127\.0\.0\.1:(\d+)/", ran.stdout)[1]
    assert f"start it again: tokenwire demo --serve --port {port}\n" in ran.stdout
    assert 'data-play="0"' in page.read_text("utf-8")
    assert not folder_of_last(tmp_path).exists()


def test_the_demo_s_server_makes_no_other_mistake(tokenwire):
    ran = tokenwire("demo", "--correct", "--no-open")
    assert ran.returncode == 0, ran.stdout
    assert "conforms, as far as this run could see" in ran.stdout


def test_the_demo_s_server_refuses_wrong_types_and_unknown_ids(tokenwire):
    rows = (
        "--dialect",
        "sglang-generate",
        "--requirement",
        "wrong-types-refused",
        "--requirement",
        "unknown-parameter-ids-refused",
    )
    with demo_server() as url:
        ran = tokenwire("check", "--target", url, "--no-keep", *rows)
    assert (ran.returncode, "2 PASS" in ran.stdout) == (0, True), ran.stdout


def test_only_what_failed_is_asked_again_until_it_is_fixed(tokenwire, tmp_path):
    only = ("--scenario", "request-id", "--budget", "quick")
    with demo_server(["prompt-tokens-grow"]) as url:
        checked = tokenwire("check", "--target", url, *only)
        assert checked.returncode == 1
        last = folder_of_last(tmp_path)
        assert f"are stored in {last}; after a change of the server, run: tokenwire again" in checked.stdout
        assert "waiting for the server" not in checked.stderr
        assert not list(tmp_path.iterdir())
        assert tokenwire("replay", str(last)).returncode == 1
        again = tokenwire("again")
    assert again.returncode == 1
    first = again.stdout.splitlines()[0]
    assert first.startswith("FAILED    prompt-tokens-constant  in request-id: prompt_tokens changed from ")
    with demo_server() as url:
        again = tokenwire("again", "--target", url)
        assert again.returncode == 0, again.stdout
        assert "FIXED     prompt-tokens-constant  in request-id\n" in again.stdout
        assert "FAILED" not in again.stdout
        assert (tokenwire("again").stdout, tokenwire("again").returncode) == (
            "the last `tokenwire check` had no failures\n",
            0,
        )
    last = read_last(tmp_path)
    assert (last.target, last.options["budget"], last.failed) == (url, "quick", ())


def test_what_a_baseline_tolerates_is_asked_again(tokenwire, tmp_path):
    only = ("--scenario", "request-id", "--budget", "quick")
    reason = ("--reason", "a counter", "--link", "https://h/1")
    with demo_server(["prompt-tokens-grow"]) as url:
        tokenwire("check", "--target", url, "--no-keep", *only, "--json", "report.json")
        added = tokenwire("baseline", "update", "--from", "report.json", *reason)
        checked = tokenwire("check", "--target", url, *only, "--baseline", "tokenwire-baseline.toml")
        assert checked.returncode == 0, checked.stdout
        again = tokenwire("again")
    lines = [line for line in added.stdout.splitlines() if line.startswith("added ")]
    assert len(set(lines)) == len(lines) >= 1
    assert all(re.match("added    [a-z-]+  at [a-z-]+, in [a-z-]+: ", line) for line in lines), added.stdout
    assert again.returncode == 1
    first, *_, last = again.stdout.splitlines()
    assert first.startswith("FAILED    prompt-tokens-constant  in request-id: ")
    assert first.endswith(" (known: a counter (https://h/1))")
    assert re.fullmatch(f"{url}: \\d requirements failed", last)


def test_nothing_is_kept_where_that_is_switched_off(tokenwire, tmp_path):
    (tmp_path / "tokenwire.toml").write_text("keep-failures = false\n")
    with demo_server(["prompt-tokens-grow"]) as url:
        ran = tokenwire("check", "--target", url, "--scenario", "request-id", "--budget", "quick", "-q")
        assert (ran.returncode, ran.stderr) == (1, "")
    assert not folder_of_last(tmp_path).exists()
    again = tokenwire("again")
    assert again.returncode == 2
    assert "run `tokenwire check` first" in again.stderr


def test_what_cannot_be_kept_changes_no_verdict(tokenwire, tmp_path):
    (tmp_path / "file").write_text("in the way")
    only = ("--scenario", "request-id", "--budget", "quick", "-q")
    with demo_server(["prompt-tokens-grow"]) as url:
        ran = tokenwire("check", "--target", url, *only, XDG_STATE_HOME=str(tmp_path / "file"))
    assert ran.returncode == 1
    assert "the failures cannot be stored for `tokenwire again`" in ran.stderr


def test_no_folder_is_made_where_nothing_fails_and_an_old_failure_is_forgotten(tokenwire, tmp_path):
    only = ("--scenario", "request-id", "--budget", "quick", "-q")
    with demo_server() as url:
        assert tokenwire("check", "--target", url, *only).returncode == 0
        assert not folder_of_last(tmp_path).exists()
        keep(LastRun(url), [failed("a")], tmp_path)
        assert tokenwire("check", "--target", url, *only).returncode == 0
    assert read_last(tmp_path).failed == ()


def test_a_last_run_that_a_checkout_brings_is_not_asked_again(tokenwire, tmp_path):
    brought = tmp_path / ".tokenwire" / "last"
    brought.mkdir(parents=True)
    note = {
        "target": "http://127.0.0.1:1",
        "options": {"restart": "touch PWNED"},
        "headers": [["X-Leak", "env:PATH"]],
        "withheld": [],
        "failed": [{"requirement": "prompt-tokens-constant", "scenario": "request-id", "message": ""}],
    }
    (brought / "run.json").write_text(json.dumps(note))
    ran = tokenwire("again")
    assert ran.returncode == 2
    assert "no stored failures for" in " ".join(ran.stderr.split())
    assert not (tmp_path / "PWNED").exists()


def test_links_of_a_checkout_lead_a_check_nowhere(tokenwire, tmp_path):
    victims = tmp_path / "victims"
    checkout = tmp_path / "checkout"
    for folder in (victims, checkout / "report" / "bodies"):
        folder.mkdir(parents=True)
    forms = ("report.json", "report.xml", "report.html", "report.sarif", "badge.json")
    links = [f"report/{name}{suffix}" for name in forms for suffix in ("", ".part")]
    for position, name in enumerate(links):
        (victims / f"{position}").write_text("precious")
        (checkout / name).symlink_to(victims / f"{position}")
    for name in (".tokenwire", ".pytest_cache"):
        (checkout / name).symlink_to(victims)
    with demo_server(["prompt-tokens-grow"]) as url:
        only = ("--scenario", "request-id", "--budget", "quick", "-q", "--report", "report")
        ran = run_forked("tokenwire", "check", "--target", url, *only, folder=checkout)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert {file.name for file in victims.iterdir()} == set(map(str, range(len(links))))
    assert {file.read_text() for file in victims.iterdir()} == {"precious"}
    assert json.loads((checkout / "report" / "report.json").read_text())["exit_status"] == 1


def failed(*names: str, verdict: Verdict = Verdict.FAIL, **changes) -> Judgement:
    """A violation of each of some exchanges' first event; the first is held against the others."""
    streams = [named(incremental(), name) for name in names]
    first, *others = (stream.events[0].place for stream in streams)
    seen = expect(first, 1, 2, "wrong", holds=False, related=tuple(others))
    return Judgement(made_up_row(), "one", verdict, 1, "wrong", (seen,), run=Run(tuple(streams)), **changes)


def test_failing_exchanges_are_kept_with_what_they_were_held_against(tmp_path):
    judgements = [failed("a", "b"), failed("b"), failed("c", verdict=Verdict.WARN), failed("d", known="so")]
    assert keep(LastRun("http://h:1"), judgements, tmp_path) == 3
    ((_, kept),) = captures(folder_of_last(tmp_path))
    assert sorted(exchange.name for exchange in kept) == ["a", "b", "d"]
    wrong = Failed("made-up", "one", "wrong")
    assert read_last(tmp_path).failed == (wrong, wrong, replace(wrong, known="so"))
    assert keep(LastRun("http://h:2"), [], tmp_path) == 0
    last = folder_of_last(tmp_path)
    assert not list(last.glob("*.jsonl"))
    assert [path.name for path in last.parent.iterdir()] == ["last"]
    assert stat.S_IMODE(last.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("limit", [("_MOST_EXCHANGES", 2), ("_MOST_BYTES", 2)])
def test_no_more_is_kept_than_there_is_room_for(limit, tmp_path, monkeypatch):
    monkeypatch.setattr(last_run, *limit)
    assert keep(LastRun("http://h:1"), [failed("a", "b", "c", "d")], tmp_path) == 2


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path):
    mine = folder_of_last(tmp_path) / "precious"
    mine.mkdir(parents=True)
    with pytest.raises(FileExistsError):
        keep(LastRun("http://h:1"), [], tmp_path)
    assert mine.exists()


def test_a_credential_is_never_written_and_has_to_be_given_again(tmp_path, tokenwire):
    headers = (("Authorization", "Bearer secret-1"), ("X-Api-Key", "env:MY_KEY"), ("x-mine", "kept"))
    run = last_run.last_run("http://h:1", {"tokenizer": Path("models/mine")}, headers)
    keep(run, [failed("a")], tmp_path)
    text = (folder_of_last(tmp_path) / "run.json").read_text()
    assert "secret-1" not in text
    last = read_last(tmp_path)
    assert last.headers == (("X-Api-Key", "env:MY_KEY"), ("x-mine", "kept"))
    assert last.withheld == ("Authorization",)
    assert last.options == {"tokenizer": "models/mine"}
    refused = tokenwire("again")
    assert refused.returncode == 2
    assert "Authorization contains a credential" in " ".join(refused.stderr.split())


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"target": 1, "options": 2})])
def test_a_note_that_cannot_be_read_says_so(text, tmp_path):
    keep(LastRun("http://h:1"), [], tmp_path)
    (folder_of_last(tmp_path) / "run.json").write_text(text)
    with pytest.raises(UsageError, match="run `tokenwire check` again"):
        read_last(tmp_path)


def test_what_became_of_a_failure_is_told_by_what_was_seen_now():
    still = failed("a")
    sound = replace(still, scenario="two", verdict=Verdict.PASS, violations=(), witnesses=3, reason="")
    unseen = replace(sound, scenario="three", verdict=Verdict.INCONCLUSIVE, witnesses=0, reason="")
    unanswered = "not all of its requests were answered"
    elsewhere = replace(still, scenario="four", reason="new")
    before = [Failed("made-up", name) for name in ("one", "two", "three")]
    assert outcomes(before, [still, sound, unseen, elsewhere]) == {
        "made-up": {
            "one": (FailureOutcome.FAILED, "wrong"),
            "two": (FailureOutcome.FIXED, ""),
            "three": (FailureOutcome.UNSEEN, unanswered),
            "four": (FailureOutcome.FAILED, "new"),
        }
    }
    assert outcomes(before[2:], [unseen])["made-up"]["three"] == (FailureOutcome.UNSEEN, unanswered)
    assert outcomes(before[2:], [unseen], {"three"})["made-up"]["three"] == (FailureOutcome.FIXED, "")
    assert outcomes(before[2:], [], {"three"})["made-up"]["three"] == (FailureOutcome.FIXED, "")
    assert failures([still, sound, unseen]) == (Failed("made-up", "one", "wrong"),)


def test_a_scenario_is_answered_where_all_of_its_exchanges_are():
    first, second = incremental(), incremental()
    lost = replace(second.exchange, ending=Ending.UNREACHABLE)
    run = Run((first, replace(second, exchange=lost)))
    scenario = first.exchange.scenario
    assert answered([Run((first,))]) == {scenario, NO_SCENARIO}
    assert answered([run]) == set()


def test_a_failure_that_depends_on_timing_is_fixed_only_after_several_tries(monkeypatch, tmp_path) -> None:
    """`id-in-use-spares-the-first` was FIXED by one try, and nothing had been mended."""
    row = load_requirements()["id-in-use-spares-the-first"]
    assert row.oracle == "side-effect"
    tries: list[tuple[str, ...]] = []

    def asked(plan: Plan, *, verbosity: int) -> Subject:
        del verbosity
        tries.append(plan.settings.scenario)
        return Subject(url="http://x", runs=(Run(()),))

    def judged(runs: object, rows: object) -> list[Judgement]:
        del runs, rows
        if len(tries) < 3:
            return [Judgement(row, "id-in-use", Verdict.PASS, 1)]
        stream = incremental()
        cut = expect(stream.choices[0].last_at("finish"), "an end", "abort", "cut", holds=False)
        return [Judgement(row, "id-in-use", Verdict.FAIL, 1, "cut", (cut,), run=Run((stream,)))]

    monkeypatch.setattr("tokenwire.commands.again.reached", asked)
    monkeypatch.setattr("tokenwire.commands.again.judge", judged)
    monkeypatch.chdir(tmp_path)
    keep(LastRun("http://x", failed=(Failed(row.id, "id-in-use"),)), [])
    with pytest.raises(typer.Exit) as ended:
        again(Settings())
    assert ended.value.exit_code == 1
    assert tries == [("id-in-use",)] * 3
