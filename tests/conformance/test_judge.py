from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import pytest
from hand_made_stream import ids_stream
from hand_made_stream import made_up_row as row

from tokenwire.ask import Asked
from tokenwire.checks.check import CHECKS, Answers, Check, Target, once_per_run, select
from tokenwire.checks.evidence import Observation, condition_seen, expect
from tokenwire.judging import reasons
from tokenwire.judging.judge import combined, judge, judge_runs
from tokenwire.judging.observing import NO_SCENARIO
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import ExitStatus, Verdict, exit_status
from tokenwire.record import FACTS, Place, Stream
from tokenwire.replay import replay
from tokenwire.requirement import Level, Requirement, load_requirements
from tokenwire.target.advertised import Advertised
from tokenwire.target.determinism import Comparison

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch):
    def add(**checks: object) -> None:
        monkeypatch.setitem(CHECKS, "made-up", Check("made-up", **checks))  # type: ignore[arg-type]  # one of three

    return add


def every_emission_holds(stream: Stream, target: Target) -> Iterator[Observation]:
    for emission in stream.emissions():
        yield expect(emission.at("output_ids"), 1, 1)


def at_most_two_ids(stream: Stream, target: Target) -> Iterator[Observation]:
    for emission in stream.emissions():
        count = len(emission.output_ids or ())
        yield expect(emission.at("output_ids"), "at most 2", count, "too many", holds=count <= 2)


def only(requirement: Requirement, run: Run):
    judgements = judge([run], [requirement])
    assert len(judgements) == 1, judgements
    return judgements[0]


def test_enough_witnesses_pass(register) -> None:
    register(observe=every_emission_holds)
    judgement = only(row(), Run((ids_stream([1], [2]),)))
    assert (judgement.verdict, judgement.witnesses, judgement.scenario) == (Verdict.PASS, 2, "one")


def test_too_few_witnesses_are_inconclusive_and_say_so(register) -> None:
    register(observe=every_emission_holds)
    judgement = only(row(witnesses=3), Run((ids_stream([1], [2]),)))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "2 of the 3" in judgement.message


def test_witnesses_count_over_the_run_but_verdicts_are_per_scenario(register) -> None:
    register(observe=every_emission_holds)
    run = Run(
        (ids_stream([1], name="a", scenario="first"), ids_stream([1], [2], name="b", scenario="second"))
    )
    judgements = judge([run], [row(witnesses=3)])
    assert [(j.scenario, j.verdict, j.witnesses) for j in judgements] == [
        ("first", Verdict.PASS, 1),
        ("second", Verdict.PASS, 2),
    ]


@pytest.mark.parametrize(
    ("level", "verdict"),
    [(Level.MUST, Verdict.FAIL), (Level.SHOULD, Verdict.WARN), (Level.MAY, Verdict.INFO)],
)
def test_a_violation_weighs_by_its_level(register, level: Level, verdict: Verdict) -> None:
    register(observe=at_most_two_ids)
    judgement = only(row(level=level, witnesses=9), Run((ids_stream([1], [2, 3, 4], [5, 6, 7, 8]),)))
    assert judgement.verdict is verdict
    assert [v.place.event for v in judgement.violations] == [1, 2]
    assert judgement.message == "too many"


def test_a_condition_is_no_witness(register) -> None:
    def sees_only_the_condition(stream: Stream, target: Target) -> Iterator[Observation]:
        yield condition_seen(stream.events[0].place, "something")

    register(observe=sees_only_the_condition)
    judgement = only(
        row(witnesses=1, condition="the moon is full"), Run((ids_stream([1]), ids_stream([2], name="b")))
    )
    assert (judgement.verdict, judgement.witnesses) == (Verdict.INCONCLUSIVE, 0)


def test_nothing_seen_is_inconclusive_and_names_the_condition(register) -> None:
    register(observe=lambda stream, target: iter(()))
    judgement = only(row(condition="the moon is full"), Run((ids_stream([1]),)))
    assert (judgement.verdict, judgement.scenario) == (Verdict.INCONCLUSIVE, NO_SCENARIO)
    assert "the moon is full" in judgement.message


def test_a_check_that_raises_is_the_suites_fault_and_does_not_end_the_run(register) -> None:
    def breaks_in_one(stream: Stream, target: Target) -> Iterator[Observation]:
        yield from every_emission_holds(stream, target)
        if stream.exchange.scenario == "first":
            raise KeyError("oops")

    register(observe=breaks_in_one)
    run = Run(
        (ids_stream([1], name="a", scenario="first"), ids_stream([1], [2], name="b", scenario="second"))
    )
    first, second = judge([run], [row()])
    assert first.verdict is Verdict.HARNESS_ERROR
    assert "KeyError" in first.message
    assert "breaks_in_one" in first.message
    assert second.verdict is Verdict.PASS
    assert exit_status([first.verdict, second.verdict]) == ExitStatus.HARNESS_ERROR


def test_a_requirement_without_a_check_is_a_harness_error() -> None:
    assert only(row(id="nobody-checks-this"), Run((ids_stream([1]),))).verdict is Verdict.HARNESS_ERROR


def test_an_absent_capability_is_unsupported_and_says_which(register) -> None:
    register(observe=at_most_two_ids)
    stream = ids_stream([1, 2, 3])
    asked = replace(stream, asked=replace(stream.asked, return_prompt_token_ids=True))
    judgement = only(row(applies_when=("output-ids", "prompt-token-ids")), Run((asked,)))
    assert judgement.verdict is Verdict.UNSUPPORTED
    assert "prompt-token-ids: no answer carries prompt_token_ids" in judgement.message
    assert "output-ids" not in judgement.message


def test_an_instrumented_contract_without_instruments_is_not_testable_and_says_how(register) -> None:
    register(observe=every_emission_holds)
    judgement = only(row(contract="instrumented", applies_when=("mirror-sampler",)), Run((ids_stream([1]),)))
    assert judgement.verdict is Verdict.NOT_TESTABLE
    assert "--sampling-backend mirror" in judgement.message


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("contract", ["blackbox", "instrumented"])
def test_what_is_declared_and_not_shown_is_a_violation(register, level: Level, contract: str) -> None:
    register(observe=every_emission_holds)
    row_of_logprobs = row(level=level, contract=contract, applies_when=("text", "logprobs"))
    run = Run((ids_stream([1], [2]),), declared=frozenset({"logprobs", "text"}))
    judgement = only(row_of_logprobs, run)
    assert judgement.verdict is {"MUST": Verdict.FAIL, "SHOULD": Verdict.WARN, "MAY": Verdict.INFO}[level]
    assert judgement.message == "logprobs is declared, but no answer carries output logprobs"
    assert not judgement.violations[0].holds
    silent = Run((ids_stream([1], name="other"),), name="b.jsonl")
    assert judge([run, silent], [row_of_logprobs])[0].verdict is judgement.verdict


def test_what_is_declared_and_shown_is_judged_as_ever(register) -> None:
    register(observe=at_most_two_ids)
    run = Run((ids_stream([1], [2]),), declared=frozenset({"text"}))
    assert only(row(applies_when=("text",)), run).verdict is Verdict.PASS


def test_an_excluded_row_gives_its_reason() -> None:
    judgement = only(row(excluded="cannot be seen on the wire"), Run((ids_stream([1]),)))
    assert (judgement.verdict, judgement.message) == (Verdict.NOT_TESTABLE, "cannot be seen on the wire")


def test_a_run_without_any_record_passes_nothing(register) -> None:
    def likes_headers(stream: Stream, target: Target) -> Iterator[Observation]:
        for _ in range(5):
            yield expect(stream.events[0].place, "application/json", "application/json")

    register(observe=likes_headers)
    judgement = only(row(), Run((ids_stream([1], answered=False),)))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "answered by a record" in judgement.message


# Across responses


def equal_ids(pair: Comparison, target: Target) -> Iterator[Observation]:
    ours, theirs = pair.baseline.choices[0].output_ids, pair.other.choices[0].output_ids
    places = pair.other.events[0].place, (pair.baseline.events[0].place,)
    yield expect(places[0], ours, theirs, related=places[1], by_chance=True)


def renamed(stream: Stream, name: str) -> Stream:
    """The same answer, given once more."""
    return replace(stream, exchange=replace(stream.exchange, name=name))


def compared(*streams: Stream) -> Run:
    return Run(streams)


def test_comparisons_need_a_target_that_repeats_itself(register) -> None:
    register(on_comparison=equal_ids)
    across = row(oracle="across-responses", witnesses=1)
    whole = ids_stream([1, 2], name="w", stream=False, scenario="wholes")
    again = replace(whole, exchange=replace(whole.exchange, name="w2"))
    streamed = ids_stream([1], [3], name="s", scenario="streams")

    alone = only(across, compared(whole, streamed))
    assert alone.verdict is Verdict.INCONCLUSIVE
    assert "no repetition shows otherwise" in alone.message

    streamed_again = replace(streamed, exchange=replace(streamed.exchange, name="s2"))
    doubted = only(across, compared(whole, streamed, streamed_again))
    assert doubted.verdict is Verdict.INCONCLUSIVE
    assert "was answered once" in doubted.message
    counted = only(across, compared(whole, again, streamed))
    assert counted.verdict is Verdict.WARN, "the whole answer was repeated, and only the stream differs"
    seen = only(across, compared(whole, again, streamed, streamed_again))
    assert (seen.verdict, seen.scenario) == (Verdict.FAIL, "streams")
    assert seen.violations[0].expected == [1, 2]


def beside(*, repeats: bool = True, second: int = 2) -> Run:
    worker = ids_stream([1, 2], name="sglang-generate/worker/a", stream=False, scenario="worker")
    gateway = ids_stream([1, second], name="sglang-generate/gateway/a", stream=False, scenario="gateway")
    return Run((ids_stream([7]),), beside=(Comparison(worker, gateway, repeats),))


def test_gateways_are_compared_with_a_worker_and_without_one_not_at_all(register) -> None:
    register(on_comparison=equal_ids)
    across = row(oracle="across-targets", witnesses=1, applies_when=("output-ids",))
    alone = only(across, Run((ids_stream([7]),)))
    assert alone.verdict is Verdict.NOT_TESTABLE
    assert "--worker URL" in alone.message
    assert only(across, beside()).verdict is Verdict.PASS
    assert only(across, beside(second=3)).verdict is Verdict.INCONCLUSIVE
    (pair,) = beside(second=3).beside
    again = Comparison(renamed(pair.baseline, "w-2"), renamed(pair.other, "g-2"))
    judgement = only(across, replace(beside(second=3), beside=(pair, again)))
    assert (judgement.verdict, judgement.scenario) == (Verdict.FAIL, "gateway")
    assert judgement.run.by_exchange["sglang-generate/gateway/a"].choices[0].output_ids == [1, 3]


def test_what_a_gateway_owes_applies_where_either_side_shows_it(register) -> None:
    register(on_comparison=equal_ids)
    row_of_logprobs = row(oracle="across-targets", witnesses=1, applies_when=("logprobs",))
    run = beside()
    assert only(row_of_logprobs, run).verdict is Verdict.UNSUPPORTED
    (pair,) = run.beside
    worker = ids_stream([1, 2], stream=False, series={"output_token_logprobs": [[[-1.0, 1, None]]]})
    shown = replace(run, beside=(replace(pair, baseline=worker),))
    assert only(row_of_logprobs, shown).verdict is Verdict.PASS


def test_a_worker_that_does_not_repeat_itself_is_told(register) -> None:
    def of_those_that_repeat(pair: Comparison, target: Target) -> Iterator[Observation]:
        yield from equal_ids(pair, target) if pair.repeats else ()

    register(on_comparison=of_those_that_repeat)
    judgement = only(row(oracle="across-targets", witnesses=1), beside(repeats=False))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "0 where both servers repeat their answers" in judgement.message


def test_a_target_that_contradicts_itself_is_not_compared(register) -> None:
    register(on_comparison=equal_ids)
    across = row(oracle="across-responses", witnesses=1)
    wholes = [ids_stream([1, second], name=f"w{i}", stream=False) for i, second in enumerate((2, 2, 3))]
    judgement = only(across, compared(*wholes, ids_stream([1], [9], name="s")))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "did not repeat itself" in judgement.message


def test_a_greedy_probe_does_not_speak_for_sampled_requests(register) -> None:
    register(on_comparison=equal_ids)
    across = row(oracle="across-responses", witnesses=1)
    probes = [ids_stream([7], name=f"p{i}", stream=False, scenario="probe", key="probe") for i in range(2)]
    pair = [ids_stream([1, 2], name="w", stream=False), ids_stream([1], [2], name="s")]
    assert only(across, compared(*pair, *probes)).verdict is Verdict.PASS
    sampled = [replace(item, asked=replace(item.asked, greedy=False, seed=7)) for item in pair]
    assert only(across, compared(*sampled, *probes)).verdict is Verdict.INCONCLUSIVE
    assert only(across, compared(*sampled, renamed(sampled[0], "w-2"))).verdict is Verdict.PASS


def test_streams_that_differ_do_not_switch_off_their_own_comparison(register) -> None:
    register(on_comparison=equal_ids)
    across = row(oracle="across-responses", witnesses=1)
    wholes = [ids_stream([1, 2], name=f"w{i}", stream=False) for i in range(2)]
    often = Asked(stream=True, key="k", greedy=True, stream_interval=1)
    losing = [ids_stream([1], [], name=f"s{i}", asked=often) for i in (2, 3)]
    streams = [ids_stream([1], [2], name="s1"), *losing]
    assert only(across, compared(*wholes, *streams)).verdict is Verdict.FAIL


def test_what_no_chance_explains_is_a_violation_though_the_target_contradicts_itself(register) -> None:
    def loses(streams: tuple[Stream, ...], target: Target) -> Iterator[Observation]:
        for stream in streams:
            yield expect(stream.events[0].place, 1, 2)

    register(on_run=loses)
    wholes = [ids_stream([i], name=f"w{i}", stream=False, key="shaky") for i in range(2)]
    assert only(row(oracle="across-responses", witnesses=1), Run(tuple(wholes))).verdict is Verdict.FAIL


def test_several_runs_tell_what_was_seen_and_silence_only_once(register) -> None:
    register(observe=every_emission_holds)
    with_series = ids_stream([1], [2], name="a", scenario="file-a", series={"x": [[1], [2]]})
    without = ids_stream([1], name="b", scenario="file-b")
    runs = [Run((with_series,), name="a.jsonl"), Run((without,), name="b.jsonl")]
    seen = judge(runs, [row(applies_when=("series",))])
    assert [(j.scenario, j.verdict) for j in seen] == [("file-a", Verdict.PASS)]
    silent = judge(runs, [row(applies_when=("usage",))])
    assert [(j.scenario, j.verdict) for j in silent] == [(NO_SCENARIO, Verdict.UNSUPPORTED)]


def test_checks_are_told_what_is_known_of_the_target(register) -> None:
    found: list[Target] = []

    def remember(stream: Stream, target: Target) -> Iterator[Observation]:
        found.append(target)
        yield from every_emission_holds(stream, target)

    register(observe=remember)
    only(row(), Run((ids_stream([1], [2]),), Advertised(stream_interval=4)))
    assert found[0].stream_interval == 4
    assert {"stream", "output-ids", "text", "incremental", "input-ids"} <= found[0].capabilities
    assert "cumulative" not in found[0].capabilities


def test_what_is_seen_in_an_answer_that_says_nothing_is_no_witness(register) -> None:
    """Of a server that answered one request and then gave an empty document to each, one answer speaks."""

    def begins(stream: Stream, target: Target) -> Iterator[Observation]:
        yield expect(Place(stream.exchange.name), 200, stream.exchange.status)

    register(observe=begins)
    answered, again = ids_stream([1]), ids_stream([1], name="generate/again")
    empty = [replace(ids_stream([1], name=f"generate/{number}"), choices=()) for number in range(3)]
    assert only(row(), Run((answered, again, *empty))).witnesses == 2
    judgement = only(row(), Run((answered, *empty)))
    assert (judgement.verdict, judgement.witnesses) == (Verdict.INCONCLUSIVE, 1)


def test_reasons_of_what_was_not_judged_are_computed_when_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed: list[str] = []
    monkeypatch.setattr(reasons, "not_asked", lambda requirement, _run: computed.append(requirement.id) or "")
    unjudged = [row for row in judge([Run((ids_stream([1]),))]) if row.verdict is Verdict.UNSUPPORTED]
    assert not computed
    assert "1 answers" in unjudged[0].message
    assert computed == [unjudged[0].requirement.id]


def test_processes_that_share_the_work_give_the_same_verdicts() -> None:
    names = ("E_skiptok.jsonl.gz", "F_mirror.jsonl.gz")
    subject = replay([FIXTURES / "sglang" / "0.5.23" / name for name in names])
    rows = list(load_requirements().values())[::5]
    alone = judge(subject.runs, rows)
    shared = combined(judge_runs(subject.runs, rows, jobs=2))
    assert shared == alone
    assert [item.message for item in shared] == [item.message for item in alone]
    assert all(item.run is other.run for item, other in zip(shared, alone, strict=True))
    assert {judgement.verdict for judgement in shared} >= {Verdict.PASS, Verdict.UNSUPPORTED}


def test_a_process_that_is_killed_ends_the_judging(register) -> None:
    def kills_its_process(stream: Stream, target: Target) -> Iterator[Observation]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield from every_emission_holds(stream, target)

    register(observe=kills_its_process)
    with pytest.raises(BrokenProcessPool):
        judge_runs([Run((ids_stream([1]),))], [row()], jobs=2)


@pytest.fixture
def _facts_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts that a test declares go with it."""
    monkeypatch.setitem(FACTS, Stream, dict(FACTS[Stream]))


@pytest.mark.usefixtures("_facts_of_this_test")
def test_a_selection_asks_each_answer_once() -> None:
    asked: list[str] = []

    @select
    def named_a(stream: Stream) -> bool:
        asked.append(stream.exchange.name)
        return stream.exchange.name == "a"

    first, second = (
        replace(stream, exchange=replace(stream.exchange, name=name))
        for stream, name in ((ids_stream([1]), "a"), (ids_stream([2]), "b"))
    )
    answers = Answers((first, second))
    assert (named_a(answers), named_a(answers), named_a(Answers((second,)))) == ([first], [first], [])
    assert asked == ["a", "b"]
    assert named_a((second, first)) == [first]


@pytest.mark.usefixtures("_facts_of_this_test")
def test_a_selection_that_raises_fails_for_those_alone_who_ask_for_it() -> None:
    @select
    def broken(stream: Stream) -> bool:
        raise RuntimeError(f"cannot tell of {stream.exchange.name}")

    @select
    def every(stream: Stream) -> bool:
        return True

    answers = Answers((ids_stream([1]),))
    assert every(answers) == list(answers)
    with pytest.raises(RuntimeError, match="cannot tell of"):
        broken(answers)


def test_what_several_checks_compute_from_a_run_is_computed_once() -> None:
    computed: list[int] = []

    @once_per_run
    def count(streams: tuple[Stream, ...]) -> int:
        computed.append(len(streams))
        return len(streams)

    answers = Answers((ids_stream([1]), ids_stream([2])))
    assert [count(answers), count(answers), count(Answers(answers[:1]))] == [2, 2, 1]
    assert computed == [2, 1]
    assert [count(tuple(answers)), count(tuple(answers))] == [2, 2]
    assert computed == [2, 1, 2, 2]
