"""What leads a report: the first thing that failed, at its first event, with what decides it in sight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from finish_and_error_pairs import USAGE_EVENT, asking
from hand_made_stream import ids_stream
from item_answers import events, message, responded, responded_whole, response
from item_pairs import changed, scored, where
from stream_builder import Reply, append, incremental

from tokenwire.ask import Asked
from tokenwire.checks.check import CHECKS, Target
from tokenwire.checks.evidence import expect
from tokenwire.judging.causes import causes
from tokenwire.judging.judge import Judgement, Run, judge
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Place, Stream
from tokenwire.report.document import document
from tokenwire.report.excerpt import excerpt
from tokenwire.report.overview import overview
from tokenwire.report.reproduction import curl
from tokenwire.report.subject import Subject
from tokenwire.report.wording import value
from tokenwire.requirement import load_requirements
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest

ROWS = load_requirements()
RUN = Run(())


def seen(requirement: str, stream: Stream) -> list[Any]:
    observe = CHECKS[requirement].observe
    assert observe is not None
    return [observation for observation in observe(stream, Target()) if not observation.holds]


def test_choices_under_one_index_are_not_an_ignored_n() -> None:
    """Both choices of n = 2 came, and stood under index 0."""
    both = append(incremental(Reply(), n=2, batch=True), replace)
    (mixed,) = seen("choices-complete", both)
    assert mixed.message.startswith("2 finish reasons have the index 0: the answer has ")
    assert mixed.place.event == both.choices[0].emissions[-1].event.index
    (ignored,) = seen("choices-complete", incremental(Reply(), n=2, batch=True))
    assert ignored.message.startswith("n was ignored: ")


def test_the_usage_of_choices_that_are_missing_is_no_ones() -> None:
    """`usage.completion_tokens is 24 for max_tokens 12` followed from a choice that was not to be seen."""
    spent = Reply(ids=None, counted=False)
    of_two = incremental(spent, n=2, batch=True, usage={"completion_tokens": 2 * spent.size})
    assert seen("budget-is-kept", of_two) == []
    of_one = incremental(spent, usage={"completion_tokens": 2 * spent.size})
    assert seen("budget-is-kept", of_one)


def test_the_count_of_a_response_is_shown_where_it_stands() -> None:
    """`usage.completion_tokens`, of an answer that calls it `output_tokens`."""
    (over,) = seen("budget-is-kept", responded_whole(response(message()), max_output_tokens=1))
    assert over.message == "usage counts 2 tokens for max_output_tokens 1"
    assert over.place.pointer == "/usage"


def test_what_deltas_join_to_is_not_spelled_out_in_a_sentence() -> None:
    done = scored(events(message("Yes." * 25)), ["Ye", "s."] * 25)
    place = where(done, "response.output_text.done")
    (differs,) = seen("deltas-add-up", responded(*changed(done, place, logprobs=[])))
    assert len(differs.message) < 80
    assert len(differs.expected) == 50


def test_no_character_is_pointed_out_in_words_on_usage() -> None:
    (early,) = seen("usage-comes-last", asking(USAGE_EVENT, usage=True))
    assert not isinstance(early.actual, str)


def violated(requirement: str, *places: Place, scenario: str = "one") -> Judgement:
    row = ROWS[requirement]
    found = tuple(
        expect(place, "right", "wrong", f"{place.pointer} is wrong", holds=False) for place in places
    )
    return Judgement(row, scenario, Verdict.FAIL, 1, found[0].message, found, run=RUN)


def test_what_nothing_explains_is_shown_first_and_a_requirement_has_one_cause() -> None:
    """`wrong-types-refused` stood under another cause, and in a block with what was explained there."""
    budget, other = Place("a/one", 0, "/max"), Place("a/two", 0, "/temperature")
    broken = violated("finish-comes-last", budget)
    mixed = violated("request-id-constant", budget, other, scenario="two")
    explained = violated("request-id-constant", budget)
    found = causes([broken, mixed, explained])
    assert found.leading(1, mixed).message == "/temperature is wrong"
    report = document(Subject(url="http://h:1", runs=(RUN,)), [broken, mixed, explained], 1)
    assert {cause["requirement"]: cause["follow"] for cause in report["causes"]} == {
        "finish-comes-last": [],
        "request-id-constant": [],
    }
    shown = {summary.requirement: summary.shown for summary in overview(report).summaries}
    assert [row["exhibit"]["message"] for row in shown["request-id-constant"]] == ["/temperature is wrong"]


def test_a_requirement_is_shown_by_the_way_in_which_most_of_its_scenarios_fail() -> None:
    """One answer whose call had no end stood for 15 scenarios whose texts had lost their last characters."""
    rare = violated("script-text-is-right", Place("a/call", 0, "/call"), scenario="channels")
    often = [
        violated("script-text-is-right", Place(f"a/{n}", 0, "/tail"), scenario=f"tails-{n}") for n in range(3)
    ]
    report = document(Subject(url="http://h:1", runs=(RUN,)), [rare, *often], 1)
    (summary,) = [found for found in overview(report).summaries if found.bad]
    assert [row["scenario"] for row in summary.shown] == ["tails-0", "tails-1", "tails-2", "channels"]
    even = document(Subject(url="http://h:1", runs=(RUN,)), [rare, often[0]], 1)
    (summary,) = [found for found in overview(even).summaries if found.bad]
    assert [row["scenario"] for row in summary.shown] == ["channels", "tails-0"]


@pytest.mark.parametrize("leading", ["requests-do-not-break-the-server", "events-fit-schema"])
def test_a_server_that_fails_and_what_fits_no_schema_lead(leading: str) -> None:
    every = [
        violated("finish-comes-last", Place("a/one", 0, "/x")),
        violated(leading, Place("a/two", 0, "/y")),
    ]
    report = document(Subject(url="http://h:1", runs=(RUN,)), every, 1)
    assert [cause["requirement"] for cause in report["causes"]] == [leading, "finish-comes-last"]


def test_the_first_illegal_event_is_that_of_all_choices() -> None:
    """Of three choices that showed a stop string, the first to do so was choice 2, not choice 0."""
    late = append(incremental(Reply(), Reply(), Reply()), replace, choice=0)
    early = late.choices[2].emissions[-1]
    second = replace(early, event=late.events[early.event.index])
    choice = replace(late.choices[2], emissions=(*late.choices[2].emissions, second))
    both = replace(late, choices=(*late.choices[:2], choice))
    row = ROWS["one-finish-per-choice"]
    (judgement,) = judge([Run((both,))], [row])
    events = [violation.place.event for violation in judgement.violations]
    assert len(events) == 2
    assert events == sorted(events)


def test_of_several_choices_the_index_is_kept() -> None:
    stream = ids_stream((1, 2), asked=Asked(stream=True, n=2, input_ids=((1,),)))
    data = {"id": "c" * 99, "choices": [{"index": 1, "text": "QZ", "more": "x" * 99}]}
    emission = replace(stream.choices[0].emissions[0], pointers={"text": "/choices/0/text"})
    choice = replace(stream.choices[0], emissions=(emission,))
    stream = replace(stream, choices=(choice,), events=(replace(stream.events[0], data=data),))
    shown = '{… "choices":[{"index":1,"text":"QZ" …}]}'
    assert excerpt(stream, stream.events[0], "/choices/0/text").text.removeprefix("data: ") == shown
    assert excerpt(stream, stream.events[0], "").text.removeprefix("data: ") == shown


def test_blanks_that_a_reader_would_not_see_are_shown() -> None:
    assert [value(text) for text in ("sat ", "  sat", "a  b c")] == ["sat␠", "␠␠sat", "a␠␠b c"]


def test_a_curl_line_holds_the_headers_that_change_an_answer() -> None:
    headers = (
        ("Host", "127.0.0.1:1"),
        ("authorization", "[redacted]"),
        ("x-stainless-os", "Linux"),
        ("Content-Length", "184"),
        ("x-tokenwire-fault", "stop"),
    )
    request = HttpRequest("POST", "/generate", {}, headers=headers)
    line = curl(Exchange("a", request, "s", 200, (), (), Ending.COMPLETE), "http://h:1")
    assert line == (
        "curl -sN -X POST http://h:1/generate -H \"authorization: Bearer $KEY\" -H 'x-tokenwire-fault: stop' "
        "-H 'Content-Type: application/json' --data-binary '{}'"
    )
