"""The live run against small servers of our own."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from canned import CannedSender
from recorded import IDS, document
from rich.console import Console

from tokenwire.ask import Ask, Budget
from tokenwire.asking.planning import planned
from tokenwire.asking.politeness import Limits
from tokenwire.asking.run import Plan, Progress, Unreached, chosen, interrogate
from tokenwire.asking.scenario import Conversation, Scenario, Transcript, load_scenarios
from tokenwire.asking.terminal_progress import TerminalProgress
from tokenwire.asking.vital_signs import RESTART_WAIT_S, Revival
from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging.verdict import ExitStatus
from tokenwire.report.subject import Subject
from tokenwire.settings import Settings
from tokenwire.target.advertised import Advertised
from tokenwire.target.death import VITALS
from tokenwire.usage_error import UsageError


@contextmanager
def served(answers: Callable[[int], bool]) -> Iterator[str]:
    """A server that answers its nth /generate with a record, or hangs up where `answers(n)` is false."""
    count = itertools.count()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            if self.path != "/generate":
                self.reply(404, {"object": "error", "message": "no such endpoint", "type": "x", "code": 404})
            elif answers(next(count)):
                self.reply(200, document(IDS, finished=True))

        def do_GET(self) -> None:
            self.reply(404, {})

        def reply(self, status: int, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[int], bool]], str]]:
    with ExitStack() as servers:
        yield lambda answers: servers.enter_context(served(answers))


def run(plan: Plan, progress: Progress | None = None) -> Subject:
    subject = asyncio.run(interrogate(plan, progress or Progress()))
    assert isinstance(subject, Subject), subject
    return subject


def test_only_dialects_that_give_a_record_are_asked(serve) -> None:
    subject = run(Plan(Settings(target=serve(lambda n: True), scenario=("request-id",))))
    assert subject.dialects == ("sglang-generate",)
    assert "404" in subject.left_out["sglang-chat"]
    names = {stream.exchange.name for stream in subject.runs[0].streams}
    assert "sglang-generate/request-id/whole" in names
    assert {name.split("/")[1] for name in names} == {"request-id", "probe"}
    assert subject.broken_off == ""


def test_a_target_that_dies_is_given_up_and_what_was_answered_is_judged(serve) -> None:
    plan = Plan(
        Settings(target=serve(lambda n: n < 20), dialect=("sglang-generate",)),
        limits=Limits(max_concurrency=1),
    )
    subject = run(plan)
    (death,) = subject.runs[0].deaths
    left = f"{len(subject.not_asked)} exchanges were not asked"
    assert subject.broken_off == f"the server died of {death.name}; {left}; --wait N goes on when it is back"
    answered = [stream for stream in subject.runs[0].streams if stream.answered]
    assert len(answered) == 19  # the first one was the preflight's
    failed = [stream.exchange for stream in subject.runs[0].streams if not stream.answered]
    assert [exchange.scenario for exchange in failed[1:]] == 3 * [VITALS]


def test_a_target_that_answers_now_and_then_is_asked_to_the_end(serve) -> None:
    some = ("budget-sweep", "concurrency", "malformed-ids", "prompt-ids")
    url, limits = serve(lambda n: n % 7 < 4), Limits(max_concurrency=1)
    subject = run(Plan(Settings(target=url, scenario=some, dialect=("sglang-generate",)), limits=limits))
    assert subject.broken_off == ""
    assert "without an answer or a refusal" in " ".join(subject.remarks)
    asked = {stream.exchange.scenario for stream in subject.runs[0].streams}
    assert asked <= {VITALS, *load_scenarios()}
    assert subject.runs[0].deaths == ()


def test_a_run_that_was_broken_off_is_no_success(serve, tokenwire, tmp_path: Path) -> None:
    url = serve(lambda n: n < 20)
    words = ("--max-concurrency", "1", "-k", "answer-content-type", "--json", "r.json")
    ran = tokenwire("check", "--target", url, *words)
    report = json.loads((tmp_path / "r.json").read_text("utf-8"))
    assert report["summary"]["PASS"] > 0
    assert ran.returncode == report["exit_status"] == ExitStatus.NOTHING_EVALUATED, ran.stdout + ran.stderr
    assert "broken off: the server died of sglang-generate/" in ran.stdout.splitlines()[-1]


def test_everything_is_recorded_as_it_was_asked(serve, tmp_path: Path) -> None:
    folder = tmp_path / "rec"
    subject = run(Plan(Settings(target=serve(lambda n: True), scenario=("probe",)), record=folder))
    assert subject.recorded == str(folder)
    names = {str(path.relative_to(folder)) for path in folder.rglob("*.jsonl")}
    assert {f"sglang-generate/probe/{label}.jsonl" for label in ("first", "second", "third")} <= names
    assert "preflight/sglang-generate.jsonl" in names


def test_headers_are_sent_with_every_request(serve) -> None:
    subject = run(
        Plan(Settings(target=serve(lambda n: True), scenario=("probe",)), headers=(("X-Told", "yes"),))
    )
    assert all(("X-Told", "yes") in stream.exchange.request.headers for stream in subject.runs[0].streams)


def test_a_target_that_speaks_nothing_is_not_asked_in_earnest(serve) -> None:
    outcome = asyncio.run(interrogate(Plan(Settings(target=serve(lambda n: False))), Progress()))
    assert isinstance(outcome, Unreached)
    assert outcome.subject.runs == ()


def test_a_url_that_is_none_is_told(serve) -> None:
    with pytest.raises(UsageError, match="http://host:port"):
        asyncio.run(interrogate(Plan(Settings(target="localhost:30000")), Progress()))


def test_the_progress_bar_counts_scenarios_and_exchanges_on_terminals_only(serve) -> None:
    url = serve(lambda n: True)
    for terminal in (True, False):
        screen = StringIO()
        console = Console(file=screen, force_terminal=terminal, width=120)
        with TerminalProgress(console) as progress:
            run(Plan(Settings(target=url, scenario=("probe",))), progress)
        assert ("3 exchanges" in screen.getvalue()) is terminal
        assert ("1/1" in screen.getvalue()) is terminal


def test_a_run_asks_what_its_budget_covers_and_tells_scenarios_what_that_is(
    serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_with: list[tuple[str, Budget]] = []

    def listening(name: str, least: Budget) -> Scenario:
        async def listen(talk: Conversation) -> None:
            asked_with.append((name, talk.budget))

        return Scenario(name, "Notes the budget.", listen, budget=least)

    made_up = {least.value: listening(least.value, least) for least in Budget}
    probe = load_scenarios()["probe"]
    monkeypatch.setattr("tokenwire.asking.run.load_scenarios", lambda: {"probe": probe} | made_up)
    url = serve(lambda n: True)
    for budget, asked in (
        (Budget.QUICK, {"quick"}),
        (Budget.STANDARD, {"quick", "standard"}),
        (Budget.SOAK, {"quick", "standard", "soak"}),
    ):
        asked_with.clear()
        run(Plan(Settings(target=url, budget=budget)))
        assert set(asked_with) == {(name, budget) for name in asked}
    asked_with.clear()
    run(Plan(Settings(target=url, budget=Budget.QUICK, scenario=("soak",))))
    assert asked_with == [("soak", Budget.QUICK)], "what is asked for by name is asked, whatever it takes"


def test_a_bigger_budget_pays_for_more_intervals() -> None:
    dialect = load_dialects()["sglang-generate"]
    intervals = [
        set(Conversation("x", dialect, CannedSender(), Advertised(), Transcript(), budget=budget).intervals)
        for budget in Budget
    ]
    assert intervals[0] < intervals[1] < intervals[2]


def test_what_is_perilous_is_asked_last_one_talk_at_a_time_and_the_most_perilous_last_of_all(
    serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way: set[str] = set()
    order: list[str] = []

    def noting(name: str, **how: Any) -> Scenario:
        async def note(talk: Conversation) -> None:
            assert not under_way or not (how or "alone" in under_way)
            under_way.add(name)
            order.append(name)
            await talk.ask("once", Ask(input_ids=((1, 2),), max_new_tokens=4))
            under_way.discard(name)

        return Scenario(name, "Notes its turn.", note, **how)

    made_up = [noting("deadly", perilous=2), noting("risky", perilous=True), noting("alone", alone=True)]
    made_up += [noting("first"), noting("second")]
    scenarios = {"probe": load_scenarios()["probe"]} | {item.name: item for item in made_up}
    monkeypatch.setattr("tokenwire.asking.run.load_scenarios", lambda: scenarios)
    run(Plan(Settings(target=serve(lambda n: True))))
    assert order == ["first", "second", "alone", "risky", "deadly"]


def test_scenarios_are_left_out_one_by_one_or_with_all_that_is_too_much_for_a_shared_server() -> None:
    def names(**how: Any) -> set[str]:
        return {item.name for item in chosen(Settings(**how))}

    everything = names()
    assert everything - names(without=("crowd", "probe")) == {"crowd", "probe"}
    spared = everything - names(gentle=True)
    assert {"crowd", "disconnect", "malformed-ids", "negative-ids", "unreadable-bodies"} <= spared
    assert "constraint-and-least-tokens" in spared
    assert spared.isdisjoint({"concurrency", "greedy-stream", "neighbours", "text-features"})
    assert names(scenario=("crowd", "greedy-stream"), gentle=True) == {"probe", "greedy-stream"}


def test_how_a_server_comes_back_is_planned_only_where_somebody_says_it() -> None:
    assert planned(Settings()).revival is None
    assert planned(Settings(restart="go")).revival == Revival("go", RESTART_WAIT_S)
    assert planned(Settings(wait=5.0)).revival == Revival("", 5.0)
    assert planned(Settings(restart="go", wait=5.0)).revival == Revival("go", 5.0)


def test_a_scenario_that_is_left_out_and_does_not_exist_is_told(tokenwire) -> None:
    ran = tokenwire("check", "--target", "http://127.0.0.1:1", "--without", "crwd")
    assert ran.returncode == ExitStatus.USAGE
    assert "did you mean 'crowd'?" in ran.stderr
