"""The table of causes: one thing that an endpoint ignores is one cause, on recordings of real servers too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hand_made_stream import ids_stream
from live_captures import RECORDINGS

from tokenwire.ask import Asked
from tokenwire.checks.evidence import expect
from tokenwire.judging.causes import REQUESTS, cause_rows, causes
from tokenwire.judging.judge import Judgement, judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Place
from tokenwire.replay import replay
from tokenwire.requirement import load_requirements
from tokenwire.target.determinism import Comparison

FIXTURES = Path(__file__).parents[2] / "fixtures"
IGNORED, FOLLOWS, OTHER = (
    "prompt-tokens-count-the-input-ids",
    "same-ids-on-every-endpoint",
    "ids-are-token-ids",
)
BY_HAND = {
    # The budget less two, a stop found late, penalties beside neighbours, the status of a cut item.
    RECORDINGS / "blame-parrot.jsonl.gz": 4,
    # Ids of the prompt dropped, unknown fields dropped, malformed prompts, refusals in plain text. Of its
    # worker: zero budget, two ids of one choice, lost logprobs, null logprobs, a traceback, a token before a
    # refusal.
    FIXTURES / "sglang-router" / "0.3.2" / "live-quick.jsonl.gz": 10,
    # Zero budget, candidates keyed by text, dropped prompt logprobs, unasked prompt ids, booleans as ids, a
    # second shape of refusals, an echo without text.
    FIXTURES / "vllm" / "0.32.0-cpu" / "live-stock.jsonl.gz": 7,
    # One index for all choices, counts of zero, no prompt tokens at the start of a message, a budget of 16,
    # dropped fields, chunks without text, unnamed stops, unasked usage, status 500, unnamed events, a cut
    # response called complete, fields of the last event, choices of chat without an end. Of its worker: zero
    # budget, candidates keyed by text, lost logprobs, two of echoes, ignored ends, a schema that is none.
    FIXTURES / "litellm" / "1.106.2" / "live-four-endpoints.jsonl.gz": 20,
    # The reference engine with one fault: stop strings are shown.
    RECORDINGS / "stop-string-shown.jsonl.gz": 1,
}
"""Recordings, and the number of causes that a reader finds in them."""


def violated(requirement: str, *places: str, run: Run, verdict: Verdict = Verdict.FAIL) -> Judgement:
    found = tuple(expect(Place(name, pointer="/x"), 1, 2, "no", holds=False) for name in places)
    row = load_requirements()[requirement]
    return Judgement(row, places[0], verdict, reason="no", violations=found, run=run)


def run_of(*answers: tuple[str, bool]) -> Run:
    """Answers by name, and whether ids were sent."""
    streams = []
    for name, sent in answers:
        stream = ids_stream([1], name=name)
        streams.append(replace(stream, asked=replace(stream.asked, input_ids=((1,),) if sent else None)))
    return Run(tuple(streams))


def test_what_breaks_elsewhere_for_such_requests_follows_from_the_cause_at_its_endpoint() -> None:
    run = run_of(("cause", True), ("other", True))
    judgements = [violated(FOLLOWS, "other", run=run), violated(IGNORED, "cause", run=run)]
    assert causes(judgements).folded == {0: 1}


def test_what_the_table_does_not_name_or_asks_otherwise_or_is_elsewhere_has_a_cause_of_its_own() -> None:
    run = run_of(("cause", True), ("other", True), ("words", False))
    cause = violated(IGNORED, "cause", run=run)
    assert causes([violated(FOLLOWS, "words", run=run), cause]).folded == {}, "no ids were sent"
    assert causes([violated(FOLLOWS, "other", "words", run=run), cause]).folded == {}, "for one of both"
    assert causes([violated(OTHER, "other", run=run), cause]).folded == {}
    assert causes([violated(FOLLOWS, "other", run=run)]).folded == {}
    grave = violated(FOLLOWS, "other", run=run)
    assert causes([grave, replace(cause, verdict=Verdict.WARN)]).folded == {}, "it is graver"
    streams = (*run.streams[:1], replace(run.streams[1], dialect="vllm-generate"))
    elsewhere = replace(run, streams=streams)
    judgements = [violated(FOLLOWS, "other", run=elsewhere), violated(IGNORED, "cause", run=elsewhere)]
    assert causes(judgements).folded == {}, "another endpoint may keep them"


def test_a_cause_that_follows_from_another_explains_nothing_elsewhere() -> None:
    """A budget of zero is no reason for wrong counts of all other requests."""
    run = run_of(("zero", True), ("other", True))
    asked = replace(run.streams[1].asked, max_new_tokens=8)
    run = replace(run, streams=(run.streams[0], replace(run.streams[1], asked=asked)))
    counts = violated("script-counts-are-right", "other", run=run)
    budget = violated("budget-is-kept", "zero", run=run)
    assert causes([counts, budget]).folded == {0: 1}
    zero = violated("zero-budget-has-no-ids", "zero", run=run)
    assert causes([counts, budget, zero]).folded == {1: 2}


def test_a_prompt_that_grows_in_a_stream_is_one_cause() -> None:
    run = run_of(("ids", True), ("counts", True))
    grown = violated("prompt-ids-constant", "ids", run=run)
    counts = violated("prompt-tokens-constant", "counts", run=run)
    final = violated("stream-finish-equals-whole", "counts", run=run)
    scripted = violated("script-counts-are-right", "ids", run=run)
    assert causes([scripted, final, counts, grown]).folded == {0: 3, 1: 3, 2: 3}
    assert causes([scripted, final, counts]).folded == {0: 2, 1: 2}


def test_only_a_gateway_follows_from_what_gateways_do() -> None:
    run = run_of(("cause", True), ("other", True))
    gateway = replace(run, beside=(Comparison(run.streams[0], run.streams[1]),))
    for subject, folded in ((run, {}), (gateway, {0: 1})):
        judgements = [
            violated("seed-is-kept", "other", run=subject),
            violated("asked-or-refused", "cause", run=subject),
        ]
        assert causes(judgements).folded == folded


def test_a_field_that_a_gateway_drops_is_the_cause_of_the_missing_field() -> None:
    run = run_of(("asked", True), ("compared", True))
    run = replace(run, beside=(Comparison(run.streams[0], run.streams[1]),))
    missing = violated("asked-or-refused", "asked", run=run)
    dropped = violated("gateway-keeps-every-field", "compared", run=run)
    seed = violated("seed-is-kept", "asked", run=run)
    assert causes([missing, dropped, seed]).folded == {0: 1, 2: 1}
    assert causes([missing, seed]).folded == {1: 0}
    assert causes([missing, dropped], of_worker={0}).folded == {}, "the worker does not have the field either"
    warned = replace(dropped, verdict=Verdict.WARN)
    assert causes([missing, warned]).folded == {}, "the other is graver"


def test_the_rows_of_the_table_exist_and_ask_for_something() -> None:
    rows = load_requirements()
    for row in cause_rows():
        assert {row.cause, *row.follows} <= rows.keys()
        assert row.says
        assert row.cause not in row.follows
        assert REQUESTS[row.of](Asked()) is (row.of == "anything")


@pytest.mark.parametrize("capture", BY_HAND, ids=lambda path: f"{path.parent.parent.name}-{path.name}")
def test_the_causes_of_recorded_servers_are_about_as_many_as_a_reader_finds(capture: Path) -> None:
    judgements = judge(replay([capture]).runs)
    folded = causes(judgements).folded
    red = {
        judgement.requirement.id
        for position, judgement in enumerate(judgements)
        if judgement.verdict in {Verdict.FAIL, Verdict.WARN} and position not in folded
    }
    assert abs(len(red) - BY_HAND[capture]) <= 2, sorted(red)


def test_the_plainest_sentence_about_a_stop_that_is_shown_leads() -> None:
    """Four causes were told of one fault, and the first of them spoke of texts and ids."""
    judgements = judge(replay([RECORDINGS / "stop-string-shown.jsonl.gz"]).runs)
    folded = causes(judgements).folded
    failing = [n for n, judgement in enumerate(judgements) if judgement.verdict is Verdict.FAIL]
    follows = {judgements[n].requirement.id for n in failing if n in folded} - {"stop-string-not-shown"}
    assert {judgements[n].requirement.id for n in failing if n not in folded} == {"stop-string-not-shown"}
    assert follows == {"unmatched-stop-changes-nothing", "text-is-what-its-ids-say", "shown-text-stays"}
